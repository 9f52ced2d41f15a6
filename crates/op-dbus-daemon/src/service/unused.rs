//! What of the cache nobody uses any more: of models that were removed, of other versions, drivers and
//! options. All of it can be made again, so that what was not used for half a year goes, once at each start.

use std::fs::{self, FileType};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::settings::Provider;

/// A service that runs for longer makes anew at its next start what it has read at this one only.
const KEPT: Duration = Duration::from_secs(180 * 24 * 60 * 60);
/// The writer of a file that was not finished in this time was killed.
const UNFINISHED_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// How the names of folders begin in which workers of accelerators see where their operators run: one that is
/// ended meanwhile, by its device's driver or by us, leaves it.
const PROVING: &str = ".proving-";
/// Longer than any worker has to prove itself (`load_timeout_s`).
const PROVING_KEPT: Duration = Duration::from_secs(2 * 60 * 60);

/// A kind of file or folder of ours, by its place below `cache_dir` and its name there, `DIGEST.END`
/// or `PROVIDER-DIGEST.END`: the folder may have others' files as well.
struct Kind {
    place: &'static str,
    digits: usize,
    end: &'static str,
    /// How the names of files begin that are being written there.
    unfinished: Option<&'static str>,
}

const KINDS: [Kind; 5] = [
    Kind { place: "", digits: 64, end: ".graph", unfinished: Some(".building-") },
    Kind { place: "weights", digits: 32, end: ".packed", unfinished: Some(".packing-") },
    Kind { place: "tuning", digits: 32, end: ".json", unfinished: Some(".tmp") },
    Kind { place: "costs", digits: 16, end: ".json", unfinished: Some(".tmp") },
    // Whose files are the provider's.
    Kind { place: "compiled", digits: 16, end: "", unfinished: None },
];

/// Removes what nobody uses any more, and tells the log.
pub(super) fn remove(cache_dir: &Path) {
    remove_proofs(cache_dir);
    let removed: usize = KINDS.iter().map(|kind| kind.remove(cache_dir)).sum();
    if removed > 0 {
        let days = KEPT.as_secs() / (24 * 60 * 60);
        tracing::info!(removed, "what was not used for {days} days is removed from the cache");
    }
}

/// Removes what workers have left that ended before they had proved themselves. A device that fails is tried
/// again for as long as the service runs.
pub(super) fn remove_proofs(cache_dir: &Path) {
    for entry in fs::read_dir(cache_dir).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PROVING))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_ours && is_unused(&entry.path(), PROVING_KEPT) {
            // It is tried again with the next one.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it was not used for so long, as far as that is known.
fn is_unused(path: &Path, kept: Duration) -> bool {
    let used = last_used(path).ok();
    used.and_then(|used| used.elapsed().ok()).is_some_and(|unused| unused >= kept)
}

impl Kind {
    /// Returns how many are removed.
    fn remove(&self, cache_dir: &Path) -> usize {
        let folder = cache_dir.join(self.place);
        // A link leads to what is not ours.
        if !fs::symlink_metadata(&folder).is_ok_and(|about| about.is_dir()) {
            return 0;
        }
        let mut removed = 0;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let (Some(name), Ok(kind)) = (name.to_str(), entry.file_type()) else { continue };
            let path = entry.path();
            let Some(kept) = self.kept(name, kind) else { continue };
            if !is_unused(&path, kept) {
                continue;
            }
            let end =
                if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match end {
                Ok(()) => removed += 1,
                // A cache that can't be written is as good as ever.
                Err(error) => tracing::debug!(%error, "{} stays in the cache", path.display()),
            }
        }
        removed
    }

    /// For how long an entry is kept unused; `None` is for ever, since it is not ours.
    fn kept(&self, name: &str, kind: FileType) -> Option<Duration> {
        if kind.is_file() && self.unfinished.is_some_and(|start| name.starts_with(start)) {
            return Some(UNFINISHED_KEPT);
        }
        let name = name.strip_suffix(self.end)?;
        let (provider, digest) = match name.rsplit_once('-') {
            Some((provider, digest)) => (Some(provider), digest),
            None => (None, name),
        };
        let is_digest = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_ours = digest.len() == self.digits
            && digest.bytes().all(is_digest)
            && provider.is_none_or(|provider| provider.parse::<Provider>().is_ok())
            && if self.end.is_empty() { kind.is_dir() } else { kind.is_file() };
        is_ours.then_some(KEPT)
    }
}

/// When a file was last written or read, as far as its file system tells; of a folder, the newest in it.
/// Looking for files is not counted as a use of their folder.
fn last_used(path: &Path) -> io::Result<SystemTime> {
    let about = fs::symlink_metadata(path)?;
    let mut used = about.modified()?;
    if !about.is_dir() {
        return Ok(used.max(about.accessed().unwrap_or(used)));
    }
    for entry in fs::read_dir(path)? {
        used = used.max(last_used(&entry?.path())?);
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use super::*;

    fn age(path: &Path, by: Duration) {
        let then = SystemTime::now() - by;
        let times = FileTimes::new().set_modified(then).set_accessed(then);
        File::open(path).unwrap().set_times(times).unwrap();
    }

    #[test]
    fn what_was_not_used_for_long_goes_and_everything_else_stays() {
        let root = tempfile::tempdir().unwrap();
        let (day, old) = (UNFINISHED_KEPT, KEPT + UNFINISHED_KEPT);
        let digest = |digits: usize| "0123456789abcdef".repeat(4)[..digits].to_owned();
        let ours = [
            format!("{}.graph", digest(64)),
            ".building-x1".to_owned(),
            format!("weights/{}.packed", digest(32)),
            "weights/.packing-x1".to_owned(),
            format!("tuning/{}.json", digest(32)),
            format!("costs/cuda-{}.json", digest(16)),
            "costs/.tmpx1".to_owned(),
        ];
        let others = [
            format!("{}.graph", digest(63)),
            format!("{}.packed", digest(32)),
            ".tmpx1".to_owned(),
            "weights/mine.packed".to_owned(),
            format!("costs/own-{}.json", digest(16)),
            format!("drivers/{}.json", digest(16)),
            format!("compiled/cuda-{}", digest(16)),
        ];
        let compiled = |last: &str| format!("compiled/tensorrt-{}{last}", digest(15));
        let (gone, read) = (compiled("0"), compiled("1"));
        let place = |name: &str| root.path().join(name);
        for folder in ["weights", "tuning", "costs", "drivers", &gone, &read] {
            fs::create_dir_all(place(folder)).unwrap();
        }
        let files = ours.iter().chain(&others);
        for file in files.cloned().chain([&gone, &read].map(|folder| format!("{folder}/plan"))) {
            fs::write(place(&file), "x").unwrap();
            age(&place(&file), old);
        }
        age(&place(&gone), old);
        age(&place(&read), old);
        age(&place(&format!("{read}/plan")), KEPT - day);
        let is_there = |name: &String| place(name).exists();

        let beside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(place("weights"), beside.path().join("weights")).unwrap();
        remove(beside.path());
        assert!(ours.iter().chain(&others).all(is_there), "a link leads to others' files");

        remove(root.path());
        assert!(!ours.iter().any(is_there) && !is_there(&gone), "{ours:?}");
        assert!(others.iter().all(is_there) && is_there(&read), "{others:?}");
        for (file, by) in [(&ours[2], KEPT - day), (&ours[3], day / 2)] {
            fs::write(place(file), "x").unwrap();
            age(&place(file), by);
        }
        remove(root.path());
        assert!(is_there(&ours[2]) && is_there(&ours[3]));
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
        remove_proofs(root.path());
        let stays = [".proving-b", ".tmp-mine", ".proving-file"];
        assert!(stays.iter().all(|name| place(name).exists()));
        assert!(!place(".proving-a").exists());
    }
}
