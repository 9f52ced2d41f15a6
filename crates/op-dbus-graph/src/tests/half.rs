//! Graphs in half precision: what is in 16 bits, what is not, and what is refused.

use std::collections::HashMap;

use half::f16;

use super::tiny::{self, Tiny};
use crate::onnx::{FLOAT, FLOAT16, Graph, INT32, INT64, Node};
use crate::{Dialect, Family, Pooling, Precision};

const BOOL: i32 = 9;

fn halved(mut model: Tiny, dialect: Dialect) -> Tiny {
    model.recipe.target.precision = Precision::F16;
    model.recipe.target.dialect = dialect;
    model
}

/// The element type of every value of a graph, as the operators make them of each other; asserts
/// that no operator is given floats of two kinds.
fn types(graph: &Graph) -> HashMap<&str, i32> {
    let given = graph.initializer.iter().map(|tensor| (&*tensor.name, tensor.data_type));
    let mut types: HashMap<&str, i32> = given.collect();
    types.extend(graph.input.iter().map(|input| (&*input.name, INT32)));
    // An optional input that is not given.
    types.insert("", INT32);
    for node in &graph.node {
        let inputs: Vec<i32> = node.input.iter().map(|input| types[&**input]).collect();
        let floats: Vec<i32> =
            inputs.iter().copied().filter(|of| [FLOAT, FLOAT16].contains(of)).collect();
        assert!(floats.windows(2).all(|pair| pair[0] == pair[1]), "{} of {inputs:?}", node.name);
        let made = match &*node.op_type {
            "Cast" => i32::try_from(node.attribute[0].i.unwrap()).unwrap(),
            "Shape" => INT64,
            "Less" => BOOL,
            "Where" => inputs[1],
            _ => inputs[0],
        };
        types.insert(&node.output[0], made);
    }
    types
}

/// The products of the encoder: not that of the pooling, nor those of Dense modules.
fn is_product(node: &Node) -> bool {
    node.op_type == "MatMul" && node.name.starts_with("layer.")
}

#[test]
fn products_are_of_halves_and_all_that_sums_is_not() {
    const SUMS: [&str; 7] = [
        "LayerNormalization",
        "SkipLayerNormalization",
        "Softmax",
        "ReduceSum",
        "ReduceL2",
        "ReduceMax",
        "Div",
    ];
    for dialect in [Dialect::OnnxRuntime, Dialect::Onnx] {
        for model in Tiny::all() {
            for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Max] {
                let mut model = halved(model.clone().with_dense(&[(3, "Tanh")]), dialect);
                model.recipe.pooling = pooling;
                let graph = model.graph();
                let types = types(&graph);
                assert_eq!(types["embedding"], FLOAT);
                let operands = graph.node.iter().filter(|node| is_product(node));
                let products = operands.clone().count();
                let attention = if dialect == Dialect::Onnx { 2 } else { 0 };
                assert_eq!(products, tiny::LAYERS * (6 + attention));
                for node in operands.clone() {
                    assert_eq!(types[&*node.input[0]], FLOAT16, "{}", node.name);
                }
                for node in graph.node.iter().filter(|node| SUMS.contains(&&*node.op_type)) {
                    assert_eq!(types[&*node.input[0]], FLOAT, "{}", node.name);
                }
            }
        }
    }
}

/// The kernels that compute without padding sum halves in 32 bits by themselves.
#[test]
fn without_padding_the_blocks_are_of_halves_and_the_pooling_is_not() {
    for model in Tiny::all() {
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Max] {
            let mut model = halved(model.clone(), Dialect::Packed);
            model.recipe.pooling = pooling;
            let graph = model.graph();
            let types = types(&graph);
            assert_eq!((types["rows"], types["embedding"]), (FLOAT16, FLOAT));
            let casts = graph.node.iter().filter(|node| node.op_type == "Cast");
            let casts: Vec<&str> = casts.map(|node| &*node.input[0]).collect();
            assert!(casts.contains(&"rows") && casts.iter().all(|of| !of.starts_with("layer.")));
        }
    }
}

#[test]
fn a_graph_in_32_bits_has_none_in_16() {
    for dialect in [Dialect::OnnxRuntime, Dialect::Packed, Dialect::Onnx] {
        for mut model in Tiny::all() {
            model.recipe.target.dialect = dialect;
            let graph = model.graph();
            assert!(types(&graph).values().all(|of| *of != FLOAT16));
        }
    }
}

#[test]
fn weights_are_rounded_to_the_nearest_half() {
    let model = halved(Tiny::new(Family::Bert), Dialect::Onnx);
    let graph = model.graph();
    let (_, words) = &model.tensors["embeddings.word_embeddings.weight"];
    let found = graph.initializer.iter().find(|tensor| tensor.name == "words").unwrap();
    let found = found.raw_data.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes));
    let expected: Vec<f16> = words.iter().map(|value| f16::from_f32(*value)).collect();
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_weight_beyond_16_bits_is_refused_by_name() {
    let mut model = Tiny::new(Family::Bert);
    let name = "encoder.layer.1.output.dense.weight";
    model.tensors.get_mut(name).unwrap().1[5] = -70_000.0;
    assert!(model.compile().is_ok());
    for dialect in [Dialect::OnnxRuntime, Dialect::Onnx] {
        let message = halved(model.clone(), dialect).compile().unwrap_err().to_string();
        for part in ["precision is f16", "-70000 in layer.1.down.weight", "65504", "f32"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
