//! What of the cache nobody uses any more: of models that were removed, of other versions, drivers and
//! options. All of it can be made again, so that what was not used for half a year goes, once at each start.

use std::fs::{self, FileType};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use op_dbus_models::cache;

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

/// A kind of file or folder of ours, by its place below another folder and its name there, `DIGEST.END`
/// or `PROVIDER-DIGEST.END`: the folder may have others' files as well.
struct Kind {
    place: &'static str,
    digits: usize,
    end: &'static str,
    /// How the names of files begin that are being written there.
    unfinished: Option<&'static str>,
}

/// What workers leave in the folder of their model.
const OF_A_MODEL: [Kind; 4] = [
    Kind { place: "", digits: 64, end: ".graph", unfinished: Some(".building-") },
    Kind { place: "weights", digits: 32, end: ".packed", unfinished: Some(".packing-") },
    Kind { place: "tuning", digits: 32, end: ".json", unfinished: Some(".tuning-") },
    // Whose files are the provider's.
    Kind { place: "compiled", digits: 16, end: "", unfinished: None },
];

/// What the daemon itself keeps beside these folders.
const COSTS: Kind = Kind { place: "costs", digits: 16, end: ".json", unfinished: Some(".tmp") };

/// Removes what nobody uses any more, and tells the log.
pub(super) fn remove(cache_dir: &Path) {
    let folders = cache::folders(cache_dir);
    let removed =
        folders.iter().map(|folder| of_a_model(folder)).sum::<usize>() + COSTS.remove(cache_dir);
    if removed > 0 {
        let days = KEPT.as_secs() / (24 * 60 * 60);
        tracing::info!(removed, "what was not used for {days} days is removed from the cache");
    }
}

/// Removes the folder of a model that nobody uses, or what of it nobody does. Returns how many are removed.
fn of_a_model(folder: &Path) -> usize {
    remove_proofs(folder);
    match whole(folder) {
        0 => OF_A_MODEL.iter().map(|kind| kind.remove(folder)).sum(),
        removed => removed,
    }
}

/// Removes a folder of which nothing was used for long. Returns how many are removed.
fn whole(folder: &Path) -> usize {
    // A link leads to what is not ours.
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|about| about.is_dir());
    let is_gone = || is_unused(folder, KEPT) && cache::remove(folder).is_ok();
    usize::from(is_folder && is_gone())
}

/// Removes what workers have left that ended before they had proved themselves. A device that fails is tried
/// again for as long as the service runs.
pub(super) fn remove_proofs(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PROVING))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_ours && is_unused(&entry.path(), PROVING_KEPT) {
            // It is tried again with the next one.
            let _ = cache::remove(&entry.path());
        }
    }
}

/// Whether it was not used for so long, as far as that is known.
fn is_unused(path: &Path, kept: Duration) -> bool {
    let used = last_used(path, cache::DEPTH_MAX).ok();
    used.and_then(|used| used.elapsed().ok()).is_some_and(|unused| unused >= kept)
}

impl Kind {
    /// Removes those that were not used for long. Returns how many are removed.
    fn remove(&self, below: &Path) -> usize {
        let folder = below.join(self.place);
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
            let end = if kind.is_dir() { cache::remove(&path) } else { fs::remove_file(&path) };
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

/// When a file was last written or read, as far as its file system tells; of a folder, the newest in it, unless that lies deeper than anything that is removed.
/// Looking for files is not counted as a use of their folder.
fn last_used(path: &Path, depth: usize) -> io::Result<SystemTime> {
    let about = fs::symlink_metadata(path)?;
    let mut used = about.modified()?;
    if !about.is_dir() {
        return Ok(used.max(about.accessed().unwrap_or(used)));
    }
    let below = depth.checked_sub(1).ok_or(io::ErrorKind::InvalidFilename)?;
    for entry in fs::read_dir(path)? {
        used = used.max(last_used(&entry?.path(), below)?);
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::path::PathBuf;

    use super::*;

    fn age(path: &Path, by: Duration) {
        let then = SystemTime::now() - by;
        let times = FileTimes::new().set_modified(then).set_accessed(then);
        File::open(path).unwrap().set_times(times).unwrap();
    }

    fn digest(digits: usize) -> String {
        "0123456789abcdef".repeat(4)[..digits].to_owned()
    }

    /// By their names below the folder of a model.
    fn left_by_workers() -> [String; 7] {
        [
            format!("{}.graph", digest(64)),
            ".building-x1".to_owned(),
            format!("weights/{}.packed", digest(32)),
            "weights/.packing-x1".to_owned(),
            format!("tuning/{}.json", digest(32)),
            "tuning/.tuning-x1".to_owned(),
            format!("compiled/tensorrt-{}/plan", digest(16)),
        ]
    }

    /// A file that is so old, in a folder that is as old.
    fn put(path: &Path, by: Duration) {
        let folder = path.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(path, "x").unwrap();
        [path, folder].into_iter().for_each(|path| age(path, by));
    }

    #[test]
    fn what_was_not_used_for_long_goes_and_everything_else_stays() {
        let root = tempfile::tempdir().unwrap();
        let (day, old) = (UNFINISHED_KEPT, KEPT + UNFINISHED_KEPT);
        let (used, unused) = ("by-model/used-", "by-model/unused-");
        let place =
            |model: &str, name: &str| root.path().join(format!("{model}{}/{name}", digest(32)));
        let ours = left_by_workers().map(|name| place(used, &name));
        let costs = ["cuda-0123456789abcdef.json", ".tmpx1"]
            .map(|name| root.path().join("costs").join(name));
        let others = [
            root.path().join(format!("costs/own-{}.json", digest(16))),
            root.path().join("by-model/own/weights"),
            place(used, &format!("{}.graph", digest(63))),
            place(used, &format!("{}.packed", digest(32))),
            place(used, ".tmpx1"),
            place(used, "weights/mine.packed"),
            place(used, "drivers/theirs"),
            place(used, &format!("compiled/cuda-{}", digest(16))),
        ];
        let read = place(used, &format!("compiled/tensorrt-{}1/plan", digest(15)));
        ours.iter().chain(&costs).chain(&others).for_each(|path| put(path, old));
        for (model, by) in [(unused, old), (used, day)] {
            put(&place(model, "drivers/theirs"), old);
            age(&place(model, ""), by);
        }
        put(&read, KEPT - day);
        let is_there = |path: &PathBuf| path.exists();

        let beside = tempfile::tempdir().unwrap();
        for name in ["by-model", "costs"] {
            std::os::unix::fs::symlink(root.path().join(name), beside.path().join(name)).unwrap();
        }
        remove(beside.path());
        let all = || ours.iter().chain(&costs).chain(&others);
        assert!(all().all(is_there), "a link leads to others' files");

        remove(root.path());
        assert!(!ours.iter().chain(&costs).any(is_there), "{ours:?}");
        assert!(others.iter().all(is_there) && is_there(&read), "{others:?}");
        assert!(!place(unused, "").exists());
        put(&ours[2], KEPT - day);
        put(&ours[3], day / 2);
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
