//! Weights in several files, as transformers saves what is too large for one.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::Metadata;
use serde::Deserialize;

use crate::Error;
use crate::config_files::{WEIGHTS_BYTES_MAX, require};
use crate::error::refuse;
use crate::place::Place;

/// The file that says which tensor is in which of them.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The names of the tensors in each file.
pub(crate) type Shards = BTreeMap<String, BTreeSet<String>>;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads which files there are, all of them beside the index.
pub(crate) fn read(place: &mut Place) -> Result<Shards, Error> {
    let mut shards = Shards::new();
    for (tensor, file) in require::<Index>(place, INDEX)?.weight_map {
        shards.entry(file).or_default().insert(tensor);
    }
    if shards.is_empty() {
        return Err(refuse(format!("{INDEX} without tensors"), "one that lists all of them"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    for file in shards.keys() {
        if !file.ends_with(".safetensors") || file.starts_with('.') || !file.chars().all(plain) {
            return Err(refuse(
                format!("{INDEX} with the file `{file}`"),
                "files named *.safetensors that lie beside it",
            ));
        }
        if !place.has(file) {
            let found = format!("{INDEX} with the file {file}, which is not there");
            return Err(refuse(found, "all files that it lists; copy or fetch the others as well"));
        }
    }
    let bytes = shards.keys().filter_map(|file| place.bytes(file)).fold(0, u64::saturating_add);
    if bytes > WEIGHTS_BYTES_MAX {
        return Err(refuse(
            format!("{INDEX} with files of {bytes} bytes together"),
            format!("at most {WEIGHTS_BYTES_MAX} bytes for all of them"),
        ));
    }
    Ok(shards)
}

/// Refuses a file that has other tensors than the index says: a tensor may be in two of them, or in none.
pub(crate) fn check(file: &str, listed: &BTreeSet<String>, header: &Metadata) -> Result<(), Error> {
    let found: BTreeSet<String> = header.tensors().into_keys().collect();
    let Some(tensor) = found.symmetric_difference(listed).next() else { return Ok(()) };
    let has = if found.contains(tensor) { "with" } else { "without" };
    Err(refuse(
        format!("{file} {has} the tensor {tensor}, of which {INDEX} says otherwise"),
        "an index and files of one model; copy or fetch them again",
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn files_that_are_too_large_together_are_told_the_limit_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
        fs::write(folder.path().join(INDEX), index).unwrap();
        let read_with = |last: u64| {
            let first = WEIGHTS_BYTES_MAX - 1;
            for (file, bytes) in [("a.safetensors", first), ("b.safetensors", last)] {
                // Sparse.
                File::create(folder.path().join(file)).unwrap().set_len(bytes).unwrap();
            }
            read(&mut Place::folder(folder.path()).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(read_with(1).unwrap().len(), 2);
        let message = read_with(2).unwrap_err();
        let limit = format!("at most {WEIGHTS_BYTES_MAX} bytes for all of them");
        assert!(message.contains(&limit), "{message}");
    }
}
