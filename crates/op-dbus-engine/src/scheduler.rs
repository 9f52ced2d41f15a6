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
use crate::call::Priority;
use crate::clock::Clock;
use crate::config::Limits;
use crate::engine::{WorkerState, WorkerStatus};
use crate::error::Error;
use crate::job::{Job, Slot};
use crate::planner::Plan;
use crate::queue::{self, Queue};
use crate::roster::Roster;
use crate::routing::{Running, Waiting};
use crate::stats::Stats;

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
    delay_us: u64,
    idle_check: Duration,
    state: Mutex<State>,
    /// Signalled when there is work, and when the engine stops.
    work: Condvar,
    /// Signalled when the engine stops: what a worker waits on between two tries to load.
    stop: Condvar,
    /// Notified when a worker's thread has ended.
    ended: Notify,
    /// Notified when no worker of the pool that was asked for can be had any more.
    hopeless: Notify,
}

#[derive(Debug)]
struct State {
    queue: Queue<Row>,
    /// Users whose calls were cancelled since the last batch.
    cancelled: BTreeSet<u32>,
    roster: Roster,
    stopped: bool,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It runs the batch that was planned.
    Batch,
    /// It has been idle for long, and makes sure that it still computes.
    Check,
    /// Nothing is to be run at this moment.
    Nothing,
    /// It ends.
    Stopped,
}

impl Scheduler {
    pub fn new(limits: &Limits, idle_check: Duration, roster: Roster) -> Self {
        Self {
            clock: Clock::start(),
            stats: Stats::default(),
            delay_us: limits.batch_delay_us_max,
            idle_check,
            state: Mutex::new(State {
                queue: Queue::new(limits.bulk_wait_us_max),
                cancelled: BTreeSet::new(),
                roster,
                stopped: false,
            }),
            work: Condvar::new(),
            stop: Condvar::new(),
            ended: Notify::new(),
            hopeless: Notify::new(),
        }
    }

    /// Adds the workers, all loaded and idle, each with its pool; from here on they are known by
    /// their places.
    pub fn add_workers(&self, workers: Vec<(usize, Description)>) {
        self.lock().roster.add(workers);
    }

    /// Takes note of what a batch costs in a pool.
    pub fn learn(&self, pool: usize, tokens: usize, took: Duration) {
        self.lock().roster.learn(pool, tokens, micros(took));
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
        self.call_workers(state, many);
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
        let check_at = Instant::now() + self.idle_check;
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
            if let Some(delay) = self.delay(state, worker, now_us) {
                if !wait {
                    return Next::Nothing;
                }
                state.roster.set(worker, WorkerState::Idle);
                guard = self.wait(&self.work, guard, Some(delay));
                continue;
            }
            state.plan(worker, now_us, &alive, plan);
            dead.append(&mut plan.dead);
            let busy = !plan.batch.is_empty();
            if busy {
                let tokens = plan.batch.iter().map(|entry| entry.tokens).sum();
                state.roster.runs(worker, Running { tokens, started_us: now_us });
            } else if wait {
                state.roster.set(worker, WorkerState::Idle);
            }
            if busy || !dead.is_empty() {
                if busy && state.queue.texts() > 0 {
                    self.call_workers(guard, false);
                } else {
                    drop(guard);
                }
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
            let until_check = check_at.saturating_duration_since(Instant::now());
            if until_check.is_zero() {
                return Next::Check;
            }
            guard = self.wait(&self.work, guard, Some(until_check));
        }
    }

    /// How long an idle worker waits for more texts, or for another pool to take these.
    fn delay(&self, state: &mut State, worker: usize, now_us: u64) -> Option<Duration> {
        if self.delay_us > 0 {
            let tokens_max = state.roster.planner(worker)?.tokens_max();
            let until_us = state.queue.oldest_us()?.saturating_add(self.delay_us);
            let wait_us = until_us.saturating_sub(now_us);
            if wait_us > 0 && state.queue.tokens() < tokens_max {
                return Some(Duration::from_micros(wait_us));
            }
        }
        let (class, _) = state.queue.turn(now_us)?;
        let waiting = Waiting { tokens: state.queue.tokens(), bulk: class == Priority::Bulk };
        state.roster.leaves(worker, waiting, now_us)
    }

    /// Wakes idle workers: all if there is work for `many`, or if the one that wakes may leave it to
    /// another pool.
    fn call_workers(&self, state: MutexGuard<'_, State>, many: bool) {
        let all = many || state.roster.is_mixed();
        drop(state);
        if all {
            self.work.notify_all();
        } else {
            self.work.notify_one();
        }
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
        self.lock().roster.ran(worker, batch, micros(took));
    }

    /// A worker was lost and is to be replaced.
    pub fn lost(&self, worker: usize, error: &BackendError) {
        self.stats.restarted();
        let mut state = self.lock();
        state.roster.lost(worker, error);
        // Others may have left to it what waits.
        self.call_workers(state, false);
    }

    /// A worker could not be replaced. Once none is left, what waits is failed.
    pub fn load_failed(&self, worker: usize, error: &BackendError) {
        let mut state = self.lock();
        state.roster.load_failed(worker, error);
        let hopeless = state.roster.is_hopeless();
        if let Some(error) = state.refusal() {
            let entries = state.queue.clear();
            drop(state);
            fail(entries, &error);
        }
        if hopeless {
            self.hopeless.notify_waiters();
        }
    }

    /// Waits until no worker of the pool that was asked for can be had; each is still tried again.
    pub async fn hopeless(&self) {
        loop {
            let hopeless = self.hopeless.notified();
            // Asked after the wait has begun, so that nothing is missed in between.
            if self.lock().roster.is_hopeless() {
                return;
            }
            hopeless.await;
        }
    }

    /// A worker was replaced.
    pub fn loaded(&self, worker: usize, description: Description) {
        self.lock().roster.loaded(worker, description);
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
        self.lock().roster.set(worker, WorkerState::Stopped);
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
        self.lock().roster.statuses()
    }

    /// Texts and tokens that wait.
    pub fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        (state.queue.texts(), state.queue.tokens())
    }

    /// What a batch of `tokens` takes on the device of each pool.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        self.lock().roster.costs(tokens)
    }

    /// Tokens that all workers together compute in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.lock().roster.tokens_per_s()
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
    fn plan(
        &mut self,
        worker: usize,
        now_us: u64,
        alive: &dyn Fn(&Entry) -> bool,
        plan: &mut Plan<Row>,
    ) {
        if let Some(planner) = self.roster.planner(worker) {
            planner.plan(&mut self.queue, now_us, alive, plan);
        }
    }

    /// Why nothing can be queued: the engine has stopped, or no worker can be had.
    fn refusal(&self) -> Option<Error> {
        match self.stopped {
            true => Some(Error::ShuttingDown),
            false => self.roster.refusal().map(Error::WorkerFailed),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn fail(entries: Vec<Entry>, error: &Error) {
    for entry in entries {
        entry.item.job.fail(error.clone());
    }
}
