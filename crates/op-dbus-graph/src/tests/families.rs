//! What each family has of its own, as the description of its encoder tells it.

use serde_json::{Value, json};

use super::tiny::{self, HIDDEN, POSITIONS, Tiny};
use crate::encoder::{Activation, Encoder};
use crate::{Family, ModelFiles, read};

/// Reads a model and shows its encoder to `look`.
fn with_encoder(model: &Tiny, look: impl FnOnce(&Encoder<'_>)) {
    let weights = tiny::safetensors(&model.tensors);
    let Tiny { family, config, .. } = model;
    let files = ModelFiles { family: *family, config, weights: &weights, dense: Vec::new() };
    look(&read(&files).unwrap());
}

fn refusal(family: Family, key: &str, value: Value) -> String {
    let mut model = Tiny::new(family);
    model.config[key] = value;
    model.compile().unwrap_err().to_string()
}

#[test]
fn roberta_counts_positions_from_behind_the_padding_token() {
    let mut model = Tiny::new(Family::Roberta);
    let positions = model.tensors["embeddings.position_embeddings.weight"].1.clone();
    let cases = [(json!(1), 2), (json!(0), 1), (json!(5), 6), (Value::Null, 2)];
    for (pad, first) in cases {
        model.config["pad_token_id"] = pad;
        with_encoder(&model, |encoder| {
            assert_eq!(encoder.positions.rows(), POSITIONS - first);
            assert_eq!(encoder.positions.values().next(), Some(positions[first * HIDDEN]));
            let padding = encoder.padding.unwrap();
            assert_eq!(padding.id, first - 1);
            let row = &positions[(first - 1) * HIDDEN..first * HIDDEN];
            assert!(padding.position.values().eq(row.iter().copied()));
        });
    }
    for pad in [json!(POSITIONS - 1), json!(u64::MAX)] {
        let message = refusal(Family::Roberta, "pad_token_id", pad);
        assert!(message.contains("max_position_embeddings is 9"), "{message}");
    }
}

#[test]
fn only_the_families_that_count_tokens_have_a_padding_token() {
    for (family, expected) in tiny::FAMILIES.into_iter().zip([None, Some(1), Some(1), None]) {
        let mut model = Tiny::new(family);
        if family != Family::Roberta {
            // In MPNet it is fixed, and the others have positions by place.
            model.config["pad_token_id"] = json!(3);
        }
        with_encoder(&model, |encoder| {
            assert_eq!(encoder.padding.map(|padding| padding.id), expected, "{family:?}");
        });
    }
}

#[test]
fn roberta_goes_by_three_names() {
    for name in ["roberta", "xlm-roberta", "camembert"] {
        let mut model = Tiny::new(Family::Roberta);
        model.config["model_type"] = json!(name);
        with_encoder(&model, |encoder| {
            assert_eq!(encoder.token_type.map(|types| types.rows()), Some(1));
        });
    }
    let message = refusal(Family::Roberta, "model_type", json!("xlm-roberta-xl"));
    assert!(message.contains("xlm-roberta-xl") && message.contains("camembert"), "{message}");
}

#[test]
fn distilbert_has_no_token_types_and_a_fixed_epsilon() {
    let mut model = Tiny::new(Family::Distilbert);
    model.config["activation"] = json!("relu");
    // Not a key of this family.
    model.config["layer_norm_eps"] = json!(0.5);
    with_encoder(&model, |encoder| {
        assert!(encoder.token_type.is_none() && encoder.relative_bias.is_none());
        assert!((encoder.epsilon - 1e-12).abs() < 1e-18);
        assert_eq!(encoder.activation, Activation::Relu);
        assert_eq!(encoder.positions.rows(), POSITIONS);
        let up = &model.tensors["transformer.layer.1.ffn.lin1.weight"].1;
        assert!(encoder.layers[1].up.weight.values().eq(up.iter().copied()));
    });
}

#[test]
fn a_configuration_may_leave_out_what_has_a_usual_value() {
    for family in tiny::FAMILIES {
        let mut model = Tiny::new(family);
        for key in ["hidden_act", "activation", "layer_norm_eps"] {
            model.config.as_object_mut().unwrap().remove(key);
        }
        with_encoder(&model, |encoder| {
            assert_eq!(encoder.activation, Activation::Gelu, "{family:?}");
            assert!((encoder.epsilon - 1e-12).abs() < 1e-18, "{family:?}");
        });
    }
}

#[test]
fn distilbert_is_refused_in_its_own_words() {
    let cases = [
        ("n_heads", json!(3), "n_heads is 3 with a dim of 8"),
        ("activation", json!("silu"), "activation is silu"),
        ("model_type", json!("bert"), "model_type is bert"),
        ("position_embedding_type", json!("relative_key"), "relative_key"),
    ];
    for (key, value, expected) in cases {
        let message = refusal(Family::Distilbert, key, value);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn an_epsilon_that_leaves_nothing_is_refused() {
    for epsilon in [json!(-1e-12), json!(2), json!(1e300)] {
        let message = refusal(Family::Bert, "layer_norm_eps", epsilon);
        assert!(message.contains("layer_norm_eps is") && message.contains("0 to 1"), "{message}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    for value in [f32::NAN, f32::INFINITY] {
        for name in ["embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.bias"] {
            let mut model = Tiny::new(Family::Bert);
            model.tensors.get_mut(name).unwrap().1[3] = value;
            let message = model.compile().unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("finite"), "{message}");
        }
    }
}
