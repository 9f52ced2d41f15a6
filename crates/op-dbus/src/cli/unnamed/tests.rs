//! Files without a name, what they take the place of, and what stays.

use std::io::Write;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::*;

#[test]
fn what_is_no_file_of_its_own_is_written_to_as_it_is() {
    assert!(Unnamed::new(Path::new("/dev/null"), true).unwrap().is_none());
    for path in ["/dev/stdout", "/dev/fd/3", "/proc/self/fd/1"] {
        assert!(is_open(Path::new(path)), "{path}");
    }
}

#[test]
fn what_is_large_is_not_kept_in_memory() {
    assert_eq!(folder_for(Some("/named".into())), Path::new("/named"));
    for nothing in [None, Some(OsString::new())] {
        let folder = folder_for(nothing);
        assert_eq!(folder == Path::new("/var/tmp"), Path::new("/var/tmp").is_dir());
    }
}

#[test]
fn a_new_file_in_no_folder_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Unnamed::new(&folder.path().join("none/new"), true).unwrap().is_none());
}

#[test]
fn what_has_come_there_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let [new, old, gone] = ["new", "old", "gone"].map(|name| folder.path().join(name));
    fs::write(&old, "old").unwrap();
    fs::write(&gone, "old").unwrap();
    let begin = |place: &Path| Unnamed::new(place, true).unwrap().unwrap();
    let begun = [&new, &old].map(|place| begin(place));
    let written_over = Unnamed { may_replace: false, ..begin(&old) };
    let to_gone = begin(&gone);
    for place in [&new, &old] {
        let other = folder.path().join("other");
        fs::write(&other, "of another").unwrap();
        fs::rename(&other, place).unwrap();
    }
    for unnamed in begun.into_iter().chain([written_over]) {
        let place = unnamed.place.clone();
        let error = unnamed.take_its_place().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{}", place.display());
        assert_eq!(fs::read(&place).unwrap(), b"of another", "{}", place.display());
    }
    // One that was removed is in nobody's way.
    fs::remove_file(&gone).unwrap();
    to_gone.take_its_place().unwrap();
    assert_eq!(fs::read(&gone).unwrap(), b"");
    assert_eq!(folder.path().read_dir().unwrap().count(), 3);
}

#[test]
fn a_file_that_is_there_is_not_emptied_by_who_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let file = made(&path).unwrap();
    (&file).write_all(b"of another").unwrap();
    assert_eq!(made(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"of another");
    refuse_lost(&file).unwrap();
    fs::rename(&path, folder.path().join("elsewhere")).unwrap();
    refuse_lost(&file).unwrap();
    fs::remove_file(folder.path().join("elsewhere")).unwrap();
    assert!(refuse_lost(&file).unwrap_err().to_string().contains("removed or replaced"));
    // Nor is there anything to lose in what is no file, or is only to be one.
    refuse_lost(&made(Path::new("/dev/null")).unwrap()).unwrap();
    std::os::unix::fs::symlink("target", folder.path().join("link")).unwrap();
    made(&folder.path().join("link")).unwrap();
    assert!(folder.path().join("target").is_file());
}

#[test]
fn what_another_command_is_writing_to_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    // As where no file can be without a name: it has one, and is not whole yet.
    let begun = made(&path).unwrap();
    (&begun).write_all(b"half").unwrap();
    let other = || {
        let file = file(folder.path(), 0o600).unwrap();
        (&file).write_all(b"of another").unwrap();
        let old = Some(File::options().write(true).open(&path).unwrap());
        Unnamed { file, place: path.clone(), old, may_replace: false }
    };
    let error = other().take_its_place().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"half");
    drop(begun);
    other().take_its_place().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"of another");
}

#[test]
fn what_cant_be_replaced_is_written_over_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (place, gone) = (folder.path().join("old"), folder.path().join("gone"));
    fs::write(&place, "of an earlier run, and longer than what comes").unwrap();
    let inode = fs::metadata(&place).unwrap().ino();
    // Of a file whose name was taken away no other can be made, as across file systems.
    let file = File::options().create_new(true).read(true).write(true).open(&gone).unwrap();
    fs::remove_file(&gone).unwrap();
    (&file).write_all(b"whole").unwrap();
    let old = Some(File::open(&place).unwrap());
    let unnamed = Unnamed { file, place: place.clone(), old, may_replace: true };
    assert!(unnamed.replace().is_err());
    unnamed.take_its_place().unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"whole");
    assert_eq!(fs::metadata(&place).unwrap().ino(), inode);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

/// As `setfacl -m u:UID:RIGHTS` makes one, by the kernel's layout (`linux/posix_acl_xattr.h`): version 2, and what the
/// owner, this user, the group, the list at most, and others may.
pub fn give_list(path: &Path, uid: u32, rights: u16) -> rustix::io::Result<Vec<u8>> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in
        [(1, rights, !0), (2, rights, uid), (4, 0, !0), (16, rights, !0), (32, 0, !0)]
    {
        list.extend([tag, rights].map(u16::to_le_bytes).concat());
        list.extend(u32::to_le_bytes(number));
    }
    rustix::fs::setxattr(path, ACL, &list, rustix::fs::XattrFlags::empty())?;
    Ok(list)
}

#[test]
fn what_has_a_list_of_rights_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("old");
    fs::write(&place, "old").unwrap();
    let list = match give_list(&place, 0, 6) {
        // Nothing to lose on this file system.
        Err(Errno::NOTSUP) => return,
        given => given.unwrap(),
    };
    let inode = fs::metadata(&place).unwrap().ino();
    let unnamed = Unnamed::new(&place, true).unwrap().unwrap();
    unnamed.open().unwrap().write_all(b"new").unwrap();
    unnamed.take_its_place().unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"new");
    assert_eq!(fs::metadata(&place).unwrap().ino(), inode);
    let mut kept = vec![0; list.len() + 1];
    let bytes = rustix::fs::getxattr(&place, ACL, &mut kept[..]).unwrap();
    assert_eq!(kept[..bytes], list);
}

/// From now on this thread opens nothing with `O_CREAT`: as in /tmp what is another's.
fn make_no_files() {
    let creates = SeccompCmpOp::MaskedEq(libc::O_CREAT as u64);
    let creates = SeccompCondition::new(2, SeccompCmpArgLen::Dword, creates, libc::O_CREAT as u64);
    let rules = vec![SeccompRule::new(vec![creates.unwrap()]).unwrap()];
    fail(libc::SYS_openat, rules, libc::EACCES);
}

/// From now on a system call of this thread fails, where it has `rules` when one of them holds.
fn fail(call: i64, rules: Vec<SeccompRule>, error: i32) {
    let rules = [(call, rules)].into();
    let refuse = SeccompAction::Errno(error as u32);
    let architecture = env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

#[test]
fn what_is_there_is_not_opened_as_if_it_were_to_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("old");
    fs::write(&place, "old").unwrap();
    let file = file(folder.path(), 0o600).unwrap();
    (&file).write_all(b"new").unwrap();
    let old = Some(File::open(&place).unwrap());
    let unnamed = Unnamed { file, place: place.clone(), old, may_replace: false };
    std::thread::spawn(|| {
        make_no_files();
        unnamed.take_its_place().unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"new");
}

#[test]
fn what_is_there_stays_where_there_is_no_room_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("old");
    // What becomes of it where room can't be had for this reason.
    let written_over = |before: &str, is_removed: bool, error: i32| {
        fs::write(&place, before).unwrap();
        let file = file(folder.path(), 0o600).unwrap();
        (&file).write_all(b"new, and longer").unwrap();
        let old = Some(File::options().write(true).open(&place).unwrap());
        let unnamed = Unnamed { file, place: place.clone(), old, may_replace: false };
        if is_removed {
            fs::remove_file(&place).unwrap();
        }
        let ended = std::thread::spawn(move || {
            fail(libc::SYS_fallocate, Vec::new(), error);
            unnamed.take_its_place()
        });
        let refused = ended.join().unwrap().err().and_then(|error| error.raw_os_error());
        (refused, fs::read_to_string(&place).unwrap())
    };
    for error in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        assert_eq!(written_over("old", false, error), (Some(error), "old".to_owned()));
    }
    let written = (None, "new, and longer".to_owned());
    // Not every file system can say.
    assert_eq!(written_over("old", false, libc::EOPNOTSUPP), written);
    // What has as much already needs no more, and of what is gone there is nothing to lose.
    assert_eq!(written_over("old, and no shorter", false, libc::ENOSPC), written);
    assert_eq!(written_over("old", true, libc::ENOSPC), written);
}
