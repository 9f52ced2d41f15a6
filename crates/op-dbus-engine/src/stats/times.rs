//! Times of calls as a histogram: buckets that never move, so that two readings can be subtracted.

use std::collections::BTreeMap;

use super::Count;

/// Times in microseconds, counted by bucket.
///
/// The buckets are the same in every process and never move: 1 to 8 µs each have one, and from there
/// each doubling is divided into eight of equal width, so that a quantile is off by one eighth at
/// most. Every power of two is the end of a bucket: a histogram with these as bounds (as Prometheus
/// keeps one) is made by adding counts up, and is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Times {
    /// Sum of all times.
    pub sum_us: u64,
    /// Calls by the largest time that their bucket holds; empty buckets are left out.
    pub buckets: BTreeMap<u64, u64>,
}

impl Times {
    /// Calls counted.
    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// What `percent` of 100 calls took at most, to within one eighth; 0 without calls.
    pub fn quantile(&self, percent: u64) -> u64 {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = |(_, count): &(&u64, &u64)| {
            seen += **count;
            seen >= rank
        };
        self.buckets.iter().find(reached).map_or(0, |(end, _)| *end)
    }

    /// The calls that were counted after `earlier`, another reading of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |end: &u64| earlier.buckets.get(end).copied().unwrap_or(0);
        let grown = |(end, count): (&u64, &u64)| (*end, count.saturating_sub(before(end)));
        let buckets = self.buckets.iter().map(grown).filter(|(_, count)| *count > 0).collect();
        Self { sum_us: self.sum_us.saturating_sub(earlier.sum_us), buckets }
    }
}

/// The histogram as it is kept. Counting neither locks nor allocates.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: Box<[Count; BUCKETS]>,
    sum_us: Count,
}

/// Buckets to a doubling.
const STEPS: usize = 8;
/// So many that every `u64` has one.
const BUCKETS: usize = STEPS * 62;

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: Box::new(std::array::from_fn(|_| Count::default())),
            sum_us: Count::default(),
        }
    }
}

impl Histogram {
    pub(super) fn add(&self, time_us: u64) {
        self.buckets[bucket(time_us)].add(1);
        self.sum_us.add(time_us);
    }

    pub(super) fn times(&self) -> Times {
        let counts = self.buckets.iter().enumerate().map(|(index, count)| (index, count.get()));
        let filled = counts.filter(|(_, count)| *count > 0);
        Times {
            sum_us: self.sum_us.get(),
            buckets: filled.map(|(index, count)| (bucket_end(index), count)).collect(),
        }
    }
}

/// One less is looked at, so that a power of two is the last time of its bucket.
fn bucket(time_us: u64) -> usize {
    let below = time_us.saturating_sub(1);
    let Some(octave) = below.checked_ilog2().and_then(|log| log.checked_sub(3)) else {
        return below as usize;
    };
    let step = (below >> octave) as usize & (STEPS - 1);
    (octave as usize + 1) * STEPS + step
}

/// Largest time in the bucket.
fn bucket_end(index: usize) -> u64 {
    let (octave, step) = (index / STEPS, (index % STEPS) as u128);
    let end = match octave.checked_sub(1) {
        None => step + 1,
        Some(octave) => (step + STEPS as u128 + 1) << octave,
    };
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(times: impl IntoIterator<Item = u64>) -> Times {
        let histogram = Histogram::default();
        times.into_iter().for_each(|time_us| histogram.add(time_us));
        histogram.times()
    }

    #[test]
    fn quantiles_are_near() {
        assert_eq!(counted([]).quantile(50), 0);
        let times = counted(1..=1000);
        assert_eq!((times.count(), times.sum_us), (1000, 500_500));
        assert!((500..=563).contains(&times.quantile(50)), "{times:?}");
        assert!((990..=1114).contains(&times.quantile(99)), "{times:?}");
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings() {
        let histogram = Histogram::default();
        (0..100).for_each(|_| histogram.add(10));
        let earlier = histogram.times();
        (0..3).for_each(|_| histogram.add(5_000));
        let interval = histogram.times().since(&earlier);
        assert_eq!((interval.count(), interval.sum_us), (3, 15_000));
        assert_eq!(interval.quantile(1), interval.quantile(99));
        assert_eq!(histogram.times().since(&histogram.times()), Times::default());
    }

    #[test]
    fn powers_of_two_end_buckets() {
        for power in (0..64).map(|shift| 1_u64 << shift) {
            assert_eq!(bucket_end(bucket(power)), power);
        }
        assert_eq!(bucket_end(bucket(u64::MAX)), u64::MAX);
    }

    proptest! {
        #[test]
        fn each_time_has_its_bucket(time_us in any::<u64>()) {
            let end = bucket_end(bucket(time_us));
            prop_assert!(end >= time_us);
            prop_assert!(end - time_us <= (time_us / 8).max(1));
        }
    }
}
