//! Times of calls as a histogram: buckets that never move, so that two readings can be subtracted.

use std::collections::BTreeMap;

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
    pub(super) fn add(&mut self, time_us: u64) {
        self.sum_us += time_us;
        *self.buckets.entry(end(time_us)).or_default() += 1;
    }

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

/// The largest time of its bucket. One less is looked at, so that a power of two is the last time of its own.
fn end(time_us: u64) -> u64 {
    let below = time_us.saturating_sub(1);
    let octave = below.checked_ilog2().unwrap_or(0).saturating_sub(3);
    u64::try_from((u128::from(below >> octave) + 1) << octave).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(times: impl IntoIterator<Item = u64>) -> Times {
        let mut counted = Times::default();
        times.into_iter().for_each(|time_us| counted.add(time_us));
        counted
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
        let mut times = counted([10; 100]);
        let earlier = times.clone();
        (0..3).for_each(|_| times.add(5_000));
        let interval = times.since(&earlier);
        assert_eq!((interval.count(), interval.sum_us), (3, 15_000));
        assert_eq!(interval.quantile(1), interval.quantile(99));
        assert_eq!(times.since(&times), Times::default());
    }

    #[test]
    fn powers_of_two_end_buckets() {
        for power in (0..64).map(|shift| 1_u64 << shift) {
            assert_eq!(end(power), power);
        }
        assert_eq!(end(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn each_time_has_its_bucket(time_us in any::<u64>()) {
            let end = end(time_us);
            prop_assert!(end >= time_us);
            prop_assert!(end - time_us <= (time_us / 8).max(1));
        }
    }
}
