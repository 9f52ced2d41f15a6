//! Plain counters of what the engine did; every other view of it is made from a [`Snapshot`].

use std::collections::BTreeMap;

/// The counters at one moment. Counts run from the engine's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Calls that were answered with vectors.
    pub calls: u64,
    /// Texts that were answered with vectors.
    pub texts: u64,
    /// Tokens in the batches that ran, without padding.
    pub tokens: u64,
    /// Tokens in the batches that ran, padding included.
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
