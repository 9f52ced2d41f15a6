//! A file that has no name until it is whole.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{self, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

/// A file without a name, of which nothing is left however the command ends, and the place that it
/// takes once it is whole: what is there may be what is read, and is better than half of another.
pub struct Unnamed {
    file: File,
    place: PathBuf,
}

impl Unnamed {
    /// A file for what is to be at `path`, or, where there is nothing yet, for a `new` file that is of
    /// no use before it is whole. What is no regular file is written to as it is: `None`.
    ///
    /// # Errors
    /// When the file that is there may not be written to.
    pub fn new(path: &Path, new: bool) -> io::Result<Option<Self>> {
        // Names of what this process was started with, which somebody else goes on writing to.
        const OPEN: [&str; 4] = ["/dev/fd", "/dev/stderr", "/dev/stdout", "/proc"];
        let (place, old) = match fs::metadata(path) {
            _ if OPEN.iter().any(|open| path.starts_with(open)) => return Ok(None),
            Ok(old) if old.is_file() => {
                // Who may not write to a file may not replace it either.
                File::options().write(true).open(path)?;
                (path.canonicalize()?, Some(old))
            }
            Err(_) if new && !path.is_symlink() => (path::absolute(path)?, None),
            _ => return Ok(None),
        };
        let beside = file(place.parent().unwrap_or(&place), 0o666);
        let file = match (beside, old) {
            (Ok(file), Some(old)) => {
                // Only root may give a file away, and everybody else has one of their own.
                fchown(&file, Some(old.uid()), Some(old.gid())).ok();
                file.set_permissions(old.permissions())?;
                file
            }
            (Ok(file), None) => file,
            // The folder is another's, or of a file system that can't: there is still the old file.
            (Err(_), Some(_)) => temporary()?,
            (Err(_), None) => return Ok(None),
        };
        Ok(Some(Self { file, place }))
    }

    /// The file, to write to.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn open(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Takes the place of what is there, or where that can't be replaced (it is a mount point, or not
    /// in a folder of ours), writes over it.
    ///
    /// # Errors
    /// When neither works.
    pub fn take_its_place(mut self) -> io::Result<()> {
        if self.replace().is_ok() {
            return Ok(());
        }
        self.file.rewind()?;
        io::copy(&mut self.file, &mut File::create(&self.place)?).map(drop)
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

/// A file in `folder` that nobody else can open, and that is gone when it is closed.
pub fn file(folder: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    Ok(File::from(open(folder, flags, Mode::from_bits_truncate(mode))?))
}

/// The same in the folder for temporary files.
///
/// # Errors
/// One sentence with that folder, which nobody has named on the command line.
pub fn temporary() -> io::Result<File> {
    let folder = std::env::temp_dir();
    file(&folder, 0o600).map_err(|error| {
        let kind = error.kind();
        let folder = folder.display();
        io::Error::new(
            kind,
            format!(
                "no temporary file can be made in {folder}, where it is kept until it is whole \
                 ({error}); set TMPDIR to another folder"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_no_file_of_its_own_is_written_to_as_it_is() {
        for path in ["/dev/null", "/dev/stdout", "/proc/self/fd/1"] {
            assert!(Unnamed::new(Path::new(path), true).unwrap().is_none(), "{path}");
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
        let unnamed = Unnamed { file, place: place.clone() };
        assert!(unnamed.replace().is_err());
        unnamed.take_its_place().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"whole");
        assert_eq!(fs::metadata(&place).unwrap().ino(), inode);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
