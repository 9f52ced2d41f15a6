//! The forms of graphs without padding: what each is made of, and that it computes the same.

use prost::Message;

use super::compile::{check_names, values};
use super::half::types;
use super::tiny::{self, HEADS, HIDDEN, LAYERS, Tiny};
use crate::lower::{Packing, lower_with};
use crate::onnx::{FLOAT, FLOAT16, Graph, INT32, Model, Node};
use crate::{DenseFiles, Dialect, Family, ModelFiles, Pooling, Precision};

const APART: Packing = Packing { apart: true, gathers: false, narrow_mean: false };
const GATHERS: Packing = Packing { apart: false, gathers: true, narrow_mean: false };
const NARROW: Packing = Packing { apart: false, gathers: true, narrow_mean: true };
const ALL: Packing = Packing { apart: true, gathers: true, narrow_mean: true };
const FORMS: [Packing; 5] =
    [Packing { apart: false, gathers: false, narrow_mean: false }, APART, GATHERS, NARROW, ALL];

fn bytes_of(model: &Tiny, packing: Packing) -> Vec<u8> {
    let weights = tiny::safetensors(&model.tensors);
    let modules: Vec<_> = model.dense.iter().map(|(_, dense)| tiny::safetensors(dense)).collect();
    let configs = model.dense.iter().map(|(config, _)| config);
    let dense = configs.zip(&modules).map(|(config, weights)| DenseFiles { config, weights });
    let (family, config, dense) = (model.family, &model.config, dense.collect());
    let files = ModelFiles { family, config, weights: &weights, dense };
    lower_with(&crate::read(&files).unwrap(), &model.recipe, packing).unwrap()
}

fn graph_of(model: &Tiny, packing: Packing) -> Graph {
    Model::decode(&*bytes_of(model, packing)).unwrap().graph.unwrap()
}

fn packed(mut model: Tiny, precision: Precision) -> Tiny {
    model.recipe.target.dialect = Dialect::Packed;
    model.recipe.target.precision = precision;
    model
}

fn count(graph: &Graph, operator: &str) -> usize {
    graph.node.iter().filter(|node| node.op_type == operator).count()
}

fn node<'g>(graph: &'g Graph, name: &str) -> &'g Node {
    graph.node.iter().find(|node| node.name == name).unwrap()
}

#[test]
fn every_form_is_whole_and_mixes_no_precisions() {
    for model in Tiny::all() {
        for precision in [Precision::F32, Precision::F16] {
            for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Max] {
                for (packing, normalize) in FORMS.iter().flat_map(|of| [(of, true), (of, false)]) {
                    let model = model.clone().with_dense(&[(3, "Tanh")]);
                    let mut model = packed(model, precision);
                    model.recipe.pooling = pooling;
                    model.recipe.normalize = normalize;
                    let graph = graph_of(&model, *packing);
                    check_names(&graph);
                    assert_eq!(types(&graph)["embedding"], FLOAT, "{packing:?}");
                    let names: Vec<&str> = graph.input.iter().map(|input| &*input.name).collect();
                    let gathered = names.len() == 6 && names[5] == "places";
                    assert_eq!(gathered, packing.gathers, "{names:?}");
                    let used = graph.node.iter().any(|node| node.input.contains(&"places".into()));
                    assert_eq!(used, packing.gathers);
                }
            }
        }
    }
}

#[test]
fn graphs_with_padding_have_one_form() {
    for dialect in [Dialect::OnnxRuntime, Dialect::Onnx] {
        for mut model in Tiny::all() {
            model.recipe.target.dialect = dialect;
            assert_eq!(bytes_of(&model, ALL), bytes_of(&model, Packing::default()));
        }
    }
}

#[test]
fn apart_the_attention_is_given_three_products_and_no_bias() {
    for model in Tiny::all() {
        let model = packed(model, Precision::F16);
        let graph = graph_of(&model, APART);
        assert_eq!((count(&graph, "Gemm"), count(&graph, "Reshape")), (LAYERS, 0));
        assert_eq!(count(&graph, "MatMul"), 5 * LAYERS + 1);
        let attention = node(&graph, "layer.1.attention");
        let mut inputs: Vec<_> = ["query", "key", "value"].map(|of| format!("layer.1.{of}")).into();
        inputs.extend(["", "token_offset", "cumulative_lengths"].map(str::to_owned));
        if model.family == Family::Mpnet {
            inputs.push("attention_bias".to_owned());
        }
        assert_eq!(attention.input, inputs);
        let query = &node(&graph, "layer.1.query").input;
        assert_eq!(query[1..], ["layer.1.query.weight", "layer.1.query.bias"]);
        for name in ["heads.apart", "layer.1.key.bias", "layer.1.value.bias"] {
            assert!(graph.initializer.iter().all(|tensor| tensor.name != name), "{name}");
        }
    }
}

#[test]
fn rows_are_gathered_as_halves_and_pooled_as_told() {
    // Where the pooled vector, or what is pooled, becomes 32-bit floats.
    let cases = [
        (GATHERS, Pooling::Mean, "rows"),
        (GATHERS, Pooling::Max, "rows"),
        (GATHERS, Pooling::Cls, "pooled"),
        (NARROW, Pooling::Mean, "pooled"),
        (NARROW, Pooling::Max, "rows"),
        (NARROW, Pooling::Cls, "pooled"),
    ];
    for (packing, pooling, widened) in cases {
        let mut model = packed(Tiny::new(Family::Bert), Precision::F16);
        model.recipe.pooling = pooling;
        let graph = graph_of(&model, packing);
        let types = types(&graph);
        assert_eq!((types[widened], types["embedding"]), (FLOAT16, FLOAT), "{pooling:?}");
        assert_eq!(types["places"], INT32);
        let wide = node(&graph, &format!("{widened}.wide"));
        assert_eq!((&*wide.op_type, &*wide.input[0]), ("Cast", widened));
        assert_eq!(count(&graph, "RestorePadding"), 0);
        let end = graph.node.last().unwrap();
        assert_eq!(end.op_type, "SimplifiedLayerNormalization");
        assert!(end.domain.is_empty());
    }
}

#[test]
fn one_operator_divides_by_the_length_and_leaves_zeros() {
    let graph = graph_of(&packed(Tiny::new(Family::Bert), Precision::F32), GATHERS);
    let scale = values(&graph, "length.scale");
    assert_eq!(scale.len(), HIDDEN);
    let attributes = &graph.node.last().unwrap().attribute;
    let epsilon = attributes.iter().find(|of| of.name == "epsilon").and_then(|of| of.f).unwrap();
    for size in [0.0, 1e-15, 1e-9, 1.0, 1e9_f32] {
        let vector: Vec<f32> = (0..HIDDEN).map(|at| size * (at as f32 - 2.5)).collect();
        let square = vector.iter().map(|value| value * value).sum::<f32>();
        let inverse = 1.0 / (square / HIDDEN as f32 + epsilon).sqrt();
        for (value, scale) in vector.iter().zip(&scale) {
            let right = value / square.sqrt().max(1e-12);
            let found = scale * inverse * value;
            assert!((found - right).abs() < 1e-5, "{size}: {found} for {right}");
        }
    }
}

#[test]
fn vectors_of_one_number_are_divided_as_ever() {
    let model = Tiny::new(Family::Bert).with_dense(&[(1, "Tanh")]);
    let graph = graph_of(&packed(model, Precision::F32), ALL);
    assert_eq!(graph.node.last().unwrap().op_type, "Div");
    assert_eq!(count(&graph, "SimplifiedLayerNormalization"), 0);
}

/// Query, key, value and output, each `x · weight + bias`, of which a bias that is left out is empty.
struct Projections {
    weights: [Vec<f32>; 4],
    biases: [Vec<f32>; 4],
}

impl Projections {
    fn of(&self, part: usize, vector: &[f64]) -> Vec<f64> {
        let (weight, bias) = (&self.weights[part], &self.biases[part]);
        let one = |output: usize| {
            let first = bias.get(output).copied().map_or(0.0, f64::from);
            let column = weight.iter().skip(output).step_by(HIDDEN);
            vector.iter().zip(column).fold(first, |sum, (x, w)| sum + x * f64::from(*w))
        };
        (0..HIDDEN).map(one).collect()
    }

    /// What one row's attention makes of its tokens.
    fn attend(&self, tokens: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let [queries, keys, values] = [0, 1, 2]
            .map(|part| tokens.iter().map(|token| self.of(part, token)).collect::<Vec<_>>());
        let size = HIDDEN / HEADS;
        let attended = queries.iter().map(|query| {
            let mut context = vec![0.0; HIDDEN];
            for head in 0..HEADS {
                let of = head * size..(head + 1) * size;
                let score = |key: &Vec<f64>| {
                    let terms = query[of.clone()].iter().zip(&key[of.clone()]);
                    (terms.map(|(a, b)| a * b).sum::<f64>() / (size as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                for (score, value) in scores.iter().zip(&values) {
                    for at in of.clone() {
                        context[at] += score / sum * value[at];
                    }
                }
            }
            self.of(3, &context)
        });
        attended.collect()
    }
}

#[test]
fn apart_the_attention_comes_to_the_same() {
    for mut model in Tiny::all() {
        for (number, (_, data)) in model.tensors.values_mut().enumerate() {
            for (at, value) in data.iter_mut().enumerate() {
                *value = ((number * 101 + at * 37) as f32).sin() / 2.0;
            }
        }
        let padded = graph_of(&model, Packing::default());
        let apart = graph_of(&packed(model, Precision::F32), APART);
        let weights = |graph: &Graph| {
            let names = ["query", "key", "value", "output"];
            names.map(|part| values(graph, &format!("layer.1.{part}.weight")))
        };
        let together = values(&padded, "layer.1.attention.bias");
        let [query, key, value] = [0, 1, 2].map(|of| together[of * HIDDEN..][..HIDDEN].to_vec());
        let biases = [query, key, value, values(&padded, "layer.1.output.bias")];
        let whole = Projections { weights: weights(&padded), biases };
        let [query, output] =
            ["query", "output"].map(|of| values(&apart, &format!("layer.1.{of}.bias")));
        assert_ne!(output, whole.biases[3]);
        let biases = [query, Vec::new(), Vec::new(), output];
        let folded = Projections { weights: weights(&apart), biases };
        let value = |number: usize, at: usize| ((number * 7 + at * 3) % 5) as f64 - 2.0;
        let token = |number| (0..HIDDEN).map(|at| value(number, at)).collect();
        let tokens: Vec<Vec<f64>> = (0..4).map(token).collect();
        let pairs = whole.attend(&tokens).concat().into_iter().zip(folded.attend(&tokens).concat());
        for (right, found) in pairs {
            assert!((right - found).abs() < 1e-6, "{found} for {right}");
        }
    }
}
