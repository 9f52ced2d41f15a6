//! The store of ONNX Runtime libraries and of the provider libraries for them: pinned versions,
//! checked by digest.

mod fetch;

use std::path::{Path, PathBuf};

use crate::manifest::{self, Library};
use crate::progress::Progress;
use crate::pull::Source;
use crate::staging::{Writer, clear_behind};
use crate::{Error, FileRecord, named};

/// The provider of the runtime that needs no device.
const CPU: &str = "cpu";

/// The runtime store that belongs to a model store: its sibling `runtime`.
#[must_use]
pub fn beside(model_dir: &Path) -> PathBuf {
    match model_dir.file_name() {
        Some(_) => model_dir.with_file_name("runtime"),
        // What is written before `..` is no folder around it.
        None => model_dir.join("../runtime"),
    }
}

/// The store of libraries, with a folder for each; cheap to make, holds no file open.
#[derive(Debug, Clone)]
pub struct RuntimeStore {
    dir: PathBuf,
}

/// An installed plugin provider library, and what ONNX Runtime has to be told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderPlugin {
    /// The library to register.
    pub library: PathBuf,
    /// The name to register it under.
    pub register_as: &'static str,
    /// What ONNX Runtime calls the execution provider, in its list of devices and in the placement
    /// of nodes.
    pub execution_provider: &'static str,
}

impl RuntimeStore {
    /// Names the store's folder; nothing is read or made.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The runtime library to load for a provider, when it is there: the one that the provider is
    /// built into, or the one that its plugin is registered with. Its content is not read.
    #[must_use]
    pub fn runtime(&self, provider: &str) -> Option<PathBuf> {
        let (library, _) = manifest::provider(provider).ok()?;
        match &library.plugin {
            None => self.file(library),
            Some(plugin) => self.file(manifest::provider(&plugin.host).ok()?.0),
        }
    }

    /// The plugin library of a provider, when it has one and it is there; its content is not read.
    #[must_use]
    pub fn plugin(&self, provider: &str) -> Option<ProviderPlugin> {
        let (library, provider) = manifest::provider(provider).ok()?;
        Some(ProviderPlugin {
            library: self.file(library)?,
            register_as: &library.plugin.as_ref()?.register_as,
            execution_provider: &provider.execution_provider,
        })
    }

    /// Checks that every file of a provider's library is there, of the right size, and not writable
    /// by others: what [`RuntimeStore::verify`] does without reading the contents. Returns the file
    /// to load.
    ///
    /// # Errors
    /// As [`RuntimeStore::verify`].
    pub fn check(&self, provider: &str) -> Result<PathBuf, Error> {
        let (library, _) = manifest::provider(provider)?;
        self.check_each(library, |record, dir| record.check_shape(dir, damaged(library, &self.dir)))
    }

    /// Compares every file of a provider's library with its digest; returns the file to load.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Corrupt`], [`Error::Permission`], [`Error::NoLibrary`] when
    /// there is none for this machine, or [`Error::UnknownProvider`].
    pub fn verify(&self, provider: &str) -> Result<PathBuf, Error> {
        let (library, _) = manifest::provider(provider)?;
        self.verify_files(library)
    }

    /// Fetches a provider's library from the first source that has it; does nothing when it is
    /// there and undamaged. The hub has none and is passed over. Waits for who writes the store, and takes
    /// other versions of the library out of it.
    ///
    /// # Errors
    /// [`Error::Sources`] tells why each source failed; else as [`RuntimeStore::verify`].
    pub fn pull(
        &self,
        provider: &str,
        sources: &[Source],
        progress: &Progress,
    ) -> Result<PathBuf, Error> {
        let (library, _) = manifest::provider(provider)?;
        self.bring(library, sources, progress)
    }

    /// Takes a provider's library out of the store, damaged or not and of whichever version, and with it the
    /// other providers that it computes with. Returns the names of the folders that are gone.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Busy`], or what the file system says.
    pub fn remove(&self, provider: &str) -> Result<Vec<String>, Error> {
        let (library, _) = manifest::provider(provider)?;
        let versions = self.versions(library);
        if versions.is_empty() {
            // Who wants it gone is not told how to get it.
            let fix = format!("op-dbus runtime list{}", here(&self.dir));
            return Err(self.not_installed(library, fix));
        }
        let writer = Writer::begin(&self.dir)?;
        versions.iter().try_for_each(|version| writer.discard(version))?;
        Ok(versions)
    }

    pub(crate) fn verify_files(&self, library: &Library) -> Result<PathBuf, Error> {
        self.check_each(library, |record, dir| {
            record.check_content(dir, damaged(library, &self.dir))
        })
    }

    /// The same for a library that the caller describes.
    ///
    /// # Errors
    /// As [`RuntimeStore::pull`], but for [`Error::UnknownProvider`].
    pub fn bring(
        &self,
        library: &Library,
        sources: &[Source],
        progress: &Progress,
    ) -> Result<PathBuf, Error> {
        if let Ok(path) = self.verify_files(library) {
            clear_behind(&self.dir, &library.folder_name());
            if self.others(library).next().is_some() {
                // Where this user may not, or another writer is at work, they stay.
                let begun = Writer::begin(&self.dir);
                begun.and_then(|writer| self.discard_others(library, &writer, progress)).ok();
            }
            progress.say(format_args!("{}: installed and undamaged", library.folder_name()));
            return Ok(path);
        }
        let build = library.build()?;
        let writer = Writer::begin_in_turn(&self.dir, progress)?;
        // Another pull may have ended since.
        if let Ok(path) = self.verify_files(library) {
            return Ok(path);
        }
        // The wheel, which is never larger than what is in it, and the files.
        writer.require_space(build.bytes() * 2)?;
        let stage = writer.stage()?;
        let folder = stage.told(
            fetch::fetch(library, build, &stage, sources, progress)
                .and_then(|files| writer.commit(&files, &library.folder_name())),
        )?;
        // It is installed, whatever becomes of these.
        if let Err(error) = self.discard_others(library, &writer, progress) {
            progress.say(format_args!("{} is installed, but {error}", library.folder_name()));
        }
        Ok(folder.join(&library.load))
    }

    /// Applies a check to every file of an installed library; returns the file to load.
    fn check_each(
        &self,
        library: &Library,
        check: impl Fn(&FileRecord, &Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let build = library.build()?;
        let folder = self.folder(library);
        if !folder.is_dir() {
            return Err(self.not_installed(library, pull_command(library, &self.dir)));
        }
        build.files.iter().try_for_each(|record| check(record, &folder))?;
        Ok(folder.join(&library.load))
    }

    /// The folders of a library, of whichever version: programs before this one had others.
    fn versions(&self, library: &Library) -> Vec<String> {
        let is_version = |name: &String| {
            let rest = name.strip_prefix(&library.package).and_then(|rest| rest.strip_prefix('-'));
            // What somebody has put beside them has a word behind it.
            rest.is_some_and(|version| {
                version.starts_with(|c: char| c.is_ascii_digit())
                    && version.chars().all(|c| c.is_ascii_digit() || c == '.')
            })
        };
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        let mut versions: Vec<String> = names.filter(is_version).collect();
        versions.sort_unstable();
        versions
    }

    /// Those of them that nothing is loaded from here.
    fn others(&self, library: &Library) -> impl Iterator<Item = String> {
        let own = library.folder_name();
        self.versions(library).into_iter().filter(move |name| *name != own)
    }

    fn discard_others(
        &self,
        library: &Library,
        writer: &Writer,
        progress: &Progress,
    ) -> Result<(), Error> {
        let own = library.folder_name();
        self.others(library).try_for_each(|other| {
            writer.discard(&other)?;
            progress.say(format_args!("{other}: removed, as {own} takes its place"));
            Ok(())
        })
    }

    fn not_installed(&self, library: &Library, fix: String) -> Error {
        Error::NotInstalled {
            what: format!("the library {} {}", library.package, library.version),
            dir: self.dir.clone(),
            fix,
        }
    }

    fn folder(&self, library: &Library) -> PathBuf {
        self.dir.join(library.folder_name())
    }

    fn file(&self, library: &Library) -> Option<PathBuf> {
        Some(self.folder(library).join(&library.load)).filter(|path| path.is_file())
    }
}

/// [`Error::Corrupt`] with the command that repairs this library.
fn damaged<'a>(library: &'a Library, dir: &'a Path) -> impl Fn(&Path, String) -> Error + 'a {
    move |path, reason| Error::Corrupt {
        file: path.to_owned(),
        reason,
        fix: pull_command(library, dir),
    }
}

fn pull_command(library: &Library, dir: &Path) -> String {
    let provider = library.providers.first().map_or(CPU, |one| one.name.as_str());
    format!("op-dbus runtime pull --provider {provider}{}", here(dir))
}

fn here(dir: &Path) -> String {
    named(&dir.with_file_name("models"))
}
