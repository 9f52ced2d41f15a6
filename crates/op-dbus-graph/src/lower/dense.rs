//! Dense modules, between pooling and normalisation.

use super::operators::Operators;
use crate::encoder::{Dense, DenseActivation};
use crate::onnx::writer::GraphWriter;

/// Sends `pooled` (`[batch, inputs]`) through `modules`.
pub(super) fn apply(
    graph: &mut GraphWriter,
    operators: &dyn Operators,
    modules: &[Dense<'_>],
    pooled: &str,
) -> String {
    modules.iter().enumerate().fold(pooled.to_owned(), |input, (number, dense)| {
        one(graph, operators, dense, (&format!("dense.{number}"), &input))
    })
}

fn one(
    graph: &mut GraphWriter,
    operators: &dyn Operators,
    dense: &Dense<'_>,
    (name, input): (&str, &str),
) -> String {
    let (weight, sum) = (format!("{name}.weight"), format!("{name}.sum"));
    let dims = [dense.linear.columns(), dense.linear.rows()];
    graph.floats(&weight, &dims, dense.linear.transposed());
    let mut value = graph.node("MatMul", &[input, &weight], &format!("{name}.product"));
    if let Some(bias) = &dense.bias {
        let bias_name = format!("{name}.bias");
        graph.floats(&bias_name, &[bias.columns()], bias.bytes().to_vec());
        value = graph.node("Add", &[&value, &bias_name], &sum);
    }
    match dense.activation {
        DenseActivation::Identity => value,
        DenseActivation::Tanh => graph.node("Tanh", &[&value], name),
        DenseActivation::Relu => graph.node("Relu", &[&value], name),
        DenseActivation::Gelu => operators.gelu(graph, &format!("{name}.gelu"), &value),
        DenseActivation::Sigmoid => graph.node("Sigmoid", &[&value], name),
        DenseActivation::Silu => {
            let gate = graph.node("Sigmoid", &[&value], &format!("{name}.gate"));
            graph.node("Mul", &[&value, &gate], name)
        }
    }
}
