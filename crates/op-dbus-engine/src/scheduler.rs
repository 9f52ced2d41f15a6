//! What workers and callers share: the queue behind one lock, and what each worker does.
//!
//! Workers pull: an idle one plans the next batch itself. So batches form while all are busy,
//! nothing waits for a timer, and no channel holds work that could still be cancelled or joined.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::backend::{BackendError, Description};
use crate::batch::Batch;
use crate::clock::Clock;
use crate::config::{BatchLayout, Limits, ModelShape};
use crate::engine::{WorkerState, WorkerStatus};
use crate::error::Error;
use crate::job::{Job, Slot};
use crate::planner::{Budget, Plan, Planner};
use crate::queue::{self, Queue};
use crate::stats::Stats;

/// Failed loads in a row of every worker after which waiting calls are failed rather than kept.
const LOAD_FAILURES_MAX: u32 = 3;

/// One row that waits, and where its vector belongs.
#[derive(Debug)]
pub(crate) struct Row {
    pub job: Arc<Job>,
    pub slot: Slot,
    pub ids: Box<[i32]>,
}

pub(crate) type Entry = queue::Entry<Row>;

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub clock: Clock,
    pub stats: Stats,
    layout: BatchLayout,
    batch_tokens_measured: bool,
    delay_us: u64,
    state: Mutex<State>,
    /// Signalled when there is work, and when the engine stops.
    work: Condvar,
    /// Signalled when the engine stops: what a worker waits on between two tries to load.
    stop: Condvar,
    /// Notified when a worker's thread has ended.
    ended: Notify,
    /// Notified when no worker can be had any more.
    hopeless: Notify,
}

#[derive(Debug)]
struct State {
    queue: Queue<Row>,
    planner: Planner,
    /// Users whose calls were cancelled since the last batch.
    cancelled: BTreeSet<u32>,
    workers: Vec<Worker>,
    stopped: bool,
}

#[derive(Debug)]
struct Worker {
    status: WorkerStatus,
    load_failures: u32,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It runs the batch that was planned.
    Batch,
    /// Nothing is to be run at this moment.
    Nothing,
    /// It ends.
    Stopped,
}

impl Scheduler {
    pub fn new(limits: &Limits, model: &ModelShape) -> Self {
        let budget = Budget {
            layout: limits.batch_layout,
            tokens_max: limits.batch_tokens_max.max(model.max_input_tokens),
            rows_max: limits.batch_rows_max.max(1),
            attention_max: limits.batch_attention_max,
            padding_percent_max: limits.batch_padding_percent_max,
        };
        Self {
            clock: Clock::start(),
            stats: Stats::default(),
            layout: budget.layout,
            batch_tokens_measured: limits.batch_tokens_measured,
            delay_us: limits.batch_delay_us_max,
            state: Mutex::new(State {
                queue: Queue::new(limits.bulk_wait_us_max),
                planner: Planner::new(budget),
                cancelled: BTreeSet::new(),
                workers: Vec::new(),
                stopped: false,
            }),
            work: Condvar::new(),
            stop: Condvar::new(),
            ended: Notify::new(),
            hopeless: Notify::new(),
        }
    }

    /// Adds a worker that is loaded and idle; its index is the number of workers before it.
    pub fn add_workers(&self, descriptions: Vec<Description>) {
        let worker = |description| Worker {
            status: WorkerStatus {
                description,
                state: WorkerState::Idle,
                batches: 0,
                rows: 0,
                tokens: 0,
                busy_us: 0,
                restarts: 0,
                last_error: None,
            },
            load_failures: 0,
        };
        let mut state = self.lock();
        if self.batch_tokens_measured {
            let measured = descriptions.iter().map(|worker| worker.batch_tokens);
            if let Some(tokens) = measured.filter(|tokens| *tokens > 0).min() {
                state.planner.lower_tokens_max(tokens);
            }
        }
        state.workers = descriptions.into_iter().map(worker).collect();
    }

    /// Queues rows; they are failed at once when nobody will ever run them.
    pub fn push(&self, entries: Vec<Entry>) {
        let mut state = self.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            fail(entries, &error);
            return;
        }
        let many = entries.len() > 1;
        for entry in entries {
            state.queue.push(entry);
        }
        drop(state);
        if many {
            self.work.notify_all();
        } else {
            self.work.notify_one();
        }
    }

    /// Puts rows of a failed batch back, once; `blamed` says that the failure may be theirs.
    pub fn put_back(&self, entries: &mut Vec<Entry>, error: &BackendError, blamed: bool) {
        let (again, failed): (Vec<_>, Vec<_>) =
            entries.drain(..).partition(|entry| !(blamed && entry.alone));
        fail(failed, &Error::WorkerFailed(error.clone()));
        if blamed {
            self.stats.retried(again.len());
        }
        let mut state = self.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            fail(again, &error);
            return;
        }
        for mut entry in again.into_iter().rev() {
            entry.alone |= blamed;
            state.queue.push_front(entry);
        }
        drop(state);
        self.work.notify_all();
    }

    /// Takes the next batch into `plan`; with `wait`, waits for one if there is none.
    pub fn next_batch(&self, worker: usize, plan: &mut Plan<Row>, wait: bool) -> Next {
        let mut guard = self.lock();
        loop {
            let state = &mut *guard;
            if state.stopped {
                return Next::Stopped;
            }
            let now_us = self.clock.now_us();
            let alive = |entry: &Entry| entry.item.job.is_alive(now_us);
            let mut dead = Vec::new();
            for uid in std::mem::take(&mut state.cancelled) {
                dead.extend(state.queue.purge(uid, &alive));
            }
            if let Some(delay) = self.delay(state, now_us) {
                if !wait {
                    return Next::Nothing;
                }
                guard = self.wait(&self.work, guard, Some(delay));
                continue;
            }
            state.planner.plan(&mut state.queue, now_us, &alive, plan);
            dead.append(&mut plan.dead);
            let busy = !plan.batch.is_empty();
            if busy || wait {
                state.set(worker, if busy { WorkerState::Busy } else { WorkerState::Idle });
            }
            if busy && state.queue.texts() > 0 {
                self.work.notify_one();
            }
            if busy || !dead.is_empty() {
                drop(guard);
                // Those that were cancelled have been told already.
                fail(dead, &Error::DeadlineExceeded);
                if busy {
                    return Next::Batch;
                }
                guard = self.lock();
                continue;
            }
            if !wait {
                return Next::Nothing;
            }
            guard = self.wait(&self.work, guard, None);
        }
    }

    /// How long an idle worker waits for more texts.
    fn delay(&self, state: &State, now_us: u64) -> Option<Duration> {
        if self.delay_us == 0 || state.queue.tokens() >= state.planner.tokens_max() {
            return None;
        }
        let until_us = state.queue.oldest_us()?.saturating_add(self.delay_us);
        let wait_us = until_us.checked_sub(now_us).filter(|wait_us| *wait_us > 0)?;
        Some(Duration::from_micros(wait_us))
    }

    /// A call of this user was given up: its rows are dropped before the next batch.
    pub fn cancelled(&self, uid: u32) {
        let mut state = self.lock();
        if state.queue.texts() > 0 {
            state.cancelled.insert(uid);
        }
    }

    /// A worker ran a batch.
    pub fn ran(&self, worker: usize, batch: &Batch<'_>, took: Duration) {
        self.stats.batch(batch, self.layout.tokens(batch), took);
        if let Some(Worker { status, .. }) = self.lock().workers.get_mut(worker) {
            status.batches += 1;
            status.rows += batch.rows() as u64;
            status.tokens += batch.tokens() as u64;
            status.busy_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        }
    }

    /// A worker was lost and is to be replaced.
    pub fn lost(&self, worker: usize, error: &BackendError) {
        self.stats.restarted();
        let mut state = self.lock();
        state.set(worker, WorkerState::Restarting);
        if let Some(worker) = state.workers.get_mut(worker) {
            worker.status.restarts += 1;
            worker.status.last_error = Some(error.to_string());
        }
    }

    /// A worker could not be replaced. Once none is left, what waits is failed.
    pub fn load_failed(&self, worker: usize, error: &BackendError) {
        let mut state = self.lock();
        if let Some(worker) = state.workers.get_mut(worker) {
            worker.load_failures += 1;
            worker.status.last_error = Some(error.to_string());
        }
        let Some(error) = state.refusal() else { return };
        let entries = state.queue.clear();
        drop(state);
        fail(entries, &error);
        self.hopeless.notify_waiters();
    }

    /// Waits until no worker can be had; each is still tried again.
    pub async fn hopeless(&self) {
        loop {
            let hopeless = self.hopeless.notified();
            // Asked after the wait has begun, so that nothing is missed in between.
            if self.lock().refusal().is_some() {
                return;
            }
            hopeless.await;
        }
    }

    /// A worker was replaced.
    pub fn loaded(&self, worker: usize, description: Description) {
        if let Some(worker) = self.lock().workers.get_mut(worker) {
            worker.load_failures = 0;
            worker.status.description = description;
        }
    }

    /// Waits, but not on once the engine stops; false if it has.
    pub fn pause(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        while !state.stopped {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.wait(&self.stop, state, Some(left));
        }
        false
    }

    /// Stops: workers end after the batch that they run, what waits is failed.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let entries = state.queue.clear();
        drop(state);
        self.work.notify_all();
        self.stop.notify_all();
        fail(entries, &Error::ShuttingDown);
    }

    /// A worker's thread ends.
    pub fn end(&self, worker: usize) {
        self.lock().set(worker, WorkerState::Stopped);
        self.ended.notify_waiters();
    }

    /// Returns once all workers have ended.
    pub async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.workers().iter().all(|worker| worker.state == WorkerState::Stopped) {
                return;
            }
            ended.await;
        }
    }

    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.lock().workers.iter().map(|worker| worker.status.clone()).collect()
    }

    /// Texts and tokens that wait.
    pub fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        (state.queue.texts(), state.queue.tokens())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        condition: &Condvar,
        state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match timeout {
            None => condition.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                condition.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl State {
    fn set(&mut self, worker: usize, state: WorkerState) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.status.state = state;
        }
    }

    /// Why nothing can be queued: the engine has stopped, or no worker can be had.
    fn refusal(&self) -> Option<Error> {
        if self.stopped {
            return Some(Error::ShuttingDown);
        }
        let worker = self.workers.first()?;
        let hopeless = self.workers.iter().all(|w| w.load_failures >= LOAD_FAILURES_MAX);
        hopeless.then(|| {
            let message = worker.status.last_error.clone().unwrap_or_default();
            Error::WorkerFailed(BackendError::Lost(message))
        })
    }
}

fn fail(entries: Vec<Entry>, error: &Error) {
    for entry in entries {
        entry.item.job.fail(error.clone());
    }
}
