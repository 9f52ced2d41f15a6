//! What is refused of archives, and of files that change.

use std::fs;
use std::io::Write;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

fn archive(folder: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    let path = folder.join("model.zip");
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    for (name, bytes) in files {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    path
}

#[test]
fn an_archive_may_not_have_a_name_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path(), &[("a.json", b"{}"), ("b.json", b"[]"), ("c", b"c")]);
    assert!(Place::zip(&path, "").unwrap().has("b.json"));
    let mut bytes = fs::read(&path).unwrap();
    while let Some(at) = bytes.windows(6).position(|window| window == b"b.json") {
        bytes[at] = b'a';
    }
    fs::write(&path, bytes).unwrap();
    let message = Place::zip(&path, "").err().unwrap().to_string();
    assert!(message.contains("several entries of one name"), "{message}");
}

#[test]
fn an_archive_may_not_unfold_without_bound() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = vec![0; usize::try_from(LITTLE_BYTES).unwrap() + (16 << 20)];
    let little = &zeros[..1 << 20];
    let path = archive(folder.path(), &[("bomb", &zeros), ("little", little)]);
    let (mut place, to) = (Place::zip(&path, "").unwrap(), folder.path().join("to"));
    place.copy("little", &to, u64::MAX, |_| ()).unwrap().unwrap();
    fs::remove_file(&to).unwrap();
    let copied = std::cell::Cell::new(0);
    let refused = place.copy("bomb", &to, u64::MAX, |bytes| copied.set(bytes));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("bomb has more than"), "{message}");
    assert!(copied.get() == 0 && !to.exists(), "{} bytes were written", copied.get());
}

#[test]
fn an_archive_that_understates_a_size_is_bounded_all_the_same() {
    const BYTES_MAX: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let zeros = vec![0; usize::try_from(LITTLE_BYTES).unwrap() + (16 << 20)];
    let path = archive(folder.path(), &[("bomb", &zeros)]);
    let mut bytes = fs::read(&path).unwrap();
    let listed = bytes.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    // Where an entry's own header has the size, and where the directory has it.
    for at in [22, listed + 24] {
        let size = u32::try_from(zeros.len()).unwrap();
        assert_eq!(bytes[at..at + 4], size.to_le_bytes());
        bytes[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    let (mut place, to) = (Place::zip(&path, "").unwrap(), folder.path().join("to"));
    assert_eq!(place.bytes("bomb"), Some(10));
    let copied = std::cell::Cell::new(0);
    let read = place.read("bomb", BYTES_MAX).map(drop);
    let copy = place.copy("bomb", &to, BYTES_MAX, |bytes| copied.set(copied.get() + bytes));
    assert!(copied.get() <= BYTES_MAX, "{} bytes were written", copied.get());
    let unbound = place.copy("bomb", &to, u64::MAX, |_| ());
    for refused in [read, copy.map(drop), unbound.map(drop)] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("bomb has more than"), "{message}");
    }
    assert!(!to.exists());
}

#[test]
fn an_archive_that_is_packed_otherwise_or_encrypted_is_told_as_that() {
    const BZIP2: u8 = 12;
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path(), &[("a.json", b"{}")]);
    let whole = fs::read(&path).unwrap();
    let listed = whole.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    // Flags and method stand side by side in the entry's own header and in the directory.
    for (at, value, told) in [(2, BZIP2, "unpack it and give the folder"), (0, 1, "unencrypted")] {
        let mut bytes = whole.clone();
        for flags in [6, listed + 8] {
            bytes[flags + at] = value;
        }
        fs::write(&path, bytes).unwrap();
        let message = Place::zip(&path, "").unwrap().read("a.json", 99).unwrap_err().to_string();
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn an_archive_may_not_have_a_link_for_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("model.zip"), folder.path().join("to"));
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    zip.add_symlink("config.json", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    zip.finish().unwrap();
    let mut place = Place::zip(&path, "").unwrap();
    let read = place.read("config.json", 1 << 20).map(drop);
    let copied = place.copy("config.json", &to, u64::MAX, |_| ()).map(drop);
    for refused in [read, copied] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("config.json is a symbolic link"), "{message}");
    }
    assert!(fs::symlink_metadata(&to).is_err());
}

#[test]
fn an_archive_may_not_have_several_names_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for other in ["./a.json", ".//a.json", "./././a.json", "a.json/"] {
        let path = archive(folder.path(), &[("a.json", b"{}"), (other, b"[]")]);
        let message = Place::zip(&path, "").err().unwrap().to_string();
        assert!(message.contains("several entries of one name"), "{other}: {message}");
    }
    // As some programs write each name.
    let path = archive(folder.path(), &[("./", b""), ("./x/", b""), ("./x/a.json", b"{}")]);
    assert!(Place::zip_around(&path, &["a.json"]).unwrap().has("a.json"));
}

#[test]
fn the_outermost_folder_of_an_archive_is_meant_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let open = |names: &[&str]| {
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b"{}"[..])).collect();
        Place::zip_around(&archive(folder.path(), &files), &["first.json", "second.json"])
    };
    // However long its name is.
    for deeper in ["a/b/first.json", "a-long-name/b/first.json", "second.json"] {
        let place = open(&[deeper, "a-long-name/first.json", "a-long-name/it"]).unwrap();
        assert!(place.has("it"), "{deeper}");
    }
    let message = open(&["a/first.json", "b/first.json"]).err().unwrap().to_string();
    assert!(message.contains("has a first.json in a/ and in b/"), "{message}");
}

#[test]
fn a_full_disk_is_told_by_what_is_written_there() {
    let told = |error| uncopied(Path::new("/from/x"), Path::new("/to/x"), error);
    let mut full = File::options().write(true).open("/dev/full").unwrap();
    let error = digest::copy(&mut &b"x"[..], &mut full, 1, |_| ()).unwrap_err();
    assert!(matches!(told(error), Error::NoSpace { dir, .. } if dir == Path::new("/to")));
    let damaged = told(ErrorKind::InvalidData.into()).to_string();
    assert!(damaged.starts_with("cannot copy /from/x"), "{damaged}");
}

#[test]
fn what_is_copied_is_what_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let (file, to) = (folder.path().join("file"), folder.path().join("to"));
    let mut place = Place::folder(folder.path()).unwrap();
    let mut copy = |read: Option<&str>, changed: &str| {
        fs::remove_file(&file).ok();
        if let Some(read) = read {
            fs::write(&file, read).unwrap();
        }
        place.seen.clear();
        let bytes = place.read("file", 10).unwrap();
        assert_eq!(bytes.as_deref(), read.map(str::as_bytes));
        fs::write(&file, changed).unwrap();
        place.copy("file", &to, 10, |_| ())
    };
    copy(Some("{}"), "{}").unwrap().unwrap();
    for read in [Some("{}"), None] {
        let message = copy(read, "[]").unwrap_err().to_string();
        assert!(message.contains("file was changed while it was read"), "{message}");
        assert!(!to.exists());
    }
}
