//! The hub's client against a server on this machine that breaks off, lies or is not there.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use nix::unistd::{Gid, Uid, getegid, geteuid};

use super::fixture::Lines;
use crate::Progress;
use crate::hub::Hub;
use crate::staging::{Owner, Writer};

const CONTENT: &[u8] = b"0123456789abcdef";

/// What the server does with the next request for the content; for its size it always tells it.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Whole,
    /// Promises everything, sends half and closes.
    Half,
}

/// Serves one connection per request until all answers are used; returns the ranges asked for.
fn serve(listener: TcpListener, answers: Vec<Answer>) -> Vec<String> {
    let mut ranges = Vec::new();
    let mut answers = answers.into_iter();
    for stream in listener.incoming() {
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
        let whole = CONTENT.len() - start;
        ranges.push(range);
        let answer = answers.next().unwrap();
        reply(&mut stream, start, whole, if answer == Answer::Half { whole / 2 } else { whole });
        if answers.len() == 0 {
            break;
        }
    }
    ranges
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
    let message = hub(dir.path(), &endpoint, &progress).file("x.bin").unwrap_err().to_string();
    assert!(message.starts_with("hub: x.bin: "), "{message}");
    let path = hub(dir.path(), &endpoint, &progress).file("x.bin").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(server.join().unwrap(), ["bytes=0-", "bytes=8-"]);
    assert_eq!(lines.text(), "hub: x.bin (16 B)\n");

    // What is there whole needs no server any more.
    let mut again = hub(dir.path(), &endpoint, &progress);
    again.offline = true;
    assert_eq!(again.file("x.bin").unwrap(), path);
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
    let path = hub.file("x.bin").unwrap();
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
    let message = hub.file("x.bin").unwrap_err().to_string();
    assert!(message.contains("HF_HUB_OFFLINE"), "{message}");
}
