//! The folder that a writer works in: nobody else gets in, and nobody leads it elsewhere.

use std::cell::OnceCell;
use std::fmt::Display;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tempfile::TempDir;

use super::owner::{by_descriptor, open_dir};
use crate::Error;

/// Where large files of others' programs lie if `TMPDIR` says nothing: `/tmp` is often in memory.
const LARGE_TEMPORARY: &str = "/var/tmp";
/// How the name of a folder there begins, by which one is known that a pull has left which was ended.
const CHILDREN: &str = "op-dbus-pull-";

/// An empty folder on the store's file system. The folder around it is the store's owner's, who may put
/// another in its place: root goes by descriptor.
pub(crate) struct Stage {
    /// Of root, the path by descriptor.
    path: PathBuf,
    /// What it is called in messages.
    shown: PathBuf,
    /// A folder elsewhere, and its lock.
    children: OnceCell<(TempDir, File)>,
    // The path of it goes through the folder that comes last.
    made: TempDir,
    /// The folder, and the one around it.
    open: Option<(File, File)>,
}

impl Stage {
    /// Makes one in the open folder `staging`, which is called `shown` in messages.
    pub(super) fn make(staging: File, shown: &Path) -> io::Result<Self> {
        let by_root = geteuid().is_root();
        let around = if by_root { by_descriptor(&staging) } else { shown.to_owned() };
        let made = private_in(&around, ".tmp")?;
        let name = made.path().file_name().unwrap_or_default();
        let shown = shown.join(name);
        let children = OnceCell::new();
        if !by_root {
            let path = made.path().to_owned();
            return Ok(Self { path, shown, children, made, open: None });
        }
        let dir = open_dir(made.path())?;
        check(&dir)?;
        let path = by_descriptor(&dir);
        Ok(Self { path, shown, children, made, open: Some((dir, staging)) })
    }

    /// The path to work with.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder for programs that resolve the paths they are given, as pip does, and so lose what a path
    /// by descriptor is good for. Root's lies where nobody else renames folders of root.
    pub(crate) fn for_children(&self) -> Result<&Path, Error> {
        if self.open.is_none() {
            return Ok(&self.path);
        }
        if let Some((dir, _)) = self.children.get() {
            return Ok(dir.path());
        }
        let base = match std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => [PathBuf::from(LARGE_TEMPORARY), std::env::temp_dir()]
                .into_iter()
                .find(|dir| dir.is_dir())
                .unwrap_or_default(),
        };
        let made = locked_in(&base).map_err(|error| unusable(&base, &error))?;
        Ok(self.children.get_or_init(|| made).0.path())
    }

    /// What such a program, or who made a folder for it there, has failed with.
    pub(crate) fn of_children(&self, error: Error) -> Error {
        match (self.children.get().and_then(|(dir, _)| dir.path().parent()), error) {
            (Some(base), Error::NoSpace { found, .. }) => unusable(base, &found),
            (Some(base), error) if error.is_of_the_store() => unusable(base, &error),
            // They work in the store, or it is none of their folder.
            (_, error) => error,
        }
    }

    /// Has an error tell of the folder by its name.
    pub(crate) fn told<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.renamed(&self.path, &self.shown))
    }

    /// Leaves it to the next writer to remove.
    pub(super) fn keep(self) {
        drop(self.made.keep());
    }
}

/// That others' programs can't work in `dir`, which is no folder of the store's: a source without such programs does
/// without it.
fn unusable(dir: &Path, why: &dyn Display) -> Error {
    let dir = dir.display();
    Error::Source {
        source_name: "pip",
        reason: format!("it can't work in {dir} ({why}); set TMPDIR to another folder"),
    }
}

/// A new folder that nobody else gets into.
fn private_in(dir: &Path, prefix: &str) -> io::Result<TempDir> {
    let mut private = tempfile::Builder::new();
    private.prefix(prefix).permissions(Permissions::from_mode(0o700));
    private.tempdir_in(dir)
}

/// The same for other programs, with a lock by which the next pull knows that it is in use: no writer of the store
/// comes there to clear it.
fn locked_in(base: &Path) -> io::Result<(TempDir, File)> {
    sweep(base);
    loop {
        let made = private_in(base, CHILDREN)?;
        let open = match open_dir(made.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            open => open?,
        };
        let is_locked = !matches!(open.try_lock(), Err(TryLockError::WouldBlock));
        // Another one's sweep that came before our lock takes it for what one has left that was ended.
        if is_locked && made.path().exists() {
            return Ok((made, open));
        }
    }
}

/// Removes what pulls of this user's have left in `base` that were ended: folders that nobody holds a lock on any more.
fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(CHILDREN.as_bytes()) {
            continue;
        }
        let Ok(left) = open_dir(&entry.path()) else { continue };
        let is_ours = left.metadata().is_ok_and(|meta| meta.uid() == geteuid().as_raw());
        // Held until it is gone. What can't be removed stays for the next one.
        if is_ours && left.try_lock().is_ok() {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Refuses what was put in the place of the folder just made: it is this user's alone, and empty.
fn check(dir: &File) -> io::Result<()> {
    let meta = dir.metadata()?;
    let is_ours = meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0;
    if is_ours && std::fs::read_dir(by_descriptor(dir))?.next().is_none() {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_get_into_is_no_stage() {
        let dir = tempfile::tempdir().unwrap();
        let open = open_dir(dir.path()).unwrap();
        open.set_permissions(Permissions::from_mode(0o700)).unwrap();
        check(&open).unwrap();
        open.set_permissions(Permissions::from_mode(0o710)).unwrap();
        assert!(check(&open).is_err());
        open.set_permissions(Permissions::from_mode(0o700)).unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        assert!(check(&open).is_err());
        if geteuid().is_root() {
            std::fs::remove_file(dir.path().join("file")).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(64_905), None).unwrap();
            assert!(check(&open).is_err());
        }
    }

    #[test]
    fn where_other_programs_have_no_room_is_the_stores_matter_if_they_work_there() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::make(open_dir(dir.path()).unwrap(), dir.path()).unwrap();
        let folder = stage.for_children().unwrap().to_owned();
        let full = Error::NoSpace { dir: folder, found: "full".to_owned() };
        let told = stage.of_children(full);
        assert_eq!(told.is_of_the_store(), !geteuid().is_root(), "{told}");
    }

    #[test]
    fn what_a_pull_that_was_ended_has_left_elsewhere_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["op-dbus-pull-ended", "op-dbus-pull-held", "other"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), b"x").unwrap();
        }
        std::os::unix::fs::symlink(at("other"), at("op-dbus-pull-link")).unwrap();
        if geteuid().is_root() {
            std::fs::create_dir(at("op-dbus-pull-theirs")).unwrap();
            std::os::unix::fs::chown(at("op-dbus-pull-theirs"), Some(64_905), None).unwrap();
        }
        let held = open_dir(&at("op-dbus-pull-held")).unwrap();
        held.try_lock().unwrap();
        let (made, lock) = locked_in(dir.path()).unwrap();
        assert!(!at("op-dbus-pull-ended").exists());
        assert!(at("op-dbus-pull-held/file").exists() && at("other/file").exists());
        assert_eq!(at("op-dbus-pull-theirs").exists(), geteuid().is_root());
        // Two of one process are two holders.
        let (another, _lock) = locked_in(dir.path()).unwrap();
        assert!(made.path().exists() && another.path() != made.path());
        let path = made.keep();
        drop(lock);
        sweep(dir.path());
        assert!(!path.exists() && another.path().exists());
    }

    #[test]
    fn other_programs_work_where_the_stores_owner_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::make(open_dir(dir.path()).unwrap(), dir.path()).unwrap();
        let children = stage.for_children().unwrap().canonicalize().unwrap();
        let in_store = children.starts_with(dir.path().canonicalize().unwrap());
        assert_eq!(in_store, !geteuid().is_root());
        let (private, same) = (children.metadata().unwrap(), stage.for_children().unwrap());
        assert_eq!(
            (private.mode() & 0o777, same.canonicalize().unwrap()),
            (0o700, children.clone())
        );
        drop(stage);
        assert!(!children.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
