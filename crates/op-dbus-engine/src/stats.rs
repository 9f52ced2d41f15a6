//! Plain counters of what the engine did; every other view of it is made from a [`Snapshot`].

mod times;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use times::Histogram;
pub use times::Times;

use crate::batch::Batch;
use crate::call::Reply;
use crate::error::Error;
use crate::usage::MemoryUse;

/// The counters at one moment. Counts run from the start of the first engine that counts there.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Calls that were answered with vectors; each of a [stream](crate::Call::wait), too.
    pub calls: u64,
    /// Texts that were answered with vectors.
    pub texts: u64,
    /// Rows in the batches that ran. A text that is embedded in windows has several, and one whose
    /// call was given up has none that is answered.
    pub rows: u64,
    /// Tokens in the batches that ran, without padding.
    pub tokens: u64,
    /// Tokens in the batches that ran, padding included; the real ones again when the backend pads
    /// nothing.
    pub padded_tokens: u64,
    /// Batches that ran.
    pub batches: u64,
    /// Texts that were longer than the model reads.
    pub truncated: u64,
    /// Texts whose vectors were kept from a call before.
    pub cached: u64,
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
    /// What became of the memory that the workers which are there keep for batches.
    pub memory: MemoryUse,
    /// From a call's arrival to the start of its first batch, of each call that was answered and had
    /// one.
    pub queue_us: Times,
    /// From the start of a call's first batch to the end of its last.
    pub compute_us: Times,
}

/// The counters as they are kept, of one engine or of several: worker threads and callers count without
/// waiting for each other, so two counters that are read together may be one call apart.
#[derive(Debug, Default)]
pub struct Stats {
    calls: Count,
    texts: Count,
    rows: Count,
    tokens: Count,
    padded_tokens: Count,
    batches: Count,
    truncated: Count,
    cached: Count,
    retries: Count,
    worker_restarts: Count,
    /// Locked only by calls that fail.
    failures: Mutex<BTreeMap<&'static str, u64>>,
    queue_us: Histogram,
    compute_us: Histogram,
}

impl Stats {
    pub(crate) fn batch(&self, batch: &Batch<'_>, padded_tokens: usize) {
        self.batches.add(1);
        self.rows.add(batch.rows() as u64);
        self.tokens.add(batch.tokens() as u64);
        self.padded_tokens.add(padded_tokens as u64);
    }

    pub(crate) fn answered(&self, reply: &Reply) {
        // Who asks for nothing only wants to know whether it could ask.
        if reply.rows == 0 {
            return;
        }
        self.calls.add(1);
        self.texts.add(reply.rows as u64);
        self.truncated.add(reply.truncated.len() as u64);
        self.cached.add(reply.cached as u64);
        if reply.cached < reply.rows {
            self.queue_us.add(reply.queue_us);
            self.compute_us.add(reply.compute_us);
        }
    }

    pub(crate) fn failed(&self, error: &Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(error.kind()).or_default() += 1;
    }

    pub(crate) fn retried(&self, texts: usize) {
        self.retries.add(texts as u64);
    }

    pub(crate) fn restarted(&self) {
        self.worker_restarts.add(1);
    }

    /// The counters now, without what only an engine's queue, admission and workers know.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            calls: self.calls.get(),
            texts: self.texts.get(),
            rows: self.rows.get(),
            tokens: self.tokens.get(),
            padded_tokens: self.padded_tokens.get(),
            batches: self.batches.get(),
            truncated: self.truncated.get(),
            cached: self.cached.get(),
            failures: self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            retries: self.retries.get(),
            worker_restarts: self.worker_restarts.get(),
            queue_us: self.queue_us.times(),
            compute_us: self.compute_us.times(),
            ..Snapshot::default()
        }
    }
}

/// A number that only grows. Relaxed: it orders nothing else.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
