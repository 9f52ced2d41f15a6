//! Stores that have no room, or another writer.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::fixture::{self, Bench};
use super::{pulls, runtimes};
use crate::staging::Writer;
use crate::{Error, Progress, PullOptions, RuntimeStore, Source};

/// What is free is more than a folder takes, and less than pip does.
#[test]
fn a_source_that_there_is_no_room_for_hides_no_reason_of_another() {
    let bench = Bench::new();
    let stat = nix::sys::statvfs::statvfs(bench.dir.path()).unwrap();
    let mut model = pulls::built_in(Vec::new());
    model.files[0].record.bytes = stat.blocks_available() * stat.fragment_size() / 5 * 2;
    let refusal = |sources| {
        let options = PullOptions {
            sources,
            convert: &|_| Err("not called".into()),
            progress: &Progress::silent(),
        };
        bench.store.bring(&model, &options).unwrap_err()
    };
    let refused = refusal(vec![Source::Folder(bench.path("gone")), Source::Pip]);
    assert!(matches!(refused, Error::Sources { .. }), "{refused:?}");
    let message = refused.to_string();
    assert!(message.contains("gone does not exist; pip: the file system of "), "{message}");
    // The hub, which does not have the model, is passed over.
    let folder = Source::Folder(PathBuf::new());
    for sources in [vec![Source::Pip, folder], vec![Source::Hub, Source::Pip]] {
        let refused = refusal(sources);
        assert!(matches!(refused, Error::NoSpace { .. }), "{refused:?}");
    }
}

/// Tells each piece of what is said.
struct Told(Sender<String>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).ok();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does something while there is a writer of the store, who ends once it was said that he is waited for.
fn behind_a_writer(store: &Path, work: impl FnOnce(&Progress) + Send) {
    let writer = Writer::begin(store).unwrap();
    let (told, said) = channel();
    thread::scope(|scope| {
        let work = scope.spawn(move || work(&Progress::lines(Told(told))));
        // Nothing comes if it ends without a word.
        let line = said.recv().unwrap();
        let shown = store.display();
        let expected = format!("another op-dbus is writing {shown}; waiting for it to end");
        assert_eq!(line.trim_end(), expected);
        drop(writer);
        work.join().unwrap();
    });
}

#[test]
fn a_pull_of_a_model_waits_for_another_writer() {
    let bench = Bench::new();
    let from = bench.path("from");
    fixture::write_folder(&from, &pulls::files(""));
    behind_a_writer(bench.store.dir(), |progress| {
        let sources = vec![Source::Folder(from.clone())];
        let options = PullOptions { sources, convert: &|_| Err("not called".into()), progress };
        bench.store.bring(&pulls::built_in(Vec::new()), &options).unwrap().verify().unwrap();
    });
}

#[test]
fn a_pull_of_a_library_waits_for_another_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (from, store) = (dir.path().join("from"), dir.path().join("runtime"));
    fixture::write_folder(&from, &runtimes::files(""));
    behind_a_writer(&store, |progress| {
        let sources = [Source::Folder(from.clone())];
        let path = RuntimeStore::open(&store).bring(&runtimes::library(), &sources, progress);
        assert_eq!(path.unwrap(), store.join("some-runtime-1.0/lib.so"));
    });
}
