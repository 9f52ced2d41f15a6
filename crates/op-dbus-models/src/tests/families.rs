//! Families of encoders: how they are told, and what decides the length of their texts.

use serde_json::{Value, json};

use super::fixture::{self, Bench, refusal, set};
use crate::Family;

#[test]
fn families_are_told_by_their_model_type() {
    // 34 positions, of which RoBERTa uses those behind the padding token's number.
    let cases = [
        ("roberta", json!({}), Family::Roberta, 32),
        ("xlm-roberta", json!({ "pad_token_id": 1 }), Family::Roberta, 32),
        ("camembert", json!({ "pad_token_id": 0 }), Family::Roberta, 33),
        ("distilbert", json!({}), Family::Distilbert, 34),
    ];
    for (model_type, own, family, tokens) in cases {
        let mut files = fixture::model(model_type);
        let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        own.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        set(&mut files, "config.json", &config);
        for (lengths, expected) in [
            (json!({}), tokens),
            // sentence-transformers states the whole position table where nobody stated less.
            (json!({ "max_seq_length": 34 }), tokens),
            (json!({ "max_seq_length": 20 }), 20),
        ] {
            set(&mut files, "sentence_bert_config.json", &lengths);
            let model = Bench::new().import_files(&files).unwrap();
            assert_eq!((model.family, model.max_input_tokens), (family, expected), "{model_type}");
        }
        set(&mut files, "sentence_bert_config.json", &json!({ "max_seq_length": 35 }));
        assert!(refusal(&files).contains("max_seq_length of 35"));
    }
    let mut files = fixture::model("xlm-roberta");
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    config["pad_token_id"] = json!(u64::MAX);
    set(&mut files, "config.json", &config);
    assert!(refusal(&files).contains("max_position_embeddings"));
}
