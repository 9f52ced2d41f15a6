//! Hand-made models, archives and wheels, a few kilobytes each.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use crate::{Error, ImportOptions, Model, OnnxFacts, Pooling, Progress, Store};

pub(super) const WIDTH: usize = 4;
pub(super) const WORDS: usize = 6;

/// The files of a model, by path.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A whole sentence-transformers model of the given `model_type`.
pub(super) fn model(model_type: &str) -> Files {
    let mut files = Files::new();
    let width = if model_type == "distilbert" { "dim" } else { "hidden_size" };
    let config = json!({
        "model_type": model_type, width: WIDTH, "vocab_size": WORDS, "max_position_embeddings": 34,
    });
    set(&mut files, "config.json", &config);
    set(&mut files, "modules.json", &modules(&["Transformer", "Pooling", "Normalize"]));
    set(&mut files, "1_Pooling/config.json", &pooling(&["pooling_mode_mean_tokens"]));
    let lengths = json!({ "max_seq_length": 32, "do_lower_case": false });
    set(&mut files, "sentence_bert_config.json", &lengths);
    set(&mut files, "tokenizer.json", &tokenizer(model_type));
    files.insert("model.safetensors".into(), weights(WORDS, WIDTH));
    files
}

/// The usual parts of a tokenizer of the type, and no vocabulary.
pub(super) fn tokenizer(model_type: &str) -> Value {
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false });
    let (before, behind) = match model_type {
        "bert" | "distilbert" => ("[CLS]", "[SEP]"),
        _ => ("<s>", "</s>"),
    };
    let around = around(before, behind);
    match model_type {
        "roberta" => json!({ "pre_tokenizer": bytes, "post_processor": around, "model": {} }),
        "xlm-roberta" | "camembert" => {
            let splitter = json!({ "type": "Metaspace" });
            json!({ "pre_tokenizer": splitter, "post_processor": around, "model": {} })
        }
        _ => json!({
            "normalizer": { "type": "BertNormalizer" },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "post_processor": around,
            "model": {},
        }),
    }
}

/// A post-processor that puts one special token before a text and another behind it.
pub(super) fn around(before: &str, behind: &str) -> Value {
    json!({ "type": "RobertaProcessing", "cls": [before, 0], "sep": [behind, 2] })
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
    let mut config =
        json!({ "word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": false });
    for mode in on {
        config[*mode] = Value::Bool(true);
    }
    config
}

pub(super) fn weights(words: usize, width: usize) -> Vec<u8> {
    tensors(&[("embeddings.word_embeddings.weight", &[words, width]), ("bias", &[width])])
}

/// A safetensors file with zeros in tensors of these names and shapes.
pub(super) fn tensors(shapes: &[(&str, &[usize])]) -> Vec<u8> {
    let bytes = |shape: &[usize]| shape.iter().product::<usize>() * 4;
    let zeros = vec![0_u8; shapes.iter().map(|(_, shape)| bytes(shape)).max().unwrap_or(0)];
    let views = shapes.iter().map(|(name, shape)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), &zeros[..bytes(shape)]).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// Adds a Dense module between pooling and what follows, in a folder `{index}_Dense`.
pub(super) fn add_dense(files: &mut Files, index: usize, inputs: usize, outputs: usize) {
    let config = json!({
        "in_features": inputs, "out_features": outputs, "bias": true,
        "activation_function": "torch.nn.modules.activation.Tanh",
    });
    set(files, &format!("{index}_Dense/config.json"), &config);
    let weights = tensors(&[("linear.weight", &[outputs, inputs]), ("linear.bias", &[outputs])]);
    files.insert(format!("{index}_Dense/model.safetensors"), weights);
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

/// All that lies below a folder, with its modes and contents.
pub(crate) fn below(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.push((path.clone(), meta.mode(), bytes));
        if meta.is_dir() {
            found.extend(below(&path));
        }
    }
    found.sort();
    found
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
        let facts = OnnxFacts { dimensions: None, pooled: false, finished: false };
        self.import_graph(path, name, facts)
    }

    pub(super) fn import_graph(
        &self,
        path: &Path,
        name: &str,
        facts: OnnxFacts,
    ) -> Result<Model, Error> {
        self.import_as(path, name, facts, (None, None, None))
    }

    /// An import with `--pooling`, `--dimensions` and `--max-input-tokens`.
    pub(super) fn import_as(
        &self,
        path: &Path,
        name: &str,
        facts: OnnxFacts,
        (pooling, dimensions, max_input_tokens): (Option<Pooling>, Option<usize>, Option<usize>),
    ) -> Result<Model, Error> {
        let options = ImportOptions {
            inspect: &|_| Ok(facts),
            tokenizer: &|_, _| Ok(()),
            model: &|_| Ok(()),
            progress: &Progress::silent(),
            pooling,
            dimensions,
            max_input_tokens,
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

/// The message of the refusal, after a check that nothing of the model was left in the store.
pub(super) fn refusal(files: &Files) -> String {
    let bench = Bench::new();
    let error = bench.import_files(files).unwrap_err();
    assert!(bench.visible().is_empty(), "{:?}", bench.visible());
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    error.to_string()
}

/// A sink for progress lines that a test can read.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn text(&self) -> String {
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
