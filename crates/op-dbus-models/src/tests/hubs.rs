//! The hub's client against a server on this machine that breaks off, lies or is not there.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use hf_hub::Cache;
use nix::unistd::{Gid, Uid, getegid, geteuid};

use super::fixture::Lines;
use crate::hub::Hub;
use crate::manifest::{self, BuiltIn, BuiltInFile};
use crate::pull::Fetch;
use crate::staging::{Owner, Writer};
use crate::{FileRecord, Progress, PullOptions, digest};

const CONTENT: &[u8] = b"0123456789abcdef";

/// What the server does with the next request for the content; for its size it always tells it.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Whole,
    /// Promises everything, sends half and closes.
    Half,
    /// Promises everything, sends half and keeps the connection until the next one.
    Silent,
}

/// Serves one connection per request until all answers are used; returns the ranges asked for.
fn serve(listener: TcpListener, answers: Vec<Answer>) -> Vec<String> {
    let mut ranges = Vec::new();
    let mut answers = answers.into_iter();
    let mut kept = None;
    for stream in listener.incoming() {
        drop(kept.take());
        let mut stream = stream.unwrap();
        let range = read_range(&stream);
        if range.is_empty() {
            continue;
        }
        if range == "bytes=0-0" {
            reply(&mut stream, 0, 1, 1);
            continue;
        }
        let start: usize =
            range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
        ranges.push(range);
        let answer = answers.next().unwrap();
        match CONTENT.len() - start {
            0 => stream.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\n\r\n").unwrap(),
            left if answer == Answer::Whole => reply(&mut stream, start, left, left),
            left => reply(&mut stream, start, left, left / 2),
        }
        if answer == Answer::Silent {
            kept = Some(stream);
        }
        if answers.len() == 0 {
            break;
        }
    }
    ranges
}

/// The same on a port of its own: where it is, and what it will have been asked for.
fn begin(answers: Vec<Answer>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (endpoint, std::thread::spawn(|| serve(listener, answers)))
}

fn read_range(stream: &TcpStream) -> String {
    let mut range = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("range: ") {
            range = value.to_owned();
        }
        if line.is_empty() {
            break;
        }
    }
    range
}

fn reply(stream: &mut TcpStream, start: usize, promised: usize, sent: usize) {
    let (end, total) = (start + promised - 1, CONTENT.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {promised}\r\nContent-Range: bytes \
         {start}-{end}/{total}\r\nETag: \"tag\"\r\nX-Repo-Commit: commit\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&CONTENT[start..start + sent]).unwrap();
}

fn hub<'a>(partial: &Path, endpoint: &str, progress: &'a Progress) -> Hub<'a> {
    let mut hub = Hub::new("someone/no-such-model", "commit", partial, progress);
    hub.endpoint = endpoint.to_owned();
    hub.offline = false;
    hub
}

#[test]
fn a_download_that_broke_off_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    // The probe opens a connection too, and sends nothing.
    let server = std::thread::spawn(|| serve(listener, vec![Answer::Half, Answer::Whole]));
    let lines = Lines::default();
    let progress = Progress::lines(lines.clone());
    let message = hub(dir.path(), &endpoint, &progress).file("x.bin", 16).unwrap_err().to_string();
    assert!(message.starts_with("hub: x.bin: "), "{message}");
    let path = hub(dir.path(), &endpoint, &progress).file("x.bin", 16).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(server.join().unwrap(), ["bytes=0-", "bytes=8-"]);
    assert_eq!(lines.text(), "hub: x.bin (16 B)\n");

    // What is there whole needs no server any more.
    let mut again = hub(dir.path(), &endpoint, &progress);
    again.offline = true;
    assert_eq!(again.file("x.bin", 16).unwrap(), path);
    assert!(again.owns(&path));
}

#[test]
fn who_downloads_for_somebody_else_leaves_files_of_his() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(|| serve(listener, vec![Answer::Whole]));
    // Only root can be somebody else.
    let owner = match geteuid().is_root() {
        true => Owner { uid: Uid::from_raw(4_000_000), gid: Gid::from_raw(4_000_001) },
        false => Owner { uid: geteuid(), gid: getegid() },
    };
    chown(dir.path(), Some(owner.uid.as_raw()), Some(owner.gid.as_raw())).unwrap();
    let writer = Writer::begin(&dir.path().join("models")).unwrap();
    let progress = Progress::silent();
    let mut hub = hub(&writer.partial("tiny"), &endpoint, &progress);
    hub.owner = writer.owner();
    let path = hub.file("x.bin", 16).unwrap();
    for made in [&*path, path.parent().unwrap(), &dir.path().join("models/.partial")] {
        let meta = std::fs::metadata(made).unwrap();
        let found = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
        assert_eq!(found, (owner.uid, owner.gid), "{}", made.display());
    }
    server.join().unwrap();

    // A link in place of the folder leads to where the owner may remove nothing.
    let around = path.parent().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::rename(around, around.with_extension("old")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), around).unwrap();
    std::fs::write(elsewhere.path().join(path.file_name().unwrap()), b"").unwrap();
    hub.release(&path);
    assert_eq!(path.is_file(), geteuid().is_root());
    std::fs::remove_file(around).unwrap();
    std::fs::rename(around.with_extension("old"), around).unwrap();
    hub.release(&path);
    assert!(!path.exists());
}

#[test]
fn offline_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Progress::silent();
    let mut hub = hub(dir.path(), "http://hub.invalid", &progress);
    hub.offline = true;
    let message = hub.file("x.bin", 16).unwrap_err().to_string();
    assert!(message.contains("HF_HUB_OFFLINE"), "{message}");
}

#[test]
fn a_hub_that_goes_silent_is_left_and_the_download_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Silent, Answer::Whole]);
    let progress = Progress::silent();
    let mut hub = hub(dir.path(), &endpoint, &progress);
    hub.silence_max = Duration::from_secs(2);
    let message = hub.file("x.bin", 16).unwrap_err().to_string();
    assert!(message.starts_with("hub: x.bin: nothing came for 2 s; "), "{message}");
    hub.silence_max = Duration::from_secs(60);
    let path = hub.file("x.bin", 16).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(server.join().unwrap(), ["bytes=0-", "bytes=8-"]);
}

#[test]
fn a_part_that_is_whole_is_fetched_anew() {
    for part in [CONTENT, b"more than there is to have"] {
        let dir = tempfile::tempdir().unwrap();
        let blobs = dir.path().join("hub/models--someone--no-such-model/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join("tag.part"), part).unwrap();
        std::fs::write(blobs.join("other.part"), b"half").unwrap();
        let refused = if part.len() == CONTENT.len() { vec!["bytes=16-"] } else { vec![] };
        let (endpoint, server) = begin(vec![Answer::Whole; refused.len() + 1]);
        let progress = Progress::silent();
        let path = hub(dir.path(), &endpoint, &progress).file("x.bin", 16).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
        assert_eq!(server.join().unwrap(), [refused, vec!["bytes=0-"]].concat());
        assert!(blobs.join("other.part").exists());
    }
}

/// A cache as Python's client fills it: it has no ref for a commit.
fn cache_of_python(dir: &Path, content: &[u8]) -> Cache {
    let repository = dir.join("models--someone--no-such-model");
    for (path, content) in [("refs/main", &b"commit"[..]), ("snapshots/commit/x.bin", content)] {
        std::fs::create_dir_all(repository.join(path).parent().unwrap()).unwrap();
        std::fs::write(repository.join(path), content).unwrap();
    }
    Cache::new(dir.to_owned())
}

#[test]
fn a_cache_that_python_filled_delivers() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Progress::silent();
    let mut hub = hub(&dir.path().join("partial"), "http://hub.invalid", &progress);
    hub.offline = true;
    hub.shared = Some(cache_of_python(&dir.path().join("shared"), CONTENT));
    let path = hub.file("x.bin", 16).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert!(!hub.owns(&path));
    hub.use_shared = false;
    hub.file("x.bin", 16).unwrap_err();
}

/// A model whose files are all the content of the server.
fn served(paths: &[&str]) -> BuiltIn {
    let file = |path: &&str| {
        let (path, sha256) = ((*path).to_owned(), digest::of_bytes(CONTENT));
        BuiltInFile { record: FileRecord { path, bytes: 16, sha256 }, content: None }
    };
    let files = paths.iter().map(file).collect();
    BuiltIn { name: "tiny".into(), files, ..manifest::models()[0].clone() }
}

/// What a pull takes from the hub; tells whether it had all.
fn take(store: &Path, model: &BuiltIn, hub: &mut Hub<'_>, progress: &Progress) -> bool {
    let writer = Writer::begin(store).unwrap();
    let stage = writer.stage().unwrap();
    let options =
        PullOptions { sources: Vec::new(), convert: &|_| Err("not called".into()), progress };
    let mut fetch = Fetch::new(model, stage.path(), &options).unwrap();
    fetch.take_from_hub(hub).is_ok()
}

#[test]
fn a_pull_that_broke_off_keeps_the_files_that_it_has_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole, Answer::Half, Answer::Whole]);
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let model = served(&["x.bin", "y.bin"]);
    for whole in [false, true] {
        let mut hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
        assert_eq!(take(&store, &model, &mut hub, &progress), whole);
    }
    assert_eq!(server.join().unwrap(), ["bytes=0-", "bytes=0-", "bytes=8-"]);
}

#[test]
fn a_wrong_file_in_the_cache_of_others_is_named_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let lines = Lines::default();
    let (store, progress) = (dir.path().join("models"), Progress::lines(lines.clone()));
    let mut hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
    hub.shared = Some(cache_of_python(&dir.path().join("shared"), b"0123456789ABCDEF"));
    assert!(take(&store, &served(&["x.bin"]), &mut hub, &progress));
    assert_eq!(server.join().unwrap(), ["bytes=0-"]);
    let named = "snapshots/commit/x.bin: hub: its x.bin has the SHA-256 ";
    assert!(lines.text().contains(named), "{}", lines.text());
}

#[test]
fn a_wrong_file_of_the_hub_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let mut model = served(&["x.bin"]);
    model.files[0].record.sha256 = digest::of_bytes(b"other");
    let mut hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
    assert!(!take(&store, &model, &mut hub, &progress));
    server.join().unwrap();
    let blob = store.join(".partial/tiny/hub/models--someone--no-such-model/blobs/tag");
    assert!(!blob.exists());
}
