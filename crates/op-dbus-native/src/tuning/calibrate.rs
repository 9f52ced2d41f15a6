//! The measurement: made-up batches, timed in turn, so that what disturbs one disturbs all.

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, Batch};

use super::{Together, Tuning};
use crate::backend::NativeBackend;

/// Tokens that may go through a layer together, the default first.
const STRIPS: [usize; 3] = [96, 48, 192];

/// Another strip is taken if its time is below this share of the default's.
const STRIP_ADVANTAGE: f64 = 0.97;

/// Tokens for each thread of the batches that strips are compared with.
const STRIP_TOKENS: usize = 256;

/// Tokens of a batch for each thread.
const BATCHES: [usize; 5] = [128, 256, 512, 1024, 2048];

/// How long a batch may take: as long waits who comes while it is computed. Up to there the largest is
/// the best, because threads wait for each other at the end of each batch. Which size is measured to be
/// the fastest says more about what else the machine did at that moment.
const BATCH_TIME: Duration = Duration::from_millis(150);

/// Tokens of the texts that are computed together: short and long.
const SINGLE: [usize; 2] = [16, 128];

/// A comparison goes on for this many rounds or this long, but for one round at least.
const ROUNDS: usize = 25;
const TIME: Duration = Duration::from_millis(400);

/// What comes in a comparison behind a batch that takes longer is not tried: nobody would want to
/// wait that long for somebody else's batch, nor for the calibration.
const LIMIT: Duration = Duration::from_millis(250);

/// Shares that have all threads compute a text together, or one alone.
const ALWAYS: Together = Together { short: 0, long: 0 };
const NEVER: Together = Together { short: u64::MAX, long: u64::MAX };

/// The dearest that sharing a text is told to be.
const PERCENT_MAX: u64 = 1_000_000;

/// What suits this machine; nothing if the backend fails.
pub(super) fn measure(backend: &mut NativeBackend) -> Option<Tuning> {
    let mut tuning = Tuning::default();
    let members = backend.members();
    if backend.is_crowded() {
        // Each stage would last until the last thread has had its turn: for minutes, with a thousand.
        tuning.together_percent = Together { short: PERCENT_MAX, long: PERCENT_MAX };
    }

    let strips = STRIPS.map(|strip| (Tuning { strip, ..tuning }, mixed(STRIP_TOKENS * members)));
    tuning.strip = best_strip(&compare(backend, &strips)?);

    let batches = BATCHES.map(|tokens| (tuning, mixed(tokens * members)));
    tuning.batch_tokens = best_batch(&compare(backend, &batches)?);

    if members > 1 && !backend.is_crowded() {
        let length = |tokens: usize| vec![tokens.min(backend.length_max())];
        let [short, long] = SINGLE.map(length);
        let of = |together_percent| Tuning { together_percent, ..tuning };
        let singles = [
            (of(ALWAYS), short.clone()),
            (of(NEVER), short),
            (of(ALWAYS), long.clone()),
            (of(NEVER), long),
        ];
        let times = compare(backend, &singles)?;
        tuning.together_percent = Together {
            short: percent(times[0], times[1], members),
            long: percent(times[2], times[3], members),
        };
    }
    Some(tuning)
}

/// Lengths of texts of this many tokens together: sentences of 8 to 63 tokens and now and then a
/// passage, none like the next, so that threads come out as unevenly as they do with real ones.
fn mixed(tokens: usize) -> Vec<usize> {
    let (mut lengths, mut left) = (Vec::new(), tokens);
    while left > 0 {
        let sentence = 8 + lengths.len() * 23 % 56;
        let is_passage = lengths.len() % 4 == 3;
        let length = if is_passage { 4 * sentence } else { sentence }.min(left);
        lengths.push(length);
        left -= length;
    }
    lengths
}

/// The default, unless another is clearly better.
fn best_strip(seconds: &[f64]) -> usize {
    let default = (STRIPS[0], seconds[0] * STRIP_ADVANTAGE);
    let others = STRIPS.into_iter().zip(seconds.iter().copied()).skip(1);
    others.fold(default, |best, other| if other.1 < best.1 { other } else { best }).0
}

/// The largest that nobody waits too long for, or the smallest.
fn best_batch(seconds: &[f64]) -> usize {
    let mut each = BATCHES.into_iter().zip(seconds);
    let fits = |(_, seconds): &(usize, &f64)| **seconds <= BATCH_TIME.as_secs_f64();
    each.rfind(fits).map_or(BATCHES[0], |(tokens, _)| tokens)
}

/// What all `members` spend on a text together, in percent of what one spends alone; 100 at least.
fn percent(together: f64, alone: f64, members: usize) -> u64 {
    let percent = 100.0 * together * members as f64 / alone.max(f64::MIN_POSITIVE);
    percent.clamp(100.0, PERCENT_MAX as f64) as u64
}

/// The least seconds that each batch of texts takes with its tuning; infinite for those that were not
/// tried. Nothing if the backend fails.
fn compare(backend: &mut NativeBackend, cases: &[(Tuning, Vec<usize>)]) -> Option<Vec<f64>> {
    let mut least = vec![f64::INFINITY; cases.len()];
    let mut tried = cases.len();
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round > 0 && start.elapsed() > TIME {
            break;
        }
        for (index, (tuning, lengths)) in cases.iter().enumerate().take(tried) {
            backend.set_tuning(*tuning);
            least[index] = least[index].min(time(backend, lengths)?);
            if least[index] > LIMIT.as_secs_f64() {
                tried = index + 1;
                break;
            }
        }
    }
    Some(least)
}

/// Seconds for texts of these lengths; nothing if they can't be computed.
fn time(backend: &mut NativeBackend, lengths: &[usize]) -> Option<f64> {
    let longest = backend.length_max();
    let lengths: Vec<i32> =
        lengths.iter().map(|&length| i32::try_from(length.min(longest)).unwrap_or(1)).collect();
    // Ids all over the vocabulary, as texts have them.
    let count: i32 = lengths.iter().sum();
    let vocabulary = i32::try_from(backend.vocabulary()).unwrap_or(i32::MAX);
    let ids: Vec<i32> = (0..count).map(|n| n.wrapping_mul(7919).rem_euclid(vocabulary)).collect();
    let mut out = vec![0.0; lengths.len() * backend.description().dimensions];
    let batch = Batch { ids: &ids, lengths: &lengths };
    let start = Instant::now();
    backend.run(&batch, &mut out).ok()?;
    Some(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::precision::Precision;
    use crate::tests::made_up::{SIZES, Weights, backend};

    #[test]
    fn the_largest_batch_is_taken_that_nobody_waits_too_long_for() {
        assert_eq!(best_batch(&[0.005, 0.009, 0.017, 0.033, 0.066]), 2048);
        assert_eq!(best_batch(&[0.030, 0.055, 0.110, 0.220, f64::INFINITY]), 512);
        assert_eq!(best_batch(&[0.300, f64::INFINITY, f64::INFINITY, f64::INFINITY]), 128);
    }

    #[test]
    fn another_strip_must_be_clearly_better() {
        assert_eq!(best_strip(&[1.0, 0.99, 0.98]), 96);
        assert_eq!(best_strip(&[1.0, 0.9, 0.8]), 192);
        assert_eq!(best_strip(&[1.0, 0.9, f64::INFINITY]), 48);
    }

    #[test]
    fn made_up_texts_are_of_all_kinds_and_exactly_as_long_as_asked_for() {
        let lengths = mixed(1024);
        assert_eq!(lengths.iter().sum::<usize>(), 1024);
        assert!(lengths.contains(&8) && lengths.iter().any(|&length| length > 56));
    }

    #[test]
    fn sharing_a_text_costs_at_least_its_work() {
        assert_eq!(percent(0.6, 1.0, 2), 120);
        assert_eq!(percent(0.4, 1.0, 2), 100);
        assert_eq!(percent(1.0, 0.0, 2), 1_000_000);
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures how fast this is")]
    fn a_backend_is_measured_and_says_what_was_found() {
        let cpus = std::thread::available_parallelism().unwrap().get();
        for threads in [1, 2, cpus + 1] {
            let mut backend =
                backend(&Weights::new(SIZES[2], 1), Isa::best(), Precision::F32, threads);
            let tuning = measure(&mut backend).unwrap();
            assert!(tuning.is_possible(), "{tuning:?}");
            let default = Tuning::default().together_percent;
            assert!(threads > 1 || tuning.together_percent == default);
            let most = Together { short: PERCENT_MAX, long: PERCENT_MAX };
            assert!(threads <= cpus || tuning.together_percent == most, "{tuning:?}");
        }
    }
}
