//! A cache that is damaged, stale, foreign or not there never gives a wrong graph.

use std::fs;
use std::path::PathBuf;

use super::tiny;
use crate::cache::{CacheKey, GraphCache, Origin};
use crate::{Error, Family};

const GRAPH: &[u8] = b"a compiled graph";

fn key() -> CacheKey {
    let recipe = tiny::recipe();
    CacheKey {
        weights_sha256: "1".repeat(64),
        config_sha256: "2".repeat(64),
        dense_sha256: Vec::new(),
        family: Family::Bert,
        pooling: recipe.pooling,
        normalize: recipe.normalize,
        max_input_tokens: recipe.max_input_tokens,
        target: recipe.target,
    }
}

fn load(cache: &GraphCache, key: &CacheKey) -> Origin {
    let built = || Ok::<_, Error>(GRAPH.to_vec());
    let (graph, origin) = cache.load_or_compile(key, built).unwrap();
    assert_eq!(graph, GRAPH);
    origin
}

fn entries(dir: &std::path::Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_second_load_is_a_hit() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path().join("made/on/demand"));
    assert_eq!(load(&cache, &key()), Origin::Built);
    assert_eq!(load(&cache, &key()), Origin::Hit);
}

#[test]
fn whatever_decides_the_graph_is_part_of_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path());
    load(&cache, &key());
    let target = key().target;
    let others = [
        CacheKey { weights_sha256: "3".repeat(64), ..key() },
        CacheKey { config_sha256: "3".repeat(64), ..key() },
        CacheKey { dense_sha256: vec![["3".repeat(64), "4".repeat(64)]], ..key() },
        CacheKey { family: Family::Mpnet, ..key() },
        CacheKey { pooling: crate::Pooling::Max, ..key() },
        CacheKey { normalize: false, ..key() },
        CacheKey { max_input_tokens: 6, ..key() },
        CacheKey { target: crate::Target { precision: crate::Precision::F16, ..target }, ..key() },
    ];
    for other in others {
        assert_eq!(load(&cache, &other), Origin::Built, "{other:?}");
    }
    assert_eq!(load(&cache, &key()), Origin::Hit);
}

/// Each is as large as its model.
#[test]
fn of_a_model_that_comes_again_and_again_the_last_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path());
    let version = |n: usize| CacheKey { weights_sha256: format!("{n:064}"), ..key() };
    for n in 0..100 {
        assert_eq!(load(&cache, &version(n)), Origin::Built);
    }
    assert_eq!(entries(dir.path()).len(), 12);
    assert_eq!(load(&cache, &version(99)), Origin::Hit);
}

#[test]
fn damaged_entries_are_built_again_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path());
    load(&cache, &key());
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
        assert_eq!(load(&cache, &key()), Origin::Built);
        assert_eq!(fs::read(entry).unwrap(), whole);
    }
    assert_eq!(entries(dir.path()).len(), 1, "nothing else is left behind");
}

#[test]
fn an_entry_under_another_name_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path());
    load(&cache, &key());
    let ours = entries(dir.path()).remove(0);
    let other = CacheKey { normalize: false, ..key() };
    load(&cache, &other);
    let theirs = entries(dir.path()).into_iter().find(|path| *path != ours).unwrap();
    fs::rename(&ours, &theirs).unwrap();
    assert_eq!(load(&cache, &other), Origin::Built);
}

#[test]
fn a_folder_that_can_not_be_written_costs_nothing_but_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = GraphCache::new(file.path());
    assert_eq!(load(&cache, &key()), Origin::Built);
    assert_eq!(load(&cache, &key()), Origin::Built);
}

#[test]
fn a_failed_compilation_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = GraphCache::new(dir.path());
    let failed = || Err(Error::MissingTensor { name: "words".to_owned() });
    assert!(cache.load_or_compile(&key(), failed).is_err());
    assert!(entries(dir.path()).is_empty());
}
