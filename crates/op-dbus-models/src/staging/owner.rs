//! Whose a folder is: what root makes in somebody else's store is his, and no link of his leads root
//! anywhere.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};

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
/// laid lead only to where he gets himself. Without an owner these are this user's own rights. Nothing
/// where it panicked.
pub(crate) fn act_as<T: Send>(owner: Option<Owner>, work: impl FnOnce() -> T + Send) -> Option<T> {
    let work = || {
        take_rights(owner);
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().ok())
}

/// The same for work that may never end: nobody waits for its thread.
pub(crate) fn begin_as(owner: Option<Owner>, work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        take_rights(owner);
        work();
    });
}

/// Of this thread alone, and for as long as it lives.
fn take_rights(owner: Option<Owner>) {
    if let Some(owner) = owner {
        setfsgid(owner.gid);
        setfsuid(owner.uid);
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
    use super::*;

    #[test]
    fn who_acts_as_the_owner_gets_no_further_than_he_does() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner { uid: Uid::from_raw(4_000_000), gid: Gid::from_raw(4_000_001) };
        let owner = geteuid().is_root().then_some(owner);
        let file = dir.path().join("file");
        let made = act_as(owner, || File::create(&file).is_ok());
        // Only root can be somebody else, who does not get into this folder.
        assert_eq!(made, Some(owner.is_none()));
        assert!(File::create(&file).is_ok());
        assert_eq!(act_as(None, || -> u8 { panic!("on purpose") }), None);
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
            return;
        }
        lchown(&link, Some(4_000_000), None).unwrap();
        for shown in ["link", "link/"] {
            assert!(open_store(&dir.path().join(shown)).is_err(), "{shown}");
        }
        lchown(&theirs, Some(4_000_000), None).unwrap();
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
