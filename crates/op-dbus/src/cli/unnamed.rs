//! A file that has no name until it is whole.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{self, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

/// The extended attribute with a file's list of rights beyond its mode.
const ACL: &str = "system.posix_acl_access";

/// A file without a name, of which nothing is left however the command ends, and the place that it
/// takes once it is whole: what is there may be what is read, and is better than half of another.
pub struct Unnamed {
    file: File,
    place: PathBuf,
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
            _ if is_open(path) => return Ok(None),
            Ok(old) if old.is_file() => {
                // Who may not write to a file may not replace it either.
                let old = File::options().write(true).open(path)?;
                (path.canonicalize()?, Some(old))
            }
            Err(_) if new && !path.is_symlink() => (path::absolute(path)?, None),
            _ => return Ok(None),
        };
        let beside = file(place.parent().unwrap_or(&place), 0o666);
        let (file, may_replace) = match (beside, old) {
            (Ok(file), Some(old)) => {
                let may_replace = becomes_like(&file, &old)?;
                (file, may_replace)
            }
            (Ok(file), None) => (file, true),
            // The folder is another's, or of a file system that can't: there is still the old file.
            (Err(_), Some(_)) => (temporary()?.0, false),
            (Err(_), None) => return Ok(None),
        };
        Ok(Some(Self { file, place, may_replace }))
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
    /// When neither works.
    pub fn take_its_place(mut self) -> io::Result<()> {
        if self.may_replace && self.replace().is_ok() {
            return Ok(());
        }
        self.file.rewind()?;
        io::copy(&mut self.file, &mut emptied(&self.place)?).map(drop)
    }

    fn replace(&self) -> io::Result<()> {
        // A file gets its name where there is none yet.
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &Path| {
            Ok(linkat(AT_FDCWD, own.as_str(), AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW)?)
        };
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
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((file.dev(), file.ino()))
}

/// What has such a name, to write behind what is in it.
pub fn joined(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// The file at `path`, emptied, or a new one. What is there is opened as such: in a folder that all may write to, as
/// /tmp, Linux refuses to open with `O_CREAT` what is another's (`fs.protected_regular`, `fs.protected_fifos`).
pub fn emptied(path: &Path) -> io::Result<File> {
    match File::options().write(true).truncate(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::create(path),
        opened => opened,
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
mod tests {
    use std::io::Write;

    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    use super::*;

    #[test]
    fn what_is_no_file_of_its_own_is_written_to_as_it_is() {
        for path in ["/dev/null", "/dev/stdout", "/proc/self/fd/1"] {
            assert!(Unnamed::new(Path::new(path), true).unwrap().is_none(), "{path}");
        }
    }

    #[test]
    fn what_is_large_is_not_kept_in_memory() {
        assert_eq!(folder_for(Some("/named".into())), Path::new("/named"));
        for nothing in [None, Some(OsString::new())] {
            let folder = folder_for(nothing);
            assert_eq!(folder == Path::new("/var/tmp"), Path::new("/var/tmp").is_dir());
        }
    }

    #[test]
    fn a_new_file_in_no_folder_is_told_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Unnamed::new(&folder.path().join("none/new"), true).unwrap().is_none());
    }

    #[test]
    fn what_cant_be_replaced_is_written_over_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (place, gone) = (folder.path().join("old"), folder.path().join("gone"));
        fs::write(&place, "of an earlier run, and longer than what comes").unwrap();
        let inode = fs::metadata(&place).unwrap().ino();
        // Of a file whose name was taken away no other can be made, as across file systems.
        let file = File::options().create_new(true).read(true).write(true).open(&gone).unwrap();
        fs::remove_file(&gone).unwrap();
        (&file).write_all(b"whole").unwrap();
        let unnamed = Unnamed { file, place: place.clone(), may_replace: true };
        assert!(unnamed.replace().is_err());
        unnamed.take_its_place().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"whole");
        assert_eq!(fs::metadata(&place).unwrap().ino(), inode);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_has_a_list_of_rights_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("old");
        fs::write(&place, "old").unwrap();
        // Version 2, and what the owner, root, the group, the list at most, and others may: tag, rights, number.
        let entries = [(1, 6, !0), (2, 6, 0), (4, 0, !0), (16, 6, !0), (32, 0, !0)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, number) in entries {
            list.extend([tag, rights].map(u16::to_le_bytes).concat());
            list.extend(u32::to_le_bytes(number));
        }
        match rustix::fs::setxattr(&place, ACL, &list, rustix::fs::XattrFlags::empty()) {
            // Nothing to lose on this file system.
            Err(rustix::io::Errno::NOTSUP) => return,
            set => set.unwrap(),
        }
        let inode = fs::metadata(&place).unwrap().ino();
        let unnamed = Unnamed::new(&place, true).unwrap().unwrap();
        unnamed.open().unwrap().write_all(b"new").unwrap();
        unnamed.take_its_place().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert_eq!(fs::metadata(&place).unwrap().ino(), inode);
        let mut kept = vec![0; list.len() + 1];
        let bytes = rustix::fs::getxattr(&place, ACL, &mut kept[..]).unwrap();
        assert_eq!(kept[..bytes], list);
    }

    /// From now on this thread opens nothing with `O_CREAT`: as in /tmp what is another's.
    fn make_no_files() {
        let creates = SeccompCmpOp::MaskedEq(libc::O_CREAT as u64);
        let creates =
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, creates, libc::O_CREAT as u64);
        let rules = vec![SeccompRule::new(vec![creates.unwrap()]).unwrap()];
        let rules = [(libc::SYS_openat, rules)].into();
        let refuse = SeccompAction::Errno(libc::EACCES as u32);
        let architecture = env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    #[test]
    fn what_is_there_is_not_opened_as_if_it_were_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("old");
        fs::write(&place, "old").unwrap();
        let file = file(folder.path(), 0o600).unwrap();
        (&file).write_all(b"new").unwrap();
        let unnamed = Unnamed { file, place: place.clone(), may_replace: false };
        std::thread::spawn(|| {
            make_no_files();
            unnamed.take_its_place().unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
    }
}
