//! Importing models of the user's own: what is taken over, and what is refused and why.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::fixture::{self, Bench, WIDTH, WORDS, modules, pooling, refusal, set};
use crate::staging::Writer;
use crate::{Error, Family, Pooling, config_files};

#[test]
fn a_bert_folder_is_described_by_its_own_files() {
    let bench = Bench::new();
    let mut files = fixture::model("bert");
    set(
        &mut files,
        "config_sentence_transformers.json",
        &json!({
            "prompts": { "query": "query: ", "passage": "" }, "default_prompt_name": "query",
        }),
    );
    set(&mut files, "1_Pooling/config.json", &pooling(&["pooling_mode_cls_token"]));
    let model = bench.import_files(&files).unwrap();
    assert_eq!((model.family, model.pooling, model.normalize), (Family::Bert, Pooling::Cls, true));
    assert_eq!((model.dimensions, model.max_input_tokens), (WIDTH, 32));
    assert_eq!(model.prompts["query"], "query: ");
    assert_eq!(model.default_prompt.as_deref(), Some("query"));
    assert!(model.source.starts_with("folder: "), "{}", model.source);
    assert_eq!(bench.store.verify("mine").unwrap(), model);
    assert_eq!(bench.unfinished(), 0);
}

#[test]
fn what_git_lfs_keeps_elsewhere_is_named() {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    for file in ["model.safetensors", "tokenizer.json", "onnx/model.onnx"] {
        let mut files = fixture::model("bert");
        if file.starts_with("onnx") {
            files.remove("model.safetensors");
        }
        files.insert(file.to_owned(), POINTER.to_vec());
        let message = refusal(&files);
        let named = format!("{file} is only git-lfs's pointer to the file; supported: the file");
        assert!(message.contains(&named) && message.contains("`git lfs pull`"), "{message}");
    }
}

#[test]
fn an_mpnet_archive_is_found_in_its_folder() {
    let bench = Bench::new();
    let mut files = fixture::model("mpnet");
    set(&mut files, "modules.json", &modules(&["Transformer", "Pooling"]));
    files.remove("sentence_bert_config.json");
    let nested = files.into_iter().map(|(path, bytes)| (format!("top/{path}"), bytes)).collect();
    let archive = bench.path("model.zip");
    fs::write(&archive, fixture::zip(&nested)).unwrap();
    let model = bench.import(&archive, "mine").unwrap();
    assert_eq!((model.family, model.normalize), (Family::Mpnet, false));
    // 34 positions, of which MPNet uses those from 2 on.
    assert_eq!(model.max_input_tokens, 32);
    bench.store.verify("mine").unwrap();
}

#[test]
fn the_tokenizer_limits_where_no_length_is_stated() {
    let bench = Bench::new();
    let mut files = fixture::model("bert");
    files.remove("sentence_bert_config.json");
    for told in ["model_max_length", "max_len"] {
        set(&mut files, "tokenizer_config.json", &json!({ told: 20 }));
        assert_eq!(bench.import_files(&files).unwrap().max_input_tokens, 20, "{told}");
        bench.store.remove("mine").unwrap();
    }
    set(&mut files, "sentence_bert_config.json", &json!({ "max_seq_length": null }));
    set(&mut files, "tokenizer_config.json", &json!({ "model_max_length": 1e30 }));
    assert_eq!(bench.import_files(&files).unwrap().max_input_tokens, 34);
}

#[test]
fn trained_cuts_are_taken_from_the_configuration() {
    let bench = Bench::new();
    let mut files = fixture::model("bert");
    let config = json!({
        "model_type": "bert", "hidden_size": WIDTH, "vocab_size": WORDS,
        "max_position_embeddings": 34, "matryoshka_dimensions": [4, 2, 1, 2],
    });
    set(&mut files, "config.json", &config);
    assert_eq!(bench.import_files(&files).unwrap().matryoshka, [1, 2]);
}

#[test]
fn kinds_that_are_not_supported_are_named() {
    let config = |model_type: &str, key: &str, value: Value| {
        let mut config = json!({
            "model_type": model_type, "hidden_size": WIDTH, "vocab_size": WORDS,
            "max_position_embeddings": 34,
        });
        config[key] = value;
        config
    };
    let tokenizer_case = json!({ "max_seq_length": 32, "do_lower_case": true });
    let wide = json!({ "embedding_dimension": 9, "pooling_mode": "cls" });
    let unprompted = json!({ "pooling_mode": "cls", "include_prompt": false });
    let cases = [
        ("modules.json", modules(&["Transformer", "Pooling", "LSTM"]), "LSTM"),
        ("modules.json", modules(&["Transformer"]), "Transformer"),
        ("config.json", config("deberta-v2", "x", json!(0)), "model_type deberta-v2"),
        ("config.json", config("bert", "auto_map", json!({})), "auto_map"),
        ("config.json", config("bert", "hidden_size", json!(8)), "the model's own 8"),
        ("config.json", config("bert", "hidden_size", json!(0)), "without a usable hidden_size"),
        ("config.json", config("bert", "hidden_size", json!("x")), "cannot be understood"),
        ("config.json", config("bert", "hidden_act", json!("gelu_pytorch_tanh")), ""),
        ("config.json", config("bert", "matryoshka_dimensions", json!(null)), ""),
        ("1_Pooling/config.json", pooling(&["pooling_mode_weightedmean_tokens"]), "weightedmean"),
        ("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": false }), "no pooling mode"),
        (
            "1_Pooling/config.json",
            pooling(&["pooling_mode_cls_token", "pooling_mode_mean_tokens"]),
            "cls_token and mean_tokens",
        ),
        ("1_Pooling/config.json", json!({ "pooling_mode": "lasttoken" }), "lasttoken"),
        ("1_Pooling/config.json", json!({ "pooling_mode": ["cls", "max"] }), "cls and max"),
        ("1_Pooling/config.json", wide, "own 4"),
        ("1_Pooling/config.json", unprompted, ""),
        ("1_Pooling/config.json", json!({ "pooling_mode": "cls" }), ""),
        ("1_Pooling/config.json", pooling(&["pooling_mode_max_tokens"]), ""),
        ("sentence_bert_config.json", tokenizer_case, "do_lower_case"),
        ("sentence_bert_config.json", json!({ "max_seq_length": 35 }), "max_seq_length of 35"),
        ("sentence_bert_config.json", json!({ "max_seq_length": 0 }), "max_seq_length of 0"),
        ("tokenizer.json", json!([1]), "cannot be understood"),
        ("config_sentence_transformers.json", json!({ "default_prompt_name": "q" }), "`q`"),
        ("config_sentence_transformers.json", json!({ "truncate_dim": 3 }), "truncate_dim 3"),
        ("config_sentence_transformers.json", json!({ "prompts": { "q\0": "q: " } }), "U+0000"),
        ("config_sentence_transformers.json", json!({ "prompts": { "": "q: " } }), "name is empty"),
        ("config_sentence_transformers.json", json!({ "truncate_dim": 4 }), ""),
        ("config_sentence_transformers.json", json!({ "truncate_dim": null, "prompts": null }), ""),
        ("adapter_config.json", json!({}), "adapter"),
    ];
    for (file, content, expected) in cases {
        let mut files = fixture::model("bert");
        set(&mut files, file, &content);
        if expected.is_empty() {
            Bench::new().import_files(&files).unwrap();
            continue;
        }
        let message = refusal(&files);
        assert!(message.contains(expected), "{file}: {message}");
        assert!(message.contains("supported: "), "{message}");
    }
}

#[test]
fn a_lower_casing_tokenizer_makes_do_lower_case_harmless() {
    let mut files = fixture::model("bert");
    let lengths = json!({ "max_seq_length": 32, "do_lower_case": true });
    set(&mut files, "sentence_bert_config.json", &lengths);
    let mut tokenizer: Value = serde_json::from_slice(&files["tokenizer.json"]).unwrap();
    tokenizer["normalizer"]["lowercase"] = json!(true);
    set(&mut files, "tokenizer.json", &tokenizer);
    Bench::new().import_files(&files).unwrap();
}

#[test]
fn missing_files_are_named_with_what_lies_there_instead() {
    let cases = [
        ("modules.json", "x", "without modules.json"),
        ("config.json", "x", "without config.json"),
        ("tokenizer.json", "vocab.txt", "vocab.txt only"),
        ("tokenizer.json", "x", "no tokenizer"),
        ("model.safetensors", "pytorch_model.bin", "pytorch_model.bin only"),
        ("model.safetensors", "model.safetensors.index.json", "weights in several files (model."),
        ("model.safetensors", "x", "without model.safetensors"),
        ("1_Pooling/config.json", "x", "without 1_Pooling/config.json"),
    ];
    for (gone, instead, expected) in cases {
        let mut files = fixture::model("bert");
        files.remove(gone);
        files.insert(instead.into(), b"{}".to_vec());
        let message = refusal(&files);
        assert!(message.contains(expected), "{gone}: {message}");
    }
}

#[test]
fn half_precision_is_kept_as_32_bit_floats() {
    let words: Vec<f32> = (0..WORDS * WIDTH).map(|n| n as f32 / 7.0 - 1.0).collect();
    let halves = |bytes: fn(f32) -> [u8; 2]| -> Vec<u8> {
        words.iter().flat_map(|word| bytes(*word)).collect()
    };
    let f16 = halves(|word| half::f16::from_f32(word).to_le_bytes());
    let bf16 = halves(|word| half::bf16::from_f32(word).to_le_bytes());
    let rounded: [Vec<f32>; 2] = [
        words.iter().map(|word| half::f16::from_f32(*word).to_f32()).collect(),
        words.iter().map(|word| half::bf16::from_f32(*word).to_f32()).collect(),
    ];
    let mut spaces = Vec::new();
    for (element, bytes, rounded) in
        [(Dtype::F16, &f16, &rounded[0]), (Dtype::BF16, &bf16, &rounded[1])]
    {
        let wide: Vec<u8> = rounded.iter().flat_map(|word| word.to_le_bytes()).collect();
        let ids = [7_u8; 24];
        let imported = |element: Dtype, bytes: &[u8]| {
            // Another element type before and behind stays what it is.
            let views = [
                ("embeddings.position_ids", TensorView::new(Dtype::I64, vec![3], &ids).unwrap()),
                (
                    "embeddings.word_embeddings.weight",
                    TensorView::new(element, vec![WORDS, WIDTH], bytes).unwrap(),
                ),
                ("mask", TensorView::new(Dtype::U8, vec![5], &ids[..5]).unwrap()),
            ];
            let told = HashMap::from([("format".to_owned(), "pt".to_owned())]);
            let mut files = fixture::model("bert");
            let weights = safetensors::serialize(views, Some(told)).unwrap();
            files.insert("model.safetensors".into(), weights);
            let bench = Bench::new();
            let model = bench.import_files(&files).unwrap();
            bench.store.verify("mine").unwrap();
            let folder = model.dir.read_dir().unwrap().flatten();
            let names = folder.map(|entry| entry.file_name().into_string().unwrap());
            assert!(names.into_iter().all(|name| !name.ends_with("wide")));
            (fs::read(model.weights()).unwrap(), model.vector_space())
        };
        let (found, space) = imported(element, bytes);
        let found = safetensors::SafeTensors::deserialize(&found).unwrap();
        let words = found.tensor("embeddings.word_embeddings.weight").unwrap();
        assert_eq!((words.dtype(), words.data()), (Dtype::F32, &wide[..]), "{element}");
        assert_eq!(words.shape(), [WORDS, WIDTH]);
        assert_eq!(found.tensor("embeddings.position_ids").unwrap().data(), ids);
        assert_eq!(found.tensor("mask").unwrap().data(), &ids[..5]);
        let (plain, _) = imported(Dtype::F32, &wide);
        let plain = safetensors::SafeTensors::deserialize(&plain).unwrap();
        let plain = plain.tensor("embeddings.word_embeddings.weight").unwrap();
        assert_eq!(plain.data(), words.data());
        // The same every time, though the names and what else the file says come in any order.
        assert_eq!(imported(element, bytes).1, space);
        spaces.push(space);
    }
    assert_ne!(spaces[0], spaces[1]);
}

#[test]
fn names_are_checked() {
    let bench = Bench::new();
    let source = bench.path("source");
    fixture::write_folder(&source, &fixture::model("bert"));
    let long = "x".repeat(65);
    let names =
        ["", "..", ".x", "a/b", "Mine", "low", "none", "all", "default", "all-minilm-l6-v2", &long];
    for name in names {
        let error = bench.import(&source, name).unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{name}: {error}");
    }
    bench.import(&source, "my-model_2.5").unwrap();
    let error = bench.import(&source, "my-model_2.5").unwrap_err();
    assert!(error.to_string().contains("(type `op-dbus models remove my-model_2.5"), "{error}");
    assert_eq!(bench.visible(), ["my-model_2.5"]);
}

#[test]
fn a_name_is_looked_for_under_the_lock() {
    let bench = Bench::new();
    bench.import_files(&fixture::model("bert")).unwrap();
    let source = bench.path("source");
    fixture::write_folder(&source, &fixture::model("bert"));
    // Whatever is there by now, another import may be about to bring it.
    let writer = Writer::begin(bench.store.dir()).unwrap();
    let error = bench.import(&source, "mine").unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(writer);
    let error = bench.import(&source, "mine").unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
}

#[test]
fn links_may_not_leave_the_folder() {
    let bench = Bench::new();
    let source = bench.path("source");
    let mut files = fixture::model("bert");
    let weights = files.remove("model.safetensors").unwrap();
    fixture::write_folder(&source, &files);
    fs::write(bench.path("elsewhere"), &weights).unwrap();
    symlink("../elsewhere", source.join("model.safetensors")).unwrap();
    let message = bench.import(&source, "mine").unwrap_err().to_string();
    assert!(message.contains("outside the folder"), "{message}");
    assert_eq!((bench.visible().len(), bench.unfinished()), (0, 0));

    fs::remove_file(source.join("model.safetensors")).unwrap();
    fs::write(source.join("blob"), &weights).unwrap();
    symlink("blob", source.join("model.safetensors")).unwrap();
    let model = bench.import(&source, "mine").unwrap();
    assert!(model.weights().symlink_metadata().unwrap().is_file());

    // Nor is a model taken as if what can't be read were not there.
    files.insert("onnx/model.onnx".into(), b"graph".to_vec());
    for name in ["tokenizer_config.json", config_files::PROMPTS, "model.safetensors"] {
        fixture::write_folder(&source, &files);
        let path = source.join(name);
        for (target, why) in [("none", "nowhere"), ("/dev/zero", "outside"), ("", "not a file")] {
            fs::remove_file(&path).ok();
            match target {
                "" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                target => symlink(target, &path).unwrap(),
            }
            let message = bench.import(&source, "other").unwrap_err().to_string();
            assert!(message.contains(why), "{name}: {message}");
            assert_eq!((bench.visible(), bench.unfinished()), (vec!["mine".to_owned()], 0));
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_archive_may_not_lead_out_of_itself() {
    let leads_out = ["../evil", "/evil", "a/../../evil"].map(|name| (name, "leads out of it"));
    let backslash = ("a\\evil", "with a backslash in its name");
    for (name, why) in leads_out.into_iter().chain([backslash]) {
        let bench = Bench::new();
        let mut files = fixture::model("bert");
        files.insert(name.into(), b"x".to_vec());
        let archive = bench.path("model.zip");
        fs::write(&archive, fixture::zip(&files)).unwrap();
        let message = bench.import(&archive, "mine").unwrap_err().to_string();
        assert!(message.contains(why), "{name}: {message}");
        assert!(bench.visible().is_empty() && !bench.path("evil").exists());
    }
}

#[test]
fn a_json_file_may_not_be_huge() {
    let bench = Bench::new();
    let source = bench.path("source");
    fixture::write_folder(&source, &fixture::model("bert"));
    // Sparse: takes no space and reads as zeros.
    let file = fs::File::create(source.join("config.json")).unwrap();
    file.set_len((16 << 20) + 1).unwrap();
    let message = bench.import(&source, "mine").unwrap_err().to_string();
    assert!(message.contains("more than 16777216 bytes"), "{message}");
}

#[test]
fn other_files_are_neither_folder_nor_archive() {
    let bench = Bench::new();
    let path = bench.path("model.tar");
    fs::write(&path, b"x").unwrap();
    let message = bench.import(&path, "mine").unwrap_err().to_string();
    assert!(message.contains("neither a folder nor a .zip"), "{message}");
    let archive = bench.path("broken.zip");
    fs::write(&archive, b"PK not an archive").unwrap();
    let message = bench.import(&archive, "mine").unwrap_err().to_string();
    assert!(message.contains("cannot be read as a zip"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever weights are cut short, the import refuses them.
    #[test]
    fn truncated_weights_are_refused(kept in 0_usize..1000) {
        let mut files = fixture::model("bert");
        let weights = files.get_mut("model.safetensors").unwrap();
        let kept = kept % weights.len();
        weights.truncate(kept);
        // Of the copy in the store, which is gone then, nothing is said.
        let message = refusal(&files);
        prop_assert!(message.contains("a model.safetensors that is not a whole"), "{}", message);
    }

    /// Whatever byte of the header is flipped, the import refuses it or takes a file that verifies;
    /// it never panics.
    #[test]
    fn a_flipped_header_is_no_panic(at in 0_usize..200, bit in 0_u8..8) {
        let bench = Bench::new();
        let mut files = fixture::model("bert");
        let weights = files.get_mut("model.safetensors").unwrap();
        let at = at % weights.len();
        weights[at] ^= 1 << bit;
        if let Ok(model) = bench.import_files(&files) {
            prop_assert!(model.verify().is_ok());
        }
    }

    /// Arbitrary bytes in any of the small files are refused or taken, never a panic.
    #[test]
    fn arbitrary_json_is_no_panic(which in 0_usize..6, bytes in "[\\[\\]{}\":,0-9a-z ]{0,40}") {
        let mut files = fixture::model("bert");
        let name = files.keys().nth(which).unwrap().clone();
        files.insert(name, bytes.into_bytes());
        let bench = Bench::new();
        if let Ok(model) = bench.import_files(&files) {
            prop_assert!(model.verify().is_ok());
        }
    }
}
