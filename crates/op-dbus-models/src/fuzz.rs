//! What the fuzzer of `tests/fuzz` drives here: archives, the small files of a model, records.

use std::io::{Cursor, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::Progress;
use crate::describe;
use crate::import::{ImportOptions, MARKERS, OnnxFacts};
use crate::place::Place;
use crate::store;

#[path = "../../../tests/fuzz/file.rs"]
mod file;

use file::as_file;

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] =
    &[("archive", archive), ("model-files", model_files), ("record", record)];

/// The files that [`model_files`] fills, in the order of its parts.
const FILES: [&str; 10] = [
    "modules.json",
    "config.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "2_Dense/config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];
/// The weights of the model and of its module, whose content is not looked at here.
const WEIGHTS: [&str; 2] = ["model.safetensors", "2_Dense/model.safetensors"];

/// A zip archive that somebody gives as a model.
fn archive(bytes: &[u8]) -> bool {
    let (_file, path) = as_file(bytes);
    describe_all(&path)
}

/// The files of [`FILES`], a NUL after each; one that is empty is not there.
fn model_files(bytes: &[u8]) -> bool {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let parts = FILES.into_iter().zip(bytes.split(|byte| *byte == 0));
    let given = parts.filter(|(_, content)| !content.is_empty());
    for (name, content) in given.chain(WEIGHTS.map(|name| (name, &b"weights"[..]))) {
        zip.start_file(name, stored).expect("an archive in memory");
        zip.write_all(content).expect("an archive in memory");
    }
    let (_file, path) = as_file(&zip.finish().expect("an archive in memory").into_inner());
    describe_all(&path)
}

/// Describes the archive as weights of a known family, and as a user's own graph; whether it is both.
fn describe_all(path: &Path) -> bool {
    let mut understood = 0;
    if let Ok(mut place) = Place::zip_around(path, MARKERS)
        && let Ok(found) = describe::sentence_transformers(&mut place, None)
    {
        assert!(found.dimensions > 0 && found.max_input_tokens > 0, "{found:?}");
        let is_inside = |file: &String| !file.starts_with('/') && !file.contains("..");
        assert!(found.files.iter().all(is_inside), "{found:?}");
        let is_prompt = |name: &String| found.prompts.contains_key(name);
        assert!(found.default_prompt.iter().all(is_prompt), "{found:?}");
        understood += 1;
    }
    let facts = OnnxFacts { dimensions: None, pooled: true, finished: true };
    let progress = Progress::silent();
    let options = ImportOptions {
        inspect: &|_| Err("nobody asks".into()),
        tokenizer: &|_, _| Err("nobody asks".into()),
        model: &|_| Err("nobody asks".into()),
        progress: &progress,
        pooling: None,
        dimensions: None,
        max_input_tokens: None,
    };
    if let Ok(mut place) = Place::zip_around(path, MARKERS)
        && let Ok(found) = describe::onnx(&mut place, facts, &options)
    {
        assert!(found.dimensions > 0 && found.max_input_tokens > 0, "{found:?}");
        understood += 1;
    }
    understood == 2
}

/// The record of an installed model, `op-dbus.json`.
fn record(bytes: &[u8]) -> bool {
    let record = store::parse_record("m", Path::new("op-dbus.json"), bytes);
    let Ok(model) = record else { return false };
    // Whoever loads it goes by these.
    assert!(model.dimensions > 0 && model.max_input_tokens > 0, "{model:?}");
    let folder = Path::new("/models/m");
    for file in &model.files {
        let path = folder.join(&file.path);
        let leaves = file.path.split('/').any(|part| part == "..");
        assert!(path.starts_with(folder) && !leaves, "{}", path.display());
    }
    assert_eq!(model.vector_space().len(), 64);
    let _ = model.bytes();
    true
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
