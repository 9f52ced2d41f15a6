//! The runtime store: only the pinned bytes are ever taken for the library.

use std::fs;

use super::fixture::{self, Lines};
use crate::runtime::beside;
use crate::{Error, Progress, RuntimeStore, Source, manifest};

#[test]
fn the_runtime_lies_beside_the_models() {
    let path = beside(std::path::Path::new("/var/lib/op-dbus/models"));
    assert_eq!(path, std::path::Path::new("/var/lib/op-dbus/runtime"));
    let store = RuntimeStore::open(path);
    let version = &manifest::runtime().version;
    let expected =
        format!("/var/lib/op-dbus/runtime/onnxruntime-{version}/libonnxruntime.so.{version}");
    assert_eq!(store.path(), std::path::Path::new(&expected));
    assert!(store.installed().is_none());
}

#[test]
fn each_processor_has_a_library_of_the_pinned_version() {
    let runtime = manifest::runtime();
    for library in &runtime.libraries {
        assert!(library.member.path.ends_with(&runtime.version));
        assert!(library.platform.ends_with(&library.arch));
        assert_eq!(library.member.sha256.len(), 64);
    }
    let known: Vec<_> = runtime.libraries.iter().map(|library| library.arch.as_str()).collect();
    assert_eq!(known, ["x86_64", "aarch64"]);
}

#[test]
fn a_wrong_library_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let store = RuntimeStore::open(dir.path().join("runtime"));
    let name = store.path().file_name().unwrap().to_owned();
    let (library, wheel, empty) =
        (dir.path().join("library"), dir.path().join("wheel"), dir.path().join("empty"));
    for dir in [&library, &wheel, &empty] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(library.join(&name), b"not it").unwrap();
    let runtime = manifest::runtime();
    for entry in &runtime.libraries {
        let files = [(entry.member.path.clone(), b"not it".to_vec())].into();
        let (version, platform) = (&runtime.version, &entry.platform);
        let name = format!("onnxruntime-{version}-cp312-cp312-{platform}.whl");
        fs::write(wheel.join(name), fixture::zip(&files)).unwrap();
    }
    let lines = Lines::default();
    let sources = [library, wheel, empty].map(Source::Folder);
    let error = store.pull(&sources, &Progress::lines(lines.clone())).unwrap_err();
    if matches!(error, Error::Unsupported { .. }) {
        return; // A processor that the manifest does not know.
    }
    let message = error.to_string();
    assert_eq!(message.matches("wrong SHA-256").count(), 2, "{message}");
    assert_eq!(message.matches("has no wheel").count(), 1, "{message}");
    assert_eq!(lines.text().lines().count(), 3, "{}", lines.text());
    assert!(store.installed().is_none());
    assert!(matches!(store.verify().unwrap_err(), Error::NotInstalled { .. }));
}

#[test]
fn a_damaged_library_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = RuntimeStore::open(dir.path());
    fs::create_dir_all(store.path().parent().unwrap()).unwrap();
    fs::write(store.path(), b"half").unwrap();
    let message = store.verify().unwrap_err().to_string();
    assert!(message.contains("op-dbus runtime pull") || message.contains("processor"), "{message}");
}
