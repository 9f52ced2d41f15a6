//! What a compiled graph looks like, and which models are refused in which words.

use std::collections::{HashMap, HashSet};

use prost::Message;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

use super::tiny::{self, HIDDEN, POSITIONS, Tensors};
use crate::onnx::{self, Model};
use crate::{Error, Family, Pooling, Recipe, compile};

fn graph(recipe: &Recipe, tensors: &Tensors) -> onnx::Graph {
    let bytes = compile(recipe, &tiny::safetensors(tensors)).unwrap();
    Model::decode(&*bytes).unwrap().graph.unwrap()
}

fn values(graph: &onnx::Graph, name: &str) -> Vec<f32> {
    let tensor = graph.initializer.iter().find(|tensor| tensor.name == name).unwrap();
    tensor.raw_data.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

fn refusal(recipe: &Recipe, tensors: &Tensors) -> String {
    compile(recipe, &tiny::safetensors(tensors)).unwrap_err().to_string()
}

fn models() -> [(Recipe, Tensors); 2] {
    [(tiny::recipe(Family::Bert), tiny::bert()), (tiny::recipe(Family::Mpnet), tiny::mpnet())]
}

#[test]
fn every_name_is_made_before_it_is_used_and_only_once() {
    for (mut recipe, tensors) in models() {
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Max] {
            for normalize in [false, true] {
                recipe.pooling = pooling;
                recipe.normalize = normalize;
                let graph = graph(&recipe, &tensors);
                let given = graph.initializer.iter().map(|tensor| &tensor.name);
                let mut known = HashSet::new();
                for name in given.chain(graph.input.iter().map(|input| &input.name)) {
                    assert!(known.insert(name), "{name} twice");
                }
                for node in &graph.node {
                    for input in node.input.iter().filter(|input| !input.is_empty()) {
                        assert!(known.contains(input), "{} wants {input}", node.name);
                    }
                    for output in &node.output {
                        assert!(known.insert(output), "{output} twice");
                    }
                }
                assert!(known.contains(&"embedding".to_owned()));
            }
        }
    }
}

#[test]
fn the_ports_are_the_fixed_ones() {
    for (recipe, tensors) in models() {
        let onnx = compile(&recipe, &tiny::safetensors(&tensors)).unwrap();
        let info = crate::inspect::inspect(&onnx).unwrap();
        let names: Vec<&str> = info.inputs.iter().map(|input| &*input.name).collect();
        assert_eq!(names, ["input_ids", "lengths"]);
        assert_eq!(info.inputs[0].shape, Some(vec![None, None]));
        assert_eq!(info.outputs.len(), 1);
        assert_eq!(info.outputs[0].name, "embedding");
        assert_eq!(info.outputs[0].shape, Some(vec![None, Some(HIDDEN as u64)]));
        assert!(!info.has_external_data);
    }
}

#[test]
fn weights_are_turned_and_the_token_type_is_folded_into_the_positions() {
    let tensors = tiny::bert();
    let graph = graph(&tiny::recipe(Family::Bert), &tensors);
    let (_, up) = &tensors["encoder.layer.1.intermediate.dense.weight"];
    let turned = values(&graph, "layer.1.up.weight");
    assert_eq!(turned[1], up[HIDDEN]);
    assert_eq!(turned[tiny::INNER], up[1]);

    let (_, positions) = &tensors["embeddings.position_embeddings.weight"];
    let (_, types) = &tensors["embeddings.token_type_embeddings.weight"];
    let folded = values(&graph, "positions");
    assert_eq!(folded.len(), 5 * HIDDEN);
    assert_eq!(folded[HIDDEN + 3], positions[HIDDEN + 3] + types[3]);
}

#[test]
fn mpnet_begins_behind_the_padding_position_and_biases_by_distance() {
    let tensors = tiny::mpnet();
    let graph = graph(&tiny::recipe(Family::Mpnet), &tensors);
    let (_, positions) = &tensors["embeddings.position_embeddings.weight"];
    assert_eq!(values(&graph, "positions")[0], positions[2 * HIDDEN]);

    let (_, table) = &tensors["encoder.relative_attention_bias.weight"];
    let bias = values(&graph, "relative_bias");
    let at = |head: usize, query: usize, key: usize| bias[(head * 5 + query) * 5 + key];
    assert_eq!(at(1, 3, 3), table[1]);
    assert_eq!(at(0, 4, 1), table[3 * tiny::HEADS]);
    assert_eq!(at(1, 1, 4), table[(16 + 3) * tiny::HEADS + 1]);
}

#[test]
fn a_prefix_before_all_names_changes_nothing() {
    for ((recipe, tensors), prefix) in models().into_iter().zip(["bert.", "mpnet."]) {
        let prefixed =
            tensors.iter().map(|(name, data)| (format!("{prefix}{name}"), data.clone())).collect();
        let plain = compile(&recipe, &tiny::safetensors(&tensors)).unwrap();
        assert_eq!(plain, compile(&recipe, &tiny::safetensors(&prefixed)).unwrap());
    }
}

#[test]
fn norms_under_their_old_names_are_found() {
    let old = |name: &String| {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta")
    };
    let tensors = tiny::bert();
    let renamed = tensors.iter().map(|(name, data)| (old(name), data.clone())).collect();
    let recipe = tiny::recipe(Family::Bert);
    let plain = compile(&recipe, &tiny::safetensors(&tensors)).unwrap();
    assert_eq!(plain, compile(&recipe, &tiny::safetensors(&renamed)).unwrap());
}

#[test]
fn every_missing_or_misshapen_tensor_is_named() {
    for (recipe, tensors) in models() {
        for name in tensors.keys() {
            let mut without = tensors.clone();
            without.remove(name);
            let message = refusal(&recipe, &without);
            assert!(message.contains(name.as_str()), "{name}: {message}");

            let mut other = tensors.clone();
            let (shape, values) = other.get_mut(name).unwrap();
            shape.push(1);
            assert_eq!(shape.iter().product::<usize>(), values.len());
            let message = refusal(&recipe, &other);
            assert!(message.contains(name.as_str()), "{name}: {message}");
        }
    }
}

#[test]
fn another_element_type_is_named() {
    let name = "encoder.layer.1.output.dense.weight";
    let data: Vec<_> = tiny::bert().into_iter().collect();
    let data: Vec<_> = data.iter().map(|(n, (s, v))| (n, s, tiny::bytes(v))).collect();
    let views = data.iter().map(|(found, shape, bytes)| {
        let halves = (Dtype::F16, &bytes[..bytes.len() / 2]);
        let (dtype, bytes) = if *found == name { halves } else { (Dtype::F32, &bytes[..]) };
        (found, TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    let message = compile(&tiny::recipe(Family::Bert), &file).unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("F16"), "{message}");
}

#[test]
fn activations_are_chosen_or_refused_by_name() {
    let mut recipe = tiny::recipe(Family::Bert);
    let operators = HashMap::from([
        ("gelu", "BiasGelu"),
        ("gelu_new", "FastGelu"),
        ("gelu_pytorch_tanh", "FastGelu"),
        ("relu", "Relu"),
    ]);
    for (activation, operator) in operators {
        recipe.config["hidden_act"] = json!(activation);
        let graph = graph(&recipe, &tiny::bert());
        let found = graph.node.iter().filter(|node| node.op_type == operator).count();
        assert_eq!(found, tiny::LAYERS, "{activation}");
    }
    recipe.config["hidden_act"] = json!("silu");
    let message = refusal(&recipe, &tiny::bert());
    assert!(message.contains("silu") && message.contains("gelu_new"), "{message}");
}

#[test]
fn configurations_that_can_not_be_served_say_why() {
    let cases = [
        ("num_attention_heads", json!(3), "num_attention_heads"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("hidden_size", json!(0), "num_attention_heads"),
        ("is_decoder", json!(true), "is_decoder"),
        ("position_embedding_type", json!("relative_key"), "relative_key"),
        ("model_type", json!("roberta"), "roberta"),
    ];
    for (key, value, expected) in cases {
        let mut recipe = tiny::recipe(Family::Bert);
        recipe.config[key] = value;
        let message = refusal(&recipe, &tiny::bert());
        assert!(message.contains(expected), "{key}: {message}");
    }
    let mut recipe = tiny::recipe(Family::Bert);
    recipe.config["hidden_size"] = json!("eight");
    let error = compile(&recipe, &tiny::safetensors(&tiny::bert())).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[test]
fn rows_longer_than_the_position_table_are_refused() {
    for (mut recipe, tensors) in models() {
        let most = if recipe.family == Family::Bert { POSITIONS } else { POSITIONS - 2 };
        recipe.max_input_tokens = most;
        assert!(compile(&recipe, &tiny::safetensors(&tensors)).is_ok());
        for tokens in [0, most + 1, usize::MAX] {
            recipe.max_input_tokens = tokens;
            let message = refusal(&recipe, &tensors);
            assert!(message.contains(&format!("1 to {most}")), "{message}");
        }
    }
}
