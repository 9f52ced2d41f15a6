//! Which device has a batch done first: the workers as they are told apart for that, by pool and device.

use std::time::Duration;

use super::{Registry, Worker};
use crate::routing::{self, Candidate};

impl Worker {
    /// Whether it is of the pool of another one and on its device.
    fn shares_device(&self, other: &Self) -> bool {
        (self.pool, self.device_index) == (other.pool, other.device_index)
    }
}

impl Registry {
    /// Whether a batch may have to go to another pool or device than that of whoever is idle.
    pub fn is_mixed(&self) -> bool {
        let mut workers = self.ordinary();
        let first = workers.next();
        first.is_some_and(|first| workers.any(|other| !other.shares_device(first)))
    }

    /// Whether one that is woken for what waits, so many tokens, may leave it to another one, for what that costs them
    /// or for want of memory: who sleeps would not know of it. Where there are several pools, those of one may have let
    /// their backends go.
    pub fn is_choosy(&self, waiting_tokens: usize) -> bool {
        let differ = || {
            let us = self.ordinary().filter_map(|own| self.candidate(own)?.next_us(waiting_tokens));
            let widen = |(least, most): (u64, u64), us: u64| (least.min(us), most.max(us));
            let (least, most) = us.fold((u64::MAX, 0), widen);
            // Of nobody anything may be known.
            least < most && !routing::are_alike(least, most)
        };
        self.is_roomier(waiting_tokens) || self.is_mixed() && (self.pools.len() > 1 || differ())
    }

    /// How long `worker` leaves what waits, so many tokens, to others, which have it done first or have the memory for
    /// it, before it asks again; none where it takes it itself.
    pub fn wait_for_others(
        &self,
        worker: usize,
        waiting_tokens: usize,
        now_us: u64,
    ) -> Option<Duration> {
        let for_room = self.wait_for_room(worker, waiting_tokens, now_us);
        if for_room.is_some() || !self.is_mixed() {
            return for_room;
        }
        let own = self.workers.get(worker)?;
        let others = self.ordinary().filter(|other| {
            other.stays() && !other.shares_device(own) && self.has_room(other, waiting_tokens)
        });
        let others = others.filter_map(|other| self.candidate(other));
        routing::wait_for_others(&self.candidate(own)?, others, waiting_tokens, now_us)
    }

    /// The first worker of each pool on each device.
    pub(super) fn one_of_each_device(&self) -> impl Iterator<Item = &Worker> {
        let workers = self.ordinary().enumerate();
        let firsts = workers.filter(move |(index, worker)| {
            !self.ordinary().take(*index).any(|before| before.shares_device(worker))
        });
        firsts.map(|(_, worker)| worker)
    }

    /// A worker as it is chosen by what batches cost; none where nothing is known of that.
    fn candidate(&self, worker: &Worker) -> Option<Candidate<'_>> {
        let (tokens_max, running) = (self.tokens_max(worker), worker.running);
        Some(Candidate { cost: self.cost(worker)?, tokens_max, running })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Order;
    use super::super::tests::{loaded_on, of_workers, pool};
    use super::*;
    use crate::backend::BackendError;
    use crate::batch::Batch;
    use crate::call::Priority;
    use crate::config::{BatchLimits, Pool};
    use crate::routing::{BatchCost, Running};
    use crate::usage::MemoryUse;

    /// Tokens of a full batch, and microseconds that the quick device takes for it.
    const FULL: usize = 512;
    const QUICK_US: u64 = 1_000;
    /// How often the slow one takes as long.
    const TIMES: u64 = 5;

    /// One pool with a worker on each of these devices, of which so many microseconds are known for a full batch.
    fn registry(devices: &[(&str, Option<u64>)]) -> Registry {
        let known = |(device, us): &(&str, Option<u64>)| {
            Some(((*device).to_owned(), vec![BatchCost { tokens: FULL, us: (*us)? }]))
        };
        let pool = Pool {
            batch: BatchLimits { tokens_max: FULL, ..BatchLimits::default() },
            costs: devices.iter().filter_map(known).collect(),
            ..pool()
        };
        of_workers(&[pool], devices.iter().map(|(device, _)| (0, loaded_on(device))).collect())
    }

    /// Of which the first is slow.
    fn unlike() -> Registry {
        registry(&[("gpu:0", Some(TIMES * QUICK_US)), ("gpu:1", Some(QUICK_US))])
    }

    fn busy(tokens: usize, started_us: u64) -> Running {
        Running { class: Priority::Interactive, tokens, started_us }
    }

    #[test]
    fn of_two_devices_of_a_pool_the_quick_one_gets_little_work_and_much_keeps_both() {
        let mut registry = unlike();
        assert!(registry.is_mixed());
        assert!(registry.wait_for_others(0, FULL, 0).is_some());
        assert_eq!(registry.wait_for_others(1, FULL, 0), None);
        assert!(registry.wait_for_others(0, 4 * FULL, 0).is_some(), "done after 4 ms of 5");
        assert_eq!(registry.wait_for_others(0, 5 * FULL, 0), None);
        registry.runs(1, busy(FULL, 0));
        assert_eq!(registry.wait_for_others(0, 4 * FULL, 0), None, "done after 5 ms of 5");
    }

    #[test]
    fn the_slow_one_alone_still_serves() {
        let mut registry = unlike();
        registry.lost(1, &BackendError::Lost("on purpose".into()));
        assert_eq!(registry.wait_for_others(0, FULL, 0), None);
    }

    #[test]
    fn two_workers_of_a_device_are_alike_and_know_the_same() {
        let mut registry = registry(&[("gpu:0", None), ("gpu:0", None)]);
        assert!(!registry.is_mixed());
        registry.learn(0, FULL, QUICK_US);
        assert_eq!(registry.costs(FULL).len(), 1);
        assert_eq!([0, 1].map(|worker| registry.is_quick(worker, FULL, QUICK_US)), [true, true]);
    }

    #[test]
    fn a_device_that_has_run_nothing_counts_as_another_of_its_pool_and_then_as_itself() {
        let mut registry = registry(&[("gpu:0", Some(QUICK_US)), ("gpu:1", None)]);
        let us = |registry: &Registry| registry.costs(FULL).remove(1).1.as_micros() as u64;
        assert!(!registry.knows(0, "gpu:1"), "what is known is of the other");
        assert_eq!(us(&registry), QUICK_US);
        assert_eq!(registry.wait_for_others(1, FULL, 0), None);
        let batch = Batch { ids: &[1; FULL], lengths: &[FULL as i32] };
        for _ in 0..20 {
            registry.ran(1, &batch, (TIMES * QUICK_US, true), MemoryUse::default());
        }
        assert!(us(&registry) > (TIMES - 1) * QUICK_US, "{} us", us(&registry));
        assert!(registry.wait_for_others(1, FULL, 0).is_some());
        assert_eq!(registry.costs(FULL)[0].1, Duration::from_micros(QUICK_US), "as before");
        let (known, costs) = (registry.known_costs(), registry.costs(FULL));
        assert_eq!(known[0].keys().collect::<Vec<_>>(), ["gpu:0"], "the other was not measured");
        assert!(!registry.knows(0, "gpu:1"));
        registry.ran(1, &batch, (1, false), MemoryUse::default());
        assert_eq!(registry.costs(FULL), costs, "it has moved there from another one meanwhile");
    }

    #[test]
    fn what_is_measured_is_of_a_device_alone() {
        let mut registry = unlike();
        registry.note_left(0, 7);
        assert!(registry.is_to_measure(0, 3, 10) && !registry.is_to_measure(1, 0, 10));
        registry.measured(0, "gpu:0", &[BatchCost { tokens: FULL, us: 10 }]);
        assert!(!registry.is_to_measure(0, 3, 10));
        assert!(registry.wait_for_others(1, FULL, 0).is_some());
        // Nothing of others is taken for what was not measured.
        let small = BatchCost { tokens: 16, us: 320 };
        registry.measured(0, "gpu:2", &[small]);
        assert_eq!(registry.known_costs()[0]["gpu:2"], [small]);
    }

    /// Callers would wait for both, and each of them for the other.
    #[test]
    fn one_worker_is_measured_at_a_time() {
        let mut registry = unlike();
        (0..2).for_each(|worker| registry.note_left(worker, 0));
        let due =
            |registry: &mut Registry| [0, 1, 0].map(|worker| registry.is_to_measure(worker, 3, 10));
        assert_eq!(due(&mut registry), [true, false, true]);
        registry.measured(0, "gpu:0", &[]);
        assert_eq!(due(&mut registry), [false, false, false]);
        registry.obeyed(0, Order::Check, Default::default());
        assert_eq!(due(&mut registry), [false, true, false]);
    }

    /// Else what was guessed would be kept for the next start, or a slow device have the next batch.
    #[test]
    fn a_measurement_of_nothing_leaves_what_was_known_and_is_not_tried_again_at_once() {
        let mut slow = unlike();
        slow.note_left(0, 0);
        slow.measured(0, "gpu:0", &[]);
        assert!(!slow.is_to_measure(0, 0, 0));
        assert!(slow.wait_for_others(0, FULL, 0).is_some());
        slow.note_left(0, 1);
        assert!(slow.is_to_measure(0, 0, 1));
        let mut guessed = registry(&[("gpu:0", Some(QUICK_US)), ("gpu:1", None)]);
        let is_guessed = |registry: &Registry| {
            assert!(registry.is_quick(1, FULL, QUICK_US), "as the other is");
            assert!(
                !registry.knows(0, "gpu:1") && !registry.known_costs()[0].contains_key("gpu:1")
            );
        };
        guessed.measured(0, "gpu:1", &[]);
        is_guessed(&guessed);
        guessed.learn(1, FULL, QUICK_US);
        guessed.measured(0, "gpu:1", &[]);
        is_guessed(&guessed);
    }

    #[test]
    fn who_may_leave_it_to_another_is_not_woken_alone() {
        let of = |first, second| registry(&[("gpu:0", first), ("gpu:1", second)]);
        let (quick, slow) = (Some(QUICK_US), Some(TIMES * QUICK_US));
        assert!(of(slow, quick).is_choosy(FULL) && of(quick, slow).is_choosy(FULL));
        let alike = of(Some(QUICK_US * 6 / 5), quick);
        assert!(alike.is_mixed() && !alike.is_choosy(FULL));
        assert_eq!([0, 1].map(|worker| alike.wait_for_others(worker, FULL, 0)), [None; 2]);
        assert!(!of(None, slow).is_choosy(FULL), "it is taken for the other");
        assert!(!of(None, None).is_choosy(FULL));
    }

    #[test]
    fn who_moves_to_another_device_has_what_is_known_there() {
        let mut registry = unlike();
        registry.moved(0, "gpu:1");
        assert!(!registry.is_mixed());
        assert!(registry.is_quick(0, FULL, QUICK_US));
    }

    #[test]
    fn devices_together_have_done_what_none_has_alone() {
        let [slow, quick] = [Some(TIMES * QUICK_US), Some(QUICK_US)];
        let registry = registry(&[("gpu:0", slow), ("gpu:1", quick), ("gpu:2", quick)]);
        assert!(registry.wait_for_others(0, 8 * FULL, 0).is_some(), "each has done 4 in 4 ms of 5");
        assert_eq!(registry.wait_for_others(0, 9 * FULL, 0), None);
    }
}
