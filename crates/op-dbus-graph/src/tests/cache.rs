//! A cache that is damaged, stale, foreign or not there never gives a wrong graph.

use std::fs;
use std::path::{Path, PathBuf};

use super::tiny;
use crate::cache::{CacheKey, load_or_compile};
use crate::{Error, Family, Pooling, Precision, Recipe, Target};

const GRAPH: &[u8] = b"a compiled graph";

fn key() -> CacheKey {
    CacheKey {
        weights_sha256: "1".repeat(64),
        config_sha256: "2".repeat(64),
        dense_sha256: Vec::new(),
        family: Family::Bert,
        recipe: tiny::recipe(),
    }
}

/// Whether it had to be compiled.
fn compiles(dir: &Path, key: &CacheKey) -> bool {
    let (graph, compiled) = load_or_compile(dir, key, || Ok::<_, Error>(GRAPH.to_vec())).unwrap();
    assert_eq!(graph, GRAPH);
    compiled
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_second_load_is_a_hit() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("made/on/demand");
    assert!(compiles(&cache, &key()));
    assert!(!compiles(&cache, &key()));
}

#[test]
fn whatever_decides_the_graph_is_part_of_the_key() {
    let dir = tempfile::tempdir().unwrap();
    compiles(dir.path(), &key());
    let recipe = tiny::recipe();
    let target = Target { precision: Precision::F16, ..recipe.target };
    let recipes = [
        Recipe { pooling: Pooling::Max, ..recipe },
        Recipe { normalize: false, ..recipe },
        Recipe { max_input_tokens: 6, ..recipe },
        Recipe { target, ..recipe },
    ];
    let others = [
        CacheKey { weights_sha256: "3".repeat(64), ..key() },
        CacheKey { config_sha256: "3".repeat(64), ..key() },
        CacheKey { dense_sha256: vec![["3".repeat(64), "4".repeat(64)]], ..key() },
        CacheKey { family: Family::Mpnet, ..key() },
    ];
    for other in others.into_iter().chain(recipes.map(|recipe| CacheKey { recipe, ..key() })) {
        assert!(compiles(dir.path(), &other), "{other:?}");
    }
    assert!(!compiles(dir.path(), &key()));
}

/// Each is as large as its model.
#[test]
fn of_a_model_that_comes_again_and_again_the_last_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let version = |n: usize| CacheKey { config_sha256: format!("{n:064}"), ..key() };
    for n in 0..100 {
        assert!(compiles(dir.path(), &version(n)));
    }
    assert_eq!(entries(dir.path()).len(), 12);
    assert!(!compiles(dir.path(), &version(99)));
}

#[test]
fn damaged_entries_are_built_again_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    compiles(dir.path(), &key());
    let [entry] = &entries(dir.path())[..] else { panic!("one entry") };
    let whole = fs::read(entry).unwrap();
    let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
    let flipped = (0..whole.len()).map(|index| {
        let mut bytes = whole.clone();
        bytes[index] ^= 1;
        bytes
    });
    let grown = [whole.clone(), b"x".to_vec()].concat();
    for damaged in cut.chain(flipped).chain([grown]) {
        fs::write(entry, damaged).unwrap();
        assert!(compiles(dir.path(), &key()));
        assert_eq!(fs::read(entry).unwrap(), whole);
    }
    assert_eq!(entries(dir.path()).len(), 1, "nothing else is left behind");
}

#[test]
fn an_entry_under_another_name_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    compiles(dir.path(), &key());
    let ours = entries(dir.path()).remove(0);
    let other = CacheKey { family: Family::Mpnet, ..key() };
    compiles(dir.path(), &other);
    let theirs = entries(dir.path()).into_iter().find(|path| *path != ours).unwrap();
    fs::rename(&ours, &theirs).unwrap();
    assert!(compiles(dir.path(), &other));
}

#[test]
fn a_folder_that_can_not_be_written_costs_nothing_but_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(compiles(file.path(), &key()));
    assert!(compiles(file.path(), &key()));
}

#[test]
fn a_failed_compilation_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let failed = || Err(Error::MissingTensor { name: "words".to_owned() });
    assert!(load_or_compile(dir.path(), &key(), failed).is_err());
    assert!(entries(dir.path()).is_empty());
}
