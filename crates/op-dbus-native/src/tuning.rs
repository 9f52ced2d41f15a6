//! How a machine computes a model best: measured once, then read from the cache. Nothing of it
//! changes a vector.

mod calibrate;

use std::io::{self, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use op_dbus_graph::kept::{self, Kind, use_now};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::backend::NativeBackend;
use crate::isa::{self, Isa};
use crate::kernels::product::STRIP_MAX;
use crate::load::Options;

/// Version of the measurement and of its record. A record of another version is not used.
const VERSION: u32 = 4;

/// Measurements that are made, one at each start, as long as other programs disturb all of them.
const MEASUREMENTS: u32 = 5;

/// Tokens of a batch for each thread: fewer would leave every saving aside that a batch is for, and
/// more would keep those waiting who come while it is computed.
const BATCH_TOKENS: RangeInclusive<usize> = 128..=2048;

/// Records in the cache.
const RECORDS: Kind = Kind { finished: "json", unfinished: ".tuning-", kept: 12 };

/// More than this many preemptions of two threads in a second are the work of other programs, not of the kernel's own
/// threads: an idle machine has a few, one that shares its CPUs with a build some hundred.
const PREEMPTIONS_PER_S: f64 = 50.0;

/// What may differ from machine to machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tuning {
    /// Most tokens that go through a layer together: enough that weights are worth their way to the
    /// caches, few enough that what belongs to the tokens stays in the second level cache.
    pub strip: usize,
    /// Tokens of a batch for each thread beyond which the throughput hardly grows.
    pub batch_tokens: usize,
    /// What it costs that all threads compute one text together, in percent of its work done by one:
    /// a short text, and a long one.
    pub together_percent: Together,
}

/// Costs of sharing a text between all threads, in percent of computing it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Together {
    /// Of a text of up to [`Together::SHORT`] tokens.
    pub short: u64,
    /// Of a longer one.
    pub long: u64,
}

impl Together {
    /// Tokens of a text that counts as short.
    pub const SHORT: usize = 48;

    /// For a text of `tokens`.
    pub fn of(self, tokens: usize) -> u64 {
        if tokens <= Self::SHORT { self.short } else { self.long }
    }
}

impl Default for Tuning {
    /// Chosen on curves of a two-core AVX2 machine; what a machine is taken for that was not measured.
    fn default() -> Self {
        let together_percent = Together { short: 115, long: 115 };
        Self { strip: 96, batch_tokens: 512, together_percent }
    }
}

impl Tuning {
    /// Whether it can be computed with: records come from a file.
    fn is_possible(&self) -> bool {
        let Together { short, long } = self.together_percent;
        (1..=STRIP_MAX).contains(&self.strip)
            && BATCH_TOKENS.contains(&self.batch_tokens)
            && short.min(long) >= 100
    }

    /// What two disturbed measurements tell together. Whatever has the CPU meanwhile makes batches look
    /// slow and sharing a text look dear, never the other way round.
    fn or(self, other: Self) -> Self {
        let Together { short, long } = self.together_percent;
        let others = other.together_percent;
        Self {
            strip: Self::default().strip,
            batch_tokens: self.batch_tokens.max(other.batch_tokens),
            together_percent: Together {
                short: short.min(others.short),
                long: long.min(others.long),
            },
        }
    }
}

/// The file that a calibration leaves.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    version: u32,
    key: String,
    tuning: Tuning,
    /// Measurements behind it, if other programs disturbed all of them; 0 if one went undisturbed.
    #[serde(default)]
    disturbed: u32,
}

impl Record {
    /// Whether it is taken as it is, and not measured again.
    fn is_final(&self) -> bool {
        matches!(self.disturbed, 0 | MEASUREMENTS..)
    }
}

/// Tunes `backend` as the cache says, or else measures it and leaves the result in the cache. What
/// fails costs speed alone, and is said in the log.
pub(crate) fn tune(backend: &mut NativeBackend, options: &Options) {
    let Options { isa, precision, threads, .. } = options;
    let key = format!("{} {isa} {precision} threads={threads} cpu={}", options.key, cpu());
    let digest = format!("{:x}", Sha256::digest(&key));
    let place =
        options.cache_dir.join("tuning").join(format!("{}.{}", &digest[..32], RECORDS.finished));
    let before = found(&place, &key);
    if let Some(record) = before.as_ref().filter(|record| record.is_final()) {
        return backend.set_tuning(record.tuning);
    }
    // Of workers that start together one measures, alone, and the others take what it has found. Where there are no
    // locks each measures.
    let _alone = kept::lock(place.parent().unwrap_or(&options.cache_dir));
    let earlier = found(&place, &key);
    if let Some(record) = earlier.as_ref().filter(|_| earlier != before) {
        return backend.set_tuning(record.tuning);
    }
    let Some((tuning, disturbed)) = measure(backend, *threads, earlier) else {
        tracing::warn!("the calibration failed; batches are computed as on an ordinary CPU");
        return backend.untune();
    };
    backend.set_tuning(tuning);
    if let Err(error) = save(&place, &Record { version: VERSION, key, tuning, disturbed }) {
        tracing::warn!(?place, %error, "the calibration can't be cached for the next start");
    }
}

/// What a measurement finds, or all of them together if others had the CPU in this one and in the `earlier` ones; and
/// how many these are. Nothing if the backend fails.
fn measure(
    backend: &mut NativeBackend,
    threads: usize,
    earlier: Option<Record>,
) -> Option<(Tuning, u32)> {
    let (start, preempted) = (Instant::now(), preemptions());
    let measured = calibrate::measure(backend)?;
    let took = start.elapsed();
    let preempted = preemptions() - preempted;
    let is_disturbed = is_disturbed(preempted, threads, took);
    let (tuning, disturbed) = match earlier {
        _ if !is_disturbed => (measured, 0),
        None => (measured.or(measured), 1),
        Some(earlier) => (measured.or(earlier.tuning), earlier.disturbed + 1),
    };
    let calibration_ms = took.as_millis();
    let Tuning { strip, batch_tokens, together_percent } = tuning;
    tracing::info!(
        calibration_ms,
        preempted,
        strip,
        batch_tokens,
        together_short = together_percent.short,
        together_long = together_percent.long,
        "calibrated how batches are computed"
    );
    if is_disturbed {
        let left = MEASUREMENTS.saturating_sub(disturbed);
        tracing::info!(
            left,
            "others had the CPU during the calibration; so many starts may repeat it"
        );
    }
    Some((tuning, disturbed))
}

/// What the cache has; nothing if there is none that can be used, which is told.
fn found(place: &Path, key: &str) -> Option<Record> {
    read(place, key).unwrap_or_else(|error| {
        tracing::warn!(?place, %error, "the cached calibration can't be used; measuring anew");
        None
    })
}

/// What a record says; nothing if there is none, or that of another version.
fn read(place: &Path, key: &str) -> io::Result<Option<Record>> {
    let Some(file) = kept::open(place)? else { return Ok(None) };
    let record: Record = serde_json::from_reader(BufReader::new(&file))?;
    if record.version != VERSION {
        return Ok(None);
    }
    if record.key != key || !record.tuning.is_possible() {
        return Err(io::Error::other("it is not what this version has measured here"));
    }
    use_now(&file);
    Ok(Some(record))
}

/// Writes a record, whole or not at all.
fn save(place: &Path, record: &Record) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    RECORDS.make(place, |file| file.write_all(&json))
}

/// Whether other programs had the CPUs meanwhile. Of more threads the kernel's own preempt more, but one program that
/// takes the CPU of one thread has all others wait for that one: hence the root.
fn is_disturbed(preempted: i64, threads: usize, took: Duration) -> bool {
    let pairs = threads.max(2) as f64 / 2.0;
    preempted as f64 > PREEMPTIONS_PER_S * pairs.sqrt() * took.as_secs_f64()
}

/// How often a thread of this process had to leave its CPU to another program.
fn preemptions() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.involuntary_context_switches())
}

/// What tells this CPU from another that the cache may come to.
fn cpu() -> String {
    let names: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    format!("{:08x} {}", isa::signature(), names.join(","))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::precision::Precision;
    use crate::tests::made_up::{SIZES, Weights, backend, options};

    #[test]
    fn a_record_that_makes_no_sense_is_not_used() {
        assert!(Tuning::default().is_possible());
        for strip in [0, STRIP_MAX + 1] {
            assert!(!Tuning { strip, ..Tuning::default() }.is_possible());
        }
        for batch_tokens in [0, BATCH_TOKENS.end() + 1] {
            assert!(!Tuning { batch_tokens, ..Tuning::default() }.is_possible());
        }
        for (short, long) in [(0, 115), (115, 0), (99, 99)] {
            let together_percent = Together { short, long };
            assert!(!Tuning { together_percent, ..Tuning::default() }.is_possible());
        }
    }

    #[test]
    fn disturbed_measurements_are_taken_at_their_best() {
        let tuning = |strip, batch_tokens, short, long| Tuning {
            strip,
            batch_tokens,
            together_percent: Together { short, long },
        };
        let both = tuning(48, 128, 511, 105).or(tuning(192, 512, 120, 251));
        assert_eq!(both, tuning(96, 512, 120, 105));
    }

    #[test]
    fn a_few_programs_disturb_a_wide_machine_as_well() {
        let first = |threads| {
            (0..1000).find(|preempted| is_disturbed(*preempted, threads, Duration::from_secs(1)))
        };
        assert_eq!([1, 2, 8, 128].map(first), [51, 51, 101, 401].map(Some));
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures how fast this is")]
    fn a_disturbed_calibration_is_repeated_some_times_and_no_other() {
        let weights = Weights::new(SIZES[2], 1);
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&weights.encoder(), Isa::best(), Precision::F32, 1);
        options.cache_dir = folder.path().to_owned();
        let mut backend = backend(&weights, Isa::best(), Precision::F32, 1);
        tune(&mut backend, &options);
        let place = fs::read_dir(folder.path().join("tuning")).unwrap().next().unwrap();
        let place = place.unwrap().path();
        let found = || serde_json::from_slice::<Record>(&fs::read(&place).unwrap()).unwrap();
        // A strip that no measurement tries.
        let tuning = Tuning { strip: 95, ..Tuning::default() };
        let version = VERSION - 1;
        save(&place, &Record { version, tuning, ..found() }).unwrap();
        tune(&mut backend, &options);
        assert!(found().version == VERSION && found().tuning.strip != 95);
        for (disturbed, again) in
            [(0, false), (1, true), (MEASUREMENTS - 1, true), (MEASUREMENTS, false)]
        {
            save(&place, &Record { disturbed, tuning, ..found() }).unwrap();
            tune(&mut backend, &options);
            assert_eq!(found().tuning.strip != 95, again, "{disturbed}");
            let then = found().disturbed;
            let counted = if again { [0, disturbed + 1] } else { [disturbed; 2] };
            assert!(counted.contains(&then), "{disturbed}: {then}");
        }
    }

    /// As of workers that start together.
    #[test]
    #[cfg_attr(miri, ignore = "measures how fast this is")]
    fn who_waits_for_another_ones_calibration_takes_it() {
        let weights = Weights::new(SIZES[2], 1);
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&weights.encoder(), Isa::best(), Precision::F32, 1);
        options.cache_dir = folder.path().to_owned();
        let mut first = backend(&weights, Isa::best(), Precision::F32, 1);
        let mut second = backend(&weights, Isa::best(), Precision::F32, 1);
        tune(&mut first, &options);
        let records = folder.path().join("tuning");
        let place = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
        let found = || serde_json::from_slice::<Record>(&fs::read(&place).unwrap()).unwrap();
        let record = found();
        fs::remove_file(&place).unwrap();
        let alone = kept::lock(&records).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| tune(&mut second, &options));
            let tuning = Tuning { strip: 95, ..Tuning::default() };
            save(&place, &Record { disturbed: 0, tuning, ..record }).unwrap();
            drop(alone);
        });
        assert_eq!(found().tuning.strip, 95, "it has measured as well");
    }
}
