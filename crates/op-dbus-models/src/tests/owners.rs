//! Root in a store of somebody else's, who exchanges folders meanwhile.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use nix::unistd::geteuid;

use super::fixture::{self, Bench, below};
use crate::{Error, ImportOptions, Model, OnnxFacts, Progress};

const OWNER: u32 = 64_905;

/// An import into a store of `OWNER`'s, from a folder that only root gets into; `meanwhile` happens
/// once the small files are copied and before the weights and the record are written.
fn import(bench: &Bench, meanwhile: impl Fn()) -> Result<Model, Error> {
    fs::create_dir_all(bench.store.dir()).unwrap();
    chown(bench.store.dir(), Some(OWNER), Some(OWNER)).unwrap();
    let source = bench.path("source");
    fixture::write_folder(&source, &fixture::model("bert"));
    fs::set_permissions(&source, fs::Permissions::from_mode(0o700)).unwrap();
    let options = ImportOptions {
        inspect: &|_| Ok(OnnxFacts { dimensions: None, pooled: false, finished: false }),
        tokenizer: &|_, _| {
            meanwhile();
            Ok(())
        },
        model: &|_| Ok(()),
        progress: &Progress::silent(),
        pooling: None,
        dimensions: None,
        max_input_tokens: None,
    };
    bench.store.import(&source, "mine", &options)
}

#[test]
fn what_only_root_may_read_is_imported_for_the_stores_owner() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let bench = Bench::new();
    let model = import(&bench, || ()).unwrap();
    assert_eq!(bench.store.verify("mine").unwrap(), model);
    assert_eq!(model.dir, bench.store.dir().join("mine"));
    for file in ["", "op-dbus.json", "model.safetensors", "1_Pooling/config.json"] {
        assert_eq!(fs::metadata(model.dir.join(file)).unwrap().uid(), OWNER, "{file}");
    }
}

#[test]
fn files_of_somebody_else_are_refused() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let bench = Bench::new();
    let model = import(&bench, || ()).unwrap();
    for file in ["op-dbus.json", "model.safetensors"] {
        let path = model.dir.join(file);
        for owner in [0, OWNER] {
            chown(&path, Some(owner), None).unwrap();
            bench.store.get("mine").unwrap().check_files().unwrap();
        }
        chown(&path, Some(OWNER + 1), None).unwrap();
        let refused = bench.store.get("mine").and_then(|model| model.check_files());
        let message = refused.unwrap_err().to_string();
        let fix = format!("chown --reference={} {}", bench.store.dir().display(), path.display());
        assert!(message.contains(&fix), "{message}");
        chown(&path, Some(OWNER), None).unwrap();
    }
}

#[test]
fn a_link_in_place_of_the_stage_leads_an_import_nowhere() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let bench = Bench::new();
    let (elsewhere, target) = (bench.path("elsewhere"), bench.path("target"));
    fs::create_dir(&elsewhere).unwrap();
    fs::write(&target, "as it was").unwrap();
    let staging = bench.store.dir().join(".staging");
    let model = import(&bench, || {
        let stage = fs::read_dir(&staging).unwrap().next().unwrap().unwrap().file_name();
        let files = elsewhere.join(stage).join("files");
        fs::create_dir_all(&files).unwrap();
        fs::set_permissions(&files, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&target, files.join("op-dbus.json")).unwrap();
        fs::rename(&staging, staging.with_file_name(".old")).unwrap();
        symlink(&elsewhere, &staging).unwrap();
    });
    assert_eq!(bench.store.verify("mine").unwrap(), model.unwrap());
    assert_eq!(fs::read(&target).unwrap(), b"as it was");
    let found: Vec<_> = below(&elsewhere).into_iter().map(|(_, mode, _)| mode & 0o7777).collect();
    assert_eq!(found, [0o755, 0o700, 0o777], "{:?}", below(&elsewhere));
}

#[test]
fn errors_of_root_tell_the_stores_folder() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let bench = Bench::new();
    let record = |stage: &Path| stage.join("files/op-dbus.json");
    let staging = bench.store.dir().join(".staging");
    let refused = import(&bench, || {
        let stage = fs::read_dir(&staging).unwrap().next().unwrap().unwrap().path();
        fs::create_dir(record(&stage)).unwrap();
    });
    let message = refused.unwrap_err().to_string();
    assert!(message.contains(&staging.display().to_string()), "{message}");
}
