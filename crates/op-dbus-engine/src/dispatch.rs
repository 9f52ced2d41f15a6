//! Worker threads: each owns a backend, pulls batches, runs them, and replaces a lost backend.

mod buffer;
mod check;
mod failure;
mod replace;
mod undelivered;

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::backend::{Backend, BackendError, Begin, Description, Gone};
use crate::cache::Cache;
use crate::config::{ModelShape, Pool};
use crate::planner::Plan;
use crate::proof::{load, not_finite, run_finite};
use crate::registry::{Loaded, Order};
use crate::scheduler::{Entry, Next, Row, Scheduler};
use crate::status::WorkerState;
use buffer::BatchBuffer;
use undelivered::Undelivered;

/// Journal message id of the event that a worker was lost.
pub const WORKER_LOST_MESSAGE_ID: &str = "658a8ad6405c4659a17822c6a0d74d7b";

/// Journal message id of the event that a lost worker was replaced.
pub const WORKER_REPLACED_MESSAGE_ID: &str = "f7194eb9dd354cc291dccab3648fcca1";

/// What [`Shared::backoff`] is, but where time is made up.
pub(crate) const BACKOFF: Duration = Duration::from_millis(100);

/// What all worker threads share.
pub(crate) struct Shared {
    pub scheduler: Arc<Scheduler>,
    /// Where vectors are kept, and the engine's number there.
    pub cache: Arc<Cache>,
    pub number: u64,
    pub pools: Vec<Pool>,
    pub model: ModelShape,
    /// Token ids of a short text, run on each backend before it is trusted.
    pub probe: Box<[i32]>,
    /// Wait before the third try in a row to have a working backend; doubled for each later one.
    pub backoff: Duration,
}

/// Which worker: its index among all, its pool, and its number there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerId {
    pub index: usize,
    pub pool: usize,
    pub number: usize,
    /// Whether it is in reserve, and so has a backend only while it is needed.
    pub reserved: bool,
}

struct Worker {
    id: WorkerId,
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    /// What the backend said of itself when it was loaded.
    description: Description,
    /// The batch that is computed.
    current: BatchBuffer,
    /// The one that comes next, if the backend has begun it.
    next: BatchBuffer,
    begun: bool,
    out: Vec<f32>,
    /// The last batch, until its vectors are delivered.
    undelivered: Undelivered,
    /// The batch that comes next, if it was planned while another was computed.
    ahead: Plan<Row>,
    /// Losses and failed loads since the last batch or check that ran.
    strikes: u32,
    told: failure::Reasons,
}

/// How a worker's first load went.
pub(crate) type Report = (WorkerId, Result<Loaded, BackendError>);

/// The body of a worker's thread: says by `ready` how the first load went, then works until the
/// engine stops; one that has failed tries to load again before that. One in reserve has nothing to say and makes
/// itself a backend when it is needed. `begin` is closed once all workers are known.
pub(crate) fn work(
    id: WorkerId,
    shared: Arc<Shared>,
    ready: SyncSender<Report>,
    begin: std::sync::mpsc::Receiver<()>,
) {
    let loaded = (!id.reserved).then(|| load(id, &shared));
    if let Some(loaded) = &loaded {
        let told = loaded.as_ref().map(|backend| Loaded::of(backend.as_ref()));
        if ready.send((id, told.map_err(Clone::clone))).is_err() {
            return;
        }
    }
    drop(ready);
    // Closed, never sent on.
    let _ = begin.recv();
    let scheduler = Arc::clone(&shared.scheduler);
    match loaded {
        Some(Ok(backend)) => Worker::new(id, shared, backend).work(),
        Some(Err(_)) => {
            let mut worker = Worker { strikes: 1, ..Worker::without_backend(id, shared) };
            // Not where none of its pool was loaded: with that the engine has stopped.
            if worker.replace() {
                worker.work();
            }
        }
        None => Worker::without_backend(id, shared).work(),
    }
    scheduler.change(|registry| registry.set(id.index, WorkerState::Stopped));
}

impl Worker {
    /// One of which the registry knows what its backend will be.
    fn without_backend(id: WorkerId, shared: Arc<Shared>) -> Self {
        let like = shared.scheduler.registry(|registry| registry.description(id.index));
        Self::new(id, shared, Box::new(Gone(like.unwrap_or_default())))
    }

    fn new(id: WorkerId, shared: Arc<Shared>, backend: Box<dyn Backend>) -> Self {
        let description = backend.description().clone();
        let ([current, next], out, undelivered, ahead, told) = Default::default();
        Self {
            id,
            shared,
            backend,
            description,
            current,
            next,
            begun: false,
            out,
            undelivered,
            ahead,
            strikes: 0,
            told,
        }
    }

    fn work(mut self) {
        let mut plan = Plan::default();
        while self.step(&mut plan, true) {}
    }

    /// Does what comes next; false once the engine has stopped. Waits for it if it is `patient`.
    fn step(&mut self, plan: &mut Plan<Row>, patient: bool) -> bool {
        let scheduler = Arc::clone(&self.shared.scheduler);
        // With vectors to deliver only what is there at once is taken: they are delivered while
        // the backend computes it, or right away.
        let wait = patient && self.undelivered.is_empty();
        let ahead = (&mut self.ahead, self.begun);
        let next = match scheduler.take_ahead(self.id.index, ahead, plan) {
            true => Next::Batch,
            false => scheduler.next_batch(self.id.index, plan, wait),
        };
        if next != Next::Batch {
            self.undelivered.deliver(&self.description);
        }
        let result = match next {
            Next::Batch => self.run(&mut plan.batch, 0),
            Next::Check => self.check(),
            Next::Trim => self.trim(),
            Next::Unload => {
                self.unload();
                return true;
            }
            Next::Load => {
                scheduler.change(|registry| registry.set(self.id.index, WorkerState::Loading));
                return self.replace();
            }
            Next::Nothing => return true,
            Next::Stopped => return false,
        };
        let Err(error) = result else { return true };
        let provider = &self.backend.description().provider;
        tracing::warn!(
            MESSAGE_ID = WORKER_LOST_MESSAGE_ID,
            worker = self.id.index,
            provider,
            %error,
            "worker lost, replacing it: {error}"
        );
        scheduler.lost(self.id.index, &error);
        self.strikes += 1;
        self.replace()
    }

    /// Gives back what only the next batch would use.
    ///
    /// # Errors
    /// The backend is lost.
    fn trim(&mut self) -> Result<(), BackendError> {
        ([self.current, self.next], self.out, self.undelivered) = Default::default();
        let did = (self.backend.trim()?, self.backend.memory());
        self.shared.scheduler.change(|registry| registry.obeyed(self.id.index, Order::Trim, did));
        Ok(())
    }

    /// Lets the backend go, and with it all of its memory.
    fn unload(&mut self) {
        self.backend = Box::new(Gone(self.description.clone()));
        ([self.current, self.next], self.out, self.undelivered) = Default::default();
        self.strikes = 0;
        self.shared.scheduler.change(|registry| registry.unloaded(self.id.index));
    }

    /// Runs a batch, in parts if the device can't hold it.
    ///
    /// # Errors
    /// The backend is lost; all rows without a vector are back in the queue or failed.
    fn run(&mut self, batch: &mut Vec<Entry>, halvings: u32) -> Result<(), BackendError> {
        if halvings > 0 {
            self.shared.scheduler.runs(self.id.index, batch);
        }
        let error = match self.compute(batch, halvings == 0) {
            Ok(true) => {
                self.strikes = 0;
                return Ok(());
            }
            // Nothing was begun beside it.
            Ok(false) if batch.iter().any(|entry| entry.failed_on.is_some()) => {
                return self.not_finite_again(batch);
            }
            Ok(false) => not_finite(),
            Err(error) => error,
        };
        if mem::take(&mut self.begun) && !error.is_loss() {
            // Before it is asked for anything else.
            self.backend.forget_begun();
        }
        match error {
            BackendError::OutOfMemory(_) => self.did_not_fit(batch, error, halvings),
            BackendError::Failed(_) => self.failed(batch, &error),
            BackendError::Lost(_) | BackendError::Killed(_) | BackendError::Load { .. } => {
                self.ended(batch, error)
            }
        }
    }

    /// Computes one batch, unless that was begun before, and delivers the one before meanwhile. Tells whether all
    /// values are numbers; the rows stay in `entries` if they are not, or this fails. The next one may be begun beside
    /// a `whole` one.
    fn compute(&mut self, entries: &mut Vec<Entry>, whole: bool) -> Result<bool, BackendError> {
        let was_begun = mem::take(&mut self.begun);
        match was_begun {
            true => mem::swap(&mut self.current, &mut self.next),
            false => self.current.fill(entries),
        }
        let values = entries.len() * self.shared.model.dimensions;
        // It keeps the length of the largest batch: to clear it again and again would cost what copying does.
        self.out.resize(self.out.len().max(values), f32::NAN);
        let scheduler = &self.shared.scheduler;
        // What was begun is computed as soon as the one before is done.
        let started_us = match was_begun {
            true => self.undelivered.ended_us,
            false => scheduler.clock.now_us(),
        };
        let batch = self.current.batch();
        let Self { undelivered, description, ahead, next, begun, id, .. } = self;
        let on_device = description.buckets.is_some();
        // Texts that may be what a backend fails by are computed beside no others.
        let beside =
            whole && self.backend.begins() && entries.iter().all(|entry| entry.failed_on.is_none());
        let mut meanwhile = |begin: &mut Begin<'_>| {
            undelivered.deliver(description);
            if on_device && scheduler.plan_ahead(id.index, ahead) && beside {
                next.fill(&ahead.batch);
                *begun = begin(&next.batch());
            }
        };
        let out = &mut self.out[..values];
        let is_finite = run_finite(self.backend.as_mut(), &batch, out, &mut meanwhile);
        // Also if the backend has not found the time.
        undelivered.deliver(description);
        if !is_finite? {
            return Ok(false);
        }
        let padded = match description.buckets {
            Some(buckets) => buckets.tokens(&batch),
            None => self.shared.pools[self.id.pool].batch.layout.tokens(&batch),
        };
        scheduler.stats.batch(&batch, padded);
        let ended_us = scheduler.clock.now_us();
        let us = ended_us.saturating_sub(started_us);
        let memory = self.backend.memory();
        // What it took to find another device tells of neither.
        let stayed = self.backend.description().device == self.description.device;
        scheduler.registry(|registry| registry.ran(self.id.index, &batch, (us, stayed), memory));
        mem::swap(&mut undelivered.entries, entries);
        mem::swap(&mut undelivered.vectors, &mut self.out);
        (undelivered.started_us, undelivered.ended_us) = (started_us, ended_us);
        self.moves();
        Ok(true)
    }

    /// Notes where the backend computes now.
    fn moves(&mut self) {
        let now = &self.backend.description().device;
        if *now != self.description.device {
            self.description.device.clone_from(now);
            self.shared.scheduler.change(|registry| registry.moved(self.id.index, now));
        }
    }
}

#[cfg(test)]
mod histories;
