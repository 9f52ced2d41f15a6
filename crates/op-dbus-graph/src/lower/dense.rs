//! Dense modules, between pooling and normalisation.

use crate::encoder::{Dense, DenseActivation};
use crate::onnx::writer::GraphWriter;

/// Sends `pooled` (`[batch, inputs]`) through `modules`.
pub(super) fn apply(graph: &mut GraphWriter, modules: &[Dense<'_>], pooled: &str) -> String {
    let numbered = modules.iter().enumerate();
    numbered.fold(pooled.to_owned(), |input, (number, dense)| one(graph, dense, number, &input))
}

fn one(graph: &mut GraphWriter, dense: &Dense<'_>, number: usize, input: &str) -> String {
    let name = format!("dense.{number}");
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
        DenseActivation::Tanh => graph.node("Tanh", &[&value], &name),
        DenseActivation::Relu => graph.node("Relu", &[&value], &name),
        DenseActivation::Gelu => graph.microsoft("Gelu", &[&value], &name, Vec::new()),
        DenseActivation::Sigmoid => graph.node("Sigmoid", &[&value], &name),
        DenseActivation::Silu => {
            let gate = graph.node("Sigmoid", &[&value], &format!("{name}.gate"));
            graph.node("Mul", &[&value, &gate], &name)
        }
    }
}
