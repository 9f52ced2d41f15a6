//! Workers that compute interactive work alone, and those that they stand beside.

use super::{Loaded, Registry, Worker};
use crate::call::Priority;
use crate::reserve::Serves;
use crate::routing::Running;
use crate::status::WorkerState;

impl Registry {
    /// Those that compute whatever waits.
    pub(super) fn ordinary(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| !worker.status.reserved)
    }

    /// How many of those there are.
    pub fn ordinary_workers(&self) -> usize {
        self.ordinary().count()
    }

    /// The pools of the reserved workers, each with what tells most of them: an ordinary one of the pool.
    pub(super) fn like_loaded(&self, workers: &[(usize, Loaded)]) -> Vec<(usize, Loaded)> {
        let mut reserved = Vec::new();
        for (index, pool) in self.pools.iter().enumerate() {
            let like = workers.iter().find(|(pool, _)| *pool == index);
            let like = like.map(|(_, like)| (index, like.absent(None)));
            reserved.extend(like.into_iter().cycle().take(pool.reserved));
        }
        reserved
    }

    /// Whom a worker computes for.
    pub fn serves(&self, worker: usize) -> Serves {
        match self.workers.get(worker) {
            Some(worker) if worker.status.reserved => Serves::Interactive,
            _ => Serves::Everybody,
        }
    }

    /// Whether interactive work waits for what a reserve does not: nobody is idle, and somebody computes bulk, or there
    /// is nobody.
    pub fn wants_reserve(&self) -> bool {
        let is_bulk = |running: &Running| running.class == Priority::Bulk;
        let idle = self.ordinary().any(|worker| worker.status.state == WorkerState::Idle);
        let bulk = self.ordinary().any(|worker| worker.running.as_ref().is_some_and(is_bulk));
        !idle && (bulk || !self.any_is_there())
    }

    /// Whether a reserved worker is in this state.
    pub fn has_reserve(&self, state: WorkerState) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|worker| worker.status.reserved && worker.status.state == state)
    }
}
