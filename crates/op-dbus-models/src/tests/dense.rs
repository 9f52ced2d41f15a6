//! Dense modules: taken over with the model, part of its vector space, refused where unsupported.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixture::{self, Bench, Files, WIDTH, add_dense, modules, refusal, set, tensors};
use crate::config_files::PROMPTS;
use crate::{OnnxFacts, Pooling};

/// A model with these modules, of which the Dense ones lead to 3 and then to 2 dimensions.
fn model(kinds: &[&str]) -> Files {
    let mut files = fixture::model("bert");
    set(&mut files, "modules.json", &modules(kinds));
    add_dense(&mut files, 2, WIDTH, 3);
    add_dense(&mut files, 3, 3, 2);
    files
}

const TWO: [&str; 5] = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"];

#[test]
fn modules_are_taken_over_in_their_order() {
    let cases: [(&[&str], usize, &[&str], bool); 4] = [
        (&TWO, 2, &["2_Dense", "3_Dense"], true),
        (&TWO[..4], 2, &["2_Dense", "3_Dense"], false),
        (&TWO[..3], 3, &["2_Dense"], false),
        (&["Transformer", "Pooling", "Normalize"], WIDTH, &[], true),
    ];
    for (kinds, dimensions, dense, normalize) in cases {
        let bench = Bench::new();
        let model = bench.import_files(&model(kinds)).unwrap();
        assert_eq!((model.dimensions, model.normalize), (dimensions, normalize), "{kinds:?}");
        assert_eq!(model.dense, dense);
        assert_eq!(bench.store.verify("mine").unwrap(), model);
        let files: Vec<_> = model.dense_files().collect();
        assert_eq!(files.len(), dense.len());
        for ([config, weights], folder) in files.iter().zip(dense) {
            assert_eq!(*config, model.dir.join(folder).join("config.json"));
            assert!(config.is_file() && weights.is_file());
        }
        let listed = |path: &str| model.files.iter().any(|file| file.path == path);
        assert!(dense.iter().all(|folder| listed(&format!("{folder}/model.safetensors"))));
    }
}

#[test]
fn modules_are_understood_under_their_new_names() {
    let mut files = model(&TWO);
    let class = |class: &str, rest: &str| json!({ "path": rest, "type": class });
    let new = json!([
        class("sentence_transformers.base.modules.transformer.Transformer", ""),
        class("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
        class("sentence_transformers.base.modules.dense.Dense", "2_Dense"),
    ]);
    set(&mut files, "modules.json", &new);
    let config = json!({
        "in_features": WIDTH, "out_features": 3, "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity",
        "module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding",
    });
    set(&mut files, "2_Dense/config.json", &config);
    let weight = tensors(&[("linear.weight", &[3, WIDTH])]);
    files.insert("2_Dense/model.safetensors".into(), weight);
    assert_eq!(Bench::new().import_files(&files).unwrap().dimensions, 3);
}

#[test]
fn a_normalising_module_scales_the_vector_of_the_text() {
    let config = |input: &str, output: &str| {
        let mut files = fixture::model("bert");
        let names = json!({ "module_input_name": input, "module_output_name": output });
        set(&mut files, "2_Normalize/config.json", &names);
        files
    };
    let (ours, tokens) = ("sentence_embedding", "token_embeddings");
    assert!(Bench::new().import_files(&config(ours, ours)).unwrap().normalize);
    for (input, output, wrong) in [
        (tokens, tokens, "module_input_name token_embeddings"),
        (ours, "other", "module_output_name other"),
    ] {
        let message = refusal(&config(input, output));
        let named = format!("2_Normalize/config.json with {wrong}; supported: {ours}");
        assert!(message.contains(&named), "{message}");
    }
    // Nor does a graph end in what such a module scales.
    let bench = Bench::new();
    let mut files = config(tokens, tokens);
    files.remove("model.safetensors");
    files.insert("model.onnx".into(), b"graph".to_vec());
    fixture::write_folder(&bench.path("source"), &files);
    let facts = OnnxFacts { dimensions: Some(WIDTH), pooled: true, finished: true };
    let message = bench.import_graph(&bench.path("source"), "mine", facts).unwrap_err();
    assert!(message.to_string().contains("2_Normalize/config.json with module_in"), "{message}");
    // Before version 6 it had no file, and needed no folder.
    let mut files = fixture::model("bert");
    let mut listed = modules(&["Transformer", "Pooling", "Normalize"]);
    listed[2]["path"] = json!("");
    set(&mut files, "modules.json", &listed);
    assert!(Bench::new().import_files(&files).unwrap().normalize);
}

#[test]
fn modules_are_part_of_the_vector_space() {
    let bench = Bench::new();
    let model = bench.import_files(&model(&TWO)).unwrap();
    let space = model.vector_space();
    let mut other = model.clone();
    other.dense.reverse();
    assert_ne!(other.vector_space(), space);
    other.dense.clear();
    assert_ne!(other.vector_space(), space);
    // What it was before there were such modules.
    let digest = |path: &str| {
        other.files.iter().find(|file| file.path == path).map(|file| file.sha256.clone()).unwrap()
    };
    let text = format!(
        "op-dbus vector space 1\nweights {}\ntokenizer {}\npooling mean\nnormalize true\n",
        digest("model.safetensors"),
        digest("tokenizer.json"),
    );
    assert_eq!(other.vector_space(), crate::digest::of_bytes(text.as_bytes()));
    for file in ["config.json", "model.safetensors"] {
        let mut other = model.clone();
        let path = format!("3_Dense/{file}");
        other.files.iter_mut().find(|file| file.path == path).unwrap().sha256 = "0".repeat(64);
        assert_ne!(other.vector_space(), space, "{path}");
    }
}

#[test]
fn a_module_without_outputs_is_named() {
    let cases = [
        (json!(0), "3_Dense/config.json with out_features 0"),
        (json!("x"), "cannot be understood"),
    ];
    for (outputs, expected) in cases {
        let mut files = model(&TWO);
        let mut config: Value = serde_json::from_slice(&files["3_Dense/config.json"]).unwrap();
        config["out_features"] = outputs;
        set(&mut files, "3_Dense/config.json", &config);
        let message = refusal(&files);
        assert!(message.contains(expected) && message.contains("supported: "), "{message}");
    }
}

#[test]
fn other_orders_and_kinds_are_named() {
    let cases: [(&[&str], &str); 6] = [
        (&["Transformer", "Dense"], "Transformer, Dense"),
        (&["Transformer", "Dense", "Pooling"], "Transformer, Dense, Pooling"),
        (&["Transformer", "Pooling", "Normalize", "Dense"], "Normalize, Dense"),
        (&["Transformer", "Pooling", "Dense", "LSTM"], "LSTM"),
        (&["Transformer", "Pooling", "LayerNorm", "Normalize"], "LayerNorm"),
        (&["Dense"], "Dense"),
    ];
    for (kinds, expected) in cases {
        let message = refusal(&model(kinds));
        assert!(message.contains(expected), "{message}");
    }
    let mut files = model(&TWO);
    let foreign = json!({ "path": "2_Dense", "type": "mine.Dense" });
    let listed = json!([modules(&TWO)[0], modules(&TWO)[1], foreign]);
    set(&mut files, "modules.json", &listed);
    assert!(refusal(&files).contains("mine.Dense"));
}

#[test]
fn every_module_has_a_folder_of_its_own() {
    for folder in ["", "..", "a/b", "1_Pooling", "3_Dense"] {
        let mut files = model(&TWO);
        let mut listed = modules(&TWO);
        listed[2]["path"] = json!(folder);
        set(&mut files, "modules.json", &listed);
        let message = refusal(&files);
        assert!(message.contains(&format!("`{folder}`")), "{message}");
    }
}

#[test]
fn weights_that_are_damaged_or_not_there_are_named() {
    let cases = [
        (Some(b"no safetensors".to_vec()), "safetensors"),
        (None, "without 3_Dense/model.safetensors"),
    ];
    for (weights, expected) in cases {
        let mut files = model(&TWO);
        files.remove("3_Dense/model.safetensors");
        files.extend(weights.map(|bytes| ("3_Dense/model.safetensors".to_owned(), bytes)));
        let message = refusal(&files);
        assert!(message.contains(expected), "{message}");
    }
    let mut files = model(&TWO);
    let old = files.remove("3_Dense/model.safetensors").unwrap();
    files.insert("3_Dense/pytorch_model.bin".into(), old);
    assert!(refusal(&files).contains("the weights of 3_Dense in pytorch_model.bin only"));
}

#[test]
fn a_graph_of_ones_own_holds_the_modules_beside_it() {
    let import = |dimensions, finished, pooling| {
        let bench = Bench::new();
        let mut files = model(&TWO);
        files.remove("model.safetensors");
        files.retain(|file, _| !file.ends_with("Dense/model.safetensors"));
        files.insert("model.onnx".into(), b"graph".to_vec());
        // The width of what is pooled, and not that of the graph.
        set(&mut files, "1_Pooling/config.json", &pooling);
        set(&mut files, PROMPTS, &json!({ "prompts": { "query": "query: " } }));
        let source = bench.path("source");
        fixture::write_folder(&source, &files);
        let model =
            bench.import_graph(&source, "mine", OnnxFacts { dimensions, pooled: true, finished });
        model.map_err(|error| error.to_string())
    };
    let mode = |mode: &str| json!({ "embedding_dimension": WIDTH, "pooling_mode": mode });
    for (stated, recorded) in
        [("max", Pooling::Max), ("lasttoken", Pooling::Mean), ("weightedmean", Pooling::Mean)]
    {
        for dimensions in [Some(2), None] {
            let model = import(dimensions, true, mode(stated)).unwrap();
            assert_eq!((model.dimensions, model.pooling, model.normalize), (2, recorded, true));
            assert!(model.dense.is_empty());
        }
    }
    // By a name that tells nothing it may be what is given to the modules.
    for (dimensions, finished) in [(Some(2), false), (Some(WIDTH), false), (Some(WIDTH), true)] {
        let message = import(dimensions, finished, mode("mean")).unwrap_err();
        assert!(message.contains("Dense modules beside it that it does not hold"), "{message}");
    }
    let unprompted = json!({ "pooling_mode": "lasttoken", "include_prompt": false });
    let message = import(Some(2), true, unprompted).unwrap_err();
    assert!(message.contains("include_prompt false"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Arbitrary bytes in the files of a module are refused or taken, never a panic.
    #[test]
    fn arbitrary_modules_are_no_panic(bytes in "[\\[\\]{}\":,0-9a-z ]{0,40}", weights: bool) {
        let mut files = model(&TWO);
        let name = if weights { "2_Dense/model.safetensors" } else { "2_Dense/config.json" };
        files.insert(name.into(), bytes.into_bytes());
        let bench = Bench::new();
        if let Ok(model) = bench.import_files(&files) {
            prop_assert!(model.verify().is_ok());
        }
    }
}
