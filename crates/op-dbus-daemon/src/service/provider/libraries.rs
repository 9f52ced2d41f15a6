//! Whether the libraries that workers load are those that were pulled, and what is of the user's own nobody else's.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use op_dbus_models::{Error as StoreError, FileRecord, foreign_writer, manifest, runtime};
use parking_lot::Mutex;

use super::{CPU, CREDENTIALS, Host, store};
use crate::settings::options::Told;
use crate::settings::{Provider, Settings};
use crate::text_file;

/// What is another one whatever is done to a file: its device, its number there, and when it was changed last, which
/// nobody can set.
type Stamp = (u64, u64, i64, i64);

/// The folders of libraries that had their digests, each with the stamps of its files.
static VERIFIED: Mutex<BTreeMap<PathBuf, Vec<Stamp>>> = Mutex::new(BTreeMap::new());

/// Compares what was pulled of `host` with its digests; libraries of the user's own, and what a fleet is known by, are
/// the user's, as long as nobody else may write them.
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
    refuse_foreign_files(host, &name, settings)?;
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

/// Refuses files of the user's own that others may write: these would decide what the service computes, or who does.
fn refuse_foreign_files(host: &Host, name: &str, settings: &Settings) -> Result<(), String> {
    let runtime = settings.runtime.as_ref().filter(|own| **own == host.runtime);
    let library = settings.providers.get(name).and_then(|own| own.library.as_ref());
    let library = library.filter(|own| host.library.as_ref() == Some(own));
    let libraries = [("runtime", runtime), ("library", library)];
    let libraries = libraries.into_iter().filter_map(|(key, path)| Some((key, path?.as_path())));
    let is_remote = host.provider == Provider::Remote;
    let is_path = |key: &str| is_remote && CREDENTIALS.iter().any(|(option, _)| *option == key);
    let of_a_fleet = host.options.iter().filter_map(|(key, told)| match told {
        Told::Value(path) if is_path(key) => Some((key.as_str(), Path::new(path))),
        _ => None,
    });
    for (setting, path) in libraries.chain(of_a_fleet) {
        // Whatever else is wrong with it the worker tells that tries it.
        let is_library = CREDENTIALS.iter().all(|(option, _)| *option != setting);
        if let Some((reason, fix)) = foreign(path, settings, is_library) {
            let path = path.display();
            return Err(format!(
                "the file {path}, which `{setting}` names for {name}, is not used: {reason}; type `{fix}`"
            ));
        }
    }
    Ok(())
}

/// What is wrong with who may write a file, and the command that mends it. Whose the models are may write it as well:
/// that is the service's user, whoever else looks at it for the service. To that user a credential is given, which it
/// has to read, and a library, which it runs, to the owner of its folder.
fn foreign(path: &Path, settings: &Settings, is_library: bool) -> Option<(String, String)> {
    let meta = fs::metadata(path).ok().filter(Metadata::is_file)?;
    let beside = foreign_writer(path, &meta, text_file::folder(path))?;
    let of_models = foreign_writer(path, &meta, &settings.model_dir)?;
    Some(if is_library { beside } else { of_models })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::chown;

    use nix::unistd::geteuid;

    use super::*;
    use crate::settings::Sources;

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

    #[test]
    fn what_the_stores_owner_may_write_is_the_services_own() {
        if !geteuid().is_root() {
            eprintln!("SKIP: not root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let mut settings = Settings::load(&Sources::under(root.path())).unwrap().settings;
        settings.model_dir = root.path().join("models");
        let token = root.path().join("token");
        fs::create_dir(&settings.model_dir).unwrap();
        fs::write(&token, "open-sesame").unwrap();
        chown(&token, Some(64_905), None).unwrap();
        for is_library in [false, true] {
            let (reason, fix) = foreign(&token, &settings, is_library).unwrap();
            assert!(reason.starts_with("the user 64905 may write it"), "{reason}");
            assert_eq!(fix.contains("/models "), !is_library, "{fix}");
        }
        chown(&settings.model_dir, Some(64_905), None).unwrap();
        assert_eq!(foreign(&token, &settings, false), None);
    }
}
