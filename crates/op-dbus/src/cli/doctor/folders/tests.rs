//! What is said of folders that are made for it.

use std::os::unix::fs::PermissionsExt;

use super::super::super::unnamed::tests::give_list;
use super::super::check::State;
use super::*;

/// Somebody who owns nothing and is in no group.
fn stranger() -> Who {
    Who { name: "stranger".to_owned(), uid: 64_905, gids: Vec::new(), is_service: true }
}

fn folder(mode: u32) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = root.path().join("folder");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (root, path)
}

#[test]
fn a_folder_of_another_user_is_told_with_owner_and_mode() {
    let (_root, path) = folder(0o700);
    let check = check("cache_dir", &path, Use::Writes, &stranger());
    assert_eq!(check.state, State::Wrong);
    assert!(check.found.contains("the user stranger may not write"), "{}", check.found);
    assert!(check.found.contains("mode 0700"), "{}", check.found);
    let check = super::check("model_dir", &path, Use::Reads, &stranger());
    assert!(check.next.unwrap().starts_with("type `chmod a+rx "));
}

#[test]
fn what_is_no_folder_is_left_as_it_is() {
    let root_user = Who { uid: 0, ..stranger() };
    let (root, folder) = folder(0o755);
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    for there in [file.as_path(), Path::new("/dev/null")] {
        for path in [there.to_owned(), there.join("below")] {
            for (name, purpose) in [("cache_dir", Use::Writes), ("model_dir", Use::Reads)] {
                let check = check(name, &path, purpose, &root_user);
                let next = format!("set `{name}` to another place");
                assert_eq!(check.next, Some(next), "{}", check.found);
            }
        }
    }
    assert!(is_no_file(&folder) && is_no_file(Path::new("/dev/null")) && !is_no_file(&file));
}

#[test]
fn no_folder_is_taken_from_others() {
    let (_root, path) = folder(0o755);
    let next = |name, path: &Path| check(name, path, Use::Writes, &stranger()).next.unwrap();
    let own = path.join("op-dbus");
    let make = format!("type `install -d -o stranger -m 755 {}` and set ", own.display());
    assert_eq!(next("cache_dir", &path), format!("{make}`cache_dir` to {}", own.display()));
    let file = own.join("state.json");
    assert_eq!(next("state_file", &path), format!("{make}`state_file` to {}", file.display()));
    fs::create_dir(&own).unwrap();
    assert_eq!(next("cache_dir", &own), format!("type `chown stranger: {}`", own.display()));
}

#[test]
fn somebody_who_is_not_the_service_is_given_nothing() {
    let (_root, path) = folder(0o755);
    let caller = Who { is_service: false, ..stranger() };
    let check = check("cache_dir", &path, Use::Writes, &caller);
    assert_eq!((check.state, check.next), (State::Unchecked, None), "{}", check.found);
}

#[test]
fn what_somebody_else_has_made_in_the_cache_is_named() {
    let (_root, path) = folder(0o777);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
    // Others' things are none of ours.
    fs::create_dir(path.join("more")).unwrap();
    let check = |name| check(name, &path, Use::Writes, &stranger());
    assert_eq!(check("cache_dir").state, State::Ok);
    let weights = cache::folder(&path, "m", &"a".repeat(64)).join("weights");
    fs::create_dir_all(&weights).unwrap();
    let open = |folder| fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    for closed in [path.join("by-model").as_path(), weights.parent().unwrap(), &weights] {
        let found = check("cache_dir");
        assert!(found.found.starts_with("the user stranger may not write "), "{}", found.found);
        assert_eq!(found.next, Some(format!("type `chown -R stranger: {}`", closed.display())));
        open(closed);
    }
    assert_eq!(check("cache_dir").state, State::Ok);
    // Beside the state file the models lie.
    assert_eq!(check("state_file").state, State::Ok);
}

#[test]
fn a_file_system_that_nobody_can_write_is_told() {
    let is = |flags, blocks, available| barrier(flags, blocks, available).map(|(is, _)| is);
    assert_eq!(is(FsFlags::ST_RDONLY | FsFlags::ST_NODEV, 10, 5), Some("read-only"));
    assert_eq!(is(FsFlags::ST_NODEV, 10, 0), Some("full"));
    assert_eq!(is(FsFlags::empty(), 10, 1), None);
    // Of /proc, say.
    assert_eq!(is(FsFlags::empty(), 0, 0), None);
}

#[test]
fn a_readable_folder_will_do_for_reading_alone() {
    let (_root, path) = folder(0o755);
    assert_eq!(check("model_dir", &path, Use::Reads, &stranger()).state, State::Ok);
    assert_eq!(check("cache_dir", &path, Use::Writes, &stranger()).state, State::Wrong);
}

#[test]
fn the_folder_that_is_in_the_way_is_named() {
    let (_root, path) = folder(0o700);
    let inner = path.join("models");
    fs::create_dir(&inner).unwrap();
    let check = check("model_dir", &inner, Use::Reads, &stranger());
    assert!(check.found.contains("does not get past"), "{}", check.found);
    let next = format!("set `model_dir` to a place outside of {}", path.display());
    assert_eq!(check.next, Some(next));
}

#[test]
fn nobody_is_told_to_open_a_folder_to_all() {
    let (_root, path) = folder(0o777);
    let check = check("cache_dir", &path, Use::Writes, &stranger());
    assert_eq!(check.next, Some(format!("type `chmod o-w {}`", path.display())));
}

#[test]
fn the_tmp_of_everybody_says_nothing_of_the_services_own() {
    let root = tempfile::tempdir_in("/tmp").unwrap();
    let cache = root.path().join("cache");
    let mut sources = op_dbus_daemon::settings::Sources::under(root.path());
    sources.flags.insert("cache_dir".to_owned(), cache.display().to_string());
    let settings = Settings::load(&sources).unwrap().settings;
    let cache = |shown: &str| {
        let unit = Unit::parse(shown).ok().unwrap();
        checks(&settings, &stranger(), None, Some(&unit)).remove(1)
    };
    assert!(cache("LoadState=loaded").failed());
    let note = cache("LoadState=loaded\nPrivateTmp=yes");
    assert_eq!((note.check, note.state), ("cache_dir", State::Ok), "{}", note.found);
}

#[test]
fn what_is_not_there_is_made_or_asked_for() {
    let (_root, path) = folder(0o755);
    let inner = path.join("new");
    let me = Who::of(None);
    assert_eq!(check("cache_dir", &inner, Use::Writes, &me).state, State::Ok);
    assert_eq!(check("model_dir", &inner, Use::Reads, &me).state, State::Unchecked);
    let next = check("cache_dir", &inner, Use::Writes, &stranger()).next.unwrap();
    assert!(next.starts_with("type `install -d -o stranger -m 755 "), "{next}");
}

#[test]
fn who_is_on_a_list_is_asked_to_try() {
    let (_root, path) = folder(0o700);
    if let Err(error) = give_list(&path, stranger().uid, 7) {
        eprintln!("SKIP: no access control list can be made here: {error}");
        return;
    }
    for (name, purpose) in [("cache_dir", Use::Writes), ("model_dir", Use::Reads)] {
        for path in [path.clone(), path.join("new")] {
            let check = check(name, &path, purpose, &stranger());
            assert_eq!((check.state, check.next), (State::Unchecked, None), "{}", check.found);
        }
    }
    let found = check("model_dir", &path, Use::Reads, &stranger()).found;
    assert!(found.contains("`sudo -u stranger op-dbus doctor`"), "{found}");
}
