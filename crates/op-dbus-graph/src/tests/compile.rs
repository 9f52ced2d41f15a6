//! What a compiled graph looks like, and which models are refused in which words.

use std::collections::{HashMap, HashSet};

use prost::Message;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

use super::tiny::{self, HIDDEN, POSITIONS, Tiny};
use crate::onnx::{self, Model};
use crate::{Dialect, Error, Family, Pooling, Precision};

fn values(graph: &onnx::Graph, name: &str) -> Vec<f32> {
    let tensor = graph.initializer.iter().find(|tensor| tensor.name == name).unwrap();
    tensor.raw_data.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

fn refusal(model: &Tiny) -> String {
    model.compile().unwrap_err().to_string()
}

#[test]
fn every_name_is_made_before_it_is_used_and_only_once() {
    let dialects = [Dialect::OnnxRuntime, Dialect::Onnx];
    let models = dialects
        .into_iter()
        .flat_map(|dialect| Tiny::all().into_iter().map(move |model| (model, dialect)));
    for (mut model, dialect) in models {
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Max] {
            for normalize in [false, true] {
                model.recipe.pooling = pooling;
                model.recipe.normalize = normalize;
                model.recipe.target.dialect = dialect;
                let graph = model.graph();
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
    for model in Tiny::all() {
        let onnx = model.compile().unwrap();
        let info = crate::inspect::inspect(&onnx).unwrap();
        let names: Vec<&str> = info.inputs.iter().map(|input| &*input.name).collect();
        assert_eq!(names, ["input_ids", "lengths"]);
        assert_eq!(info.inputs[0].shape, Some(vec![None, None]));
        assert_eq!(info.outputs.len(), 1);
        assert_eq!(info.outputs[0].name, "embedding");
        assert_eq!(info.outputs[0].shape, Some(vec![None, Some(HIDDEN as u64)]));
    }
}

#[test]
fn products_have_the_ports_of_an_encoder_and_nothing_to_do_but_multiply() {
    for precision in [Precision::F32, Precision::F16] {
        let onnx = crate::products(128, 3, precision).unwrap();
        let info = crate::inspect::inspect(&onnx).unwrap();
        let names: Vec<&str> = info.inputs.iter().map(|input| &*input.name).collect();
        assert_eq!(names, ["input_ids", "lengths"]);
        assert_eq!(info.outputs[0].shape, Some(vec![None, Some(128)]));
        let graph = Model::decode(&*onnx).unwrap().graph.unwrap();
        let count = |operator| graph.node.iter().filter(|node| node.op_type == operator).count();
        assert_eq!(count("MatMul"), 3);
        let weight = graph.initializer.iter().find(|tensor| tensor.name == "weight").unwrap();
        assert_eq!(weight.dims, [128, 128]);
    }
    // A row of the product is about as long as what was multiplied.
    let graph = Model::decode(&*crate::products(128, 1, Precision::F32).unwrap()).unwrap();
    let weight = values(&graph.graph.unwrap(), "weight");
    let square = weight.iter().map(|value| value * value).sum::<f32>() / 128.0;
    assert!((0.9..1.1).contains(&square), "{square}");
}

#[test]
fn weights_are_turned_and_the_token_type_is_folded_into_the_positions() {
    let model = Tiny::new(Family::Bert);
    let (graph, tensors) = (model.graph(), &model.tensors);
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
fn mpnet_has_the_padding_position_before_all_others_and_biases_by_distance() {
    let model = Tiny::new(Family::Mpnet);
    let (graph, tensors) = (model.graph(), &model.tensors);
    let (_, positions) = &tensors["embeddings.position_embeddings.weight"];
    assert_eq!(values(&graph, "positions"), positions[HIDDEN..7 * HIDDEN]);

    let (_, table) = &tensors["encoder.relative_attention_bias.weight"];
    let bias = values(&graph, "relative_bias");
    let at = |head: usize, query: usize, key: usize| bias[(head * 5 + query) * 5 + key];
    assert_eq!(at(1, 3, 3), table[1]);
    assert_eq!(at(0, 4, 1), table[3 * tiny::HEADS]);
    assert_eq!(at(1, 1, 4), table[(16 + 3) * tiny::HEADS + 1]);
}

#[test]
fn a_prefix_before_all_names_changes_nothing() {
    for (model, prefix) in
        Tiny::all().into_iter().zip(["bert.", "mpnet.", "roberta.", "distilbert."])
    {
        let mut prefixed = model.clone();
        prefixed.tensors =
            model.tensors.iter().map(|(n, data)| (format!("{prefix}{n}"), data.clone())).collect();
        assert_eq!(model.compile().unwrap(), prefixed.compile().unwrap());
        // With both kinds of names, whichever is read.
        let mut both = prefixed;
        both.tensors.extend(model.tensors.clone());
        assert_eq!(model.compile().unwrap(), both.compile().unwrap());
        for other in [vec![1.5; HIDDEN], vec![0.0; HIDDEN + 1]] {
            let mut both = both.clone();
            let name = "embeddings.LayerNorm.bias";
            both.tensors.insert(name.to_owned(), (vec![other.len()], other));
            let message = refusal(&both);
            assert!(message.starts_with(&format!("the tensors {prefix}{name} and {name} differ")));
        }
    }
}

#[test]
fn norms_under_their_old_names_are_found() {
    let old = |name: &String| {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta")
    };
    let model = Tiny::new(Family::Bert);
    let mut renamed = model.clone();
    renamed.tensors = model.tensors.iter().map(|(name, data)| (old(name), data.clone())).collect();
    assert_eq!(model.compile().unwrap(), renamed.compile().unwrap());
}

#[test]
fn every_missing_or_misshapen_tensor_is_named() {
    for model in Tiny::all() {
        for name in model.tensors.keys() {
            let mut without = model.clone();
            without.tensors.remove(name);
            let message = refusal(&without);
            assert!(message.contains(name.as_str()), "{name}: {message}");

            let mut other = model.clone();
            let (shape, values) = other.tensors.get_mut(name).unwrap();
            shape.push(1);
            assert_eq!(shape.iter().product::<usize>(), values.len());
            let message = refusal(&other);
            assert!(message.contains(name.as_str()), "{name}: {message}");
        }
    }
}

#[test]
fn another_element_type_is_named() {
    let name = "encoder.layer.1.output.dense.weight";
    let model = Tiny::new(Family::Bert);
    let data: Vec<_> = model.tensors.iter().collect();
    let data: Vec<_> = data.iter().map(|(n, (s, v))| (n, s, tiny::bytes(v))).collect();
    let views = data.iter().map(|(found, shape, bytes)| {
        let halves = (Dtype::F16, &bytes[..bytes.len() / 2]);
        let (dtype, bytes) = if found.as_str() == name { halves } else { (Dtype::F32, &bytes[..]) };
        (found, TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    let message = model.compile_weights(&file).unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("F16"), "{message}");
    assert!(message.contains("model.float()"), "{message}");
}

#[test]
fn activations_are_chosen_or_refused_by_name() {
    let mut model = Tiny::new(Family::Bert);
    let operators = HashMap::from([
        ("gelu", "BiasGelu"),
        ("gelu_new", "FastGelu"),
        ("gelu_pytorch_tanh", "FastGelu"),
        ("relu", "Relu"),
    ]);
    for (activation, operator) in operators {
        model.config["hidden_act"] = json!(activation);
        let graph = model.graph();
        let found = graph.node.iter().filter(|node| node.op_type == operator).count();
        assert_eq!(found, tiny::LAYERS, "{activation}");
    }
    model.config["hidden_act"] = json!("silu");
    let message = refusal(&model);
    assert!(message.contains("silu") && message.contains("gelu_new"), "{message}");
}

#[test]
fn configurations_that_can_not_be_served_say_why() {
    let cases = [
        ("num_attention_heads", json!(3), "num_attention_heads"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("hidden_size", json!(0), "num_attention_heads"),
        ("num_hidden_layers", json!(0), "num_hidden_layers is 0"),
        ("is_decoder", json!(true), "is_decoder"),
        ("position_embedding_type", json!("relative_key"), "relative_key"),
        ("model_type", json!("roberta"), "roberta"),
        ("max_position_embeddings", json!(0), "max_position_embeddings is 0"),
    ];
    for (key, value, expected) in cases {
        let mut model = Tiny::new(Family::Bert);
        model.config[key] = value;
        let message = refusal(&model);
        assert!(message.contains(expected), "{key}: {message}");
    }
    let mut model = Tiny::new(Family::Bert);
    model.config["is_decoder"] = json!(null);
    assert!(model.compile().is_ok());
    model.config["hidden_size"] = json!("eight");
    let error = model.compile().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let mut model = Tiny::new(Family::Mpnet);
    model.config["relative_attention_num_buckets"] = json!(64);
    let message = refusal(&model);
    assert!(message.contains("relative_attention_num_buckets is 64"), "{message}");
}

#[test]
fn rows_longer_than_the_position_table_are_refused() {
    for mut model in Tiny::all() {
        let most = match model.family {
            Family::Bert | Family::Distilbert => POSITIONS,
            Family::Mpnet | Family::Roberta => POSITIONS - 2,
        };
        model.recipe.max_input_tokens = most;
        assert!(model.compile().is_ok());
        for tokens in [0, most + 1, usize::MAX] {
            model.recipe.max_input_tokens = tokens;
            let message = refusal(&model);
            assert!(message.contains(&format!("1 to {most}")), "{message}");
        }
    }
}

#[test]
fn a_table_of_biases_that_is_too_large_is_no_damage() {
    let rows = 8192;
    let mut model = Tiny::new(Family::Mpnet);
    let positions = (vec![rows, HIDDEN], vec![0.0; rows * HIDDEN]);
    model.tensors.insert("embeddings.position_embeddings.weight".into(), positions);
    model.config["max_position_embeddings"] = json!(rows);
    model.recipe.max_input_tokens = 5793;
    let error = model.compile().unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("5793 tokens with 2 heads; supported: up to 5792 tokens"),
        "{message}"
    );
}

#[test]
fn without_padding_a_block_has_one_product_for_query_key_and_value() {
    for mut model in Tiny::all() {
        let padded = model.graph();
        model.recipe.target.dialect = Dialect::Packed;
        let compiled = Model::decode(&*model.compile().unwrap()).unwrap();
        let padding = match model.family {
            Family::Mpnet | Family::Roberta => vec!["1"],
            Family::Bert | Family::Distilbert => Vec::new(),
        };
        assert!(compiled.metadata_props.iter().map(|of| &*of.value).eq(padding));
        let graph = compiled.graph.unwrap();
        let inputs: Vec<&str> = graph.input.iter().map(|input| &*input.name).collect();
        let wanted = ["input_ids", "lengths", "position_ids", "token_offset", "cumulative_lengths"];
        assert_eq!(inputs, wanted);
        let of = |op: &str| graph.node.iter().filter(|node| node.op_type == op).count();
        assert_eq!(of("PackedMultiHeadAttention"), tiny::LAYERS);
        assert_eq!((of("RestorePadding"), of("MatMul")), (1, 4 * tiny::LAYERS + 1));
        // Each input's row has what each head makes of it: query, key, value.
        let together = values(&graph, "layer.1.attention.weight");
        let size = HIDDEN / tiny::HEADS;
        for (part, name) in ["query", "key", "value"].iter().enumerate() {
            let apart = values(&padded, &format!("layer.1.{name}.weight"));
            for (at, value) in apart.iter().enumerate() {
                let (input, head, place) = (at / HIDDEN, at % HIDDEN / size, at % size);
                let there = ((input * tiny::HEADS + head) * 3 + part) * size + place;
                assert_eq!(together[there], *value, "{name} {at}");
            }
        }
    }
}
