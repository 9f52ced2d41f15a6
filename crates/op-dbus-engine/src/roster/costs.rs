//! What batches cost in each pool, as far as it was seen, and when it is to be seen anew.

use std::time::Duration;

use super::{Pool, Roster, Worker};
use crate::routing::BatchCost;

/// Rate that is assumed until the first batch has been measured.
pub(crate) const TOKENS_PER_S_ASSUMED: f64 = 5_000.0;

impl Roster {
    /// Takes note of what a batch costs in a pool.
    pub fn learn(&mut self, pool: usize, tokens: usize, us: u64) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.cost.learn(tokens, us);
        }
    }

    /// A worker leaves what waits to another pool.
    pub fn left(&mut self, worker: usize, now_us: u64) {
        if let Some(worker) = self.workers.get(worker).filter(|_| self.pools.len() > 1) {
            let pool = &mut self.pools[worker.pool];
            if pool.left_us.is_none() {
                pool.left_us = Some(now_us);
                pool.cost.leave();
            }
        }
    }

    /// Whether a worker's pool has left batches to others for `us`: what it does not compute tells nothing
    /// of it, and what it once took may have been a bad moment.
    pub fn has_left_for(&self, worker: usize, us: u64, now_us: u64) -> bool {
        let pool = self.workers.get(worker).and_then(|worker| self.pools.get(worker.pool));
        pool.and_then(|pool| pool.left_us).is_some_and(|left| now_us.saturating_sub(left) >= us)
    }

    /// What batches cost in a pool, in place of what was known of such, and of those that it has left.
    pub fn measured(&mut self, pool: usize, costs: &[BatchCost]) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.cost.measured(costs);
            pool.left_us = None;
        }
    }

    /// Whether `worker` is known to compute a batch of `tokens` within `us`.
    pub fn is_quick(&self, worker: usize, tokens: usize, us: u64) -> bool {
        let pool = self.workers.get(worker).and_then(|worker| self.pools.get(worker.pool));
        pool.and_then(|pool| pool.cost.of(tokens)).is_some_and(|cost| cost <= us)
    }

    /// What a batch of `tokens` takes on the device of each pool, where that is known.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        let cost = |(index, pool): (usize, &Pool)| {
            let first = self.workers.iter().find(|worker| worker.pool == index)?;
            let us = pool.cost.of(tokens)?;
            Some((first.status.description.device.clone(), Duration::from_micros(us)))
        };
        self.pools.iter().enumerate().filter_map(cost).collect()
    }

    /// What batches are known to cost in each pool.
    pub fn known_costs(&self) -> Vec<Vec<BatchCost>> {
        self.pools.iter().map(|pool| pool.cost.known()).collect()
    }

    /// Tokens that all workers together compute in a second, as far as it was measured, without those that are
    /// given up.
    pub fn tokens_per_s(&self) -> f64 {
        let rate = |worker| self.rate(worker).unwrap_or(TOKENS_PER_S_ASSUMED);
        self.ordinary().filter(|worker| self.counts(worker)).map(rate).sum()
    }

    /// The same of those workers alone that were seen at it; none where there are none. What small batches
    /// take tells little of it: a large one may take no longer.
    pub fn tokens_per_s_seen(&self) -> Option<f64> {
        let is_seen = |worker: &&Worker| {
            let pool = self.pools.get(worker.pool).filter(|_| self.counts(worker));
            pool.is_some_and(|pool| 2 * pool.cost.largest() >= pool.planner.tokens_max())
        };
        let rates = self.ordinary().filter(is_seen).filter_map(|worker| self.rate(worker));
        rates.reduce(|all, rate| all + rate)
    }

    fn rate(&self, worker: &Worker) -> Option<f64> {
        let pool = self.pools.get(worker.pool)?;
        pool.cost.rate(pool.planner.tokens_max())
    }
}
