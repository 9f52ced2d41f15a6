//! The model store: a folder with one folder per model.

use std::path::{Path, PathBuf};

use crate::import::ImportOptions;
use crate::pull::PullOptions;
use crate::{Error, Model};

/// The model store; cheap to make, holds no file open.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Names the store's folder; nothing is read or made.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The store's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The installed model of that name or level; its files are not read.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], or [`Error::Corrupt`] when its record cannot be understood.
    pub fn get(&self, name: &str) -> Result<Model, Error> {
        let fix = format!("op-dbus models pull {name}");
        Err(Error::NotInstalled { what: name.to_owned(), dir: self.dir.clone(), fix })
    }

    /// Every installed model, by name; a folder that cannot be understood is an error in its place.
    #[must_use]
    pub fn list(&self) -> Vec<Result<Model, Error>> {
        Vec::new()
    }

    /// Takes a model out of the store.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Busy`], or what the file system says.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.get(name).map(|_| ())
    }

    /// Reads every file of a model and compares it with its digest.
    ///
    /// # Errors
    /// As [`Store::get`] and [`Model::verify`].
    pub fn verify(&self, name: &str) -> Result<Model, Error> {
        self.get(name)
    }

    /// Copies a model of the user's own into the store under `name`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names what was found and what would have been accepted.
    pub fn import(&self, _: &Path, name: &str, _: &ImportOptions<'_>) -> Result<Model, Error> {
        self.get(name)
    }

    /// Fetches a built-in model by name or level; does nothing when it is installed and undamaged.
    ///
    /// # Errors
    /// [`Error::Sources`] tells why each source failed.
    pub fn pull(&self, name: &str, _: &PullOptions<'_>) -> Result<Model, Error> {
        self.get(name)
    }
}
