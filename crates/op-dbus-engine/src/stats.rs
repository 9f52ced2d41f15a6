//! Plain counters of what the engine did; every other view of it is made from a [`Snapshot`].

mod times;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// The counters as they are kept, of one engine or of several. Locked for a moment by each call and each batch.
#[derive(Debug, Default)]
pub struct Stats(Mutex<Snapshot>);

impl Stats {
    pub(crate) fn batch(&self, batch: &Batch<'_>, padded_tokens: usize) {
        let mut counters = self.lock();
        counters.batches += 1;
        counters.rows += batch.rows() as u64;
        counters.tokens += batch.tokens() as u64;
        counters.padded_tokens += padded_tokens as u64;
    }

    pub(crate) fn answered(&self, reply: &Reply) {
        // Who asks for nothing only wants to know whether it could ask.
        if reply.rows == 0 {
            return;
        }
        let mut counters = self.lock();
        counters.calls += 1;
        counters.texts += reply.rows as u64;
        counters.truncated += reply.truncated.len() as u64;
        counters.cached += reply.cached as u64;
        if reply.cached < reply.rows {
            counters.queue_us.add(reply.queue_us);
            counters.compute_us.add(reply.compute_us);
        }
    }

    pub(crate) fn failed(&self, error: &Error) {
        *self.lock().failures.entry(error.kind()).or_default() += 1;
    }

    pub(crate) fn retried(&self, texts: usize) {
        self.lock().retries += texts as u64;
    }

    pub(crate) fn restarted(&self) {
        self.lock().worker_restarts += 1;
    }

    /// The counters now, without what only an engine's queue, admission and workers know.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
