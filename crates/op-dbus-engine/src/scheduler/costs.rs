//! What batches cost, in time and in memory: what workers report of them, and who is told.

use std::time::Duration;

use super::{Scheduler, micros};
use crate::batch::Batch;
use crate::routing::BatchCost;
use crate::usage::MemoryUse;

/// After so many checks of an idle worker, ten minutes by itself, a pool that leaves batches to others is
/// measured anew.
const LEFT_CHECKS_MAX: u32 = 10;

impl Scheduler {
    /// Whether a worker's pool is to be measured anew: it has left batches to others for so long that
    /// what is known of it may not be so any more.
    pub fn is_to_measure(&self, worker: usize) -> bool {
        let us = micros(self.idle_check * LEFT_CHECKS_MAX);
        self.lock().roster.has_left_for(worker, us, self.clock.now_us())
    }

    /// What batches cost in a pool, in place of all that was known.
    pub fn measured(&self, pool: usize, costs: &[BatchCost]) {
        self.lock().roster.measured(pool, costs);
    }

    /// A worker ran a batch, which took `us`.
    pub fn ran(&self, worker: usize, batch: &Batch<'_>, us: u64, memory: MemoryUse) {
        self.lock().roster.ran(worker, batch, us, memory);
    }

    /// For how long the worker that has computed longest has done so; none where nobody computes.
    pub fn busy_for(&self) -> Option<Duration> {
        self.lock().roster.busy_us(self.clock.now_us()).map(Duration::from_micros)
    }

    /// What became of the memory that all workers together keep for batches.
    pub fn memory(&self) -> MemoryUse {
        self.lock().roster.memory()
    }

    /// What a batch of `tokens` takes on the device of each pool.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        self.lock().roster.costs(tokens)
    }

    /// Whether there is a worker on another device, which may have memory for what `worker` has not.
    pub fn has_elsewhere(&self, worker: usize) -> bool {
        self.lock().roster.has_elsewhere(worker)
    }

    /// Takes note of the bytes that are free on a device.
    pub fn set_free(&self, device: &str, free: Option<u64>) {
        let changed = self.lock().roster.set_free(device, free);
        for (worker, is_short) in &changed {
            match is_short {
                true => tracing::warn!(
                    "{device} has too little free memory for a full batch of worker {worker}, \
                     {} bytes; others get those",
                    free.unwrap_or_default()
                ),
                false => {
                    tracing::info!("{device} has enough free memory again for worker {worker}")
                }
            }
        }
        if !changed.is_empty() {
            self.work.notify_all();
        }
    }

    /// Whether something is known of what batches cost in a pool.
    pub fn knows_costs(&self, pool: usize) -> bool {
        self.lock().roster.known_costs().get(pool).is_some_and(|costs| !costs.is_empty())
    }

    /// What batches are known to cost in each pool.
    pub fn known_costs(&self) -> Vec<Vec<BatchCost>> {
        self.lock().roster.known_costs()
    }

    /// Tokens that all workers together compute in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.lock().roster.tokens_per_s()
    }

    /// The same where it was seen, not assumed.
    pub fn tokens_per_s_seen(&self) -> Option<f64> {
        self.lock().roster.tokens_per_s_seen()
    }
}
