//! Plain counters of what the engine did; every other view of it is made from a [`Snapshot`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::call::Reply;
use crate::error::Error;

/// The counters at one moment. Counts run from the engine's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Calls that were answered with vectors.
    pub calls: u64,
    /// Texts that were answered with vectors.
    pub texts: u64,
    /// Tokens in the batches that ran, without padding.
    pub tokens: u64,
    /// Tokens in the batches that ran, padding included; the real ones again when the backend pads
    /// nothing.
    pub padded_tokens: u64,
    /// Batches that ran.
    pub batches: u64,
    /// Texts that were longer than the model reads.
    pub truncated: u64,
    /// Calls that were refused or failed, by [`Error::kind`](crate::Error::kind).
    pub failures: BTreeMap<&'static str, u64>,
    /// Texts that were put back because their batch failed.
    pub retries: u64,
    /// Workers that were replaced.
    pub worker_restarts: u64,
    /// Texts in the queue now.
    pub queue_texts: usize,
    /// Tokens in the queue now.
    pub queue_tokens: usize,
    /// Calls between admission and reply now.
    pub in_flight_calls: usize,
    /// Tokens between admission and reply now.
    pub in_flight_tokens: usize,
    /// From a call's arrival to the start of its first batch.
    pub queue_us: Quantiles,
    /// From the start of a call's first batch to the end of its last.
    pub compute_us: Quantiles,
}

/// Quantiles of a time in microseconds, to within one eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Quantiles {
    /// Calls counted.
    pub count: u64,
    /// Half of the calls took at most this.
    pub p50_us: u64,
    /// 95 of 100 calls took at most this.
    pub p95_us: u64,
    /// 99 of 100 calls took at most this.
    pub p99_us: u64,
}

/// The counters as they are kept.
#[derive(Debug, Default)]
pub(crate) struct Stats(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    snapshot: Snapshot,
    queue: Histogram,
    compute: Histogram,
}

impl Stats {
    pub fn batch(&self, tokens: usize, padded_tokens: usize) {
        let mut counters = self.lock();
        counters.snapshot.batches += 1;
        counters.snapshot.tokens += tokens as u64;
        counters.snapshot.padded_tokens += padded_tokens as u64;
    }

    pub fn answered(&self, reply: &Reply) {
        let mut counters = self.lock();
        counters.snapshot.calls += 1;
        counters.snapshot.texts += reply.rows as u64;
        counters.snapshot.truncated += reply.truncated.len() as u64;
        counters.queue.add(reply.queue_us);
        counters.compute.add(reply.compute_us);
    }

    pub fn failed(&self, error: &Error) {
        *self.lock().snapshot.failures.entry(error.kind()).or_default() += 1;
    }

    pub fn retried(&self, texts: usize) {
        self.lock().snapshot.retries += texts as u64;
    }

    pub fn restarted(&self) {
        self.lock().snapshot.worker_restarts += 1;
    }

    /// The counters now, without what only the queue and the admission know.
    pub fn snapshot(&self) -> Snapshot {
        let counters = self.lock();
        Snapshot {
            queue_us: counters.queue.quantiles(),
            compute_us: counters.compute.quantiles(),
            ..counters.snapshot.clone()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Eight buckets per power of two: a quantile is off by one eighth at most.
#[derive(Debug)]
struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
}

const STEPS: usize = 8;
const BUCKETS: usize = STEPS * 62;

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl Histogram {
    fn add(&mut self, value: u64) {
        self.count += 1;
        self.buckets[bucket(value)] += 1;
    }

    fn quantiles(&self) -> Quantiles {
        Quantiles {
            count: self.count,
            p50_us: self.quantile(50),
            p95_us: self.quantile(95),
            p99_us: self.quantile(99),
        }
    }

    /// Largest value of the bucket that holds the quantile.
    fn quantile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return bucket_end(index);
            }
        }
        0
    }
}

fn bucket(value: u64) -> usize {
    let Some(octave) = value.checked_ilog2().and_then(|log| log.checked_sub(3)) else {
        return value as usize;
    };
    let step = (value >> octave) as usize & (STEPS - 1);
    (octave as usize + 1) * STEPS + step
}

fn bucket_end(index: usize) -> u64 {
    let (octave, step) = (index / STEPS, (index % STEPS) as u128);
    let end = match octave.checked_sub(1) {
        None => step,
        Some(octave) => ((step + STEPS as u128 + 1) << octave) - 1,
    };
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantiles(), Quantiles::default());
        for value in 1..=1000 {
            histogram.add(value);
        }
        let q = histogram.quantiles();
        assert!((500..=563).contains(&q.p50_us), "{q:?}");
        assert!((990..=1114).contains(&q.p99_us), "{q:?}");
    }

    proptest! {
        #[test]
        fn each_value_has_its_bucket(value in any::<u64>()) {
            let end = bucket_end(bucket(value));
            prop_assert!(end >= value);
            prop_assert!(end - value <= value / 8);
        }
    }
}
