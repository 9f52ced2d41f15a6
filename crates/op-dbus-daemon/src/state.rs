//! The state file: settings changed while the service ran, kept through crashes and restarts.
//!
//! The file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so that
//! whoever reads it finds the old state or the new one. It carries a checksum: a file that was
//! damaged is moved aside and never half believed. A file written by hand may leave it out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::telemetry::message_id;
use crate::text_file::{self, Unusable, folder};

/// The only version there is.
const VERSION: u64 = 1;

/// The state file's content. Keys that are no setting of this version are kept as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct StateFile {
    path: PathBuf,
    settings: BTreeMap<String, Value>,
    /// Whether there is a file that could not be read.
    unread: bool,
}

/// Why the state could not be written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system or the quota is full.
    #[error("the state file {path} could not be written: no space is left there; free some")]
    NoSpace {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder may not be written to.
    #[error(
        "the state file {path} could not be written: its folder is read-only for this user; \
         choose another with --state-file or let the service's user write there, in its unit \
         too (`ReadWritePaths=`)"
    )]
    ReadOnly {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A device, a folder or the like has its name, which is somebody else's.
    #[error(
        "the state file {path} could not be written: it is not a regular file; choose another with \
         --state-file"
    )]
    NoFile {
        /// What should be the state file.
        path: PathBuf,
    },
    /// What is there could not be read, and would be lost.
    #[error(
        "the state file {path} could not be written: what it holds could not be read, and would be lost; let the \
         service's user read it and reload the settings, or move it away"
    )]
    Unread {
        /// The state file.
        path: PathBuf,
    },
    /// Anything else.
    #[error("the state file {path} could not be written: {source}")]
    Io {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The file as it is on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    settings: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

impl StateFile {
    /// [`look`](Self::look), of which the second value says why in one sentence.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn read(path: &Path) -> (StateFile, Option<String>) {
        let (state, unusable) = Self::look(path);
        (state, unusable.map(|unusable| not_used(path, &unusable.reason())))
    }

    /// Reads the file without changing anything. A missing file is an empty state; so is one that
    /// cannot be used, and then the second value says why, for who may [repair](Self::repair) it later.
    pub(crate) fn look(path: &Path) -> (StateFile, Option<Unusable>) {
        match read(path) {
            Ok(state) => (state, None),
            Err(unusable) => {
                let unread = matches!(unusable, Unusable::Unreadable(_));
                (StateFile { unread, ..StateFile::empty(path) }, Some(unusable))
            }
        }
    }

    /// Tidies up for the service that owns the file: temporary files left by a crash are removed,
    /// and a file that was found to be `unusable` is moved aside to `<name>.corrupt-<unix time>`; what is no
    /// file, such as /dev/null, stays. What is known all the same of what was changed is written in its place, without
    /// which the file stays as well: that there is none would take all changes back. One sentence for each thing that
    /// the administrator should know.
    pub(crate) fn repair(&mut self, unusable: Option<Unusable>) -> Vec<String> {
        let mut warnings = remove_leftovers(&self.path);
        let Some(unusable) = unusable else { return warnings };
        let aside = aside(&self.path);
        let to = format!("it was moved to {}", aside.display());
        let moved = match &unusable {
            Unusable::Damaged(reason) => Some(format!("{reason}; {to}")),
            Unusable::Foreign(reason, fix) => {
                let back = format!("move it back and type `{fix}`, with the service stopped");
                Some(format!("{reason}; {to}; to have it used, {back}"))
            }
            Unusable::Unreadable(_) => None,
        };
        let stays = unusable.reason();
        let told = if !self.settings.is_empty() {
            let kept = "what was changed over the bus stays in force, and";
            match self.replace(moved.is_some().then_some(&*aside)) {
                Ok(()) => format!("{}; {kept} is written anew", moved.unwrap_or(stays)),
                Err(error) => format!("{stays}; {kept} can't be written anew: {error}"),
            }
        } else if let Some(moved) = moved {
            match fs::rename(&self.path, aside) {
                Ok(()) => moved,
                Err(error) => format!("{stays}; it could not be moved aside ({error})"),
            }
        } else {
            stays
        };
        warnings.push(not_used(&self.path, &told));
        warnings
    }

    /// A state with no changes, to be written to `path`.
    pub fn empty(path: &Path) -> StateFile {
        StateFile { path: path.to_owned(), settings: BTreeMap::new(), unread: false }
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything in it, by key.
    pub fn settings(&self) -> &BTreeMap<String, Value> {
        &self.settings
    }

    /// Sets one value. Nothing is written until [`StateFile::save`].
    pub fn set(&mut self, key: &str, value: Value) {
        self.settings.insert(key.to_owned(), value);
    }

    /// Writes the file and waits until the disk has it. A folder that is not there is made, for its
    /// owner alone. What is there and can't be used is moved aside, as by [`repair`](Self::repair).
    ///
    /// # Errors
    /// When this fails the file on disk is the old one, whole. Where all that fails is to make sure of the folder,
    /// the new one is there, and it is a warning.
    pub fn save(&mut self) -> Result<(), StateError> {
        let unusable = read(&self.path).err();
        let goes = unusable.filter(|why| !matches!(why, Unusable::Unreadable(_)));
        let aside = goes.is_some().then(|| aside(&self.path));
        self.replace(aside.as_deref())?;
        if let (Some(why), Some(aside)) = (goes, aside) {
            let told = format!("{}; it was moved to {}", why.reason(), aside.display());
            let told = not_used(&self.path, &told);
            tracing::warn!(MESSAGE_ID = message_id::STATE_CORRUPT, "{told}");
        }
        Ok(())
    }

    /// Writes the file, where there is an `aside` once what is there has that name as well.
    fn replace(&mut self, aside: Option<&Path>) -> Result<(), StateError> {
        if fs::metadata(&self.path).is_ok_and(|there| !there.is_file()) {
            return Err(StateError::NoFile { path: self.path.clone() });
        }
        if self.unread && fs::symlink_metadata(&self.path).is_ok() {
            return Err(StateError::Unread { path: self.path.clone() });
        }
        self.write(aside).map_err(|source| self.error(source))?;
        self.unread = false;
        Ok(())
    }

    fn error(&self, source: io::Error) -> StateError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StateError::NoSpace { path, source }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StateError::ReadOnly { path, source }
            }
            _ => StateError::Io { path, source },
        }
    }

    fn write(&self, aside: Option<&Path>) -> io::Result<()> {
        let folder = folder(&self.path);
        let prefix = prefix(&self.path);
        let mut builder = tempfile::Builder::new();
        let temporary = builder.prefix(&prefix).suffix(SUFFIX);
        let mut file = match temporary.tempfile_in(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(folder)?;
                temporary.tempfile_in(folder)?
            }
            file => file?,
        };
        file.write_all(self.document()?.as_bytes())?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        if let Some(aside) = aside {
            self.put_aside(aside)?;
        }
        file.persist(&self.path)?;
        // It is in force from here on, and after a restart: to call that a failure would have it said that nothing
        // has changed.
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            let folder = folder.display();
            tracing::warn!(
                "the state may be the old one after a power cut: {folder} can't be synced ({error})"
            );
        }
        Ok(())
    }

    /// Puts what is there aside. It keeps its name until that is taken from it: without a file under it nothing would be
    /// known of any change.
    fn put_aside(&self, aside: &Path) -> io::Result<()> {
        // Some file systems know no links, and a file of another user may not have one: that has no name for a moment.
        match fs::hard_link(&self.path, aside).or_else(|_| fs::rename(&self.path, aside)) {
            // Somebody was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            end => end,
        }
    }

    /// The file's content.
    ///
    /// # Errors
    /// It can't be put in JSON.
    pub(crate) fn document(&self) -> io::Result<String> {
        let document = Document {
            version: VERSION,
            settings: self.settings.clone(),
            check: Some(checksum(&self.settings)?),
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }
}

fn read(path: &Path) -> Result<StateFile, Unusable> {
    let Some(text) = text_file::read(path)? else { return Ok(StateFile::empty(path)) };
    let document: Document = serde_json::from_str(&text)
        .map_err(|error| Unusable::Damaged(format!("it is not a state of op-dbus ({error})")))?;
    if document.version != VERSION {
        let found = document.version;
        let reason = format!("it has version {found}, and this op-dbus knows {VERSION}");
        return Err(Unusable::Damaged(reason));
    }
    let sum = checksum(&document.settings)
        .map_err(|error| Unusable::Damaged(format!("it cannot be checked ({error})")))?;
    if document.check.is_some_and(|found| found != sum) {
        let reason = "its checksum is wrong; after a change by hand, leave `check` out";
        return Err(Unusable::Damaged(reason.to_owned()));
    }
    Ok(StateFile { settings: document.settings, ..StateFile::empty(path) })
}

/// FNV-1a over the settings as compact JSON: it is there to find accidents, not forgery.
fn checksum(settings: &BTreeMap<String, Value>) -> serde_json::Result<String> {
    let bytes = serde_json::to_vec(settings)?;
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{sum:016x}"))
}

const SUFFIX: &str = ".tmp";

/// Makes the folder, and those above it, and waits until the disk has them.
fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = folder(path);
    make(above)?;
    match DirBuilder::new().mode(0o700).create(path) {
        // Somebody else was quicker.
        Err(_) if path.is_dir() => {}
        made => made?,
    }
    File::open(above)?.sync_all()
}

/// How the names of our temporary files begin: hidden, and with the state file's own name.
fn prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// Removes temporary files of writes that a crash cut short; one sentence for each that stays.
fn remove_leftovers(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder(path)) else { return Vec::new() };
    let prefix = prefix(path);
    let mut warnings = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        let ours = bytes.starts_with(prefix.as_encoded_bytes())
            && bytes.ends_with(SUFFIX.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if ours && let Err(error) = fs::remove_file(entry.path()) {
            let path = entry.path();
            warnings.push(format!("the left-over file {} stays: {error}", path.display()));
        }
    }
    warnings
}

/// The sentence about a file that stays where it is.
pub(crate) fn not_used(path: &Path, reason: &str) -> String {
    format!("the state file {} is not used: {reason}", path.display())
}

/// Where a file that can't be used is moved to now.
fn aside(path: &Path) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".corrupt-{seconds}"));
    aside.into()
}

#[cfg(test)]
mod tests;
