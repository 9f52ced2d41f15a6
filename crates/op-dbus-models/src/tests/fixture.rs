//! Hand-made models, archives and wheels, a few kilobytes each.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use crate::{Error, ImportOptions, Model, OnnxFacts, Progress, Store};

pub(super) const WIDTH: usize = 4;
pub(super) const WORDS: usize = 6;

/// The files of a model, by path.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A whole sentence-transformers model of the given `model_type`.
pub(super) fn model(model_type: &str) -> Files {
    let mut files = Files::new();
    set(
        &mut files,
        "config.json",
        &json!({
            "model_type": model_type, "hidden_size": WIDTH, "vocab_size": WORDS,
            "max_position_embeddings": 34,
        }),
    );
    set(&mut files, "modules.json", &modules(&["Transformer", "Pooling", "Normalize"]));
    set(&mut files, "1_Pooling/config.json", &pooling(&["pooling_mode_mean_tokens"]));
    let lengths = json!({ "max_seq_length": 32, "do_lower_case": false });
    set(&mut files, "sentence_bert_config.json", &lengths);
    let tokenizer = json!({ "normalizer": null, "model": { "type": "WordPiece" } });
    set(&mut files, "tokenizer.json", &tokenizer);
    files.insert("model.safetensors".into(), weights(WORDS, WIDTH));
    files
}

pub(super) fn set(files: &mut Files, path: &str, value: &Value) {
    files.insert(path.into(), value.to_string().into_bytes());
}

pub(super) fn modules(kinds: &[&str]) -> Value {
    let module = |(index, kind): (usize, &&str)| {
        let path = if index == 0 { String::new() } else { format!("{index}_{kind}") };
        json!({ "idx": index, "path": path, "type": format!("sentence_transformers.models.{kind}") })
    };
    kinds.iter().enumerate().map(module).collect()
}

pub(super) fn pooling(on: &[&str]) -> Value {
    let mut config = json!({ "word_embedding_dimension": WIDTH, "pooling_mode_cls_token": false });
    for mode in on {
        config[*mode] = Value::Bool(true);
    }
    config
}

pub(super) fn weights(words: usize, width: usize) -> Vec<u8> {
    let data = vec![0_u8; words * width * 4];
    let table = TensorView::new(Dtype::F32, vec![words, width], &data).unwrap();
    let bias = TensorView::new(Dtype::F32, vec![width], &data[..width * 4]).unwrap();
    let tensors = [("embeddings.word_embeddings.weight", table), ("bias", bias)];
    safetensors::serialize(tensors, None).unwrap()
}

pub(super) fn write_folder(dir: &Path, files: &Files) {
    for (path, bytes) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

pub(super) fn zip(files: &Files) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (path, bytes) in files {
        writer.start_file(path.as_str(), SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A store and a place for sources, both in one temporary folder.
pub(super) struct Bench {
    pub dir: TempDir,
    pub store: Store,
}

impl Bench {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("models"));
        Self { dir, store }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn import(&self, path: &Path, name: &str) -> Result<Model, Error> {
        let facts = OnnxFacts { dimensions: None, pooled: false, external_data: false };
        self.import_graph(path, name, facts)
    }

    pub(super) fn import_graph(
        &self,
        path: &Path,
        name: &str,
        facts: OnnxFacts,
    ) -> Result<Model, Error> {
        let options = ImportOptions {
            inspect: &|_| Ok(facts),
            progress: &Progress::silent(),
            pooling: None,
            dimensions: None,
            max_input_tokens: None,
        };
        self.store.import(path, name, &options)
    }

    pub(super) fn import_files(&self, files: &Files) -> Result<Model, Error> {
        let source = tempfile::tempdir_in(self.dir.path()).unwrap();
        write_folder(source.path(), files);
        self.import(source.path(), "mine")
    }

    /// Everything in the store's folder that could be taken for a model.
    pub(super) fn visible(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.store.dir())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != ".lock" && name != ".staging")
            .collect();
        names.sort();
        names
    }

    /// What lies in the folder for unfinished work.
    pub(super) fn unfinished(&self) -> usize {
        fs::read_dir(self.store.dir().join(".staging")).into_iter().flatten().count()
    }
}

/// A sink for progress lines that a test can read.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
