//! What workers have left in the cache that ended before they had proved themselves.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use op_dbus_models::cache;

/// How the names of folders begin in which workers of accelerators see where their operators run: one that is
/// ended meanwhile, by its device's driver or by us, leaves it.
const PROVING: &str = ".proving-";
/// Longer than any worker has to prove itself (`load_timeout_s`).
const PROVING_KEPT: Duration = Duration::from_secs(2 * 60 * 60);

/// Removes them from the folder of a model. A device that fails is tried again for as long as the service runs.
pub(super) fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PROVING))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let written = || last_written(&entry.path(), cache::DEPTH_MAX).ok();
        let is_old = |written: SystemTime| written.elapsed().is_ok_and(|age| age >= PROVING_KEPT);
        if is_ours && written().is_some_and(is_old) {
            // It is tried again with the next one.
            let _ = cache::remove(&entry.path());
        }
    }
}

/// When the newest file in a folder was written, unless that lies deeper than anything that is removed.
fn last_written(path: &Path, depth: usize) -> io::Result<SystemTime> {
    let about = fs::symlink_metadata(path)?;
    let mut written = about.modified()?;
    if about.is_dir() {
        let below = depth.checked_sub(1).ok_or(io::ErrorKind::InvalidFilename)?;
        for entry in fs::read_dir(path)? {
            written = written.max(last_written(&entry?.path(), below)?);
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn age(path: &Path, by: Duration) {
        File::open(path).unwrap().set_modified(SystemTime::now() - by).unwrap();
    }

    #[test]
    fn what_a_worker_has_left_of_its_proof_goes_and_what_one_uses_stays() {
        let root = tempfile::tempdir().unwrap();
        let place = |name: &str| root.path().join(name);
        let (old, new) = (PROVING_KEPT, PROVING_KEPT / 2);
        for (name, by) in [(".proving-a", old), (".proving-b", new), (".tmp-mine", old)] {
            fs::create_dir(place(name)).unwrap();
            fs::write(place(name).join("profile.json"), "x").unwrap();
            age(&place(name).join("profile.json"), by);
            age(&place(name), by);
        }
        fs::write(place(".proving-file"), "x").unwrap();
        age(&place(".proving-file"), old);
        remove(root.path());
        let stays = [".proving-b", ".tmp-mine", ".proving-file"];
        assert!(stays.iter().all(|name| place(name).exists()));
        assert!(!place(".proving-a").exists());
    }
}
