//! Writing into a store: one writer at a time, in a hidden folder, moved into place when complete.
//!
//! Whatever a writer that died left behind lies in `.staging`, where nothing is ever loaded from,
//! and is removed by the next one. Downloads that can be resumed lie in `.partial` and survive.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::Error;

const STAGING: &str = ".staging";
const PARTIAL: &str = ".partial";

/// The right to write a store; held for the whole of a pull, import or removal.
pub(crate) struct Writer {
    dir: PathBuf,
    // Unlocked by the kernel when the writer ends, however it ends.
    _lock: File,
}

impl Writer {
    /// Makes the store's folder when it is missing, locks it and clears what a dead writer left.
    pub(crate) fn begin(dir: &Path) -> Result<Self, Error> {
        make_dir(dir)?;
        let path = dir.join(".lock");
        let lock = open_lock(dir, &path).map_err(|error| Error::io("write", &path, error))?;
        match lock.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path, error)),
        }
        let writer = Self { dir: dir.to_owned(), _lock: lock };
        writer.clear(Path::new(STAGING))?;
        Ok(writer)
    }

    /// The store's folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// An empty folder on the store's file system.
    pub(crate) fn stage(&self) -> Result<TempDir, Error> {
        let staging = self.dir.join(STAGING);
        make_dir(&staging)?;
        TempDir::new_in(&staging).map_err(|error| Error::io("write", &staging, error))
    }

    /// The folder for downloads of one model that may be resumed by its next pull.
    pub(crate) fn partial(&self, name: &str) -> PathBuf {
        self.dir.join(PARTIAL).join(name)
    }

    /// Refuses early when the file system cannot hold what the operation needs at its peak.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<(), Error> {
        let Ok(stat) = nix::sys::statvfs::statvfs(&self.dir) else {
            return Ok(());
        };
        // The types of these fields differ between platforms.
        #[allow(clippy::useless_conversion)]
        let free = u64::from(stat.blocks_available()) * u64::from(stat.fragment_size());
        if free >= bytes {
            return Ok(());
        }
        let (needed_mb, free_mb) = (bytes.div_ceil(1_000_000), free / 1_000_000);
        let found = format!("{needed_mb} MB are needed and {free_mb} MB are free");
        Err(Error::NoSpace { dir: self.dir.clone(), found })
    }

    /// Moves a complete folder to its name. A folder that already has that name is set aside first
    /// and then removed: a crash in between leaves the model not installed, never half installed.
    pub(crate) fn commit(&self, staged: &Path, name: &str) -> Result<PathBuf, Error> {
        sync_tree(staged)?;
        let target = self.dir.join(name);
        self.set_aside(&target)?;
        std::fs::rename(staged, &target).map_err(|error| Error::io("write", &target, error))?;
        sync_dir(&self.dir)?;
        self.clear(Path::new(STAGING))?;
        self.clear(&Path::new(PARTIAL).join(name))?;
        Ok(target)
    }

    /// Takes a folder out of the store in one step.
    pub(crate) fn discard(&self, name: &str) -> Result<(), Error> {
        self.set_aside(&self.dir.join(name))?;
        sync_dir(&self.dir)?;
        self.clear(Path::new(STAGING))
    }

    fn set_aside(&self, target: &Path) -> Result<(), Error> {
        if !target.exists() {
            return Ok(());
        }
        let aside = self.stage()?.keep();
        std::fs::rename(target, aside.join("replaced"))
            .map_err(|error| Error::io("write", target, error))
    }

    fn clear(&self, name: &Path) -> Result<(), Error> {
        let path = self.dir.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path, error))
            }
            _ => Ok(()),
        }
    }
}

/// The lock's file. Root gives a new one to whoever the store belongs to, who could write it no more
/// otherwise; and nobody follows a link there, which that user may have laid to anywhere.
fn open_lock(dir: &Path, path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if geteuid().is_root() {
                let owner = std::fs::metadata(dir)?;
                fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
            }
            Ok(file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

/// Makes a folder that everyone may read, and its parents, whatever the umask.
pub(crate) fn make_dir(dir: &Path) -> Result<(), Error> {
    if dir.is_dir() {
        return Ok(());
    }
    let fail = |error| Error::io("write", dir, error);
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(fail)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(fail)
}

/// Makes a file that everyone may read and only its owner may write, whatever the umask.
pub(crate) fn create(path: &Path) -> Result<File, Error> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    let fail = |error| Error::io("write", path, error);
    let file = File::create(path).map_err(fail)?;
    file.set_permissions(Permissions::from_mode(0o644)).map_err(fail)?;
    Ok(file)
}

/// Writes a whole small file and syncs it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = create(path)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io("write", path, error))
}

fn sync_tree(dir: &Path) -> Result<(), Error> {
    let fail = |error| Error::io("read", dir, error);
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_type().map_err(fail)?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(fail)?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| Error::io("sync", dir, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_belongs_to_whom_the_store_belongs_to() {
        let dir = tempfile::tempdir().unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(4_000_000), Some(4_000_001)).unwrap();
        }
        drop(Writer::begin(dir.path()).unwrap());
        let owner = |path: &Path| {
            let meta = std::fs::metadata(path).unwrap();
            (meta.uid(), meta.gid())
        };
        assert_eq!(owner(&dir.path().join(".lock")), owner(dir.path()));
        drop(Writer::begin(dir.path()).unwrap());
    }

    #[test]
    fn a_lock_that_is_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, dir.path().join(".lock")).unwrap();
        assert!(Writer::begin(dir.path()).is_err());
        assert!(!elsewhere.exists());
    }
}
