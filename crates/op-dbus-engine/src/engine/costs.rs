//! What an engine knows of its devices, by which it chooses between them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Engine;
use crate::routing::BatchCost;

impl Engine {
    /// What a batch of `tokens` takes on each device of each pool, by what was measured and seen; only
    /// known where there is a choice of devices, or after the first batches.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        self.scheduler().registry(|registry| registry.costs(tokens))
    }

    /// Tells how many bytes are free on a device; none where that is not known. While it is less than twice
    /// of what a batch takes there, beside what the worker has already, that is left to a worker on
    /// another device.
    pub fn set_free_memory(&self, device: &str, bytes: Option<u64>) {
        self.scheduler().set_free(device, bytes);
    }

    /// What batches are known to cost in each pool, by device and size.
    pub fn known_costs(&self) -> Vec<BTreeMap<String, Vec<BatchCost>>> {
        self.scheduler().registry(|registry| registry.known_costs())
    }
}
