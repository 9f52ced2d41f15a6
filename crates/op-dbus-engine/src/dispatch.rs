//! Worker threads: each owns a backend, pulls batches, runs them, and replaces a lost backend.

mod check;
mod computed;
mod input;
mod replace;

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::backend::{Backend, BackendError, Begin, Description, Gone};
use crate::cache::Cache;
use crate::config::{ModelShape, Pool};
use crate::planner::Plan;
use crate::proof::{self, load, run_checked};
use crate::roster::{Loaded, Order};
use crate::scheduler::{Entry, Next, Row, Scheduler};
use crate::status::WorkerState;
use computed::Computed;
use input::Input;

/// Journal message id of the event that a worker was lost.
pub const WORKER_LOST_MESSAGE_ID: &str = "658a8ad6405c4659a17822c6a0d74d7b";

/// Journal message id of the event that a lost worker was replaced.
pub const WORKER_REPLACED_MESSAGE_ID: &str = "f7194eb9dd354cc291dccab3648fcca1";

/// How often a batch that does not fit the device is halved.
const HALVINGS_MAX: u32 = 3;

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

/// Which worker: its place among all, its pool, and its number there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub index: usize,
    pub pool: usize,
    pub number: usize,
}

struct Worker {
    place: Place,
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    /// What the backend said of itself when it was loaded.
    description: Description,
    input: Input,
    /// That of the batch that comes next, if the backend has begun it.
    next: Input,
    begun: bool,
    out: Vec<f32>,
    /// The last batch, until its vectors are delivered.
    computed: Computed,
    /// The batch that comes next, if it was planned while another was computed.
    ahead: Plan<Row>,
    /// Losses and failed loads since the last batch or check that ran.
    strikes: u32,
    told: check::Reasons,
}

/// How a worker's first load went.
pub(crate) type Report = (Place, Result<Loaded, BackendError>);

/// The body of a worker's thread: says by `ready` how the first load went, then works until the
/// engine stops; one that has failed tries to load again before that. `begin` is closed once all workers are known.
pub(crate) fn work(
    place: Place,
    shared: Arc<Shared>,
    ready: SyncSender<Report>,
    begin: std::sync::mpsc::Receiver<()>,
) {
    let loaded = load(place, &shared);
    let told = loaded.as_ref().map(|backend| Loaded::of(backend.as_ref())).map_err(Clone::clone);
    let sent = ready.send((place, told));
    drop(ready);
    if sent.is_err() {
        return;
    }
    // Closed, never sent on.
    let _ = begin.recv();
    let scheduler = Arc::clone(&shared.scheduler);
    if let Ok(backend) = loaded {
        Worker::new(place, shared, backend).work();
    } else {
        let mut worker = Worker { strikes: 1, ..Worker::known(place, shared) };
        // Not where none of its pool was loaded: with that the engine has stopped.
        if worker.replace() {
            worker.work();
        }
    }
    scheduler.change(|roster| roster.set(place.index, WorkerState::Stopped));
}

/// The body of a reserved worker's thread, which makes itself a backend when it is needed.
pub(crate) fn stand_by(place: Place, shared: Arc<Shared>) {
    let scheduler = Arc::clone(&shared.scheduler);
    Worker::known(place, shared).work();
    scheduler.change(|roster| roster.set(place.index, WorkerState::Stopped));
}

impl Worker {
    /// One without a backend, of which the roster knows what it will be.
    fn known(place: Place, shared: Arc<Shared>) -> Self {
        let like = shared.scheduler.roster(|roster| roster.description(place.index));
        Self::reserved(place, shared, like.unwrap_or_default())
    }

    /// One without a backend.
    fn reserved(place: Place, shared: Arc<Shared>, like: Description) -> Self {
        Self::new(place, shared, Box::new(Gone(like)))
    }

    fn new(place: Place, shared: Arc<Shared>, backend: Box<dyn Backend>) -> Self {
        let description = backend.description().clone();
        let ([input, next], out, computed, ahead, told) = Default::default();
        Self {
            place,
            shared,
            backend,
            description,
            input,
            next,
            begun: false,
            out,
            computed,
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
        let wait = patient && self.computed.is_delivered();
        let ahead = (&mut self.ahead, self.begun);
        let next = scheduler.take_ahead(self.place.index, ahead, plan);
        let next = next.unwrap_or_else(|| scheduler.next_batch(self.place.index, plan, wait));
        if next != Next::Batch {
            self.computed.deliver(&self.description);
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
                scheduler.change(|roster| roster.set(self.place.index, WorkerState::Loading));
                return self.replace();
            }
            Next::Nothing => return true,
            Next::Stopped => return false,
        };
        let Err(error) = result else { return true };
        let provider = &self.backend.description().provider;
        tracing::warn!(
            MESSAGE_ID = WORKER_LOST_MESSAGE_ID,
            worker = self.place.index,
            provider,
            %error,
            "worker lost, replacing it: {error}"
        );
        scheduler.lost(self.place.index, &error);
        self.strikes += 1;
        self.replace()
    }

    /// Gives back what only the next batch would use.
    ///
    /// # Errors
    /// The backend is lost.
    fn trim(&mut self) -> Result<(), BackendError> {
        ([self.input, self.next], self.out, self.computed) = Default::default();
        let did = (self.backend.trim()?, self.backend.memory());
        self.shared.scheduler.change(|roster| roster.obeyed(self.place.index, Order::Trim, did));
        Ok(())
    }

    /// Lets the backend go, and with it all of its memory.
    fn unload(&mut self) {
        self.backend = Box::new(Gone(self.description.clone()));
        ([self.input, self.next], self.out, self.computed) = Default::default();
        self.strikes = 0;
        self.shared.scheduler.change(|roster| roster.unloaded(self.place.index));
    }

    /// Runs a batch, in parts if the device can't hold it.
    ///
    /// # Errors
    /// The backend is lost; all rows without a vector are back in the queue or failed.
    fn run(&mut self, batch: &mut Vec<Entry>, halvings: u32) -> Result<(), BackendError> {
        if halvings > 0 {
            self.shared.scheduler.runs(self.place.index, batch);
        }
        let Err(error) = self.compute(batch, halvings == 0) else {
            self.strikes = 0;
            return Ok(());
        };
        if mem::take(&mut self.begun) && !error.is_loss() {
            // Before it is asked for anything else.
            self.backend.forget_begun();
        }
        let scheduler = Arc::clone(&self.shared.scheduler);
        let device = self.shared.pools[self.place.pool].holds_device;
        // What a server takes at once is for its own backend to know.
        if device && matches!(error, BackendError::OutOfMemory(_)) {
            self.shrink(batch, &error);
            // Planned as large as this one was.
            scheduler.put_back(&mut self.ahead.batch);
        }
        // Nothing is begun beside a text that failed before.
        if proof::is_not_finite(&error) && batch.iter().any(|entry| entry.failed_on.is_some()) {
            return self.has_no_numbers(batch, error);
        }
        match error {
            BackendError::OutOfMemory(_) if halvings < HALVINGS_MAX && batch.len() > 1 => {
                let mut rest = batch.split_off(batch.len() / 2);
                if let Err(error) = self.run(batch, halvings + 1) {
                    scheduler.put_back(&mut rest);
                    return Err(error);
                }
                self.run(&mut rest, halvings + 1)
            }
            // A new worker begins with all of a device's memory that is free.
            BackendError::OutOfMemory(_) if device => self.lose(batch, error),
            // One text may be what the backend refuses; its neighbours must not pay for it.
            BackendError::OutOfMemory(_) => {
                self.refused(batch, &error);
                Ok(())
            }
            // Or it refuses all from here on, as a driver does in whose context a kernel has failed.
            BackendError::Failed(ref why) => match self.prove() {
                Ok(()) => {
                    self.refused(batch, &error);
                    Ok(())
                }
                Err(gone @ (BackendError::Lost(_) | BackendError::Killed(_))) => {
                    self.lose(batch, gone)
                }
                Err(also) => {
                    let why =
                        format!("it failed a batch ({why}) and then the engine's own text: {also}");
                    self.lose(batch, BackendError::Lost(why))
                }
            },
            BackendError::Lost(_) | BackendError::Killed(_) | BackendError::Load { .. } => {
                if self.backend.has_read_nothing() {
                    scheduler.put_back(&mut self.ahead.batch);
                    scheduler.missed(batch);
                    if batch.is_empty() {
                        return Err(error);
                    }
                }
                self.lose(batch, error)
            }
        }
    }

    /// Has the pool's batches made smaller than one that did not fit the device.
    fn shrink(&self, batch: &[Entry], error: &BackendError) {
        let (scheduler, worker) = (&self.shared.scheduler, self.place.index);
        let (tokens, now_us) = (batch.iter().map(|row| row.tokens).sum(), scheduler.clock.now_us());
        let fewer = scheduler.roster(|all| all.planner(worker)?.did_not_fit(tokens, now_us));
        if let Some(fewer) = fewer {
            let Description { provider, device, .. } = &self.description;
            tracing::warn!(
                worker,
                provider,
                %error,
                "a batch of {tokens} tokens did not fit {device}, batches have {fewer} at most for now: {error}"
            );
        }
    }

    /// Computes one batch, unless that was begun before, and delivers the one before meanwhile. The rows stay in
    /// `entries` if this fails. The next one may be begun beside a `whole` one.
    fn compute(&mut self, entries: &mut Vec<Entry>, whole: bool) -> Result<(), BackendError> {
        let was_begun = mem::take(&mut self.begun);
        match was_begun {
            true => mem::swap(&mut self.input, &mut self.next),
            false => self.input.fill(entries),
        }
        let values = entries.len() * self.shared.model.dimensions;
        // It keeps the length of the largest batch: to clear it again and again would cost what copying does.
        self.out.resize(self.out.len().max(values), f32::NAN);
        let scheduler = &self.shared.scheduler;
        // What was begun is computed as soon as the one before is done.
        let started_us = match was_begun {
            true => self.computed.ended_us,
            false => scheduler.clock.now_us(),
        };
        let batch = self.input.batch();
        let Self { computed, description, ahead, next, begun, place, .. } = self;
        let on_device = description.buckets.is_some();
        // Texts that may be what a backend fails by are computed beside no others.
        let beside =
            whole && self.backend.begins() && entries.iter().all(|entry| entry.failed_on.is_none());
        let mut meanwhile = |begin: &mut Begin<'_>| {
            computed.deliver(description);
            if on_device && scheduler.plan_ahead(place.index, ahead) && beside {
                next.fill(&ahead.batch);
                *begun = begin(&next.batch());
            }
        };
        let out = &mut self.out[..values];
        let result = run_checked(self.backend.as_mut(), &batch, out, &mut meanwhile);
        // Also if the backend has not found the time.
        computed.deliver(description);
        result?;
        let padded = match description.buckets {
            Some(buckets) => buckets.tokens(&batch),
            None => self.shared.pools[self.place.pool].batch.layout.tokens(&batch),
        };
        scheduler.stats.batch(&batch, padded);
        let ended_us = scheduler.clock.now_us();
        let us = ended_us.saturating_sub(started_us);
        let memory = self.backend.memory();
        // What it took to find another device tells of neither.
        let stayed = self.backend.description().device == self.description.device;
        scheduler.roster(|roster| roster.ran(self.place.index, &batch, (us, stayed), memory));
        mem::swap(&mut computed.entries, entries);
        mem::swap(&mut computed.vectors, &mut self.out);
        (computed.started_us, computed.ended_us) = (started_us, ended_us);
        self.moves();
        Ok(())
    }

    /// Notes where the backend computes now.
    fn moves(&mut self) {
        let now = &self.backend.description().device;
        if *now != self.description.device {
            self.description.device.clone_from(now);
            self.shared.scheduler.change(|roster| roster.moved(self.place.index, now));
        }
    }
}

#[cfg(test)]
mod histories;
