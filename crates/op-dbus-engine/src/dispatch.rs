//! Worker threads: each owns a backend, pulls batches, runs them, and replaces a lost backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendError, BackendFactory, Description, LoadErrorKind};
use crate::batch::Batch;
use crate::config::{ModelShape, Reference};
use crate::error::Error;
use crate::job::{Finished, Ran};
use crate::planner::Plan;
use crate::scheduler::{Entry, Next, Row, Scheduler};

/// Journal message id of the event that a worker was lost.
pub const WORKER_LOST_MESSAGE_ID: &str = "658a8ad6405c4659a17822c6a0d74d7b";

/// How often a batch that does not fit the device is halved.
const HALVINGS_MAX: u32 = 3;

/// Wait before the third try in a row to have a working backend; doubled for each later one.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What all worker threads share.
pub(crate) struct Shared {
    pub scheduler: Arc<Scheduler>,
    pub factory: BackendFactory,
    pub model: ModelShape,
    /// Token ids of a short text, run on each backend before it is trusted.
    pub probe: Box<[i32]>,
    /// What it has to make of that text.
    pub reference: Option<Reference>,
}

struct Worker {
    index: usize,
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    /// What the backend said of itself when it was loaded.
    description: Description,
    ids: Vec<i32>,
    lengths: Vec<i32>,
    out: Vec<f32>,
    /// The last batch, until its vectors are delivered.
    computed: Computed,
    /// Losses and failed loads since the last batch that ran.
    strikes: u32,
}

/// The body of worker thread `index`: says by `ready` how the first load went, then works until the
/// engine stops. `begin` is closed once all workers are loaded and known.
pub(crate) fn work(
    index: usize,
    shared: Arc<Shared>,
    ready: SyncSender<(usize, Result<Description, BackendError>)>,
    begin: std::sync::mpsc::Receiver<()>,
) {
    let loaded = load(index, &shared);
    let description = loaded.as_ref().map(|b| b.description().clone()).map_err(Clone::clone);
    let sent = ready.send((index, description));
    drop(ready);
    if let (Ok(backend), Ok(())) = (loaded, sent) {
        // Closed, never sent on.
        let _ = begin.recv();
        let scheduler = Arc::clone(&shared.scheduler);
        Worker::new(index, shared, backend).work();
        scheduler.end(index);
    }
}

impl Worker {
    fn new(index: usize, shared: Arc<Shared>, backend: Box<dyn Backend>) -> Self {
        let description = backend.description().clone();
        let (ids, lengths, out, computed) = Default::default();
        Self { index, shared, backend, description, ids, lengths, out, computed, strikes: 0 }
    }

    fn work(mut self) {
        let scheduler = Arc::clone(&self.shared.scheduler);
        let mut plan = Plan::default();
        loop {
            // With vectors to deliver only what is there at once is taken: they are delivered while
            // the backend computes it, or right away.
            match scheduler.next_batch(self.index, &mut plan, self.computed.is_delivered()) {
                Next::Batch => {}
                Next::Nothing => {
                    self.computed.deliver(&self.description);
                    continue;
                }
                Next::Stopped => {
                    self.computed.deliver(&self.description);
                    break;
                }
            }
            let Err(error) = self.run(&mut plan.batch, 0) else { continue };
            let provider = &self.backend.description().provider;
            tracing::warn!(
                MESSAGE_ID = WORKER_LOST_MESSAGE_ID,
                worker = self.index,
                provider,
                %error,
                "worker lost, replacing it"
            );
            scheduler.lost(self.index, &error);
            self.strikes += 1;
            if !self.replace() {
                break;
            }
        }
    }

    /// Runs a batch, in parts if the device can't hold it.
    ///
    /// # Errors
    /// The backend is lost; all rows without a vector are back in the queue or failed.
    fn run(&mut self, batch: &mut Vec<Entry>, halvings: u32) -> Result<(), BackendError> {
        let Err(error) = self.compute(batch) else {
            self.strikes = 0;
            return Ok(());
        };
        let scheduler = Arc::clone(&self.shared.scheduler);
        match error {
            BackendError::OutOfMemory(_) if halvings < HALVINGS_MAX && batch.len() > 1 => {
                let mut rest = batch.split_off(batch.len() / 2);
                if let Err(error) = self.run(batch, halvings + 1) {
                    scheduler.put_back(&mut rest, &error, false);
                    return Err(error);
                }
                self.run(&mut rest, halvings + 1)
            }
            error @ BackendError::OutOfMemory(_) => {
                for entry in batch.drain(..) {
                    entry.item.job.fail(Error::OutOfMemory(error.clone()));
                }
                Ok(())
            }
            // One text may be what the backend refuses; its neighbours must not pay for it.
            error @ BackendError::Failed(_) => {
                scheduler.put_back(batch, &error, true);
                Ok(())
            }
            error @ (BackendError::Lost(_) | BackendError::Load { .. }) => {
                scheduler.put_back(batch, &error, true);
                Err(error)
            }
        }
    }

    /// Computes one batch, and delivers the one before meanwhile. The rows stay in `entries` if this
    /// fails.
    fn compute(&mut self, entries: &mut Vec<Entry>) -> Result<(), BackendError> {
        let dimensions = self.shared.model.dimensions;
        self.ids.clear();
        self.lengths.clear();
        for entry in entries.iter() {
            let ids = &entry.item.ids;
            self.ids.extend_from_slice(ids);
            self.lengths.push(i32::try_from(ids.len()).unwrap_or(i32::MAX));
        }
        self.out.clear();
        self.out.resize(entries.len() * dimensions, f32::NAN);
        let scheduler = &self.shared.scheduler;
        let (started, started_us) = (Instant::now(), scheduler.clock.now_us());
        let batch = Batch { ids: &self.ids, lengths: &self.lengths };
        let Self { computed, description, .. } = self;
        let mut deliver = || computed.deliver(description);
        let result = run_checked(self.backend.as_mut(), &batch, &mut self.out, &mut deliver);
        // Also if the backend has not found the time.
        deliver();
        result?;
        scheduler.ran(self.index, &batch, started.elapsed());
        std::mem::swap(&mut computed.entries, entries);
        std::mem::swap(&mut computed.vectors, &mut self.out);
        (computed.started_us, computed.ended_us) = (started_us, scheduler.clock.now_us());
        Ok(())
    }

    /// Makes a new backend, however long it takes; false if the engine stops meanwhile. Other
    /// workers are not held up: the waiting is done on this thread.
    fn replace(&mut self) -> bool {
        // The old one goes first: two copies of a model may not fit the device.
        self.backend = Box::new(Gone(self.backend.description().clone()));
        loop {
            let doublings = self.strikes.saturating_sub(2).min(16);
            let backoff = (BACKOFF * (1 << doublings)).min(BACKOFF_MAX);
            if !self.shared.scheduler.pause(if self.strikes > 1 { backoff } else { Duration::ZERO })
            {
                return false;
            }
            match load(self.index, &self.shared) {
                Ok(backend) => {
                    let description = backend.description().clone();
                    self.description = description.clone();
                    self.shared.scheduler.loaded(self.index, description);
                    self.backend = backend;
                    return true;
                }
                Err(error) => {
                    tracing::error!(worker = self.index, %error, "worker can't be replaced yet");
                    self.shared.scheduler.load_failed(self.index, &error);
                    self.strikes += 1;
                }
            }
        }
    }
}

/// A batch whose vectors are there; empty once they are delivered.
#[derive(Default)]
struct Computed {
    entries: Vec<Entry>,
    vectors: Vec<f32>,
    started_us: u64,
    ended_us: u64,
    finished: Vec<Finished>,
}

impl Computed {
    fn is_delivered(&self) -> bool {
        self.entries.is_empty()
    }

    /// Hands each row to its call.
    fn deliver(&mut self, by: &Description) {
        let Self { entries, vectors, finished, .. } = self;
        let ran = Ran { by, started_us: self.started_us, ended_us: self.ended_us };
        for (entry, vector) in entries.iter().zip(vectors.chunks_exact(by.dimensions.max(1))) {
            let Row { job, slot, .. } = &entry.item;
            finished.extend(job.deliver(*slot, vector, entry.tokens, &ran));
        }
        // All at once: the thread that is woken by the first finds the others there.
        finished.drain(..).for_each(Finished::tell);
        entries.clear();
    }
}

/// What a worker holds between two backends.
struct Gone(Description);

impl Backend for Gone {
    fn description(&self) -> &Description {
        &self.0
    }

    fn run(&mut self, _: &Batch<'_>, _: &mut [f32]) -> Result<(), BackendError> {
        Err(BackendError::Lost("it is being replaced".into()))
    }
}

/// Makes a backend and has it embed a short text before anybody relies on it.
fn load(index: usize, shared: &Shared) -> Result<Box<dyn Backend>, BackendError> {
    let (backend, vector) = probed(&shared.factory, index, &shared.model, &shared.probe)?;
    let Some(Err(difference)) = shared.reference.as_ref().map(|known| known.check(&vector)) else {
        return Ok(backend);
    };
    let Description { provider, device, .. } = backend.description();
    let message = format!("{provider} can't be trusted on {device}: {difference}");
    Err(BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message })
}

/// A backend, and the vector that it makes of the probe.
pub(crate) fn probed(
    factory: &BackendFactory,
    index: usize,
    model: &ModelShape,
    probe: &[i32],
) -> Result<(Box<dyn Backend>, Vec<f32>), BackendError> {
    let wrong = |message| BackendError::Load { kind: LoadErrorKind::Other, message };
    let mut backend = catch_unwind(AssertUnwindSafe(|| factory(index)))
        .map_err(|_| wrong("the backend panicked while it was loaded; see the log".into()))??;
    let (made, wanted) = (backend.description().dimensions, model.dimensions);
    if made != wanted {
        return Err(wrong(format!(
            "the backend makes vectors of {made} dimensions and the model has {wanted}; \
             check the model's files"
        )));
    }
    let lengths = [i32::try_from(probe.len()).unwrap_or(i32::MAX)];
    let batch = Batch { ids: probe, lengths: &lengths };
    let mut out = vec![f32::NAN; wanted];
    run_checked(backend.as_mut(), &batch, &mut out, &mut || ())?;
    let square: f32 = out.iter().map(|x| x * x).sum();
    if model.normalized && !(0.98..=1.02).contains(&square) {
        return Err(wrong(format!(
            "the backend's vectors have length {} where 1 is expected; \
             check the model's normalisation",
            square.sqrt()
        )));
    }
    Ok((backend, out))
}

/// Runs a batch; a backend that panics or gives values that are no numbers can't be trusted again.
fn run_checked(
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    out: &mut [f32],
    meanwhile: &mut dyn FnMut(),
) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(|| backend.run_while(batch, out, meanwhile)))
        .unwrap_or_else(|_| Err(BackendError::Lost("it panicked in a batch".into())))?;
    if out.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    Err(BackendError::Lost("it returned values that are not finite numbers".into()))
}
