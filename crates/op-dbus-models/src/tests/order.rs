//! What an import looks at before it copies what is large.

use serde_json::json;

use super::fixture::{self, Bench, Files, Lines, set};
use crate::{HookError, ImportOptions, Model, OnnxFacts, Progress};

/// What is said of files that are refused by the hook of this name, and which of them were copied.
fn refused(files: &Files, hook: &str) -> (String, String) {
    let bench = Bench::new();
    let (source, lines) = (bench.path("source"), Lines::default());
    fixture::write_folder(&source, files);
    let answer = |asked: &str| -> Result<(), HookError> {
        if asked == hook { Err(format!("the {hook} is wrong").into()) } else { Ok(()) }
    };
    let is_without_weights = |model: &Model| model.recorded_sha256(&model.weights()).is_empty();
    let options = ImportOptions {
        inspect: &|_| {
            answer("graph")?;
            Ok(OnnxFacts { dimensions: Some(8), pooled: true, finished: true })
        },
        tokenizer: &|_, _| answer("tokenizer"),
        model: &|model| answer(if is_without_weights(model) { "configuration" } else { "model" }),
        progress: &Progress::lines(lines.clone()),
        pooling: None,
        dimensions: None,
        max_input_tokens: None,
    };
    let message = bench.store.import(&source, "mine", &options).unwrap_err().to_string();
    (message, lines.text())
}

#[test]
fn what_is_refused_without_weights_is_refused_before_they_are_copied() {
    let files = fixture::model("bert");
    for (hook, copied) in [("tokenizer", false), ("configuration", false), ("model", true)] {
        let (message, lines) = refused(&files, hook);
        assert!(message.ends_with(&format!("the {hook} is wrong")), "{message}");
        assert!(lines.contains("tokenizer.json"), "{hook}: {lines}");
        assert_eq!(lines.contains("model.safetensors"), copied, "{hook}: {lines}");
    }
}

#[test]
fn what_is_refused_of_a_graph_is_refused_before_it_is_copied() {
    let mut files = Files::new();
    set(&mut files, "tokenizer.json", &json!({ "normalizer": null, "model": {} }));
    files.insert("model.onnx".into(), b"graph".to_vec());
    let (message, lines) = refused(&files, "graph");
    assert!(message.ends_with("the graph is wrong") && lines.is_empty(), "{message} {lines}");
    // Nothing says how many tokens it takes.
    let (message, lines) = refused(&files, "none");
    assert!(message.contains("--max-input-tokens") && lines.is_empty(), "{message} {lines}");
    set(&mut files, "tokenizer_config.json", &json!({ "model_max_length": 64 }));
    let (message, lines) = refused(&files, "tokenizer");
    assert!(message.ends_with("the tokenizer is wrong"), "{message}");
    assert!(lines.contains("tokenizer.json") && !lines.contains("model.onnx"), "{lines}");
}
