//! Writing into a store: one writer at a time, in a hidden folder, moved into place when complete.
//!
//! Whatever a writer that died left behind lies in `.staging`, where nothing is ever loaded from,
//! and is removed by the next one. Downloads that can be resumed lie in `.partial` and survive.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown,
};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, geteuid};
use tempfile::TempDir;

use crate::Error;

const STAGING: &str = ".staging";
const PARTIAL: &str = ".partial";

/// Who gets what root makes in somebody else's folder, and could not change it otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
}

impl Owner {
    /// Whom a folder belongs to, where this is root and that somebody else.
    fn of(dir: &Path) -> io::Result<Option<Self>> {
        let meta = std::fs::metadata(dir)?;
        let owner = Self { uid: Uid::from_raw(meta.uid()), gid: Gid::from_raw(meta.gid()) };
        Ok((geteuid().is_root() && !owner.uid.is_root()).then_some(owner))
    }

    fn ids(self) -> (Option<u32>, Option<u32>) {
        (Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Hands over what root has staged. Nobody else gets into a folder of `Writer::stage`, so no link
    /// in it is theirs; by its descriptor it stays that folder, whatever is put in its place.
    fn give(self, staged: &Path) -> io::Result<()> {
        let (Some(stage), Some(name)) = (staged.parent(), staged.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let stage = open_dir(stage)?;
        let meta = stage.metadata()?;
        if meta.uid() != geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.give_tree(&Path::new("/proc/self/fd").join(stage.as_raw_fd().to_string()).join(name))
    }

    fn give_tree(self, path: &Path) -> io::Result<()> {
        let (uid, gid) = self.ids();
        lchown(path, uid, gid)?;
        if std::fs::symlink_metadata(path)?.is_dir() {
            for entry in std::fs::read_dir(path)? {
                self.give_tree(&entry?.path())?;
            }
        }
        Ok(())
    }
}

/// The right to write a store; held for the whole of a pull, import or removal.
pub(crate) struct Writer {
    dir: PathBuf,
    owner: Option<Owner>,
    // Unlocked by the kernel when the writer ends, however it ends.
    _lock: File,
}

impl Writer {
    /// Makes the store's folder when it is missing, locks it and clears what a dead writer left.
    pub(crate) fn begin(dir: &Path) -> Result<Self, Error> {
        make_dir(dir)?;
        let path = dir.join(".lock");
        let fail = |error| Error::io("write", &path, error);
        let owner = Owner::of(dir).map_err(fail)?;
        let lock = open_lock(&path, owner).map_err(fail)?;
        match lock.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path, error)),
        }
        let writer = Self { dir: dir.to_owned(), owner, _lock: lock };
        writer.clear(Path::new(STAGING))?;
        Ok(writer)
    }

    /// The store's folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whom the store belongs to, where that is not who writes it.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// An empty folder on the store's file system, which nobody else gets into.
    pub(crate) fn stage(&self) -> Result<TempDir, Error> {
        let staging = self.dir.join(STAGING);
        make_dir(&staging)?;
        let mut private = tempfile::Builder::new();
        private.permissions(Permissions::from_mode(0o700));
        private.tempdir_in(&staging).map_err(|error| Error::io("write", &staging, error))
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
        if let Some(owner) = self.owner {
            owner.give(staged).map_err(|error| Error::io("write", staged, error))?;
        }
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
        use io::ErrorKind::{NotFound, PermissionDenied};
        let path = self.dir.join(name);
        match std::fs::remove_dir_all(&path) {
            // What root left when it was interrupted root alone can remove; it is in nobody's way.
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => Ok(()),
            other => other.map_err(|error| Error::io("remove", &path, error)),
        }
    }
}

/// The lock's file. Nobody follows a link there, which the store's owner may have laid to anywhere.
fn open_lock(path: &Path, owner: Option<Owner>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if let Some((uid, gid)) = owner.map(Owner::ids) {
                fchown(&file, uid, gid)?;
            }
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

/// A folder itself, and not what a link in its place leads to.
fn open_dir(dir: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir)
}

/// Makes a folder that everyone may read, and its parents, whatever the umask. One that root makes
/// belongs to whom the folder around it belongs to.
pub(crate) fn make_dir(dir: &Path) -> Result<(), Error> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    make_dir(parent)?;
    let make = || {
        DirBuilder::new().mode(0o755).create(dir)?;
        let made = open_dir(dir)?;
        if let Some((uid, gid)) = Owner::of(parent)?.map(Owner::ids) {
            fchown(&made, uid, gid)?;
        }
        made.set_permissions(Permissions::from_mode(0o755))
    };
    match make() {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.map_err(|error| Error::io("write", dir, error)),
    }
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
    fn what_root_makes_belongs_to_whom_the_folder_around_it_belongs_to() {
        let dir = tempfile::tempdir().unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(4_000_000), Some(4_000_001)).unwrap();
        }
        let store = dir.path().join("models");
        let writer = Writer::begin(&store).unwrap();
        let stage = writer.stage().unwrap();
        write(&stage.path().join("files/1_Pooling/config.json"), b"{}").unwrap();
        writer.commit(&stage.path().join("files"), "model").unwrap();
        let owner = |path: &Path| {
            let meta = std::fs::metadata(path).unwrap();
            (meta.uid(), meta.gid())
        };
        for made in [".", ".lock", "model", "model/1_Pooling", "model/1_Pooling/config.json"] {
            assert_eq!(owner(&store.join(made)), owner(dir.path()), "{made}");
        }
        drop(writer);
        drop(Writer::begin(&store).unwrap());
    }

    #[test]
    fn a_folder_that_others_get_into_is_not_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        make_dir(&dir.path().join("stage/files")).unwrap();
        let me = Owner { uid: geteuid(), gid: nix::unistd::getegid() };
        assert!(me.give(&dir.path().join("stage/files")).is_err());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(me.give(&link.join("stage")).is_err());
        me.give(&dir.path().join("stage")).unwrap();
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
