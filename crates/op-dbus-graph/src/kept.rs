//! Files in the cache that are whole or not there, most of them as large as models. Of each kind those are kept
//! that were used last: of weights that are imported again and again, each time with another `config.json` or
//! limit, their folder would else hold every version.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::geteuid;
use tempfile::NamedTempFile;

/// A kind of files that lie in one folder, which may have others as well.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// How the names of files end that are whole.
    pub finished: &'static str,
    /// How the names of files begin that are still being written.
    pub unfinished: &'static str,
    /// How many files are kept, of those that are whole: few of what is as large as a model.
    pub kept: usize,
}

impl Kind {
    /// Has `write` make a file, which takes its name only once every byte is on the disk. Then those go that
    /// were not used for the longest, and what writers have left that were killed.
    ///
    /// # Errors
    /// The folder can't be written, or is full.
    pub fn make(
        &self,
        path: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        self.sweep(folder);
        let mut file = self.begin(folder)?;
        write(file.as_file_mut())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        self.forget(folder);
        File::open(folder)?.sync_all()
    }

    /// A file with a lock that is held until the file has its name: by this others know that it is being written.
    /// Where there are no locks, one that writes at the same time may cost us the file.
    fn begin(&self, folder: &Path) -> io::Result<NamedTempFile> {
        loop {
            let file = tempfile::Builder::new().prefix(self.unfinished).tempfile_in(folder)?;
            let is_locked = !matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
            // Another one's sweep that came before our lock takes it for what a killed one has left.
            if is_locked && file.path().exists() {
                return Ok(file);
            }
        }
    }

    /// Removes what writers that were killed have left: files that nobody holds a lock on any more.
    fn sweep(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let unfinished = name.as_encoded_bytes().starts_with(self.unfinished.as_bytes());
            if !unfinished {
                continue;
            }
            let Ok(left) = open_regular(&entry.path()) else { continue };
            // Held until the file is gone, so that nobody else begins to write it. What can't be removed stays for
            // the next one.
            if left.try_lock().is_ok() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes those that were not used for the longest. Who has one open keeps it.
    fn forget(&self, folder: &Path) {
        let finished = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
            let path = entry.path();
            let whole = path.extension().is_some_and(|extension| extension == self.finished);
            whole.then(|| Some((entry.metadata().ok()?.modified().ok()?, path)))?
        });
        let mut finished: Vec<_> = finished.collect();
        finished.sort_unstable();
        let surplus = finished.len().saturating_sub(self.kept);
        for (_, path) in &finished[..surplus] {
            // What can't be removed stays for the next one.
            let _ = fs::remove_file(path);
        }
    }
}

/// How long [`lock`] waits, twice. Who holds a folder for longer hangs, was stopped or has much to do: rather twice the
/// work than none, and within the two minutes that a worker has for its load by default.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder within one that is held for too long, which one at a time holds of those that wait no longer: all at once
/// would slow down who is at work. None of a [`Kind`]'s files has such a name.
const IMPATIENT: &str = ".impatient";

/// Waits for half a minute until nobody else holds this folder, and keeps it from others until what is returned goes,
/// be it that the process is killed. Then one of those that wait goes ahead, and the others wait as long again until
/// either is done. Nothing where that is in vain, or it can't be made or locked.
pub fn lock(folder: &Path) -> Option<File> {
    lock_within(folder, PATIENCE)
}

fn lock_within(folder: &Path, patience: Duration) -> Option<File> {
    const PAUSE: Duration = Duration::from_millis(20);
    let open = |folder: &Path| {
        fs::create_dir_all(folder).ok()?;
        File::open(folder).ok()
    };
    let mut files = vec![open(folder)?];
    let start = Instant::now();
    loop {
        for index in 0..files.len() {
            match files[index].try_lock() {
                Ok(()) => return Some(files.swap_remove(index)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(_)) => return None,
            }
        }
        let waited = start.elapsed();
        if files.len() == 1 && waited >= patience {
            let waited_s = waited.as_secs();
            tracing::warn!(
                ?folder,
                waited_s,
                "another program still holds this folder; one of those that wait goes ahead"
            );
            files.push(open(&folder.join(IMPATIENT))?);
        } else if waited >= patience * 2 {
            return None;
        } else {
            thread::sleep(PAUSE);
        }
    }
}

/// Opens one to read it, or to map it; nothing where there is none. Who else may write it could change what has been
/// verified, and end who has mapped it.
///
/// # Errors
/// It is no file, it may not be read, or others may write it.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    let file = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match foreign_writer(path, &file.metadata()?) {
        None => Ok(Some(file)),
        Some(problem) => Err(io::Error::new(io::ErrorKind::InvalidData, problem)),
    }
}

/// A pipe in its place would keep who opens it waiting for ever, a device who reads it.
fn open_regular(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// Whether others may write the file than its owner, or that is neither root, this process's user nor the owner of
/// the folder, who decides what lies there in any case. op-dbus-models has the same rule for what is installed.
fn foreign_writer(path: &Path, meta: &Metadata) -> Option<String> {
    let mode = meta.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Some(format!("others than its owner may write it (mode {mode:04o})"));
    }
    let is_trusted = |owner| owner == 0 || owner == geteuid().as_raw();
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
    let is_the_folders = |owner| folder.is_some_and(|folder| folder.uid() == owner);
    let owner = meta.uid();
    (!is_trusted(owner) && !is_the_folders(owner))
        .then(|| format!("the user {owner} may write it, whose the folder is not"))
}

/// Notes that a file is used now; where that can't be noted, it is as old as it is.
pub fn use_now(file: &File) {
    let _ = file.set_modified(SystemTime::now());
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    const KEPT: usize = 12;
    const KIND: Kind = Kind { finished: "whole", unfinished: ".making-", kept: KEPT };

    #[test]
    fn what_nobody_uses_any_more_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = |age: usize| path(&format!("{age}.whole"));
        for age in 1..=KEPT + 1 {
            let file = File::create(made(age)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age as u64 * 60)).unwrap();
        }
        use_now(&File::open(made(KEPT + 1)).unwrap());
        for other in ["other", ".making-killed"] {
            fs::write(path(other), "").unwrap();
        }
        let written = File::create(path(".making-now")).unwrap();
        written.try_lock().unwrap();
        KIND.make(&made(0), |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(made(0)).unwrap(), b"new");
        let is_there = |age: usize| made(age).exists();
        assert!((0..KEPT - 1).all(is_there) && is_there(KEPT + 1));
        assert!(!is_there(KEPT - 1) && !is_there(KEPT));
        assert!(path("other").exists() && path(".making-now").exists());
        assert!(!path(".making-killed").exists());
    }

    #[test]
    fn what_is_just_begun_is_not_swept_away() {
        let folder = tempfile::tempdir().unwrap();
        let begun = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| {
                while begun.load(Ordering::Relaxed) {
                    KIND.sweep(folder.path());
                }
            });
            let kept = (0..2000).all(|_| KIND.begin(folder.path()).unwrap().path().exists());
            begun.store(false, Ordering::Relaxed);
            assert!(kept);
        });
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.whole");
        KIND.make(&path, |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// All at once would slow down who holds it.
    #[test]
    fn of_those_who_wait_no_longer_for_a_folder_one_goes_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let at_once = || lock_within(folder.path(), Duration::ZERO);
        let held = lock(folder.path()).unwrap();
        let ahead = at_once().unwrap();
        assert!(at_once().is_none(), "two went ahead");
        // Who waits takes either.
        drop(held);
        let held = at_once().unwrap();
        assert!(at_once().is_none());
        drop(ahead);
        let ahead = at_once().unwrap();
        KIND.make(&folder.path().join("one.whole"), |file| file.write_all(b"new")).unwrap();
        assert!(at_once().is_none(), "what is written takes the lock away");
        drop((held, ahead));
        assert!(at_once().is_some());
    }

    #[test]
    fn what_others_may_write_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.whole");
        assert!(open(&path).unwrap().is_none());
        KIND.make(&path, |file| file.write_all(b"one")).unwrap();
        let refusal = || open(&path).map(drop).unwrap_err().to_string();
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(refusal(), format!("others than its owner may write it (mode {mode:04o})"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(open(&path).unwrap().is_some());
        if !geteuid().is_root() {
            eprintln!("SKIP: not root");
            return;
        }
        let own = |path: &Path, owner| chown(path, Some(owner), None).unwrap();
        own(&path, 64_905);
        assert_eq!(refusal(), "the user 64905 may write it, whose the folder is not");
        // As root finds what the service has made.
        own(folder.path(), 64_905);
        assert!(open(&path).unwrap().is_some());
        // As the service finds what root has left.
        own(&path, 0);
        assert!(open(&path).unwrap().is_some());
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("linked.whole");
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        KIND.make(&path, |file| file.write_all(b"new")).unwrap();
        assert!(open(&path).unwrap().is_some());
    }
}
