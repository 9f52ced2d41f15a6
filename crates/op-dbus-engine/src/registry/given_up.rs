//! Which workers are given up: those that can't be loaded, and those that can and lose what they compute. One that is
//! given up is tried again all the same, but nobody waits for it, and while it has no backend it is gone.

use super::{Registry, Worker};
use crate::backend::{BackendError, Description};

/// Failed loads in a row of every worker of a pool after which nobody waits for them.
const LOAD_FAILURES_MAX: u32 = 3;
/// Microseconds of failed loads in a row that are as much where another pool can take over: a caller over D-Bus
/// waits for 25 s by itself, of which the batch that was lost has had most. A device may have loads that long,
/// and its memory may be free a moment late, so that one does not count.
const LOAD_FAILURES_US_MAX: u64 = 5_000_000;
const DEVICE_LOADS_MIN: u32 = 2;
/// Batches that a worker loses before its short proof is not enough any more: as often as one text is tried.
const LOSSES_TRUSTED: u32 = 2;
/// Batches that a worker computes after a loss before that is forgotten. After fewer, a device that is lost again and
/// again would never be left: what it is lost with may well be computed by its next worker.
const FORGETS: u64 = 32;

impl Registry {
    /// Whether nobody waits for a worker any more: it could not be loaded, or loses what it computes.
    pub(super) fn is_given_up(&self, worker: &Worker) -> bool {
        let fails = worker.load_failures >= LOAD_FAILURES_MAX || self.loads_slowly(worker);
        fails || self.loses(worker)
    }

    /// Whether a worker computes, or soon will again: one that is there does so also where it is given up.
    pub(super) fn is_relied_on(&self, worker: &Worker) -> bool {
        worker.is_there() || !self.is_given_up(worker)
    }

    /// Whether a worker is given up and has no backend, until it has proved itself again: one that was unloaded is
    /// tried anew, and may be as gone as before.
    fn is_gone(&self, worker: &Worker) -> bool {
        !worker.is_there() && (worker.was_given_up || self.is_given_up(worker))
    }

    /// Whether its failed loads took so long that nobody waits for another one.
    fn loads_slowly(&self, worker: &Worker) -> bool {
        let pool = &self.pools[worker.pool];
        let enough = if pool.holds_device { DEVICE_LOADS_MIN } else { 1 };
        let slow = worker.load_failures_us >= LOAD_FAILURES_US_MAX;
        pool.losses_max.is_some() && worker.load_failures >= enough && slow
    }

    /// A worker could not be replaced, which took so many microseconds.
    pub fn load_failed(&mut self, worker: usize, error: &BackendError, took_us: u64) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.is_loading = false;
        worker.load_failures += 1;
        worker.load_failures_us += took_us;
        worker.status.last_error = Some(error.to_string());
        let pool = worker.pool;
        // It may have been this one that called for smaller batches, and is given up.
        self.plan_for(pool);
    }

    /// Whether a worker has lost so many batches of late that its proofs count no more.
    fn loses(&self, worker: &Worker) -> bool {
        self.pools[worker.pool].losses_max.is_some_and(|max| worker.losses >= max)
    }

    /// What a worker is doubted for, whose short proofs passed and whose batches were lost: it has to compute
    /// larger ones before callers' come to it, as long as another one computes those.
    pub fn doubts(&self, worker: usize) -> Option<String> {
        let own = self.workers.get(worker).filter(|own| own.losses >= LOSSES_TRUSTED)?;
        let others = self.ordinary().any(|other| !std::ptr::eq(own, other) && other.is_there());
        others.then(|| format!("{} lost {} batches of late", own.device(), own.losses))
    }

    /// Whether other devices of a worker's pool compute: nobody waits for its own then.
    pub fn has_other_devices(&self, worker: usize) -> bool {
        let Some(own) = self.workers.get(worker) else { return false };
        let mut others = self.ordinary().filter(|other| other.device() != own.device());
        others.any(|other| other.pool == own.pool && other.is_there())
    }

    /// A worker was lost with a batch, with whose text the worker `lost_on` was lost before, by itself.
    pub fn lost_batch(&mut self, worker: usize, lost_on: Option<usize>, error: &BackendError) {
        let Some(lost) = self.workers.get_mut(worker) else { return };
        lost.losses += 1;
        lost.forgets_at = lost.forgets_at.max(lost.status.batches + 1);
        lost.status.last_error = Some(error.to_string());
        // Somebody who kills it, or others who fill its memory, are soon forgotten.
        if !error.is_its_own() {
            return;
        }
        lost.forgets_at = lost.status.batches + FORGETS;
        let pool = lost.pool;
        let Some(lost_on) = lost_on.filter(|it| self.workers[*it].pool == pool) else { return };
        // The text fails, or the pool: whoever takes its place tells. What two pools fail, neither is left for.
        for index in [lost_on, worker] {
            let Worker { losses, forgets_at, status, .. } = &mut self.workers[index];
            *losses = (*losses).max(self.pools[pool].losses_max.unwrap_or_default());
            *forgets_at = status.batches + FORGETS;
        }
    }

    /// The workers of the pool that was asked for.
    fn asked_for(&self) -> impl Iterator<Item = &Worker> {
        self.ordinary().filter(|worker| worker.pool == 0)
    }

    /// Whether all workers of the pool that was asked for are given up.
    pub fn is_failing(&self) -> bool {
        let mut first = self.asked_for().peekable();
        first.peek().is_some() && first.all(|worker| self.is_given_up(worker))
    }

    /// Whether all workers are gone, and not all of them were unloaded since: others are still being tried.
    pub fn all_are_lost(&self) -> bool {
        self.ordinary().all(|worker| self.is_gone(worker))
            && self.ordinary().any(|worker| self.is_given_up(worker))
    }

    /// Who computes in place of the workers that were asked for, once these are given up and gone, until one has proved
    /// itself again; and why.
    pub fn stand_in(&self) -> Option<(Description, String)> {
        if !self.asked_for().all(|own| self.is_gone(own)) {
            return None;
        }
        let own = &self.asked_for().next()?.status;
        let other = self.ordinary().find(|worker| worker.pool != 0 && self.is_relied_on(worker))?;
        let error = own.last_error.clone().unwrap_or_default();
        let why = format!("{} could not be loaded again ({error})", own.description.provider);
        Some((other.status.description.clone(), why))
    }

    /// What the workers of the pool that was asked for are given up for, if it is that they lose batches.
    pub fn losses(&self) -> Option<String> {
        let worker = self.asked_for().find(|worker| self.loses(worker))?;
        let error = worker.status.last_error.clone().unwrap_or_default();
        self.is_failing().then(|| format!("lost {} batches of late ({error})", worker.losses))
    }

    /// What the workers of the pool that was asked for are given up for, if who looks for them once more would
    /// find them as they are, or wait as long.
    pub fn in_vain(&self) -> Option<String> {
        let slow = || {
            let worker = self.asked_for().find(|worker| self.loads_slowly(worker))?;
            let seconds = worker.load_failures_us / 1_000_000;
            let error = worker.status.last_error.clone().unwrap_or_default();
            self.is_failing().then(|| format!("could not be loaded again in {seconds} s ({error})"))
        };
        self.losses().or_else(slow)
    }

    /// What the workers were lost with was no fault of theirs.
    pub fn acquit(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.losses = 0);
    }

    /// Nothing takes the place of workers that lose batches or load slowly: they are not given up for that any
    /// more.
    pub fn keep_trying(&mut self) {
        self.pools.iter_mut().for_each(|pool| pool.losses_max = None);
    }

    /// The opposite of [`Registry::keep_trying`]: the workers of the pool that was asked for are given up when each has
    /// lost so many batches, those that it lost of late among them.
    pub fn give_up_after(&mut self, losses: u32) {
        self.pools.iter_mut().take(1).for_each(|pool| pool.losses_max = Some(losses));
    }

    /// Why nobody computes any more, if that is so.
    pub fn refusal(&self) -> Option<BackendError> {
        let first = self.workers.first()?;
        let given_up = self.ordinary().all(|worker| self.is_given_up(worker));
        // It says already that the worker was lost, or why it can't be had.
        given_up.then(|| BackendError::Failed(first.status.last_error.clone().unwrap_or_default()))
    }
}
