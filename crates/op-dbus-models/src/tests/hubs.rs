//! The hub's client against a server on this machine that breaks off, lies or is not there.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, getegid, geteuid, mkfifo};

use super::fixture::{Lines, below};
use super::hub_server::{Answer, Asked, CONTENT, OTHER, begin, ranges};
use crate::hub::Hub;
use crate::manifest::{self, BuiltIn, BuiltInFile};
use crate::pull::Fetch;
use crate::staging::{Owner, Writer};
use crate::{FileRecord, Progress, PullOptions, digest};

fn hub<'a>(partial: &Path, endpoint: &str, progress: &'a Progress) -> Hub<'a> {
    let mut hub = Hub::new("someone/no-such-model", "commit", partial, progress);
    hub.endpoint = endpoint.to_owned();
    hub.offline = false;
    (hub.home, hub.token) = (None, String::new());
    hub
}

fn content() -> FileRecord {
    FileRecord { path: "x.bin".into(), bytes: 16, sha256: digest::of_bytes(CONTENT) }
}

/// Where a download of the content lies.
fn part(partial: &Path) -> PathBuf {
    partial.join(format!("{}.part", digest::of_bytes(CONTENT)))
}

#[test]
fn a_download_that_broke_off_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Half, Answer::Whole]);
    let lines = Lines::default();
    let progress = Progress::lines(lines.clone());
    let hub_of_now = || hub(dir.path(), &endpoint, &progress);
    let message = hub_of_now().download(&content()).unwrap_err().to_string();
    assert!(message.starts_with("hub: x.bin: it broke off ("), "{message}");
    let path = hub_of_now().download(&content()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(ranges(server), ["bytes=0-", "bytes=8-"]);
    assert_eq!(lines.text(), "hub: x.bin (16 B)\n");
    assert_eq!(path, part(dir.path()));

    // What is there whole needs no server any more.
    let mut again = hub_of_now();
    again.offline = true;
    assert_eq!(again.download(&content()).unwrap(), path);
}

#[test]
fn a_pipe_in_the_place_of_a_download_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    mkfifo(&part(dir.path()), Mode::S_IRWXU).unwrap();
    // Whether it gets all of its answer through is not looked at.
    let (endpoint, _) = begin(vec![Answer::Whole]);
    let progress = Progress::silent();
    let hub = hub(dir.path(), &endpoint, &progress);
    let message = hub.download(&content()).unwrap_err().to_string();
    assert!(message.ends_with(".part: it is not a file"), "{message}");
}

#[test]
fn a_server_that_knows_of_no_ranges_is_asked_for_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Half, Answer::All]);
    let progress = Progress::silent();
    let hub = hub(dir.path(), &endpoint, &progress);
    hub.download(&content()).unwrap_err();
    assert_eq!(std::fs::read(hub.download(&content()).unwrap()).unwrap(), CONTENT);
    assert_eq!(ranges(server), ["bytes=0-", "bytes=8-"]);
}

#[test]
fn what_the_hub_says_of_a_file_names_no_place_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let outside = dir.path().join("outside");
    let outside = outside.display();
    let model = served(&["x.bin"]);
    for (etag, commit) in [
        (format!("{outside}"), "commit".to_owned()),
        ("../../../../../../outside".to_owned(), "commit".to_owned()),
        ("tag".to_owned(), format!("{outside}")),
        ("tag".to_owned(), "../../../../../../outside".to_owned()),
    ] {
        let headers =
            format!("ETag: \"{etag}\"\r\nX-Linked-ETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\n");
        let (endpoint, server) = begin(vec![Answer::Elsewhere(headers)]);
        let hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
        assert!(take(&store, &model, &hub, &progress), "{etag} {commit}");
        server.join().unwrap();
        let made = below(dir.path()).into_iter().map(|(path, ..)| path);
        let known = [".", ".lock", ".partial", ".staging"].map(|name| store.join(name));
        let partial = store.join(".partial/tiny");
        let astray: Vec<_> =
            made.filter(|path| !known.contains(path) && !path.starts_with(&partial)).collect();
        assert!(astray.is_empty(), "{astray:?}");
        std::fs::remove_dir_all(partial).unwrap();
    }
}

#[test]
fn a_hub_that_has_another_size_is_refused_with_both() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Promise(9), Answer::Promise(17), Answer::Endless]);
    let progress = Progress::silent();
    let hub = hub(dir.path(), &endpoint, &progress);
    for said in ["has 9 bytes and should have 16", "has 17 bytes and", "has more than 16 bytes"] {
        let message = hub.download(&content()).unwrap_err().to_string();
        assert!(message.contains(&format!("hub: its x.bin {said}")), "{message}");
        let kept = std::fs::metadata(part(dir.path())).map_or(0, |meta| meta.len());
        assert_eq!(kept, 0, "{message}");
    }
    server.join().unwrap();
}

#[test]
fn a_token_goes_to_the_hub_and_not_to_where_it_sends_on() {
    let dir = tempfile::tempdir().unwrap();
    let (storage, elsewhere) = begin(vec![Answer::Whole]);
    let storage = storage.replace("127.0.0.1", "localhost");
    let (endpoint, server) =
        begin(vec![Answer::Redirect("/moved".into()), Answer::Redirect(storage)]);
    let progress = Progress::silent();
    let mut hub = hub(dir.path(), &endpoint, &progress);
    hub.token = "secret".to_owned();
    hub.download(&content()).unwrap();
    let asked = |authorization: Option<&str>| Asked {
        range: "bytes=0-".to_owned(),
        authorization: authorization.map(str::to_owned),
    };
    assert_eq!(
        server.join().unwrap(),
        [asked(Some("Bearer secret")), asked(Some("Bearer secret"))]
    );
    assert_eq!(elsewhere.join().unwrap(), [asked(None)]);
}

#[test]
fn who_downloads_for_somebody_else_leaves_files_of_his() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    // Only root can be somebody else.
    let owner = match geteuid().is_root() {
        true => Owner { uid: Uid::from_raw(64_905), gid: Gid::from_raw(64_906) },
        false => Owner { uid: geteuid(), gid: getegid() },
    };
    chown(dir.path(), Some(owner.uid.as_raw()), Some(owner.gid.as_raw())).unwrap();
    let writer = Writer::begin(&dir.path().join("models")).unwrap();
    let progress = Progress::silent();
    let mut hub = hub(&writer.partial("tiny"), &endpoint, &progress);
    hub.owner = writer.owner();
    let path = hub.download(&content()).unwrap();
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
    let message = hub.download(&content()).unwrap_err().to_string();
    assert!(message.contains("HF_HUB_OFFLINE"), "{message}");
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // A port that the kernel hands out to nobody: one that was closed may be another test's by now.
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let progress = Progress::silent();
    let hub = hub(dir.path(), &format!("http://user:pw@{closed}"), &progress);
    let message = hub.download(&content()).unwrap_err().to_string();
    let named = format!("hub: x.bin: no answer from {closed} or where that sends on to (");
    assert!(message.starts_with(&named), "{message}");
    assert!(message.ends_with(&format!("; HF_ENDPOINT is http://{closed}")), "{message}");
}

/// What is said of a server that goes silent in the middle; none where it was silent before that, as the machine was
/// busy, and the download was not resumed.
fn left_for_silence() -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Silent, Answer::Whole]);
    let progress = Progress::silent();
    let mut hub = hub(dir.path(), &endpoint, &progress);
    hub.silence_max = Duration::from_secs(2);
    let message = hub.download(&content()).unwrap_err().to_string();
    hub.silence_max = Duration::from_secs(60);
    // A server that was late has found nobody to write to, and ended.
    let path = hub.download(&content()).ok()?;
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    (ranges(server) == ["bytes=0-", "bytes=8-"]).then_some(message)
}

#[test]
fn a_hub_that_goes_silent_is_left_and_the_download_resumed() {
    let message = (0..5).find_map(|_| left_for_silence()).unwrap();
    assert!(message.starts_with("hub: x.bin: nothing came for 2 s; "), "{message}");
}

#[test]
fn a_part_that_is_longer_than_the_file_is_fetched_anew() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(part(dir.path()), b"more than there is to have").unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let progress = Progress::silent();
    let path = hub(dir.path(), &endpoint, &progress).download(&content()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(ranges(server), ["bytes=0-"]);
}

#[test]
fn a_part_that_the_hub_has_less_of_does_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(part(dir.path()), CONTENT).unwrap();
    let record = FileRecord { bytes: 20, ..content() };
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let progress = Progress::silent();
    let message = hub(dir.path(), &endpoint, &progress).download(&record).unwrap_err().to_string();
    assert!(message.contains("416"), "{message}");
    assert_eq!(ranges(server), ["bytes=16-"]);
    assert!(!part(dir.path()).exists());
}

/// The folder of Python's client, whose cache has the file.
fn home_of_python(dir: &Path, content: &[u8]) -> PathBuf {
    let repository = dir.join("hub/models--someone--no-such-model");
    std::fs::create_dir_all(repository.join("blobs")).unwrap();
    std::fs::create_dir_all(repository.join("snapshots/commit")).unwrap();
    std::fs::write(repository.join("blobs/tag"), content).unwrap();
    let link = repository.join("snapshots/commit/x.bin");
    std::os::unix::fs::symlink("../../blobs/tag", link).unwrap();
    dir.to_owned()
}

#[test]
fn a_cache_that_python_filled_delivers() {
    let dir = tempfile::tempdir().unwrap();
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let mut hub = hub(&store.join(".partial/tiny"), "http://hub.invalid", &progress);
    hub.offline = true;
    hub.home = Some(home_of_python(&dir.path().join("home"), CONTENT));
    assert!(take(&store, &served(&["x.bin"]), &hub, &progress));
    assert!(!take(&store, &served(&["y.bin"]), &hub, &progress));
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
fn take(store: &Path, model: &BuiltIn, hub: &Hub<'_>, progress: &Progress) -> bool {
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
    let mut model = served(&["x.bin", "y.bin"]);
    model.files[1].record.sha256 = digest::of_bytes(OTHER);
    for whole in [false, true] {
        let hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
        assert_eq!(take(&store, &model, &hub, &progress), whole);
    }
    assert_eq!(ranges(server), ["bytes=0-", "bytes=0-", "bytes=8-"]);
}

#[test]
fn a_wrong_file_in_the_cache_of_others_is_named_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let lines = Lines::default();
    let (store, progress) = (dir.path().join("models"), Progress::lines(lines.clone()));
    let mut hub = hub(&store.join(".partial/tiny"), &endpoint, &progress);
    hub.home = Some(home_of_python(&dir.path().join("home"), b"0123456789ABCDEF"));
    assert!(take(&store, &served(&["x.bin"]), &hub, &progress));
    assert_eq!(ranges(server), ["bytes=0-"]);
    let named = "blobs/tag: hub: its x.bin has the SHA-256 ";
    assert!(lines.text().contains(named), "{}", lines.text());
}

#[test]
fn a_download_that_can_be_no_file_of_a_model_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let mut model = served(&["x.bin"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\n";
    model.files[0].record.bytes = pointer.len() as u64;
    let partial = store.join(".partial/tiny");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(part(&partial), pointer).unwrap();
    assert!(!take(&store, &model, &hub(&partial, "http://hub.invalid", &progress), &progress));
    assert_eq!(std::fs::read_dir(partial).unwrap().count(), 0);
}

#[test]
fn a_wrong_file_of_the_hub_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, server) = begin(vec![Answer::Whole]);
    let (store, progress) = (dir.path().join("models"), Progress::silent());
    let mut model = served(&["x.bin"]);
    model.files[0].record.sha256 = digest::of_bytes(b"other");
    let partial = store.join(".partial/tiny");
    assert!(!take(&store, &model, &hub(&partial, &endpoint, &progress), &progress));
    server.join().unwrap();
    assert_eq!(std::fs::read_dir(partial).unwrap().count(), 0);
}
