//! The lock of a store, which its writer holds.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

use nix::fcntl::OFlag;

use super::owner::Owner;
use crate::regular;

/// Opens the lock's file, or makes it. Nobody follows a link there, which the store's owner may have laid to anywhere.
pub(super) fn open(path: &Path, owner: Option<Owner>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if let Some((uid, gid)) = owner.map(Owner::ids) {
                fchown(&file, uid, gid)?;
            }
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            regular::open(&options, OFlag::O_NOFOLLOW, path)
        }
        Err(error) => Err(error),
    }
}

/// Takes it, and tells whether that was possible at once: another writer may have it.
pub(super) fn try_take(lock: &File) -> io::Result<bool> {
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
