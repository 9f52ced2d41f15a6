//! A file that has no name until it is whole.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{self, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::linkat;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// The extended attribute with a file's list of rights beyond its mode.
const ACL: &str = "system.posix_acl_access";

/// A file without a name, of which nothing is left however the command ends, and the place that it
/// takes once it is whole: what is there may be what is read, and is better than half of another.
pub struct Unnamed {
    file: File,
    place: PathBuf,
    /// What is there, if there is anything: open, so that no other gets its number meanwhile.
    old: Option<File>,
    /// Whether it may have the place's name: it is beside it, and everybody's rights to it are those to what is
    /// there.
    may_replace: bool,
}

impl Unnamed {
    /// A file for what is to be at `path`, or, where there is nothing yet, for a `new` file that is of
    /// no use before it is whole. What is no regular file is written to as it is: `None`.
    ///
    /// # Errors
    /// When the file that is there may not be written to.
    pub fn new(path: &Path, new: bool) -> io::Result<Option<Self>> {
        let (place, old) = match fs::metadata(path) {
            Ok(old) if old.is_file() => {
                // Who may not write to a file may not replace it either.
                let old = File::options().write(true).open(path)?;
                (path.canonicalize()?, Some(old))
            }
            Err(_) if new && !path.is_symlink() => (path::absolute(path)?, None),
            _ => return Ok(None),
        };
        let beside = file(place.parent().unwrap_or(&place), 0o666);
        let (file, may_replace) = match (beside, &old) {
            (Ok(file), Some(old)) => {
                let may_replace = becomes_like(&file, old)?;
                (file, may_replace)
            }
            (Ok(file), None) => (file, true),
            // The folder is another's, or of a file system that can't: there is still the old file.
            (Err(_), Some(_)) => (temporary()?.0, false),
            (Err(_), None) => return Ok(None),
        };
        Ok(Some(Self { file, place, old, may_replace }))
    }

    /// The file, to write to.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn open(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Takes the place of what is there, or where that can't be replaced (it is a mount point, not in a
    /// folder of ours, or has an owner, a group or a list of rights that ours can't have), writes over it.
    ///
    /// # Errors
    /// When neither works, another file has come to be there meanwhile, another command is writing to it, or there is no
    /// room to write over it, for which it is left as it is.
    pub fn take_its_place(mut self) -> io::Result<()> {
        self.refuse_another()?;
        if self.may_replace && self.replace().is_ok() {
            return Ok(());
        }
        // It may be what was in the way.
        self.refuse_another()?;
        if let Some(old) = &self.old {
            take(old)?;
            // What was removed meanwhile would keep its room beside the new file until it is closed.
            if identity(&self.place).is_some() {
                refuse_without_room(old, self.file.metadata()?.len())?;
            }
        }
        self.file.rewind()?;
        io::copy(&mut self.file, &mut emptied(&self.place)?).map(drop)
    }

    /// Refuses to lose a file that was not there before, as of two commands which write to one.
    fn refuse_another(&self) -> io::Result<()> {
        let old = self.old.as_ref().map(File::metadata).transpose()?.as_ref().map(identity_of);
        match identity(&self.place) {
            Some(there) if old != Some(there) => Err(taken("has put a file there meanwhile")),
            _ => Ok(()),
        }
    }

    fn replace(&self) -> io::Result<()> {
        // A file gets its name where there is none yet.
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &Path| -> io::Result<()> {
            Ok(linkat(AT_FDCWD, own.as_str(), AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW)?)
        };
        if self.old.is_none() {
            return link(&self.place);
        }
        let folder = self.place.parent().unwrap_or(&self.place);
        let named = tempfile::Builder::new().prefix(".op-dbus-").make_in(folder, link)?;
        Ok(named.into_temp_path().persist(&self.place)?)
    }
}

/// Gives `file` the owner, the group and the mode of `old`; `false` where it can't have them, or where a list of
/// rights says more than these.
fn becomes_like(file: &File, old: &File) -> io::Result<bool> {
    let like = old.metadata()?;
    // Only root may give a file away, and everybody else only to a group of their own. Under a list of rights
    // the mode's bits of the group are no rights of the group.
    Ok(![file, old].into_iter().any(has_acl)
        && fchown(file, Some(like.uid()), Some(like.gid())).is_ok()
        && file.set_permissions(like.permissions()).is_ok())
}

fn has_acl(file: &File) -> bool {
    rustix::fs::fgetxattr_query(file, ACL).is_ok()
}

/// Whether this is the name of what this process was started with, which somebody else goes on writing to.
pub fn is_open(path: &Path) -> bool {
    const OPEN: [&str; 4] = ["/dev/fd", "/dev/stderr", "/dev/stdout", "/proc"];
    OPEN.iter().any(|open| path.starts_with(open))
}

/// A regular file, by whatever name: its device, and its number there.
pub type Identity = (u64, u64);

/// Which regular file has this name, if one has.
pub fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).as_ref().map(identity_of)
}

fn identity_of(file: &fs::Metadata) -> Identity {
    (file.dev(), file.ino())
}

/// What has such a name, to write behind what is in it.
pub fn joined(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// The file at `path`, emptied, or a new one. What is there is opened as such: in a folder that all may write to, as
/// /tmp, Linux refuses to open with `O_CREAT` what is another's (`fs.protected_regular`, `fs.protected_fifos`).
fn emptied(path: &Path) -> io::Result<File> {
    match File::options().write(true).truncate(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::create(path),
        opened => opened,
    }
}

/// A new file at `path`, which no other command of ours writes over while this is open, or what is there that is none,
/// to write to as it is.
///
/// # Errors
/// When a file is there by now: another command may be writing to it.
pub fn made(path: &Path) -> io::Result<File> {
    let made = match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && identity(path).is_none() => {
            emptied(path)
        }
        made => made,
    }?;
    if made.metadata()?.is_file() {
        take(&made)?;
    }
    Ok(made)
}

/// Takes a file, until it is closed, before it is written to under its name. Where its file system has no locks, nobody
/// is kept from doing the same.
///
/// # Errors
/// When another command has taken it.
fn take(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(taken("is writing to the file")),
        _ => Ok(()),
    }
}

/// Refuses to write over a file what its file system has no room for, before what is in it is lost. One that can't tell
/// is written to. Room is asked for beyond what the file has: ZFS counts all that it is asked for as missing.
///
/// # Errors
/// When there is no room for so many bytes.
fn refuse_without_room(file: &File, bytes: u64) -> io::Result<()> {
    let before = file.metadata()?.len();
    let Some(more @ 1..) = bytes.checked_sub(before) else { return Ok(()) };
    match fallocate(file, FallocateFlags::KEEP_SIZE, before, more) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            // Behind its end may be what there was room for.
            file.set_len(before).ok();
            Err(error.into())
        }
        _ => Ok(()),
    }
}

/// The refusal of what another has.
fn taken(by: &str) -> io::Error {
    let sentence = format!("another program {by}, which is left as it is");
    io::Error::new(io::ErrorKind::AlreadyExists, sentence)
}

/// Refuses a file that has lost its name since it was [made].
///
/// # Errors
/// When nobody will find what is in it.
pub fn refuse_lost(file: &File) -> io::Result<()> {
    let file = file.metadata()?;
    match file.is_file() && file.nlink() == 0 {
        false => Ok(()),
        true => Err(io::Error::other(
            "another program has removed or replaced the file meanwhile, and the vectors in it are \
             lost",
        )),
    }
}

/// A file in `folder` that nobody else can open, and that is gone when it is closed.
pub fn file(folder: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    Ok(File::from(open(folder, flags, Mode::from_bits_truncate(mode))?))
}

/// The same in the folder for temporary files, and that folder.
///
/// # Errors
/// One sentence with that folder, which nobody has named on the command line.
pub fn temporary() -> io::Result<(File, PathBuf)> {
    let folder = folder_for(env::var_os("TMPDIR"));
    match file(&folder, 0o600) {
        Ok(file) => Ok((file, folder)),
        Err(error) => {
            let folder = folder.display();
            let sentence = format!(
                "no temporary file can be made in {folder}, where it is kept until it is whole \
                 ({error}); set TMPDIR to another folder"
            );
            Err(io::Error::new(error.kind(), sentence))
        }
    }
}

/// The error of what is kept in a folder that nobody has named.
pub fn kept_in(folder: &Path, error: &io::Error) -> io::Error {
    let folder = folder.display();
    let sentence = format!(
        "{error} in {folder}, where it is kept until it is whole; set TMPDIR to another folder"
    );
    io::Error::new(error.kind(), sentence)
}

/// The folder for large files, of which one may be `named`: `/tmp` is often in memory.
fn folder_for(named: Option<OsString>) -> PathBuf {
    let large = || Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir());
    let named = named.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    named.or_else(large).unwrap_or_else(env::temp_dir)
}

#[cfg(test)]
pub mod tests;
