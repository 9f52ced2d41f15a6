//! Installed models: their records, the check of their files, listing and removing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixture::{self, Bench};
use crate::{Error, Level, Model, Progress, PullOptions, Store, manifest};

fn imported() -> Bench {
    let bench = Bench::new();
    bench.import_files(&fixture::model("bert")).unwrap();
    bench
}

#[test]
fn a_record_comes_back_as_it_was_written() {
    let bench = Bench::new();
    let model = bench.import_files(&fixture::model("mpnet")).unwrap();
    assert_eq!(bench.store.get("mine").unwrap(), model);
    assert_eq!(bench.store.names(), ["mine"]);
}

#[test]
fn a_record_that_would_be_too_large_to_be_read_is_refused() {
    let mut files = fixture::model("bert");
    let name = "config_sentence_transformers.json";
    let prompts = |bytes: usize| json!({ "prompts": { "query": "q".repeat(bytes) } });
    fixture::set(&mut files, name, &prompts((1 << 20) - 4096));
    let bench = Bench::new();
    bench.import_files(&files).unwrap();
    assert!(bench.store.get("mine").is_ok());
    fixture::set(&mut files, name, &prompts(1 << 20));
    let message = fixture::refusal(&files);
    assert!(message.contains("with prompts of 1048581 bytes"), "{message}");
}

#[test]
fn files_are_readable_by_all_and_writable_by_their_owner_only() {
    let bench = imported();
    let model = bench.store.get("mine").unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&model.dir), 0o755);
    assert_eq!(mode(&model.dir.join("1_Pooling")), 0o755);
    for file in &model.files {
        assert_eq!(mode(&model.dir.join(&file.path)), 0o644, "{}", file.path);
    }
}

#[test]
fn every_kind_of_damage_is_named() {
    let bench = imported();
    let model = bench.store.get("mine").unwrap();
    for file in &model.files {
        let path = model.dir.join(&file.path);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[0] ^= 1;
        let longer = [whole.as_slice(), b"x"].concat();
        for damaged in [&whole[..whole.len() - 1], &flipped, &longer] {
            fs::write(&path, damaged).unwrap();
            let error = model.verify().unwrap_err();
            assert!(matches!(&error, Error::Corrupt { file, .. } if *file == path), "{error}");
            assert!(error.to_string().contains("models import PATH --name mine"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let message = model.verify().unwrap_err().to_string();
        assert!(message.contains("missing"), "{message}");
        fs::write(&path, whole).unwrap();
        model.verify().unwrap();
    }
}

#[test]
fn what_is_read_is_what_was_checked() {
    let bench = imported();
    let model = bench.store.get("mine").unwrap();
    let path = model.weights();
    let whole = fs::read(&path).unwrap();
    assert_eq!(model.read(&path).unwrap(), whole);
    assert_eq!(model.recorded_sha256(&path), crate::digest::of_bytes(&whole));
    let mut flipped = whole;
    flipped[0] ^= 1;
    fs::write(&path, flipped).unwrap();
    let error = model.read(&path).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if *file == path), "{error}");
    // Of other files in its folder nobody knows what they should be.
    let stray = model.dir.join("stray.json");
    fs::write(&stray, "{}").unwrap();
    assert!(matches!(model.read(&stray), Err(Error::Corrupt { .. })));
    assert_eq!(model.recorded_sha256(&stray), "");
}

#[test]
fn files_that_others_may_write_are_refused() {
    let bench = imported();
    let model = bench.store.get("mine").unwrap();
    for mode in [0o664, 0o646, 0o666] {
        fs::set_permissions(model.weights(), Permissions::from_mode(mode)).unwrap();
        let message = model.check_files().unwrap_err().to_string();
        assert!(
            message.contains(&format!("chmod go-w {}", model.weights().display())),
            "{message}"
        );
    }
    fs::set_permissions(model.weights(), Permissions::from_mode(0o644)).unwrap();
    // The digests that all files are held to.
    let record = model.dir.join("op-dbus.json");
    for mode in [0o664, 0o646, 0o666] {
        fs::set_permissions(&record, Permissions::from_mode(mode)).unwrap();
        let message = bench.store.get("mine").unwrap_err().to_string();
        assert!(message.contains(&format!("chmod go-w {}", record.display())), "{message}");
    }
}

#[test]
fn a_damaged_record_is_named() {
    let bench = imported();
    let path = bench.store.get("mine").unwrap().dir.join("op-dbus.json");
    let whole: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let cases = [
        ("version", json!(2), "version 2"),
        ("name", json!("other"), "another model"),
        ("dimensions", json!(0), "are 0"),
        ("dimensions", json!(-1), "invalid value"),
        ("default_prompt", json!("q"), "default prompt"),
        ("prompts", json!({ "q\0": "q: " }), "U+0000"),
        ("files", json!([]), "no weights"),
        ("family", json!("deberta"), "unknown variant"),
        ("dense", json!(["2_Dense"]), "weights of a Dense module"),
    ];
    for (key, value, expected) in cases {
        let mut record = whole.clone();
        record[key] = value;
        fs::write(&path, record.to_string()).unwrap();
        let error = bench.store.get("mine").unwrap_err();
        assert!(matches!(&error, Error::Corrupt { file, .. } if *file == path), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    for evil in ["../../etc/passwd", "/etc/passwd", "a//b", "."] {
        let mut record = whole.clone();
        record["files"][2]["path"] = json!(evil);
        fs::write(&path, record.to_string()).unwrap();
        assert!(bench.store.get("mine").is_err(), "{evil}");
    }
    fs::remove_file(&path).unwrap();
    assert!(bench.store.get("mine").unwrap_err().to_string().contains("missing"));
    bench.store.remove("mine").unwrap();
    assert!(bench.visible().is_empty());
}

#[test]
fn what_is_no_model_is_not_removed() {
    let bench = imported();
    let folder = bench.store.dir().join("letters");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("to-her"), "").unwrap();
    let refused = bench.store.remove("letters").unwrap_err();
    assert!(matches!(&refused, Error::NoModel { dir } if *dir == folder), "{refused}");
    // Nor is it advised to.
    let told = bench.store.get("letters").unwrap_err();
    assert_eq!(told.to_string(), refused.to_string());
    assert!(folder.join("to-her").is_file());
    // Nor where a model is to have its name.
    let source = bench.path("source");
    fixture::write_folder(&source, &fixture::model("bert"));
    fs::write(bench.store.dir().join("note"), "").unwrap();
    for name in ["letters", "note"] {
        let refused = bench.import(&source, name).unwrap_err();
        let at = bench.store.dir().join(name);
        assert!(matches!(&refused, Error::NoModel { dir } if *dir == at), "{refused}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_record_keeps_nobody_waiting() {
    let bench = imported();
    let path = bench.store.get("mine").unwrap().dir.join("op-dbus.json");
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let error = bench.store.get("mine").unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if *file == path), "{error}");
    assert!(error.to_string().contains("op-dbus.json is damaged: it is not a file"), "{error}");
    bench.store.remove("mine").unwrap();
}

#[test]
fn built_in_models_are_held_to_the_manifest() {
    let bench = imported();
    let built_in = manifest::find("medium").unwrap();
    let dir = bench.store.dir().join(&built_in.name);
    fs::rename(bench.store.dir().join("mine"), &dir).unwrap();
    let record = fs::read_to_string(dir.join("op-dbus.json")).unwrap();
    let record = record.replace("\"mine\"", "\"all-MiniLM-L6-v2\"");
    fs::write(dir.join("op-dbus.json"), record).unwrap();
    // The folder agrees with its own record, which counts for nothing.
    let model = bench.store.get("medium").unwrap();
    assert_eq!(model.dimensions, 384);
    assert_eq!(model.level, Some(Level::Medium));
    let message = model.verify().unwrap_err().to_string();
    assert!(message.contains("op-dbus models pull all-MiniLM-L6-v2"), "{message}");
}

#[test]
fn a_store_that_is_a_file_or_lies_below_one_is_told_as_that() {
    let (file, progress) = (tempfile::NamedTempFile::new().unwrap(), Progress::silent());
    let options = PullOptions {
        sources: Vec::new(),
        convert: &|_| Err("not called".into()),
        progress: &progress,
    };
    for dir in [file.path().to_owned(), file.path().join("models")] {
        let store = Store::open(&dir);
        let removed = store.remove("low").map(drop);
        let got = [store.get("low"), store.pull("low", &options)].map(|got| got.map(drop));
        for refused in got.into_iter().chain([removed]) {
            let told = format!(
                "{} is no folder, or lies below a file; name another with `model_dir` or \
                 --model-dir",
                dir.display()
            );
            assert_eq!(refused.unwrap_err().to_string(), told);
        }
    }
}

#[test]
fn what_is_not_there_is_not_installed() {
    let bench = Bench::new();
    for name in ["medium", "all-mpnet-base-v2", "mine", "../x", "", ".staging"] {
        let error = bench.store.get(name).unwrap_err();
        assert!(matches!(error, Error::NotInstalled { .. }), "{name}: {error}");
        let error = bench.store.remove(name).unwrap_err();
        assert!(matches!(error, Error::NotInstalled { .. }), "{name}: {error}");
        assert!(error.to_string().contains("type `op-dbus models list"), "{name}: {error}");
    }
    let message = bench.store.get("low").unwrap_err().to_string();
    assert!(message.contains("op-dbus models pull paraphrase-MiniLM-L3-v2"), "{message}");
    let message = bench.store.get("mine").unwrap_err().to_string();
    assert!(message.contains("import PATH --name mine"), "{message}");
    // What an import would refuse is not what to type.
    for name in ["all", "none", "Mine", "../x", ""] {
        let message = bench.store.get(name).unwrap_err().to_string();
        assert!(message.contains("type `op-dbus models list --model-dir "), "{message}");
    }
    assert!(bench.store.names().is_empty());
    assert!(!bench.store.dir().exists(), "looking makes nothing");
}

#[test]
fn one_writer_at_a_time() {
    let bench = imported();
    let _writer = crate::staging::Writer::begin(bench.store.dir()).unwrap();
    let error = bench.store.remove("mine").unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    bench.store.verify("mine").unwrap();
}

#[test]
fn vector_spaces_tell_what_makes_vectors_differ() {
    let bench = Bench::new();
    let model = bench.import_files(&fixture::model("bert")).unwrap();
    let space = model.vector_space();
    assert_eq!(space.len(), 64);
    let mut other = model.clone();
    other.normalize = !model.normalize;
    assert_ne!(other.vector_space(), space);
    other = model.clone();
    other.pooling = crate::Pooling::Max;
    assert_ne!(other.vector_space(), space);
    other = model.clone();
    other.name = "renamed".into();
    other.max_input_tokens = 7;
    assert_eq!(other.vector_space(), space);
    for name in ["model.safetensors", "tokenizer.json"] {
        other = model.clone();
        let file = other.files.iter_mut().find(|file| file.path == name).unwrap();
        file.sha256 = "0".repeat(64);
        assert_ne!(other.vector_space(), space, "{name}");
    }
}

#[test]
fn what_the_configuration_decides_is_part_of_the_vector_space() {
    let imported = |model_type: &str, key: &str, value: Value| {
        let mut files = fixture::model(model_type);
        let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        config[key] = value;
        fixture::set(&mut files, "config.json", &config);
        Bench::new().import_files(&files).unwrap()
    };
    let usual = imported("bert", "transformers_version", json!("4"));
    assert!(usual.unusual.is_empty());
    let cases = [
        ("bert", "hidden_act", json!("gelu"), None),
        ("bert", "hidden_act", json!("gelu_python"), None),
        ("bert", "hidden_act", json!("relu"), Some("activation relu")),
        ("bert", "hidden_act", json!("gelu_pytorch_tanh"), Some("activation gelu_new")),
        ("bert", "layer_norm_eps", json!(1e-12), None),
        ("bert", "layer_norm_eps", json!(1e-5), Some("epsilon 1e-5")),
        ("mpnet", "layer_norm_eps", json!(1e-5), None),
        ("roberta", "layer_norm_eps", json!(1e-12), Some("epsilon 1e-12")),
        ("bert", "num_attention_heads", json!(2), Some("heads 2")),
        ("roberta", "pad_token_id", json!(0), Some("padding 0")),
        ("bert", "pad_token_id", json!(0), None),
        ("distilbert", "activation", json!("relu"), Some("activation relu")),
        ("distilbert", "hidden_act", json!("relu"), None),
    ];
    for (model_type, key, value, expected) in cases {
        let model = imported(model_type, key, value.clone());
        assert_eq!(model.unusual.last().map(String::as_str), expected, "{key} {value}");
        let plain = Model { unusual: Vec::new(), ..model.clone() };
        assert_eq!(plain.vector_space() == model.vector_space(), expected.is_none());
    }
    let mut files = fixture::model("bert");
    let words = [fixture::WORDS, fixture::WIDTH];
    let weights =
        [("embeddings.word_embeddings.weight", &words[..]), ("layer.1.bias", &words[..1])];
    files.insert("model.safetensors".into(), fixture::tensors(&weights));
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    for (layers, expected) in [(2, &[][..]), (1, &["layers 1"][..])] {
        config["num_hidden_layers"] = json!(layers);
        fixture::set(&mut files, "config.json", &config);
        assert_eq!(Bench::new().import_files(&files).unwrap().unusual, expected);
    }
}

#[test]
fn a_flipped_record_is_no_panic() {
    let bench = imported();
    let path = bench.store.get("mine").unwrap().dir.join("op-dbus.json");
    let whole = fs::read(&path).unwrap();
    proptest!(|(at in 0..whole.len(), byte in any::<u8>())| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        fs::write(&path, bytes).unwrap();
        if let Ok(model) = bench.store.get("mine") {
            let leaves =
                |path: &str| path.starts_with('/') || path.split('/').any(|part| part == "..");
            prop_assert!(!model.files.iter().any(|file| leaves(&file.path)));
        }
    });
}
