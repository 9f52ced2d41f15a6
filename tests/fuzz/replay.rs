//! The cases of `tests/fuzz/corpus`, and small changes of them, run by the tests of each crate that includes this in
//! its module `fuzz`.

use std::fs::{self, DirEntry};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::catch_unwind;
use std::path::Path;

#[path = "../harness/random.rs"]
mod random;

use random::Random;

/// Changes of one case, and bytes of them together: a large one takes its time.
const CHANGES_MAX: usize = 100;
const CHANGED_BYTES_MAX: usize = 100_000;
/// A variable: with another number in it there are other changes.
const SEED: &str = "OP_DBUS_FUZZ_SEED";

/// Every case that is kept for a target does none, and one of them is understood: after a format has changed none
/// would get further than its beginning.
#[test]
#[cfg_attr(miri, ignore = "takes minutes; the fuzzer runs them under AddressSanitizer")]
fn kept_cases_do_no_harm() {
    for (name, target) in super::TARGETS {
        let understood = cases(name).iter().filter(|(_, bytes)| target(bytes)).count();
        assert!(
            understood > 0,
            "{name} understands none; is tests/fuzz/seeds.py of an old format?"
        );
    }
}

/// Nor does what is nearly one.
#[test]
#[cfg_attr(miri, ignore = "takes minutes; the fuzzer changes them under AddressSanitizer")]
fn changed_cases_do_no_harm() {
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    for (name, target) in super::TARGETS {
        for (case, bytes) in cases(name) {
            for number in 0..CHANGES_MAX.min(CHANGED_BYTES_MAX / bytes.len().max(1)) {
                let mut hasher = DefaultHasher::new();
                (seed, name, &case, number).hash(&mut hasher);
                let changed = changed(bytes.clone(), &mut Random::new(hasher.finish()));
                let (done, told) = (catch_unwind(|| target(&changed)), changed.escape_ascii());
                assert!(done.is_ok(), "{SEED}={seed}, {name}/{case}, change {number}: {told}");
            }
        }
    }
}

/// The cases of a target by their names.
fn cases(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
    let cases = fs::read_dir(folder).expect("a folder of cases for each target");
    let read = |case: DirEntry| {
        let name = case.file_name().to_string_lossy().into_owned();
        (name, fs::read(case.path()).expect("a case"))
    };
    cases.map(|case| read(case.expect("a case"))).collect()
}

/// One to four changes: a bit, a byte more, a part that goes or comes twice, or an end.
fn changed(mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let part = at..bytes.len().min(at + 1 + random.below(16));
        match random.below(9) {
            0..2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2..4 => bytes.insert(at, random.below(256) as u8),
            4..6 => drop(bytes.drain(part)),
            6 => bytes.truncate(at),
            _ => {
                let (copy, to) = (bytes[part].to_vec(), random.below(bytes.len() + 1));
                drop(bytes.splice(to..to, copy));
            }
        }
    }
    bytes
}
