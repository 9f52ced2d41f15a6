//! Where in the cache lies what is made of a model: in a folder of its own. A worker that computes with a
//! model may write there and nowhere else, so that one whose model has taken it over spoils no other's.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::NixPath;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Where the folders lie below a cache: under no name that a store has.
const PLACE: &str = "by-model";

/// Digits of the fingerprint that a folder's name ends with.
const DIGITS: usize = 32;

/// Folders that are kept: of a model that is imported again and again, the cache would else hold every
/// version.
const KEPT_MAX: usize = 12;

/// Folders within each other that are removed, or looked at: twice as many as what compiles needs.
pub const DEPTH_MAX: usize = 16;

/// The folder of the model that has this name in its store and makes vectors of this space.
#[must_use]
pub fn folder(cache_dir: &Path, model: &str, space: &str) -> PathBuf {
    let digits = space.get(..DIGITS).unwrap_or(space);
    cache_dir.join(PLACE).join(format!("{model}-{digits}"))
}

/// The [`folder`], made if it is not there, and used now. Then those go that were not used for the
/// longest. Whether it can be used is told by whoever needs it.
#[must_use]
pub fn make(cache_dir: &Path, model: &str, space: &str) -> PathBuf {
    let folder = folder(cache_dir, model, space);
    let _ = fs::create_dir_all(&folder);
    let _ = File::open(&folder).and_then(|folder| folder.set_modified(SystemTime::now()));
    let used = |path: PathBuf| Some((fs::metadata(&path).ok()?.modified().ok()?, path));
    let others = folders(cache_dir).into_iter().filter(|path| *path != folder);
    let mut others: Vec<_> = others.filter_map(used).collect();
    others.sort_unstable();
    let surplus = (others.len() + 1).saturating_sub(KEPT_MAX);
    for (_, path) in &others[..surplus] {
        // What can't be removed stays for the next one.
        let _ = remove(path);
    }
    folder
}

/// Removes a folder of the cache with all that is in it, where a worker may have written that somebody has taken over:
/// no link is followed, and folders that lie deeper than [`DEPTH_MAX`] stay, as there may be any number of them.
///
/// # Errors
/// The system's, of what can't be removed; all else is gone.
pub fn remove(folder: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = File::open(parent)?;
    let removed = name.with_nix_path(|name| remove_at(parent.as_fd(), name, DEPTH_MAX));
    Ok(removed.flatten()?)
}

fn remove_at(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> nix::Result<()> {
    let below = depth.checked_sub(1).ok_or(Errno::ENAMETOOLONG)?;
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let mut entries = Dir::openat(&folder, c".", flags, Mode::empty())?;
    // What can't be removed keeps nothing else.
    let mut removed = Ok(());
    for entry in entries.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let end = match unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => remove_at(folder.as_fd(), name, below),
            end => end,
        };
        removed = removed.and(end);
    }
    removed?;
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)
}

/// The folders of all models that a cache has.
#[must_use]
pub fn folders(cache_dir: &Path) -> Vec<PathBuf> {
    let place = cache_dir.join(PLACE);
    // A link leads to what is not ours.
    if !fs::symlink_metadata(&place).is_ok_and(|about| about.is_dir()) {
        return Vec::new();
    }
    let entries = fs::read_dir(&place).into_iter().flatten().flatten();
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| Some(name.rsplit_once('-')?.1));
        entry.file_type().is_ok_and(|kind| kind.is_dir())
            && digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
    });
    ours.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn space(number: usize) -> String {
        format!("{number:032x}{}", "f".repeat(32))
    }

    #[test]
    fn each_model_has_its_own_and_none_lies_in_anothers() {
        let cache = Path::new("/c");
        let one = folder(cache, "one", &space(1));
        assert_eq!(one, Path::new("/c/by-model").join(format!("one-{:032x}", 1)));
        let others = [("one", space(2)), ("other", space(1))];
        for other in others.map(|(name, space)| folder(cache, name, &space)) {
            assert!(!other.starts_with(&one) && !one.starts_with(&other), "{}", other.display());
        }
    }

    #[test]
    fn those_that_were_used_last_are_kept_and_so_is_what_is_not_ours() {
        let root = tempfile::tempdir().unwrap();
        let at = |number: usize| folder(root.path(), "m", &space(number));
        for age in 1..=KEPT_MAX + 1 {
            fs::create_dir_all(at(age)).unwrap();
            fs::write(at(age).join("file"), "x").unwrap();
            let then = SystemTime::now() - Duration::from_secs(age as u64 * 60);
            File::open(at(age)).unwrap().set_modified(then).unwrap();
        }
        let own = at(1).with_file_name("own-folder");
        fs::create_dir(&own).unwrap();
        assert_eq!(make(root.path(), "m", &space(KEPT_MAX + 1)), at(KEPT_MAX + 1));
        assert!(at(KEPT_MAX + 1).join("file").exists() && !at(KEPT_MAX).exists());
        assert!(make(root.path(), "m", &space(0)).is_dir());
        assert!((0..KEPT_MAX - 1).all(|age| at(age).exists()) && own.exists());
        assert!(!at(KEPT_MAX - 1).exists() && folders(root.path()).len() == KEPT_MAX);
        let beside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root.path().join(PLACE), beside.path().join(PLACE)).unwrap();
        assert!(folders(beside.path()).is_empty(), "a link leads to others' files");
    }

    /// Each would cost whoever removes it a part of its stack and a descriptor.
    #[test]
    fn folders_without_end_stay_and_cost_nothing() {
        let root = tempfile::tempdir().unwrap();
        let far = tempfile::tempdir().unwrap();
        fs::write(far.path().join("file"), "x").unwrap();
        let nested = |name: &str, depth: usize| {
            let top = root.path().join(name);
            fs::create_dir_all((1..depth).fold(top.clone(), |path, _| path.join("d"))).unwrap();
            std::os::unix::fs::symlink(far.path(), top.join("link")).unwrap();
            top
        };
        let (deep, deeper) = (nested("deep", DEPTH_MAX), nested("deeper", DEPTH_MAX + 1));
        remove(&deep).unwrap();
        assert!(!deep.exists() && far.path().join("file").exists());
        assert!(remove(&deeper).is_err() && deeper.exists() && !deeper.join("link").exists());
        std::os::unix::fs::symlink(far.path(), &deep).unwrap();
        assert!(remove(&deep).is_err() && far.path().join("file").exists());
        assert!(remove(&root.path().join("nothing")).is_err());
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_done_without() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!make(&file, "m", &space(1)).exists());
    }
}
