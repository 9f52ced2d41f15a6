//! What can go wrong in the stores, each as one sentence that ends in what to do.

use std::path::{Path, PathBuf};

use crate::shell_word;

/// An error that comes from a hook the binary passed in (the ONNX converter, the ONNX inspector).
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// Why a store operation was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing of that name is in the store.
    #[error("{what} is not installed in {}; type `{fix}`", dir.display())]
    NotInstalled {
        /// The model, or the library, that was asked for.
        what: String,
        /// The store that was searched.
        dir: PathBuf,
        /// The command that installs it.
        fix: String,
    },
    /// What is named as the store is something else, or something above it is.
    #[error(
        "{} is no folder, or lies below a file; name another with `model_dir` or --model-dir",
        dir.display()
    )]
    NoFolder {
        /// What is named.
        dir: PathBuf,
    },
    /// The name is neither a level, nor a built-in model, nor one that can be pulled.
    #[error("`{name}` is not a level or a built-in model; known are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// No provider of that name is known.
    #[error("`{name}` is not a provider that has a library to pull; known are {known}")]
    UnknownProvider {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The provider has no library for this machine; the sentence says where, or what to do instead.
    #[error("{0}")]
    NoLibrary(String),
    /// A folder in the store's that nothing in it says to be a model.
    #[error(
        "{} is no model: it has neither op-dbus.json nor tokenizer.json; look whether `model_dir` or \
         --model-dir is right, or remove the folder yourself",
        dir.display()
    )]
    NoModel {
        /// The folder.
        dir: PathBuf,
    },
    /// The name cannot be used for an import.
    #[error("the name `{name}` cannot be used: {reason}; choose another with --name")]
    Name {
        /// What was asked for.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A model of that name is installed, and none takes its place unasked.
    #[error(
        "the name `{name}` cannot be used: a model of that name is installed; remove it first (type \
         `{fix}`), or choose another with --name"
    )]
    Taken {
        /// The name.
        name: String,
        /// The command that removes the model.
        fix: String,
    },
    /// A file of the store is not what it was when it was installed.
    #[error("{} is damaged: {reason}; type `{fix}`", file.display())]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// What was found instead.
        reason: String,
        /// The command that repairs it.
        fix: String,
    },
    /// The model, file or machine is of a kind that is not supported (yet).
    #[error("not supported: {found}; supported: {supported}")]
    Unsupported {
        /// What was found, and in which file.
        found: String,
        /// What would have been accepted.
        supported: String,
    },
    /// The file may be changed by others, or may not be read by us.
    #[error("{}: {reason}; type `{fix}`", path.display())]
    Permission {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with its permissions.
        reason: String,
        /// The command that mends them.
        fix: String,
    },
    /// The file system of the store is too full.
    #[error(
        "the file system of {} is too full ({found}); free some space, or set `model_dir` to a \
         larger one that the units may write (`ReadWritePaths=`)",
        dir.display()
    )]
    NoSpace {
        /// The store, or the folder that was written to.
        dir: PathBuf,
        /// What is needed and what there is, as far as it is known.
        found: String,
    },
    /// The file system is mounted for reading alone, by a unit or for everybody.
    #[error(
        "cannot {action} {}: its file system is read-only here; where a unit makes it so, \
         `ReadWritePaths=` in a drop-in opens it",
        path.display()
    )]
    ReadOnly {
        /// `write`, `remove`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
    },
    /// Somebody else may change the store, and this user may not.
    #[error(
        "cannot {action} {}: this user may not; be root or the owner of the store (`sudo`), or name \
         another store with --model-dir",
        path.display()
    )]
    Denied {
        /// `write`, `remove`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
    },
    /// One source could not deliver; the next is tried.
    #[error("{source_name}: {reason}")]
    Source {
        /// `folder`, `hub` or `pip`.
        source_name: &'static str,
        /// One line.
        reason: String,
    },
    /// Every source that was allowed has failed.
    #[error("{what} could not be fetched from any source ({reasons}); {fix}")]
    Sources {
        /// The model or library.
        what: String,
        /// Each source with its reason, in the order tried.
        reasons: String,
        /// What to try.
        fix: String,
    },
    /// Another process is writing the store.
    #[error("another op-dbus is writing {}; wait for it to end and try again", dir.display())]
    Busy {
        /// The store.
        dir: PathBuf,
    },
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read`, `write`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A hook that the binary passed in failed: the conversion or the inspection of an ONNX graph, or the
    /// reading of a tokenizer.
    #[error("{what}: {source}")]
    Hook {
        /// What was being done, and to which file.
        what: String,
        /// What the hook said.
        source: HookError,
    },
}

impl Error {
    /// Maps an I/O error to the sentence that helps: no space, no permission, or the plain one.
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::NoSpace {
                dir: path.parent().unwrap_or(path).to_owned(),
                found: source.to_string(),
            },
            std::io::ErrorKind::PermissionDenied
                if ["write", "remove", "lock"].contains(&action) =>
            {
                Self::Denied { action, path: path.to_owned() }
            }
            std::io::ErrorKind::PermissionDenied => Self::Permission {
                path: path.to_owned(),
                reason: format!("this user may not {action} it"),
                fix: format!("ls -ld {}", shell_word(path)),
            },
            std::io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { action, path: path.to_owned() }
            }
            _ => Self::Io { action, path: path.to_owned(), source },
        }
    }

    /// Tells of what lies below the folder `from` as if it lay below `to`.
    pub(crate) fn renamed(self, from: &Path, to: &Path) -> Self {
        let moved =
            |path: PathBuf| path.strip_prefix(from).map(|rest| to.join(rest)).unwrap_or(path);
        let told = |text: String| text.replace(&*from.to_string_lossy(), &to.to_string_lossy());
        match self {
            Self::Permission { path, reason, fix } => {
                Self::Permission { path: moved(path), reason: told(reason), fix: told(fix) }
            }
            Self::NoSpace { dir, found } => Self::NoSpace { dir: moved(dir), found },
            Self::ReadOnly { action, path } => Self::ReadOnly { action, path: moved(path) },
            Self::Denied { action, path } => Self::Denied { action, path: moved(path) },
            Self::Io { action, path, source } => Self::Io { action, path: moved(path), source },
            Self::Unsupported { found, supported } => {
                Self::Unsupported { found: told(found), supported }
            }
            Self::Source { source_name, reason } => {
                Self::Source { source_name, reason: told(reason) }
            }
            Self::Sources { what, reasons, fix } => {
                Self::Sources { what, reasons: told(reasons), fix }
            }
            Self::Hook { what, source } => {
                Self::Hook { what: told(what), source: told(source.to_string()).into() }
            }
            other => other,
        }
    }

    /// Whether it is the store that can't be written: what is fetched from elsewhere would not get there either.
    pub(crate) fn is_of_the_store(&self) -> bool {
        matches!(
            self,
            Self::NoSpace { .. } | Self::ReadOnly { .. } | Self::Io { action: "write", .. }
        )
    }
}

/// What was found is not supported; what would be.
pub(crate) fn refuse(found: impl Into<String>, supported: impl Into<String>) -> Error {
    Error::Unsupported { found: found.into(), supported: supported.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_told_by_its_name_and_not_by_its_descriptor() {
        let (from, to) = (Path::new("/proc/1/fd/7"), Path::new("/srv/models"));
        for kind in [
            std::io::ErrorKind::StorageFull,
            std::io::ErrorKind::PermissionDenied,
            std::io::ErrorKind::ReadOnlyFilesystem,
            std::io::ErrorKind::NotADirectory,
        ] {
            let error = Error::io("write", &from.join("files/x"), kind.into());
            let reasons = error.to_string();
            let sources = Error::Sources { what: "x".into(), reasons, fix: "fix".into() };
            for said in [error, sources].map(|error| error.renamed(from, to).to_string()) {
                assert!(said.contains("/srv/models/files") && !said.contains("/proc"), "{said}");
            }
        }
    }

    #[test]
    fn who_may_not_write_a_store_is_told_what_to_do() {
        let said = |action, path| {
            let denied = std::io::ErrorKind::PermissionDenied.into();
            Error::io(action, Path::new(path), denied).to_string()
        };
        assert!(said("write", "/srv/models").contains("--model-dir"));
        assert!(said("read", "/srv/models").contains("`ls -ld /srv/models`"));
    }

    #[test]
    fn what_a_unit_keeps_from_being_written_is_told_with_its_directive() {
        let path = Path::new("/srv/models/.lock");
        for kind in [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::StorageFull] {
            let said = Error::io("write", path, kind.into()).to_string();
            assert!(said.contains("/srv/models") && said.contains("`ReadWritePaths=`"), "{said}");
        }
    }
}
