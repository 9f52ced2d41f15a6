//! Whose a folder is: what root makes in somebody else's store is his, and no link of his leads root
//! anywhere.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};
use rustix::thread::set_thread_groups;

/// Who gets what root makes in somebody else's folder, and could not change it otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
}

impl Owner {
    /// Whom a folder belongs to, where this is root and that somebody else.
    pub(super) fn of(dir: &File) -> io::Result<Option<Self>> {
        let meta = dir.metadata()?;
        let owner = Self { uid: Uid::from_raw(meta.uid()), gid: Gid::from_raw(meta.gid()) };
        Ok((geteuid().is_root() && !owner.uid.is_root()).then_some(owner))
    }

    pub(super) fn ids(self) -> (Option<u32>, Option<u32>) {
        (Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Hands over what root has staged. Only root gets into a folder of `Writer::stage`, so that no link
    /// in there is anybody else's, and nothing of it is exchanged on the way.
    pub(super) fn give(self, path: &Path) -> io::Result<()> {
        let (uid, gid) = self.ids();
        lchown(path, uid, gid)?;
        if std::fs::symlink_metadata(path)?.is_dir() {
            for entry in std::fs::read_dir(path)? {
                self.give(&entry?.path())?;
            }
        }
        Ok(())
    }
}

/// Does something to files with no other rights than the owner's, in a thread of its own: links that he
/// laid lead only to where he gets himself. Without an owner these are this user's own rights.
///
/// # Errors
/// These rights can't be taken, and nothing was done; or what was done panicked.
pub(crate) fn act_as<T: Send>(
    owner: Option<Owner>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let work = || {
        let told = |error| {
            io::Error::other(format!(
                "its owner's rights can't be taken ({error}): run this as its owner"
            ))
        };
        owner.map_or(Ok(()), take_rights).map_err(told)?;
        Ok(work())
    };
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|_| Err(io::Error::other("it panicked")))
}

/// Of this thread alone, and for as long as it lives. The groups are taken from the kernel itself: the C
/// library would take them from every thread.
fn take_rights(owner: Owner) -> io::Result<()> {
    set_thread_groups(&[])?;
    setfsgid(owner.gid);
    setfsuid(owner.uid);
    // Neither tells of a failure, and both tell who it was before.
    match (setfsgid(owner.gid), setfsuid(owner.uid)) == (owner.gid, owner.uid) {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// A folder itself, and not what a link in its place leads to.
pub(super) fn open_dir(dir: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir)
}

/// A folder, or the one that a link leads to.
pub(super) fn follow_dir(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(dir)
}

/// A store's folder. A link in its place is followed where root laid it, or whose the folder is that it
/// leads to: nobody has root write to a folder that he does not own himself.
pub(super) fn open_store(dir: &Path) -> io::Result<File> {
    // A slash at the end would have the link followed.
    let dir: PathBuf = dir.components().collect();
    let meta = std::fs::symlink_metadata(&dir)?;
    if !meta.is_symlink() {
        return open_dir(&dir);
    }
    let open = follow_dir(&dir)?;
    let laid_by_other = meta.uid() != 0 && meta.uid() != open.metadata()?.uid();
    if geteuid().is_root() && laid_by_other {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(open)
}

/// The path of an open folder: it leads there whatever is put in the folder's place.
pub(super) fn by_descriptor(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn who_acts_as_the_owner_gets_no_further_than_he_does() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner { uid: Uid::from_raw(64_905), gid: Gid::from_raw(64_906) };
        let owner = geteuid().is_root().then_some(owner);
        let file = dir.path().join("file");
        let made = act_as(owner, || File::create(&file).is_ok());
        // Only root can be somebody else, who does not get into this folder.
        assert_eq!(made.unwrap(), owner.is_none());
        assert!(File::create(&file).is_ok());
        assert!(act_as(None, || -> u8 { panic!("on purpose") }).is_err());
    }

    #[test]
    fn who_acts_as_the_owner_is_in_none_of_roots_groups() {
        if !geteuid().is_root() {
            eprintln!("SKIP: not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"as it was").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o660)).unwrap();
        let owner = Owner { uid: Uid::from_raw(64_905), gid: Gid::from_raw(64_906) };
        let open = move || OpenOptions::new().write(true).open(&file).is_ok();
        let opened = std::thread::spawn(move || {
            // As a login gives root its groups; a service may have none.
            set_thread_groups(&[rustix::process::Gid::ROOT]).unwrap();
            let groups = || rustix::process::getgroups().unwrap();
            let opened = act_as(Some(owner), open).unwrap();
            assert_eq!(groups(), [rustix::process::Gid::ROOT], "another thread lost them");
            opened
        });
        assert!(!opened.join().unwrap());
    }

    #[test]
    fn a_store_behind_a_link_is_followed_unless_somebody_else_laid_it() {
        let dir = tempfile::tempdir().unwrap();
        let (link, theirs) = (dir.path().join("link"), dir.path().join("theirs"));
        std::fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        open_store(&theirs).unwrap();
        open_store(&link).unwrap();
        if !geteuid().is_root() {
            eprintln!("SKIP: not root");
            return;
        }
        lchown(&link, Some(64_905), None).unwrap();
        for shown in ["link", "link/"] {
            assert!(open_store(&dir.path().join(shown)).is_err(), "{shown}");
        }
        lchown(&theirs, Some(64_905), None).unwrap();
        open_store(&link).unwrap();
    }

    #[test]
    fn the_path_of_an_open_folder_leads_there_after_an_exchange() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder");
        std::fs::create_dir(&path).unwrap();
        let open = open_dir(&path).unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::os::unix::fs::symlink("/", &path).unwrap();
        std::fs::write(by_descriptor(&open).join("file"), b"x").unwrap();
        assert!(dir.path().join("old/file").is_file());
        assert!(open_dir(&path).is_err());
        assert!(follow_dir(&path).is_ok());
    }
}
