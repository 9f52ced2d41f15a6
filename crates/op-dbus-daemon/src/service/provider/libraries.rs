//! Whether the libraries that workers load are those that were pulled, and those of the user's own nobody else's.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use op_dbus_models::{Error as StoreError, FileRecord, manifest, runtime};
use parking_lot::Mutex;

use super::{CPU, Host, store};
use crate::settings::Settings;
use crate::text_file::{self, Unusable};

/// What is another one whatever is done to a file: its device, its number there, and when it was changed last, which
/// nobody can set.
type Stamp = (u64, u64, i64, i64);

/// The folders of libraries that had their digests, each with the stamps of its files.
static VERIFIED: Mutex<BTreeMap<PathBuf, Vec<Stamp>>> = Mutex::new(BTreeMap::new());

/// Compares what was pulled of `host` with its digests; libraries of the user's own are the user's, as long as
/// nobody else may write them.
///
/// # Errors
/// One sentence that names the file.
pub fn verify(host: &Host, settings: &Settings) -> Result<(), String> {
    look(host, settings, false)
}

/// As [`verify`], before each worker is started: of libraries that nobody has touched since they were compared nothing
/// is read, which are hundreds of megabytes.
///
/// # Errors
/// As [`verify`].
pub(in crate::service) fn verify_again(host: &Host, settings: &Settings) -> Result<(), String> {
    look(host, settings, true)
}

fn look(host: &Host, settings: &Settings, again: bool) -> Result<(), String> {
    let store = store(settings);
    let name = host.provider.to_string();
    refuse_foreign_libraries(host, &name, settings)?;
    let plugin = store.plugin(&name).map(|plugin| plugin.library);
    let mut pulled = Vec::new();
    if plugin.is_some() && plugin == host.library {
        pulled.push(name.as_str());
    }
    // A plugin is loaded into the runtime of the CPU, others bring one.
    let runtimes = [CPU, &name].into_iter();
    pulled.extend(runtimes.filter(|of| store.runtime(of).as_ref() == Some(&host.runtime)).take(1));
    for of in pulled {
        let told = |error: StoreError| format!("{name}: {error}");
        let (library, _) = manifest::provider(of).map_err(told)?;
        let files = &library.build().map_err(told)?.files;
        let folder = runtime::beside(&settings.model_dir).join(library.folder_name());
        once(&folder, files, again, || store.verify(of)).map_err(told)?;
    }
    Ok(())
}

/// Has the files of a folder compared, unless it is `again` and they are what they were the last time.
fn once<T, E>(
    folder: &Path,
    files: &[FileRecord],
    again: bool,
    compare: impl FnOnce() -> Result<T, E>,
) -> Result<(), E> {
    // Before they are read: what is written meanwhile has another one.
    let stamps: Option<Vec<Stamp>> =
        files.iter().map(|file| stamp(&folder.join(&file.path))).collect();
    if again && stamps.is_some() && VERIFIED.lock().get(folder) == stamps.as_ref() {
        return Ok(());
    }
    compare()?;
    if let Some(stamps) = stamps {
        VERIFIED.lock().insert(folder.to_owned(), stamps);
    }
    Ok(())
}

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

/// Refuses libraries of the user's own that others may write: these would decide what the service computes.
fn refuse_foreign_libraries(host: &Host, name: &str, settings: &Settings) -> Result<(), String> {
    let runtime = settings.runtime.as_ref().filter(|own| **own == host.runtime);
    let library = settings.providers.get(name).and_then(|own| own.library.as_ref());
    let library = library.filter(|own| host.library.as_ref() == Some(own));
    for (path, setting) in [(runtime, "runtime"), (library, "library")] {
        // Whatever else is wrong with it the worker tells that tries it.
        if let Some(path) = path
            && let Err(Unusable::Foreign(reason, fix)) = text_file::open_regular(path)
        {
            let path = path.display();
            return Err(format!(
                "the library {path}, which `{setting}` names for {name}, is not loaded: {reason}; type `{fix}`"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_was_compared_is_read_again_only_once_it_is_another_file() {
        let root = tempfile::tempdir().unwrap();
        let (folder, library) = (root.path(), root.path().join("lib.so"));
        fs::write(&library, "library").unwrap();
        let record =
            |path: &str| FileRecord { path: path.to_owned(), bytes: 7, sha256: String::new() };
        let files = [record("lib.so")];
        let reads = Cell::new(0);
        let compare = |is_right: bool| {
            reads.set(reads.get() + 1);
            if is_right { Ok(()) } else { Err("damaged") }
        };
        let reads_of = |again, is_right| {
            reads.set(0);
            (once(folder, &files, again, || compare(is_right)), reads.get())
        };
        assert_eq!(reads_of(true, true), (Ok(()), 1), "it was never compared");
        assert_eq!(reads_of(true, false), (Ok(()), 0));
        assert_eq!(reads_of(false, true), (Ok(()), 1), "a load compares whatever was");
        // As long and as old as the one that it replaces.
        let (other, old) = (folder.join("other.so"), fs::metadata(&library).unwrap());
        fs::write(&other, "another").unwrap();
        let times = fs::FileTimes::new().set_modified(old.modified().unwrap());
        fs::File::options().write(true).open(&other).unwrap().set_times(times).unwrap();
        fs::rename(&other, &library).unwrap();
        assert_eq!(reads_of(true, false), (Err("damaged"), 1));
        assert_eq!(reads_of(true, false), (Err("damaged"), 1), "it is not taken for compared");
        // Of several each counts.
        assert_eq!(reads_of(true, true), (Ok(()), 1));
        let more = [record("lib.so"), record("gone.so")];
        assert_eq!(once(folder, &more, true, || compare(false)), Err("damaged"));
    }
}
