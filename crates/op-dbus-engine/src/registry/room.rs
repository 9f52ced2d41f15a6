//! Whether a device has the memory for a batch. One that has not is passed over while another has.

use std::time::Duration;

use super::{Registry, Worker, longest_wait};
use crate::usage::MemoryUse;

/// A batch takes more than once what is counted of it: inputs and results at the same time, and pieces
/// that don't fit where others were.
const TIMES: u64 = 2;

impl Worker {
    /// Bytes that a batch of `tokens` takes in the device's memory, by what was seen of others; none
    /// where nothing is known.
    fn takes(&self, tokens: usize) -> Option<u64> {
        let arena = self.status.memory.arena;
        let scaled = |bytes: u64, of_tokens: u64| {
            (of_tokens > 0).then(|| bytes.saturating_mul(tokens as u64) / of_tokens)
        };
        let largest = self.largest.max(self.status.description.largest_tokens) as u64;
        let computed =
            arena.and_then(|arena| scaled(arena.in_use_max.saturating_sub(arena.in_use), largest));
        let (bytes, of_tokens) = self.moved;
        computed.max(scaled(bytes, of_tokens))
    }

    /// Takes note of what a batch of `tokens` moved, of which `memory` was told: what else did, as a check does,
    /// has been told before.
    pub(super) fn has_moved(&mut self, memory: MemoryUse, tokens: usize) {
        let bytes = |memory: MemoryUse| {
            memory.transfers.map(|moved| moved.in_place.saturating_add(moved.copied))
        };
        let Some(all) = bytes(memory) else { return };
        let before = bytes(self.status.memory).unwrap_or(0);
        self.moved.0 = self.moved.0.saturating_add(all.saturating_sub(before));
        self.moved.1 = self.moved.1.saturating_add(tokens as u64);
    }

    /// Whether there is room for a batch of `tokens`: in what the worker has of the device already, or
    /// for twice of what is missing in what is free there. Nobody is passed over for what isn't known.
    fn has_room(&self, tokens: usize) -> bool {
        let (Some(free), Some(takes)) = (self.free, self.takes(tokens)) else { return true };
        let arena = self.status.memory.arena;
        let held = arena.map_or(0, |arena| arena.bytes.saturating_sub(arena.in_use));
        takes.saturating_sub(held).saturating_mul(TIMES) <= free
    }
}

impl Registry {
    /// Tokens of a worker's largest batch.
    pub(super) fn tokens_max(&self, worker: &Worker) -> usize {
        self.pools.get(worker.pool).map_or(0, |pool| pool.planner.tokens_max())
    }

    /// Whether a worker has room for the next batch of what waits.
    pub(super) fn has_room(&self, worker: &Worker, waiting_tokens: usize) -> bool {
        worker.has_room(waiting_tokens.min(self.tokens_max(worker)))
    }

    /// How long `worker` leaves the next batch to one that has room for it, and may hang; none where it has room itself,
    /// or nobody has.
    pub(super) fn wait_for_room(
        &self,
        worker: usize,
        waiting_tokens: usize,
        now_us: u64,
    ) -> Option<Duration> {
        if self.has_room(self.workers.get(worker)?, waiting_tokens) {
            return None;
        }
        let others = self.ordinary().filter(|other| other.stays());
        longest_wait(others.filter(|other| self.has_room(other, waiting_tokens)), now_us)
    }

    /// Takes note of the bytes that are free on a device; none where that is not known any more. Tells
    /// the workers there for whom it has begun or ceased to be too little for a full batch.
    pub fn set_free(&mut self, device: &str, free: Option<u64>) -> Vec<(usize, bool)> {
        let mut changed = Vec::new();
        for index in 0..self.workers.len() {
            if self.workers[index].device() != device {
                continue;
            }
            self.workers[index].free = free;
            let is_short = !self.has_room(&self.workers[index], usize::MAX);
            let status = &mut self.workers[index].status;
            if status.is_short_of_memory != is_short {
                status.is_short_of_memory = is_short;
                changed.push((index, is_short));
            }
        }
        changed
    }

    /// What became of the memory that all workers together keep for batches.
    pub fn memory(&self) -> MemoryUse {
        self.workers.iter().fold(MemoryUse::default(), |sum, worker| sum.and(worker.status.memory))
    }

    /// Whether the next batch of what waits, so many tokens, has room with some worker and with another one has not.
    pub(super) fn is_roomier(&self, waiting_tokens: usize) -> bool {
        let mut rooms = self.ordinary().filter(|worker| worker.is_there());
        let first = rooms.next().map(|worker| self.has_room(worker, waiting_tokens));
        first
            .is_some_and(|first| rooms.any(|worker| self.has_room(worker, waiting_tokens) != first))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{loaded, loaded_on, of_workers, pool};
    use super::super::{BUSY_US_MAX, Loaded, Order};
    use super::*;
    use crate::backend::{BackendError, Footprint};
    use crate::batch::Batch;
    use crate::call::Priority;
    use crate::routing::Running;
    use crate::usage::{ArenaUse, TransferUse};

    const TOKENS: usize = 512;
    /// Tokens that wait.
    const WAITING: usize = 10_000;

    /// Two devices, each with a worker that has computed 1,000 tokens.
    fn registry(memory: MemoryUse) -> Registry {
        let workers = vec![(0, loaded_on("gpu:0")), (0, loaded_on("gpu:1"))];
        let mut registry = of_workers(&[pool()], workers);
        for worker in &mut registry.workers {
            worker.has_moved(memory, 1_000);
            (worker.status.memory, worker.largest) = (memory, TOKENS);
        }
        registry
    }

    fn moved(bytes: u64) -> MemoryUse {
        let transfers = Some(TransferUse { in_place: bytes / 2, copied: bytes / 2 });
        MemoryUse { transfers, ..MemoryUse::default() }
    }

    #[test]
    fn a_device_with_less_than_twice_of_what_a_batch_takes_is_passed_over() {
        // 100 bytes for a token, and 512 tokens in a batch.
        let mut registry = registry(moved(100_000));
        assert_eq!(registry.wait_for_others(0, WAITING, 0), None, "nothing is known");
        assert_eq!(registry.set_free("gpu:0", Some(2 * 51_200)), []);
        assert_eq!(registry.wait_for_others(0, WAITING, 0), None);
        assert_eq!(registry.set_free("gpu:0", Some(2 * 51_200 - 1)), [(0, true)]);
        assert!(registry.wait_for_others(0, WAITING, 0).is_some());
        assert_eq!(registry.wait_for_others(1, WAITING, 0), None);
        assert_eq!(registry.wait_for_others(0, 100, 0), None, "a small one fits");
        assert_eq!(registry.set_free("gpu:0", None), [(0, false)]);
        assert_eq!(registry.wait_for_others(0, WAITING, 0), None);
    }

    /// Else one that is woken alone would leave it to one that sleeps. Where all have room, nobody does.
    #[test]
    fn all_are_asked_where_one_device_lacks_the_room_that_another_has() {
        let mut registry = registry(moved(100_000));
        let mut set = |free: [u64; 2]| {
            for (device, free) in ["gpu:0", "gpu:1"].into_iter().zip(free) {
                registry.set_free(device, Some(free));
            }
            [WAITING, 100].map(|tokens| registry.is_choosy(tokens))
        };
        assert_eq!(set([2 * 51_200; 2]), [false, false]);
        assert_eq!(set([2 * 51_200 - 1, 2 * 51_200]), [true, false]);
        assert_eq!(set([2 * 51_200 - 1; 2]), [false, false]);
    }

    /// Which would take the memory from whoever has it.
    #[test]
    fn a_device_without_room_that_has_left_batches_to_others_for_long_is_not_measured_anew() {
        let mut registry = registry(moved(100_000));
        registry.note_left(0, 0);
        for (free, is_measured) in [(None, true), (Some(0), false), (None, true)] {
            registry.set_free("gpu:0", free);
            assert_eq!(registry.is_to_measure(0, 1, 1), is_measured, "{free:?}");
        }
    }

    #[test]
    fn bytes_that_no_batch_has_moved_are_not_counted_for_one() {
        let mut registry = registry(MemoryUse::default());
        let fresh = || Loaded { memory: moved(1_000_000), ..loaded(0) };
        let ran = |registry: &mut Registry, bytes| {
            registry.ran(0, &Batch { ids: &[1; 100], lengths: &[100] }, (1, true), moved(bytes));
            assert_eq!(registry.workers[0].takes(TOKENS), Some(51_200));
        };
        registry.loaded(0, fresh());
        ran(&mut registry, 1_010_000);
        registry.obeyed(0, Order::Check, (Footprint::default(), moved(2_000_000)));
        ran(&mut registry, 2_010_000);
        // The next backend counts anew.
        registry.lost(0, &BackendError::Lost("on purpose".into()));
        registry.loaded(0, fresh());
        ran(&mut registry, 1_010_000);
    }

    #[test]
    fn batches_are_what_is_good_for_all_workers_and_grow_again() {
        let mut registry = registry(moved(100_000));
        registry.pools[0].batch.tokens_measured = true;
        let mut load = |worker: usize, batch_tokens| {
            registry.loaded(worker, loaded(batch_tokens));
            registry.planner(worker).unwrap().tokens_max()
        };
        let all = load(0, 1 << 20);
        assert_eq!(load(1, 1 << 20), all, "what the settings allow");
        assert_eq!([load(0, 64), load(1, 128), load(1, 256)], [64, 64, 64]);
        // Measured anew without what was beside it.
        assert_eq!([load(0, 128), load(0, 512)], [128, 256]);
        assert_eq!(registry.planner(0).unwrap().did_not_fit(200, 0), Some(100));
        registry.loaded(1, loaded(512));
        assert_eq!(
            registry.planner(0).unwrap().tokens_max(),
            100,
            "the device is as full as before"
        );
    }

    #[test]
    fn where_no_device_has_room_or_the_other_hangs_or_is_let_go_nobody_waits_for_ever() {
        let mut registry = registry(moved(100_000));
        registry.set_free("gpu:0", Some(0));
        registry.runs(1, Running { class: Priority::Bulk, tokens: TOKENS, started_us: 1_000 });
        let wait = |registry: &Registry, now_us| registry.wait_for_others(0, WAITING, now_us);
        assert_eq!(wait(&registry, 1_000), Some(Duration::from_micros(BUSY_US_MAX)));
        assert_eq!(wait(&registry, 1_000 + BUSY_US_MAX), None);
        registry.set_free("gpu:1", Some(0));
        assert_eq!(wait(&registry, 1_000), None);
        registry.set_free("gpu:1", None);
        assert!(wait(&registry, 1_000).is_some());
        registry.leaves_backend(1);
        assert_eq!(wait(&registry, 1_000), None);
    }

    #[test]
    fn what_the_arena_has_need_not_be_free() {
        // Beside the model's 1,000 a full batch took 4,000 of 5,000 bytes.
        let arena = ArenaUse { bytes: 5_000, in_use: 1_000, in_use_max: 5_000, hits: 9, misses: 1 };
        let mut warm = registry(MemoryUse { arena: Some(arena), ..MemoryUse::default() });
        assert_eq!(warm.set_free("gpu:0", Some(0)), []);
        // Given back down to 2,000: 3,000 are missing.
        let arena = ArenaUse { bytes: 2_000, ..arena };
        let mut trimmed = registry(MemoryUse { arena: Some(arena), ..MemoryUse::default() });
        assert_eq!(trimmed.set_free("gpu:0", Some(6_000)), []);
        assert_eq!(trimmed.set_free("gpu:0", Some(5_999)), [(0, true)]);
        // What was tried while it was loaded, and was twice what its batches have, took 4,000 as well.
        for worker in &mut trimmed.workers {
            worker.status.description.largest_tokens = 2 * TOKENS;
        }
        assert_eq!(trimmed.set_free("gpu:0", Some(2_000)), [(0, false)]);
    }

    #[test]
    fn what_a_backend_takes_is_not_told_by_the_batches_of_the_one_before() {
        let ends: [fn(&mut Registry); 2] =
            [|all| all.lost(0, &BackendError::Lost("on purpose".into())), |all| all.unloaded(0)];
        for end in ends {
            let mut registry = registry(MemoryUse::default());
            end(&mut registry);
            registry.loaded(0, loaded(0));
            // An eighth of the largest that the one before ran.
            let arena = ArenaUse { bytes: 500, in_use: 0, in_use_max: 500, hits: 0, misses: 1 };
            let memory = MemoryUse { arena: Some(arena), ..MemoryUse::default() };
            registry.ran(0, &Batch { ids: &[1; 64], lengths: &[64] }, (1, true), memory);
            assert_eq!(registry.workers[0].takes(TOKENS), Some(4_000));
        }
    }
}
