//! JSON that would take gigabytes to be parsed: it is counted before that, in every file of a model.

use serde_json::{Value, json};

use super::fixture::{self, refusal, set};
use crate::amount::{OBJECTS_MAX, VALUES_MAX, excess};

/// As many objects as no model has.
fn objects() -> Value {
    Value::Array(vec![json!({}); OBJECTS_MAX + 1])
}

#[test]
fn more_objects_than_in_any_model_are_refused_in_every_file() {
    let mut tokenizer = fixture::tokenizer("bert");
    tokenizer["normalizer"]["more"] = objects();
    for (file, content) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({ "extra_special_tokens": objects() })),
        ("sentence_bert_config.json", json!({ "more": objects() })),
        ("1_Pooling/config.json", json!({ "pooling_mode": "cls", "more": objects() })),
        ("config.json", json!({ "model_type": "bert", "more": objects() })),
    ] {
        let mut files = fixture::model("bert");
        set(&mut files, file, &content);
        let message = refusal(&files);
        assert!(message.contains(&format!("{file} with ")), "{message}");
        assert!(message.contains(" JSON objects; supported: at most 65536"), "{message}");
    }
}

#[test]
fn more_values_than_in_any_model_are_refused() {
    let mut files = fixture::model("bert");
    let values = format!("{{\"more\":[0{}]}}", ",0".repeat(VALUES_MAX));
    files.insert("sentence_bert_config.json".into(), values.into_bytes());
    let message = refusal(&files);
    assert!(message.contains(" JSON values; supported: at most 2400000"), "{message}");
}

#[test]
fn the_header_of_weights_is_counted_as_well() {
    let mut files = fixture::model("bert");
    let tensor = json!({ "dtype": "F32", "shape": vec![0; VALUES_MAX], "data_offsets": [0, 0] });
    let header = json!({ "a": tensor }).to_string();
    let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    files.insert("model.safetensors".into(), weights);
    let message = refusal(&files);
    assert!(message.contains("the header of model.safetensors with "), "{message}");
}

/// Of XLM-R with the scores of its pieces, of LaBSE and of Gemma with its merges: pieces may have any letters.
#[test]
fn the_largest_vocabularies_of_models_are_no_excess() {
    let piece = |index: usize| match index % 1000 {
        0 => "[{,".to_owned(),
        _ => format!("▁{index}"),
    };
    let scored = |index: usize| format!("[\"{}\",-12.5]", piece(index));
    let numbered = |index: usize| format!("\"{}\":{index}", piece(index));
    let merged = |index: usize| format!("[\"{}\",\"a\"]", piece(index));
    let list = |count: usize, item: &dyn Fn(usize) -> String| {
        (0..count).map(item).collect::<Vec<_>>().join(",")
    };
    for vocabulary in [
        format!("[{}]", list(250_002, &scored)),
        format!("{{{}}}", list(501_153, &numbered)),
        format!("{{{}}},[{}]", list(262_144, &numbered), list(514_906, &merged)),
    ] {
        assert_eq!(excess(vocabulary.as_bytes()), None);
    }
}
