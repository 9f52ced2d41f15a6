//! Importing ONNX graphs, and the flags that say what a graph does not.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::fixture::{self, Bench, Files, WIDTH, set};
use crate::{Family, ImportOptions, OnnxFacts, Pooling, Progress};

/// A graph that says all of itself.
const POOLED: OnnxFacts = OnnxFacts { dimensions: Some(8), pooled: true, finished: true };

fn graph_files() -> Files {
    let tokenizer = json!({ "normalizer": null, "model": {} });
    let mut files = Files::new();
    set(&mut files, "tokenizer.json", &tokenizer);
    set(&mut files, "tokenizer_config.json", &json!({ "model_max_length": 64 }));
    files.insert("onnx/model.onnx".into(), b"graph".to_vec());
    files
}

#[test]
fn a_graph_is_imported_from_its_folder_or_by_its_file() {
    let bench = Bench::new();
    let source = bench.path("source");
    fixture::write_folder(&source, &graph_files());
    let model = bench.import_graph(&source, "by-folder", POOLED).unwrap();
    assert_eq!((model.family, model.dimensions), (Family::Onnx, 8));
    assert_eq!(model.max_input_tokens, 64);
    assert_eq!(fs::read(model.weights()).unwrap(), b"graph");
    let file = source.join("onnx/model.onnx");
    let other = bench.import_graph(&file, "by-file", POOLED).unwrap();
    assert_eq!(other.files, model.files);
    assert_eq!(other.vector_space(), model.vector_space());
    let loud = file.with_file_name("MODEL.ONNX");
    fs::rename(&file, &loud).unwrap();
    assert_eq!(bench.import_graph(&loud, "loud", POOLED).unwrap().files, model.files);
}

#[test]
fn weights_go_before_a_graph_in_the_same_folder() {
    let mut files = fixture::model("bert");
    files.insert("onnx/model.onnx".into(), b"graph".to_vec());
    assert_eq!(Bench::new().import_files(&files).unwrap().family, Family::Bert);
}

#[test]
fn a_link_to_a_graph_does_not_bring_the_tokenizer_beside_it() {
    let bench = Bench::new();
    let (mine, other) = (bench.path("mine"), bench.path("other"));
    fixture::write_folder(&mine, &graph_files());
    fixture::write_folder(&other, &graph_files());
    let link = mine.join("onnx/link.onnx");
    symlink("model.onnx", &link).unwrap();
    bench.import_graph(&link, "inside", POOLED).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(other.join("onnx/model.onnx"), &link).unwrap();
    let message = bench.import_graph(&link, "outside", POOLED).unwrap_err().to_string();
    assert!(message.contains("link.onnx is a symbolic link to "), "{message}");
    assert!(message.contains("`cp -rL`"), "{message}");
    let message = bench.import_graph(&mine.join("none.onnx"), "absent", POOLED).unwrap_err();
    assert!(message.to_string().starts_with("cannot read "), "{message}");
}

#[test]
fn a_graph_that_says_too_little_is_refused() {
    let bench = Bench::new();
    let source = bench.path("source");
    fixture::write_folder(&source, &graph_files());
    let cases = [
        (OnnxFacts { dimensions: None, pooled: true, finished: true }, "no fixed width"),
        (OnnxFacts { dimensions: Some(8), pooled: false, finished: false }, "per token"),
    ];
    for (facts, expected) in cases {
        let message = bench.import_graph(&source, "mine", facts).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    fs::remove_file(source.join("tokenizer_config.json")).unwrap();
    let message = bench.import_graph(&source, "mine", POOLED).unwrap_err().to_string();
    assert!(message.contains("--max-input-tokens"), "{message}");
    assert!(bench.visible().is_empty());
}

#[test]
fn the_width_of_what_a_graph_has_pooled_can_be_given() {
    let bench = Bench::new();
    let source = bench.path("source");
    let mut files = graph_files();
    set(&mut files, "config.json", &json!({ "hidden_size": 8 }));
    fixture::write_folder(&source, &files);
    let pooled = OnnxFacts { dimensions: None, ..POOLED };
    let given = bench.import_as(&source, "given", pooled, (None, Some(2), None)).unwrap();
    let stated = bench.import_as(&source, "stated", pooled, (None, None, None)).unwrap();
    assert_eq!((given.dimensions, stated.dimensions), (2, 8));
    // The vectors per token are those that the file tells of.
    let tokens = OnnxFacts { pooled: false, finished: false, ..pooled };
    let flags = (Some(Pooling::Mean), Some(2), None);
    let message = bench.import_as(&source, "tokens", tokens, flags).unwrap_err().to_string();
    assert!(message.contains("--dimensions 2 for a model that itself says 8"), "{message}");
}

#[test]
fn weights_beside_a_graph_that_is_of_no_use_are_told_of() {
    let refused = |path: &str, files: &Files| {
        let bench = Bench::new();
        let source = bench.path("source");
        fixture::write_folder(&source, files);
        let options = ImportOptions {
            inspect: &|_| Err("tensor t keeps its data in another file".into()),
            tokenizer: &|_, _| Ok(()),
            model: &|_| Ok(()),
            progress: &Progress::silent(),
            pooling: None,
            dimensions: None,
            max_input_tokens: None,
        };
        let imported = bench.store.import(&source.join(path), "mine", &options);
        imported.unwrap_err().to_string()
    };
    let alone = "the ONNX graph cannot be understood: tensor t keeps its data in another file";
    let mut files = fixture::model("roberta");
    files.remove("model.safetensors");
    files.insert("onnx/model.onnx".into(), b"graph".to_vec());
    assert_eq!(refused("", &files), alone);
    for (other, found) in [
        ("pytorch_model.bin", "pytorch_model.bin only"),
        ("pytorch_model.bin.index.json", "several files (pytorch_model.bin.index.json)"),
        ("model.safetensors.index.json", "several files (model.safetensors.index.json)"),
    ] {
        let mut files = files.clone();
        files.insert(other.into(), b"{}".to_vec());
        let message = refused("", &files);
        let told =
            format!("weights in {found}, and beside them a graph that can't be taken ({alone});");
        assert!(message.contains(&told), "{message}");
        assert!(message.contains("safe_serialization=True"), "{message}");
        // Who asks for the graph wants the graph, and of other models it is all that can be had.
        assert_eq!(refused("onnx/model.onnx", &files), alone);
        set(&mut files, "config.json", &json!({ "model_type": "deberta-v2" }));
        assert_eq!(refused("", &files), alone);
    }
}

#[test]
fn what_else_would_be_done_to_the_text_is_refused() {
    let import = |settings: serde_json::Value| {
        let bench = Bench::new();
        let mut files = graph_files();
        set(&mut files, "sentence_bert_config.json", &settings);
        fixture::write_folder(&bench.path("source"), &files);
        let model = bench.import_graph(&bench.path("source"), "mine", POOLED);
        model.map(|model| model.max_input_tokens).map_err(|error| error.to_string())
    };
    let cases = [
        (json!({ "tokenizer_args": { "add_prefix_space": true } }), "add_prefix_space in token"),
        (
            json!({ "processing_kwargs": { "text": { "padding": true } } }),
            "text {\"padding\":true}",
        ),
        (json!({ "processing_kwargs": { "common": { "x": 1 } } }), "common {\"x\":1}"),
    ];
    for (settings, expected) in cases {
        let message = import(settings).unwrap_err();
        assert!(message.contains("sentence_bert_config.json with "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    // What is asked of the model is in the graph.
    let settings = json!({ "config_args": { "layer_norm_eps": 0.5 }, "max_seq_length": 9 });
    assert_eq!(import(settings), Ok(9));
}

#[test]
fn a_graph_takes_no_more_tokens_than_its_table_has_positions() {
    let import = |config: serde_json::Value, limit: usize, flag| {
        let bench = Bench::new();
        let source = bench.path("source");
        let mut files = graph_files();
        let kind = config["model_type"].as_str().unwrap();
        set(&mut files, "tokenizer.json", &fixture::tokenizer(kind));
        set(&mut files, "tokenizer_config.json", &json!({ "model_max_length": limit }));
        set(&mut files, "config.json", &config);
        fixture::write_folder(&source, &files);
        let model = bench.import_as(&source, "mine", POOLED, (None, None, flag));
        model.map(|model| model.max_input_tokens).map_err(|error| error.to_string())
    };
    let of =
        |kind: &str, rows: usize| json!({ "model_type": kind, "max_position_embeddings": rows });
    assert_eq!(import(of("roberta", 514), 514, None), Ok(512));
    assert_eq!(import(of("mpnet", 514), 128, None), Ok(128));
    assert_eq!(import(of("bert", 64), 512, Some(64)), Ok(64));
    let message = import(of("bert", 64), 64, Some(80)).unwrap_err();
    assert!(message.contains("--max-input-tokens 80; supported: 1 to the 64 pos"), "{message}");
    // Of these nothing is known.
    assert_eq!(import(of("deberta-v2", 64), 64, Some(80)), Ok(80));
    let mut own = of("bert", 64);
    own["position_embedding_type"] = json!("alibi");
    assert_eq!(import(own, 64, Some(80)), Ok(80));
}

#[test]
fn flags_that_contradict_the_model_are_refused() {
    let bench = Bench::new();
    let [folder, graph, pooled] = ["folder", "graph", "pooled"].map(|name| bench.path(name));
    fixture::write_folder(&folder, &fixture::model("bert"));
    fixture::write_folder(&graph, &graph_files());
    let mut files = graph_files();
    set(&mut files, "1_Pooling/config.json", &json!({ "pooling_mode": "cls" }));
    fixture::write_folder(&pooled, &files);
    let tokens = OnnxFacts { pooled: false, ..POOLED };
    let cases = [
        (&folder, POOLED, (Some(Pooling::Max), None, None), "max for a model whose 1_Pooling/conf"),
        (&pooled, tokens, (Some(Pooling::Max), None, None), "1_Pooling/config.json says cls; supp"),
        (&folder, POOLED, (None, Some(7), None), "--dimensions 7 for a model that itself says 4"),
        (&folder, POOLED, (None, None, Some(5)), "--max-input-tokens 5 for a model that itself"),
        (&graph, POOLED, (Some(Pooling::Max), None, None), "ends in one vector per text"),
        (&graph, tokens, (Some(Pooling::Max), Some(7), None), "--dimensions 7 for a model"),
    ];
    for (path, facts, flags, expected) in cases {
        let message = bench.import_as(path, "mine", facts, flags).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(bench.visible().is_empty());
    }
    let agreed = (Some(Pooling::Mean), Some(WIDTH), Some(32));
    bench.import_as(&folder, "agreed", POOLED, agreed).unwrap();
    // Of a graph, the flag goes before the file that states 64 tokens.
    let flags = (Some(Pooling::Max), Some(8), Some(5));
    let model = bench.import_as(&graph, "graph", tokens, flags).unwrap();
    assert_eq!((model.pooling, model.dimensions, model.max_input_tokens), (Pooling::Max, 8, 5));
}
