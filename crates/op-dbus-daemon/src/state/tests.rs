//! State files through damage, crashes and full disks.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

/// A folder of its own, and where the state is in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    (folder, path)
}

fn sample(path: &Path) -> StateFile {
    let mut state = StateFile::empty(path);
    state.set("vector_level", Value::from("low"));
    state.set("gpu_device", Value::from("0,1"));
    state
}

/// Reads the file as the service does.
fn open(path: &Path) -> (StateFile, Vec<String>) {
    let (mut state, unusable) = StateFile::look(path);
    let told = state.repair(unusable);
    (state, told)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read_again() {
    let (folder, path) = place();
    assert_eq!(StateFile::read(&path), (StateFile::empty(&path), None));
    let mut state = sample(&path);
    state.save().unwrap();
    assert_eq!(StateFile::read(&path), (state, None));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(names(folder.path()), ["state.json"]);
}

#[test]
fn a_folder_that_is_not_there_is_made_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let above = folder.path().join("state");
    let path = above.join("op-dbus/state.json");
    let mut state = sample(&path);
    state.save().unwrap();
    assert_eq!(StateFile::read(&path), (state, None));
    for made in [above.as_path(), path.parent().unwrap()] {
        assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // What is there already keeps its mode.
    fs::set_permissions(&above, fs::Permissions::from_mode(0o750)).unwrap();
    sample(&above.join("state.json")).save().unwrap();
    assert_eq!(fs::metadata(&above).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(names(&above), ["op-dbus", "state.json"]);
    // A file in the folder's place is not one to take away.
    let refused = sample(&above.join("state.json/state.json")).save();
    assert!(matches!(refused, Err(StateError::Io { .. })), "{refused:?}");
}

#[test]
fn a_file_written_by_hand_needs_no_checksum() {
    let (_folder, path) = place();
    fs::write(&path, r#"{ "version": 1, "settings": { "vector_level": "high" } }"#).unwrap();
    let (state, warning) = StateFile::read(&path);
    assert_eq!(warning, None);
    assert_eq!(state.settings()["vector_level"], "high");
}

/// Every flip of any bit of any byte, and every cut, is the old state or none.
#[test]
fn damage_is_never_half_believed() {
    let (_folder, path) = place();
    let mut old = sample(&path);
    old.save().unwrap();
    let bytes = fs::read(&path).unwrap();
    let empty = StateFile::empty(&path);
    let check = |damaged: &[u8]| {
        fs::write(&path, damaged).unwrap();
        let (state, warning) = StateFile::read(&path);
        let whole = warning.is_none() && state == old;
        assert!(whole || (warning.is_some() && state == empty), "{:?}", damaged.escape_ascii());
    };
    for index in 0..bytes.len() {
        check(&bytes[..index]);
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1 << bit;
            check(&damaged);
        }
    }
}

#[test]
fn what_cannot_be_used_is_moved_aside() {
    let deep = format!("{{\"version\":1,\"settings\":{{\"a\":{}", "[".repeat(100_000));
    let large = format!("{{\"version\":1,\"settings\":{{}}}}{}", " ".repeat(1 << 20));
    let cases: [(&[u8], &str); 8] = [
        (b"", "it is not a state of op-dbus"),
        (b"{", "it is not a state of op-dbus"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[1]", "it is not a state of op-dbus"),
        (br#"{"version":2,"settings":{}}"#, "it has version 2, and this op-dbus knows 1"),
        (br#"{"version":1,"settings":{},"check":"0"}"#, "its checksum is wrong"),
        (deep.as_bytes(), "recursion limit"),
        (large.as_bytes(), "it is larger than 1048576 bytes"),
    ];
    for (content, reason) in cases {
        let (folder, path) = place();
        fs::write(&path, content).unwrap();
        let (mut state, warnings) = open(&path);
        assert_eq!(state, StateFile::empty(&path));
        assert!(warnings.len() == 1 && warnings[0].contains(reason), "{warnings:?}");
        let names = names(folder.path());
        assert!(names.len() == 1 && names[0].starts_with("state.json.corrupt-"), "{names:?}");
        assert_eq!(fs::read(folder.path().join(&names[0])).unwrap(), content);
        state.save().unwrap();
    }
}

#[test]
fn a_file_that_others_may_write_is_moved_aside() {
    let (folder, path) = place();
    let mut state = sample(&path);
    state.save().unwrap();
    for mode in [0o664, 0o646] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        // Who only looks is told how to keep it.
        let (looked, warning) = StateFile::read(&path);
        assert_eq!(looked, StateFile::empty(&path));
        let expected = format!("(mode {mode:04o}); type `chmod go-w {}`", path.display());
        assert!(warning.unwrap().ends_with(&expected));
        let (mut opened, warnings) = open(&path);
        assert_eq!(opened, StateFile::empty(&path));
        let expected = "is not used: others than its owner may write it";
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        assert!(warnings[0].contains(&format!("`chmod go-w {}`", path.display())), "{warnings:?}");
        let names = names(folder.path());
        assert!(names.len() == 1 && names[0].starts_with("state.json.corrupt-"), "{names:?}");
        // As an administrator takes it back.
        let aside = folder.path().join(&names[0]);
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(aside, &path).unwrap();
        assert_eq!(StateFile::read(&path), (state.clone(), None));
        opened.save().unwrap();
        state.save().unwrap();
    }
}

/// Of all the system there is one /dev/null.
#[test]
fn something_else_in_its_place_stays() {
    let (folder, path) = place();
    let make: [&dyn Fn(); 3] = [
        &|| fs::create_dir(&path).unwrap(),
        &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        &|| symlink("/dev/null", &path).unwrap(),
    ];
    for make in make {
        make();
        let before = fs::symlink_metadata(&path).unwrap();
        let (mut state, warnings) = open(&path);
        assert!(warnings[0].ends_with("is not used: it is not a regular file"), "{warnings:?}");
        let refused = state.save();
        assert!(matches!(refused, Err(StateError::NoFile { .. })), "{refused:?}");
        assert_eq!(names(folder.path()), ["state.json"]);
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before.ino());
        fs::remove_dir_all(folder.path()).unwrap();
        fs::create_dir(folder.path()).unwrap();
    }
}

#[test]
fn looking_changes_nothing() {
    let (folder, path) = place();
    fs::write(&path, "damaged").unwrap();
    fs::write(folder.path().join(".state.json.x.tmp"), "left over").unwrap();
    let (_, warning) = StateFile::read(&path);
    assert!(warning.is_some());
    assert_eq!(names(folder.path()), [".state.json.x.tmp", "state.json"]);
}

#[test]
fn only_our_own_leftovers_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    for name in [".state.json.Ab12.tmp", ".other.json.Ab12.tmp", "state.json.tmp", ".state.json.x"]
    {
        fs::write(folder.path().join(name), "").unwrap();
    }
    fs::create_dir(folder.path().join(".state.json.folder.tmp")).unwrap();
    let (_, warnings) = open(&folder.path().join("state.json"));
    assert!(warnings.is_empty());
    let rest =
        [".other.json.Ab12.tmp", ".state.json.folder.tmp", ".state.json.x", "state.json.tmp"];
    assert_eq!(names(folder.path()), rest);
}

#[test]
fn a_write_that_fails_says_what_to_do() {
    let state = StateFile::empty(Path::new("/s.json"));
    let text = |code: i32| state.error(io::Error::from_raw_os_error(code)).to_string();
    assert!(text(nix::libc::ENOSPC).contains("no space is left there"));
    assert!(text(nix::libc::EDQUOT).contains("no space is left there"));
    assert!(text(nix::libc::EROFS).contains("read-only for this user"));
    assert!(text(nix::libc::EACCES).contains("read-only for this user"));
    // /proc refuses new files and folders, whoever asks.
    for place in ["/proc/state.json", "/proc/no/such/folder/state.json"] {
        assert!(StateFile::empty(Path::new(place)).save().is_err(), "{place}");
    }
}

/// A damaged file, and the state that is known all the same.
fn known(path: &Path) -> (StateFile, Option<Unusable>) {
    fs::write(path, "damaged").unwrap();
    let (mut state, unusable) = StateFile::look(path);
    state.set("vector_level", Value::from("low"));
    (state, unusable)
}

#[test]
fn what_is_known_takes_the_place_of_what_is_moved_aside() {
    let (folder, path) = place();
    let (mut state, unusable) = known(&path);
    let told = state.repair(unusable);
    assert!(told.len() == 1 && told[0].ends_with("is written anew"), "{told:?}");
    assert_eq!(StateFile::read(&path), (state.clone(), None));
    let names = names(folder.path());
    assert!(names.len() == 2 && names[1].starts_with("state.json.corrupt-"), "{names:?}");
    assert_eq!(fs::read_to_string(folder.path().join(&names[1])).unwrap(), "damaged");
    // Somebody may have taken it away.
    fs::remove_file(&path).unwrap();
    state.save().unwrap();
    assert_eq!(StateFile::read(&path), (state, None));
}

/// As where the reload that found it came to nothing, so that nobody knows of it any more.
#[test]
fn what_is_damaged_meanwhile_is_moved_aside_by_the_next_change() {
    let (folder, path) = place();
    let mut state = sample(&path);
    state.save().unwrap();
    fs::write(&path, "damaged").unwrap();
    // What is whole is written over.
    for _ in 0..2 {
        state.save().unwrap();
        assert_eq!(StateFile::read(&path), (state.clone(), None));
        let found = names(folder.path());
        assert!(found.len() == 2 && found[1].starts_with("state.json.corrupt-"), "{found:?}");
        assert_eq!(fs::read_to_string(folder.path().join(&found[1])).unwrap(), "damaged");
    }
}

#[test]
fn what_others_may_write_meanwhile_is_moved_aside_by_the_next_change() {
    let (folder, path) = place();
    let mut state = sample(&path);
    state.save().unwrap();
    let restored = fs::read_to_string(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    state.save().unwrap();
    assert_eq!(StateFile::read(&path), (state, None));
    let found = names(folder.path());
    assert!(found.len() == 2 && found[1].starts_with("state.json.corrupt-"), "{found:?}");
    assert_eq!(fs::read_to_string(folder.path().join(&found[1])).unwrap(), restored);
}

/// Where nothing is under its name the next look would take all changes back.
#[test]
fn what_is_known_and_cannot_be_written_leaves_the_damaged_file_in_its_place() {
    // There is room for the name of the temporary file, and none for the longer one of what is moved aside.
    let (folder, name) = (tempfile::tempdir().unwrap(), "s".repeat(240));
    let path = folder.path().join(&name);
    let (mut state, unusable) = known(&path);
    let told = state.repair(unusable);
    let end = "what was changed over the bus stays in force, and can't be written anew: ";
    assert!(told.len() == 1 && told[0].contains(end), "{told:?}");
    assert!(!told[0].contains("moved"), "{told:?}");
    assert_eq!(names(folder.path()), [name]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "damaged");
    state.save().unwrap_err();
}

#[test]
fn what_could_not_be_read_is_not_written_over() {
    let (_folder, path) = place();
    // Nobody can read this, the superuser included.
    symlink("state.json", &path).unwrap();
    for (mut state, warnings) in
        [open(&path), (StateFile::read(&path).0, vec![StateFile::read(&path).1.unwrap()])]
    {
        assert!(warnings[0].contains("is not used"), "{warnings:?}");
        state.set("vector_level", Value::from("low"));
        let refusal = state.save().unwrap_err();
        assert!(matches!(refusal, StateError::Unread { .. }), "{refusal}");
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    }
    let (mut state, _) = open(&path);
    fs::remove_file(&path).unwrap();
    for level in ["low", "high"] {
        state.set("vector_level", Value::from(level));
        state.save().unwrap();
    }
    assert_eq!(StateFile::read(&path), (state, None));
}
