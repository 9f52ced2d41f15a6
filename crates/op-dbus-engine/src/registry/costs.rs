//! What batches cost on each device of each pool, as far as it was seen, and when it is to be seen anew.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Pool, Registry, Worker};
use crate::backend::DEVICES_MAX;
use crate::routing::{BatchCost, Cost};

/// Rate that is assumed until the first batch has been measured.
pub(crate) const TOKENS_PER_S_ASSUMED: f64 = 5_000.0;

/// What the batches of a pool cost on one device, and how that is known.
#[derive(Debug)]
pub(super) struct DeviceCosts {
    device: String,
    /// Empty where nothing is known yet.
    cost: Cost,
    /// Whether that was measured there, now or earlier; else it was taken for what another one costs, and learned.
    is_measured: bool,
    /// Since when batches are left to others there because of what they are known to cost.
    left_us: Option<u64>,
}

impl DeviceCosts {
    /// What was known earlier.
    pub fn all(costs: &BTreeMap<String, Vec<BatchCost>>) -> Vec<Self> {
        let measured = |(device, costs): (&String, &Vec<_>)| {
            let cost = Cost::of_known(costs);
            Self { cost, is_measured: true, ..Self::nothing(device) }
        };
        costs.iter().map(measured).collect()
    }

    fn nothing(device: &str) -> Self {
        let (device, cost) = (device.to_owned(), Cost::default());
        Self { device, cost, is_measured: false, left_us: None }
    }
}

impl Pool {
    /// Where among its costs those of a device are.
    fn index_of(&mut self, device: &str) -> usize {
        let index = self.costs.iter().position(|known| known.device == device);
        index.unwrap_or_else(|| {
            // Those of workers that move to ever new ones count as the last.
            if self.costs.len() < DEVICES_MAX {
                self.costs.push(DeviceCosts::nothing(device));
            }
            self.costs.len() - 1
        })
    }

    /// What batches cost on a device. One that has run nothing yet is taken for another one of the pool.
    fn cost(&self, index: usize) -> Option<&Cost> {
        let own = self.costs.get(index).into_iter();
        let mut costs = own.chain(&self.costs).map(|known| &known.cost);
        costs.find(|cost| !cost.is_empty())
    }

    /// What is known of a device, which begins with what it was taken for.
    fn costs_mut(&mut self, index: usize) -> Option<&mut DeviceCosts> {
        let is_empty = self.costs.get(index)?.cost.is_empty();
        let like = is_empty.then(|| self.cost(index).cloned()).flatten();
        let known = self.costs.get_mut(index)?;
        if let Some(like) = like {
            known.cost = like;
        }
        Some(known)
    }
}

impl Registry {
    /// What batches cost where a worker computes.
    pub(super) fn cost(&self, worker: &Worker) -> Option<&Cost> {
        self.pools.get(worker.pool)?.cost(worker.device_index)
    }

    /// Notes which of the devices that are known of a worker is on.
    pub(super) fn note_device(&mut self, worker: usize) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        if let Some(pool) = self.pools.get_mut(worker.pool) {
            worker.device_index = pool.index_of(worker.device());
        }
    }

    fn costs_mut(&mut self, worker: usize) -> Option<&mut DeviceCosts> {
        let &Worker { pool, device_index, .. } = self.workers.get(worker)?;
        self.pools.get_mut(pool)?.costs_mut(device_index)
    }

    /// Takes note of what a batch costs where a worker computes.
    pub fn learn(&mut self, worker: usize, tokens: usize, us: u64) {
        if let Some(known) = self.costs_mut(worker) {
            known.cost.learn(tokens, us);
        }
    }

    /// A worker leaves what waits to others.
    pub fn note_left(&mut self, worker: usize, now_us: u64) {
        if !self.is_mixed() {
            return;
        }
        if let Some(known) = self.costs_mut(worker).filter(|known| known.left_us.is_none()) {
            known.left_us = Some(now_us);
            known.cost.note_left();
        }
    }

    /// Whether a worker is to be measured, and is from now on until it has done what it was asked for: batches have
    /// been left to others for `us` where it computes. What is not computed there tells nothing of it, and what it once
    /// took may have been a bad moment. One at a time is: two would have each other wait, and callers both.
    pub fn is_to_measure(&mut self, worker: usize, us: u64, now_us: u64) -> bool {
        let has_left = |own: &Worker| {
            let left_us = self.pools.get(own.pool)?.costs.get(own.device_index)?.left_us?;
            Some(now_us.saturating_sub(left_us) >= us)
        };
        let is_other = |(index, other): (usize, &Worker)| index != worker && other.measures;
        let due = self.workers.get(worker).and_then(has_left).unwrap_or_default()
            && !self.workers.iter().enumerate().any(is_other);
        // A measurement would take the memory from whoever has it.
        let own = self.workers.get_mut(worker).filter(|own| due && !own.status.is_short_of_memory);
        own.map(|own| own.measures = true).is_some()
    }

    /// Whether it is known what the batches of a pool cost on `device` itself.
    pub fn knows(&self, pool: usize, device: &str) -> bool {
        let mut known = self.pools.get(pool).into_iter().flat_map(|pool| &pool.costs);
        let known = known.find(|known| known.device == device);
        known.is_some_and(|known| known.is_measured && !known.cost.is_empty())
    }

    /// What the batches of a pool cost on `device`, in place of what was known of such, and of those that were left
    /// to others. Where nothing could be measured, that stays as it is, until others have been left as much again.
    pub fn measured(&mut self, pool: usize, device: &str, costs: &[BatchCost]) {
        let Some(pool) = self.pools.get_mut(pool) else { return };
        let index = pool.index_of(device);
        let known = &mut pool.costs[index];
        known.left_us = None;
        if !costs.is_empty() {
            known.cost.measured(costs);
            known.is_measured = true;
        }
    }

    /// Whether `worker` is known to compute a batch of `tokens` within `us`.
    pub fn is_quick(&self, worker: usize, tokens: usize, us: u64) -> bool {
        let cost = self.workers.get(worker).and_then(|worker| self.cost(worker));
        cost.and_then(|cost| cost.of(tokens)).is_some_and(|cost| cost <= us)
    }

    /// What a batch of `tokens` takes on each device of each pool, where that is known.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        let cost = |worker: &Worker| {
            let us = self.cost(worker)?.of(tokens)?;
            Some((worker.device().to_owned(), Duration::from_micros(us)))
        };
        self.one_of_each_device().filter_map(cost).collect()
    }

    /// What batches are known to cost in each pool, by device.
    pub fn known_costs(&self) -> Vec<BTreeMap<String, Vec<BatchCost>>> {
        let by_device = |known: &DeviceCosts| (known.device.clone(), known.cost.known());
        let measured = |pool: &Pool| {
            pool.costs.iter().filter(|known| known.is_measured).map(by_device).collect()
        };
        self.pools.iter().map(measured).collect()
    }

    /// Tokens that all workers together compute in a second, as far as it was measured, without those that are
    /// given up.
    pub fn tokens_per_s(&self) -> f64 {
        let rate = |worker| self.rate(worker).unwrap_or(TOKENS_PER_S_ASSUMED);
        self.ordinary().filter(|worker| self.is_relied_on(worker)).map(rate).sum()
    }

    /// The same of those workers alone that were seen at it; none where there are none. What small batches
    /// take tells little of it: a large one may take no longer.
    pub fn tokens_per_s_seen(&self) -> Option<f64> {
        let is_seen = |worker: &&Worker| {
            let cost = self.cost(worker).filter(|_| self.is_relied_on(worker));
            cost.is_some_and(|cost| 2 * cost.largest() >= self.tokens_max(worker))
        };
        let rates = self.ordinary().filter(is_seen).filter_map(|worker| self.rate(worker));
        rates.reduce(|all, rate| all + rate)
    }

    fn rate(&self, worker: &Worker) -> Option<f64> {
        self.cost(worker)?.rate(self.tokens_max(worker))
    }
}
