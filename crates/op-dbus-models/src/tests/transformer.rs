//! `sentence_bert_config.json`: what of it would give other vectors than the rest of the model.

use serde_json::{Value, json};

use super::fixture::{self, Bench, refusal, set};

#[test]
fn the_first_of_its_names_that_is_there_counts() {
    let bench = Bench::new();
    let mut files = fixture::model("bert");
    set(&mut files, "sentence_roberta_config.json", &json!({ "max_seq_length": 7 }));
    set(&mut files, "sentence_xlnet_config.json", &json!({ "max_seq_length": 9 }));
    for (name, limit) in [
        ("sentence_bert_config.json", 32),
        ("sentence_roberta_config.json", 7),
        ("sentence_xlnet_config.json", 9),
    ] {
        let model = bench.import_files(&files).unwrap();
        assert_eq!(model.max_input_tokens, limit, "{name}");
        let taken: Vec<_> =
            model.files.iter().filter(|file| file.path.starts_with("sentence_")).collect();
        assert_eq!((taken.len(), taken[0].path.as_str()), (1, name));
        bench.store.remove("mine").unwrap();
        files.remove(name);
    }
    set(&mut files, "sentence_albert_config.json", &json!({ "do_lower_case": true }));
    let message = refusal(&files);
    assert!(message.contains("sentence_albert_config.json with do_lower_case"), "{message}");
}

#[test]
fn what_else_would_be_computed_is_refused() {
    let usual = json!({
        "transformer_task": "feature-extraction",
        "modality_config": { "text": {
            "method": "forward", "method_output_name": "last_hidden_state",
        } },
        "module_output_name": "token_embeddings", "unpad_inputs": false, "processing_kwargs": {},
        "model_args": { "attn_implementation": "sdpa", "use_safetensors": true },
        "config_args": { "trust_remote_code": true },
    });
    let with = |key: &str, value: Value| {
        let mut settings = usual.clone();
        settings[key] = value;
        settings
    };
    let output = json!({ "text": { "method": "forward", "method_output_name": "pooler_output" } });
    let vectors = &usual["modality_config"]["text"];
    let template = json!({ "text": vectors, "message": vectors });
    let cases = [
        (usual.clone(), ""),
        (json!({ "modality_config": null, "tokenizer_args": {}, "do_lower_case": null }), ""),
        (with("transformer_task", json!("fill-mask")), "transformer_task \"fill-mask\""),
        (with("modality_config", output), "\"pooler_output\"}; supported: {\"method\":\"forward\""),
        (with("modality_config", template), "with message in modality_config; supported: text"),
        (with("module_output_name", json!("sentence_embedding")), "module_output_name \"sent"),
        (
            with("processing_kwargs", json!({ "text": { "max_length": 4 } })),
            "text {\"max_length\":4}",
        ),
        (with("config_args", json!({ "layer_norm_eps": 0.5 })), "layer_norm_eps in config_args"),
        (
            json!({ "processor_kwargs": { "do_lower_case": true } }),
            "do_lower_case in processor_kwargs",
        ),
        (with("model_args", json!({ "variant": "fp16" })), "variant in model_args"),
        (
            json!({ "model_kwargs": { "use_safetensors": false } }),
            "model_kwargs use_safetensors false; supported: true",
        ),
        (json!({ "model_kwargs": { "key_mapping": { "a": "b" } } }), "key_mapping in model_kwargs"),
        (json!({ "config_args": {}, "config_kwargs": { "a": 1 } }), "with a in config_kwargs"),
        (with("config_kwargs", json!(7)), "config_kwargs 7; supported: an object"),
        (with("tokenizer_name_or_path", json!("other")), "tokenizer_name_or_path \"other\""),
        (with("query_length", json!(8)), "query_length 8; supported: null"),
    ];
    for (settings, expected) in cases {
        let mut files = fixture::model("bert");
        set(&mut files, "sentence_bert_config.json", &settings);
        if expected.is_empty() {
            Bench::new().import_files(&files).unwrap();
            continue;
        }
        let message = refusal(&files);
        assert!(message.contains("sentence_bert_config.json with "), "{message}");
        assert!(message.contains(expected), "{settings}: {message}");
    }
}
