//! Writing into a store: one writer at a time, in a hidden folder, moved into place when complete.
//!
//! Whatever a writer that died left behind lies in `.staging`, where nothing is ever loaded from,
//! and is removed by the next one. Downloads that can be resumed lie in `.partial` and survive.

mod lock;
mod owner;
mod stage;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::{Error, Progress};
pub(crate) use owner::{Owner, act_as};
use owner::{by_descriptor, follow_dir, open_dir, open_store};
pub(crate) use stage::Stage;

const STAGING: &str = ".staging";
const PARTIAL: &str = ".partial";

/// The right to write a store; held for the whole of a pull, import or removal.
pub(crate) struct Writer {
    dir: PathBuf,
    /// The same folder by descriptor where this is root: what is above it may be the owner's too.
    root: PathBuf,
    owner: Option<Owner>,
    /// Whether it was said that something can't be removed.
    told: Cell<bool>,
    open: File,
    // Unlocked by the kernel when the writer ends, however it ends.
    _lock: File,
}

impl Writer {
    /// Makes the store's folder when it is missing, locks it and clears what a dead writer left.
    ///
    /// # Errors
    /// [`Error::Busy`] where there is another writer.
    pub(crate) fn begin(dir: &Path) -> Result<Self, Error> {
        Self::begin_as(dir, || Err(Error::Busy { dir: dir.to_owned() }))
    }

    /// The same, behind the other writer where there is one, which is said.
    pub(crate) fn begin_in_turn(dir: &Path, progress: &Progress) -> Result<Self, Error> {
        Self::begin_as(dir, || {
            let dir = dir.display();
            progress.say(format_args!("another op-dbus is writing {dir}; waiting for it to end"));
            Ok(())
        })
    }

    /// Where there is another writer, `busy` says whether to wait for its end.
    fn begin_as(dir: &Path, busy: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
        make_dir(dir)?;
        let path = dir.join(".lock");
        let fail = |error| Error::io("write", &path, error);
        let open = open_store(dir).map_err(|error| Error::io("follow", dir, error))?;
        let root = if geteuid().is_root() { by_descriptor(&open) } else { dir.to_owned() };
        let owner = Owner::of(&open).map_err(fail)?;
        let lock = lock::open(&root.join(".lock"), owner).map_err(fail)?;
        let unlocked = |error| Error::io("lock", &path, error);
        if !lock::try_take(&lock).map_err(unlocked)? {
            busy()?;
            lock.lock().map_err(unlocked)?;
        }
        let told = Cell::new(false);
        let writer = Self { dir: dir.to_owned(), root, owner, told, open, _lock: lock };
        writer.clear()?;
        Ok(writer)
    }

    /// The store's folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Has an error tell of the store by its name.
    pub(crate) fn told(&self, error: Error) -> Error {
        error.renamed(&self.root, &self.dir)
    }

    /// Whom the store belongs to, where that is not who writes it.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// An empty folder on the store's file system, which nobody else gets into.
    pub(crate) fn stage(&self) -> Result<Stage, Error> {
        let (staging, shown) = (self.root.join(STAGING), self.dir.join(STAGING));
        make_dir(&staging).map_err(|error| self.told(error))?;
        let make = || Stage::make(open_dir(&staging)?, &shown);
        make().map_err(|error| Error::io("write", &shown, error))
    }

    /// The folder for downloads of one model that may be resumed by its next pull.
    pub(crate) fn partial(&self, name: &str) -> PathBuf {
        self.root.join(PARTIAL).join(name)
    }

    /// Refuses early when the file system cannot hold what the operation needs at least.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<(), Error> {
        let Ok(stat) = nix::sys::statvfs::fstatvfs(&self.open) else {
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
    /// and then removed: a crash in between leaves the model not installed, never half installed. What
    /// can't be removed is told and is no error.
    pub(crate) fn commit(&self, staged: &Path, name: &str) -> Result<PathBuf, Error> {
        let target = self.dir.join(name);
        let fail = |error| Error::io("write", &target, error);
        if let Some(owner) = self.owner {
            owner.give(staged).map_err(fail)?;
        }
        sync_tree(staged)?;
        self.set_aside(name)?;
        std::fs::rename(staged, self.root.join(name)).map_err(fail)?;
        // It is installed from here on: to call what follows a failure would have it said that nothing is.
        for done in [self.sync(), self.clear(), self.clear_partial(name)] {
            if let Err(error) = done {
                writeln!(io::stderr(), "{name} is installed, but {error}").ok();
            }
        }
        Ok(target)
    }

    /// Takes a folder out of the store in one step, and what was downloaded for it.
    pub(crate) fn discard(&self, name: &str) -> Result<(), Error> {
        match self.set_aside(name) {
            Err(full @ Error::NoSpace { .. }) => {
                self.set_aside_without_room(name).map_err(|_| full)?;
            }
            done => done?,
        }
        self.sync()?;
        self.clear()?;
        self.clear_partial(name)
    }

    fn set_aside(&self, name: &str) -> Result<(), Error> {
        let from = self.root.join(name);
        if std::fs::symlink_metadata(&from).is_err() {
            return Ok(());
        }
        let stage = self.stage()?;
        std::fs::rename(from, stage.path().join("replaced"))
            .map_err(|error| Error::io("write", &self.dir.join(name), error))?;
        stage.keep();
        Ok(())
    }

    /// Has a folder take the place of `.staging`, which is empty: on a full disk none is made for it, and it is to be
    /// removed for the room that it takes.
    fn set_aside_without_room(&self, name: &str) -> io::Result<()> {
        let staging = self.root.join(STAGING);
        std::fs::remove_dir(&staging).ok();
        std::fs::rename(self.root.join(name), staging)
    }

    fn sync(&self) -> Result<(), Error> {
        self.open.sync_all().map_err(|error| Error::io("sync", &self.dir, error))
    }

    /// Removes all that lies in `.staging`. What this user may not remove is told and passed over: it
    /// is in nobody's way but takes room.
    fn clear(&self) -> Result<(), Error> {
        let (path, shown) = (self.root.join(STAGING), self.dir.join(STAGING));
        let fail = |error| Error::io("remove", &shown, error);
        let open = match open_own(&path) {
            Ok(Some(open)) => open,
            // A link, or what else is no folder.
            Ok(None) => return gone(std::fs::remove_file(&path)).map_err(fail),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.tell(&[shown]);
                return Ok(());
            }
            Err(error) => return Err(fail(error)),
        };
        let around = if geteuid().is_root() { by_descriptor(&open) } else { path.clone() };
        let (mut left, mut failed) = (Vec::new(), None);
        for entry in std::fs::read_dir(&around).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            match gone(remove(&entry.path())) {
                Ok(()) => (),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    left.push(shown.join(entry.file_name()));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.tell(&left);
        match failed {
            Some(error) => Err(fail(error)),
            None if left.is_empty() => gone(std::fs::remove_dir(&path)).map_err(fail),
            None => Ok(()),
        }
    }

    /// Removes what was downloaded of a model.
    fn clear_partial(&self, name: &str) -> Result<(), Error> {
        let (path, shown) = (self.root.join(PARTIAL), self.dir.join(PARTIAL).join(name));
        let fail = |error| Error::io("remove", &shown, error);
        let removed = match open_own(&path) {
            Ok(Some(open)) if geteuid().is_root() => remove(&by_descriptor(&open).join(name)),
            Ok(Some(_)) => remove(&path.join(name)),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match gone(removed) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.tell(std::slice::from_ref(&shown));
                Ok(())
            }
            other => other.map_err(fail),
        }
    }

    /// Says, once, what could not be removed.
    fn tell(&self, left: &[PathBuf]) {
        if left.is_empty() || self.told.replace(true) {
            return;
        }
        // Escaped, as the names are anybody's; and no `rm`, which would follow a link above them.
        // Whether it is read or not, the work goes on.
        writeln!(
            io::stderr(),
            "another user's, and not removed: {left:?}; pull, import or remove something there as \
             root, which takes it along"
        )
        .ok();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Of a writer that failed nothing is left in it. Where there is something, it stays for the next one.
        std::fs::remove_dir(self.root.join(STAGING)).ok();
    }
}

/// Clears what a writer has left in the store `dir` that ended once it had put `name` in place. Where this user may
/// not, or another writer is at work, it stays.
pub(crate) fn clear_behind(dir: &Path, name: &str) {
    if has_partial(dir, name) || dir.join(STAGING).is_dir() {
        Writer::begin(dir).and_then(|writer| writer.clear_partial(name)).ok();
    }
}

/// Whether a pull that broke off has left something of a model in the store `dir`.
pub(crate) fn has_partial(dir: &Path, name: &str) -> bool {
    dir.join(PARTIAL).join(name).is_dir()
}

/// A folder itself; nothing where there is none, or a link to one.
fn open_own(dir: &Path) -> io::Result<Option<File>> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => open_dir(dir).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file or a whole folder, and follows no link.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path)?.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    }
}

/// What is not there is removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
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
    let name = dir.file_name().unwrap_or_default();
    let make = || {
        let around = follow_dir(parent)?;
        let owner = Owner::of(&around)?;
        // Only root goes by descriptor, which needs /proc.
        let path = if geteuid().is_root() { by_descriptor(&around).join(name) } else { dir.into() };
        let make = || {
            DirBuilder::new().mode(0o755).create(&path)?;
            open_dir(&path)?.set_permissions(Permissions::from_mode(0o755))
        };
        act_as(owner, make).flatten()
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
