//! The measurement: made-up batches, timed in turn, so that what disturbs one disturbs all.

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, Batch};

use super::{Together, Tuning};
use crate::backend::NativeBackend;

/// Tokens that may go through a layer together, the default first.
const STRIPS: [usize; 3] = [96, 48, 192];

/// Another strip is taken if its time is below this share of the default's.
const STRIP_ADVANTAGE: f64 = 0.97;

/// Tokens of a batch for each thread.
const BATCHES: [usize; 5] = [128, 256, 512, 1024, 2048];

/// Which of them strips are compared with.
const STRIP_BATCH: usize = 1;

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

/// What suits this machine; nothing if the backend fails.
pub(super) fn measure(backend: &mut NativeBackend) -> Option<Tuning> {
    let mut tuning = Tuning::default();
    let (members, longest) = (backend.members(), backend.length_max());

    // From the smallest on, so that a slow machine is found to be one by little work.
    let batches = BATCHES.map(|tokens| (tuning, mixed(tokens * members, longest)));
    let times = compare(&batches, |case| time(backend, case))?;
    tuning.batch_tokens = best_batch(&times);

    if times[STRIP_BATCH] <= LIMIT.as_secs_f64() {
        let tokens = BATCHES[STRIP_BATCH] * members;
        let strips = STRIPS.map(|strip| (Tuning { strip, ..tuning }, mixed(tokens, longest)));
        tuning.strip = best_strip(&compare(&strips, |case| time(backend, case))?);
    }

    if members > 1 {
        let length = |tokens: usize| vec![tokens.min(longest)];
        let [short, long] = SINGLE.map(length);
        let of = |together_percent| Tuning { together_percent, ..tuning };
        let singles = [
            (of(ALWAYS), short.clone()),
            (of(NEVER), short),
            (of(ALWAYS), long.clone()),
            (of(NEVER), long),
        ];
        let times = compare(&singles, |case| time(backend, case))?;
        let Together { short, long } = tuning.together_percent;
        tuning.together_percent = Together {
            short: percent(times[0], times[1], members).unwrap_or(short),
            long: percent(times[2], times[3], members).unwrap_or(long),
        };
    }
    Some(tuning)
}

/// Lengths of texts of this many tokens together: sentences of 8 to 63 tokens and now and then a
/// passage, none like the next, so that threads come out as unevenly as they do with real ones; none longer than the
/// `longest` that the model reads.
fn mixed(tokens: usize, longest: usize) -> Vec<usize> {
    let (mut lengths, mut left) = (Vec::new(), tokens);
    while left > 0 {
        let sentence = 8 + lengths.len() * 23 % 56;
        let is_passage = lengths.len() % 4 == 3;
        let length = if is_passage { 4 * sentence } else { sentence }.min(longest).min(left);
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

/// What all `members` spend on a text together, in percent of what one spends alone; 100 at least. Nothing
/// unless both were tried.
fn percent(together: f64, alone: f64, members: usize) -> Option<u64> {
    let percent = 100.0 * together * members as f64 / alone.max(f64::MIN_POSITIVE);
    (together.is_finite() && alone.is_finite()).then_some(percent.clamp(100.0, 1e6) as u64)
}

/// A tuning, and the lengths of the texts of a batch.
type Case = (Tuning, Vec<usize>);

/// The least seconds, as `time` tells them, that each batch of texts takes with its tuning; infinite for those
/// that were not tried. Nothing if it fails.
fn compare(cases: &[Case], mut time: impl FnMut(&Case) -> Option<f64>) -> Option<Vec<f64>> {
    let mut least = vec![f64::INFINITY; cases.len()];
    let mut tried = cases.len();
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round > 0 && start.elapsed() > TIME {
            break;
        }
        for (index, case) in cases.iter().enumerate().take(tried) {
            least[index] = least[index].min(time(case)?);
            if least[index] > LIMIT.as_secs_f64() && index + 1 < tried {
                // What comes behind it must not go untried because something had the CPU once.
                least[index] = least[index].min(time(case)?);
            }
            if least[index] > LIMIT.as_secs_f64() {
                tried = index + 1;
                break;
            }
        }
    }
    Some(least)
}

/// Seconds for texts of these lengths; nothing if they can't be computed.
fn time(backend: &mut NativeBackend, (tuning, lengths): &Case) -> Option<f64> {
    backend.set_tuning(*tuning);
    let lengths: Vec<i32> =
        lengths.iter().map(|&length| i32::try_from(length).unwrap_or(1)).collect();
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
        let lengths = mixed(1024, 512);
        assert_eq!(lengths.iter().sum::<usize>(), 1024);
        assert!(lengths.contains(&8) && lengths.iter().any(|&length| length > 56));
        let short = mixed(1024, 16);
        assert_eq!((short.iter().sum::<usize>(), short.iter().max()), (1024, Some(&16)));
    }

    #[test]
    fn sharing_a_text_costs_at_least_its_work() {
        assert_eq!(percent(0.6, 1.0, 2), Some(120));
        assert_eq!(percent(0.4, 1.0, 2), Some(100));
        assert_eq!(percent(1.0, 0.0, 2), Some(1_000_000));
    }

    #[test]
    fn nothing_is_said_of_sharing_a_text_that_was_not_tried() {
        assert_eq!(percent(0.3, f64::INFINITY, 2), None);
        assert_eq!(percent(f64::INFINITY, f64::INFINITY, 2), None);
    }

    #[test]
    fn one_stall_leaves_nothing_untried_and_a_slow_batch_does() {
        let cases = [16, 32, 64, 128].map(|tokens| (Tuning::default(), vec![tokens]));
        let mut first = true;
        let stalled =
            compare(&cases, |_| Some(if std::mem::take(&mut first) { 0.3 } else { 0.002 }));
        assert_eq!(stalled.unwrap(), [0.002; 4]);
        let slow = compare(&cases, |(_, lengths)| Some(if lengths[0] < 64 { 0.1 } else { 0.3 }));
        assert_eq!(slow.unwrap(), [0.1, 0.1, 0.3, f64::INFINITY]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures how fast this is")]
    fn a_backend_is_measured_and_says_what_was_found() {
        for threads in [1, 2] {
            let mut backend =
                backend(&Weights::new(SIZES[2], 1), Isa::best(), Precision::F32, threads);
            let tuning = measure(&mut backend).unwrap();
            assert!(tuning.is_possible(), "{tuning:?}");
            let default = Tuning::default().together_percent;
            assert!(threads > 1 || tuning.together_percent == default);
        }
    }
}
