//! What a writer leaves, and what it leaves alone, in a store of somebody else's.

use std::os::unix::fs::MetadataExt;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::tests::fixture::below;

#[test]
fn what_root_makes_belongs_to_whom_the_folder_around_it_belongs_to() {
    let dir = tempfile::tempdir().unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(64_905), Some(64_906)).unwrap();
    }
    let store = dir.path().join("models");
    let writer = Writer::begin(&store).unwrap();
    let stage = writer.stage().unwrap();
    write(&stage.path().join("files/1_Pooling/config.json"), b"{}").unwrap();
    writer.commit(&stage.path().join("files"), "model").unwrap();
    let owner = |path: &Path| {
        let meta = std::fs::metadata(path).unwrap();
        (meta.uid(), meta.gid())
    };
    for made in [".", ".lock", "model", "model/1_Pooling", "model/1_Pooling/config.json"] {
        assert_eq!(owner(&store.join(made)), owner(dir.path()), "{made}");
    }
    drop(writer);
    drop(Writer::begin(&store).unwrap());
}

/// A store of somebody else's, where this is root, and a folder that he would have root write to.
fn of_somebody() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (store, elsewhere) = (dir.path().join("models"), dir.path().join("elsewhere"));
    std::fs::create_dir(&store).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(&store, Some(64_905), Some(64_906)).unwrap();
    }
    (dir, store, elsewhere)
}

/// Puts a link to `elsewhere` in the place of a folder, which goes to `.old`.
fn exchange(folder: &Path, elsewhere: &Path) {
    std::fs::rename(folder, folder.with_file_name(".old")).unwrap();
    std::os::unix::fs::symlink(elsewhere, folder).unwrap();
}

#[test]
fn root_writes_nothing_where_a_link_in_place_of_the_stage_leads() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let (dir, store, elsewhere) = of_somebody();
    let writer = Writer::begin(&store).unwrap();
    let stage = writer.stage().unwrap();
    let name = std::fs::read_dir(store.join(STAGING)).unwrap().next().unwrap().unwrap();
    // Of the same name, with a link where the next file is written, and a folder that is closed.
    let (bait, target) = (elsewhere.join(name.file_name()), dir.path().join("target"));
    std::fs::create_dir(&bait).unwrap();
    std::fs::write(&target, b"as it was").unwrap();
    std::os::unix::fs::symlink(&target, bait.join("part")).unwrap();
    let mut closed = DirBuilder::new();
    closed.mode(0o700).create(bait.join("files")).unwrap();
    let before = below(&elsewhere);
    exchange(&store.join(STAGING), &elsewhere);

    let files = stage.path().join("files");
    write(&stage.path().join("part"), b"bytes").unwrap();
    make_dir(&files).unwrap();
    std::fs::rename(stage.path().join("part"), files.join("weights")).unwrap();
    write(&files.join("op-dbus.json"), b"{}").unwrap();
    writer.commit(&files, "model").unwrap();
    drop(stage);
    assert_eq!(below(&elsewhere), before);
    assert_eq!(std::fs::read(&target).unwrap(), b"as it was");
    assert_eq!(std::fs::read(store.join("model/weights")).unwrap(), b"bytes");
    assert!(!store.join(STAGING).exists(), "the link stays");
}

#[test]
fn root_writes_nothing_where_a_link_in_place_of_the_store_leads() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let (_dir, store, elsewhere) = of_somebody();
    let writer = Writer::begin(&store).unwrap();
    for kept in [".staging/.tmpx", ".partial/model", "model"] {
        std::fs::create_dir_all(elsewhere.join(kept)).unwrap();
    }
    let before = below(&elsewhere);
    exchange(&store, &elsewhere);
    let stage = writer.stage().unwrap();
    write(&stage.path().join("files/weights"), b"bytes").unwrap();
    writer.commit(&stage.path().join("files"), "model").unwrap();
    writer.discard("model").unwrap();
    assert_eq!(below(&elsewhere), before);
}

#[test]
fn nothing_is_removed_behind_a_link_in_place_of_the_downloads() {
    let (_dir, store, elsewhere) = of_somebody();
    std::fs::create_dir(elsewhere.join("model")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.join(PARTIAL)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.join(STAGING)).unwrap();
    let writer = Writer::begin(&store).unwrap();
    let stage = writer.stage().unwrap();
    write(&stage.path().join("files/weights"), b"bytes").unwrap();
    writer.commit(&stage.path().join("files"), "model").unwrap();
    assert!(elsewhere.join("model").is_dir());
    assert!(store.join("model/weights").is_file());
}

#[test]
fn what_may_not_be_removed_stops_the_removal_of_nothing_else() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let (dir, store, _) = of_somebody();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let staging = store.join(STAGING);
    let owner = Owner::of(&open_dir(&store).unwrap()).unwrap();
    act_as(owner, || {
        // Whatever order they are read in: some come after root's.
        for number in 0..16 {
            std::fs::create_dir_all(staging.join(format!(".tmp{number}/replaced"))).unwrap();
        }
    })
    .unwrap();
    for number in 0..16 {
        let left = staging.join(format!(".tmpROOT{number}"));
        std::fs::create_dir_all(left.join("files")).unwrap();
        std::fs::set_permissions(&left, Permissions::from_mode(0o700)).unwrap();
    }
    let open = open_dir(&store).unwrap();
    let lock = lock::open(&store.join(".lock"), owner).unwrap();
    // As it is where the owner has begun: the user of the process stays root's here.
    let writer = Writer {
        dir: store.clone(),
        root: store.clone(),
        owner: None,
        told: Cell::new(false),
        open,
        _lock: lock,
    };
    let mut writer = writer;
    act_as(owner, || {
        let writer = &mut writer;
        writer.clear().unwrap();
        assert!(writer.told.get());
        writer.clear().unwrap();
    })
    .unwrap();
    let left = below(&staging).into_iter().filter(|(path, ..)| path.ends_with("files")).count();
    assert_eq!((left, std::fs::read_dir(&staging).unwrap().count()), (16, 16));
    writer.clear().unwrap();
    assert!(!staging.exists(), "root leaves it for good");
}

#[test]
fn a_lock_that_is_a_pipe_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    mkfifo(&dir.path().join(".lock"), Mode::S_IRWXU).unwrap();
    let error = Writer::begin(dir.path()).map(drop).unwrap_err();
    assert!(error.to_string().ends_with(".lock: it is not a file"), "{error}");
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, dir.path().join(".lock")).unwrap();
    assert!(Writer::begin(dir.path()).is_err());
    assert!(!elsewhere.exists());
}
