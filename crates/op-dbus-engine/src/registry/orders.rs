//! What workers are asked for between two batches.

use super::Registry;
use crate::backend::Footprint;
use crate::call::Priority;
use crate::routing::Running;
use crate::status::WorkerState;
use crate::usage::MemoryUse;

/// What a worker is asked for between two batches, in the order in which it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// To make sure that it still computes.
    Check,
    /// To give back memory that it can do without.
    Trim,
}

impl Registry {
    /// Asks for something of every worker that has a backend.
    pub fn order(&mut self, order: Order) {
        for worker in self.workers.iter_mut().filter(|worker| worker.is_there()) {
            worker.orders.insert(order);
        }
    }

    /// What a worker is asked for.
    pub fn order_of(&self, worker: usize) -> Option<Order> {
        self.workers.get(worker)?.orders.first().copied()
    }

    /// When a worker proved itself last. To be asked at each of its looks for something to do, of which the first
    /// comes at once after that and is taken for it.
    pub fn proved_us(&mut self, worker: usize, now_us: u64) -> u64 {
        let worker = self.workers.get_mut(worker);
        worker.map_or(now_us, |worker| *worker.proved_us.get_or_insert(now_us))
    }

    /// Whether some worker has not yet done what was asked for.
    pub fn is_ordered(&self, order: Order) -> bool {
        self.workers.iter().any(|worker| worker.is_there() && worker.orders.contains(&order))
    }

    /// A worker begins what it is asked for. It may hang there as in a batch: until it is done nobody
    /// takes it for idle. It is expected to take as long as the smallest batch.
    pub fn obeys(&mut self, worker: usize, started_us: u64) {
        self.runs(worker, Running { class: Priority::Interactive, tokens: 0, started_us });
    }

    /// A worker begins to let its backend go, which takes a while: who waits for workers is not to count it.
    pub fn leaves_backend(&mut self, worker: usize) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.is_leaving = true;
        }
    }

    /// A worker has done what it was asked for.
    pub fn obeyed(
        &mut self,
        worker: usize,
        order: Order,
        (trimmed, memory): (Footprint, MemoryUse),
    ) {
        self.set(worker, WorkerState::Idle);
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.status.memory = memory;
        worker.orders.remove(&order);
        match order {
            Order::Check => worker.proved_us = None,
            Order::Trim => {
                let given_back = worker.footprint.given_back.saturating_add(trimmed.given_back);
                worker.footprint = Footprint { given_back, ..trimmed };
            }
        }
    }

    /// What the workers gave back in all, and those that are there had left when they last did.
    pub fn footprint(&self) -> Footprint {
        let parts = self.workers.iter().map(|worker| worker.footprint);
        parts.fold(Footprint::default(), Footprint::and)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{loaded, of_workers, pool};
    use super::*;
    use crate::backend::BackendError;

    /// Two pools of one worker each, of which the second is ten times as fast.
    fn registry() -> Registry {
        let mut registry = of_workers(&[pool(), pool()], vec![(0, loaded(0)), (1, loaded(0))]);
        for (worker, us) in [(0, 10_000), (1, 1_000)] {
            registry.learn(worker, 100, us);
        }
        registry
    }

    #[test]
    fn a_worker_that_hangs_in_what_it_was_asked_for_is_not_relied_on() {
        let (mut registry, waiting) = (registry(), 100);
        assert!(registry.wait_for_others(0, waiting, 0).is_some(), "the other is faster, and idle");
        registry.obeys(1, 0);
        assert!(registry.wait_for_others(0, waiting, 0).is_some(), "it will soon have done that");
        assert_eq!(registry.wait_for_others(0, waiting, 60_000_000), None);
        registry.obeyed(1, Order::Check, Default::default());
        assert!(registry.wait_for_others(0, waiting, 60_000_000).is_some());
    }

    /// The end of its process takes a while.
    #[test]
    fn nothing_is_left_to_a_worker_that_lets_its_backend_go() {
        let mut registry = registry();
        let leaves = |registry: &Registry| {
            (registry.wait_for_others(0, 100, 0), registry.wait_for_another(0, 0, 0))
        };
        let (what_waits, what_failed) = leaves(&registry);
        assert!(what_waits.is_some() && what_failed.is_some());
        registry.leaves_backend(1);
        assert_eq!(leaves(&registry), (None, None));
        registry.unloaded(1);
        assert_eq!(leaves(&registry), (None, None));
    }

    #[test]
    fn a_worker_has_what_it_had_left_when_it_was_last_asked() {
        let mut registry = registry();
        let told = |resident| (Footprint { given_back: 7, resident }, MemoryUse::default());
        for (worker, resident) in [(0, 100), (0, 50), (1, 30)] {
            registry.obeyed(worker, Order::Trim, told(resident));
        }
        registry.obeyed(0, Order::Check, Default::default());
        assert_eq!(registry.footprint(), Footprint { given_back: 21, resident: 80 });
        registry.unloaded(0);
        registry.lost(1, &BackendError::Lost("on purpose".into()));
        assert_eq!(registry.footprint(), Footprint { given_back: 21, resident: 0 });
    }

    #[test]
    fn nothing_that_was_asked_for_is_forgotten_for_something_else() {
        let mut registry = registry();
        registry.order(Order::Trim);
        registry.order(Order::Check);
        assert_eq!(registry.order_of(0), Some(Order::Check));
        registry.obeyed(0, Order::Check, Default::default());
        assert_eq!(registry.order_of(0), Some(Order::Trim));
        assert!(registry.is_ordered(Order::Trim));
        for worker in [0, 1] {
            registry.obeyed(worker, Order::Trim, Default::default());
        }
        assert!(!registry.is_ordered(Order::Trim));
    }
}
