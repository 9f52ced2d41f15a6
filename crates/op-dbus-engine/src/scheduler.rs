//! What workers and callers share: the queue behind one lock, and what each worker does.
//!
//! Workers pull: an idle one plans the next batch itself. So batches form while all are busy,
//! nothing waits for a timer, and no channel holds work that could still be cancelled or joined.

mod abandoned;
mod ahead;
mod condvar;
mod costs;
mod life;
mod turn;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::backend::BackendError;
use crate::clock::Clock;
use crate::config::Limits;
use crate::error::Error;
use crate::job::{Job, Slot};
use crate::planner::Plan;
use crate::presence::{Absence, Presence};
use crate::queue::{self, Queue};
use crate::registry::{Order, Registry};
use crate::reserve::{RecentWork, Serves};
use crate::stats::Stats;
use crate::status::WorkerState;
use abandoned::Abandoned;
use condvar::CountingCondvar;

/// How often a text may come to workers that have ended before it counts as tried there: they could go on to do
/// nothing but end.
const MISSES_MAX: u32 = 4;

/// What a worker has at least to compute something between two checks.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// One row that waits, and where its vector belongs.
#[derive(Debug)]
pub(crate) struct Row {
    pub job: Arc<Job>,
    pub slot: Slot,
    pub ids: Box<[i32]>,
}

pub(crate) type Entry = queue::Entry<Row>;

impl Row {
    /// Whether `next` is the text after this one in the same call. Windows of a text go one by one.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        let texts = (self.slot.text.checked_add(1), 0, 0);
        (Some(next.slot.text), self.slot.window, next.slot.window) == texts
            && Arc::ptr_eq(&self.job, &next.job)
    }
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub clock: Clock,
    pub stats: Arc<Stats>,
    delay_us: u64,
    check_interval: Duration,
    state: Mutex<State>,
    /// Signalled when there is work, when workers are to do something else, and when the engine stops.
    work: CountingCondvar,
    /// Signalled when there is something for reserved workers.
    reserve: CountingCondvar,
    /// Signalled when the engine stops or unloads, or loses a worker: what one waits on between two tries to load.
    stop: CountingCondvar,
    /// Notified when a worker was lost, loaded, unloaded, moved or ended, or has done what it was asked for.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    queue: Queue<Row>,
    abandoned: Abandoned,
    registry: Registry,
    recent: RecentWork,
    /// Why no worker is to have a backend until there is work, and what it was like before; none while they are to
    /// have one.
    absence: Option<(Absence, Presence)>,
    /// When a worker was loaded last.
    loaded_at: Instant,
    /// Whether the machine is about to sleep: what holds a device is to let it go.
    asleep: bool,
    stopped: bool,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It runs the batch that was planned.
    Batch,
    /// It has not done so for long or was asked to, and makes sure that it still computes.
    Check,
    /// It gives back memory that it can do without.
    Trim,
    /// It lets its backend go.
    Unload,
    /// It makes itself a backend again.
    Load,
    /// Nothing is to be run at this moment.
    Nothing,
    /// It ends.
    Stopped,
}

/// What comes of a worker's look for something to do.
enum Look {
    Found(Next),
    /// Rows that nobody waits for any more; there may be others behind them.
    Dead,
    /// It leaves what waits to others, for so long.
    Leaves(Duration),
    /// There is nothing for it, until its next check. It has none without a backend.
    Nothing(Option<Duration>),
}

impl Scheduler {
    pub fn new(
        limits: &Limits,
        check_interval: Duration,
        registry: Registry,
        stats: Arc<Stats>,
    ) -> Self {
        let clock = Clock::start();
        Self {
            clock,
            stats,
            delay_us: limits.batch_delay_us_max,
            check_interval: check_interval.max(CHECK_INTERVAL_MIN),
            state: Mutex::new(State {
                queue: Queue::new(limits.bulk_wait_us_max),
                abandoned: Abandoned::default(),
                registry,
                recent: RecentWork::new(clock),
                absence: None,
                loaded_at: Instant::now(),
                asleep: false,
                stopped: false,
            }),
            work: CountingCondvar::default(),
            reserve: CountingCondvar::default(),
            stop: CountingCondvar::default(),
            changed: Notify::new(),
        }
    }

    /// Queues rows of a call, for which unloaded workers load again; they are failed at once when nobody will
    /// ever run them.
    pub fn push(&self, entries: Vec<Entry>) {
        let mut state = self.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            fail(entries, &error);
            return;
        }
        let many = entries.len() > 1;
        let unloaded = state.absence.take().is_some();
        if let Some(first) = entries.first() {
            first.item.job.queues();
            state.recent.note(first.class, first.uid);
        }
        for entry in entries {
            state.queue.push(entry);
        }
        self.call_workers(state, many || unloaded);
        if unloaded {
            // Who waits for the end of an unload waits for what does not come any more.
            self.changed.notify_waiters();
        }
    }

    /// Puts rows of a batch that failed on `worker` back, once: the failure may be theirs, and the backend's end where
    /// that was `lost`.
    pub fn try_again(
        &self,
        worker: usize,
        entries: &mut Vec<Entry>,
        error: &BackendError,
        lost: bool,
    ) {
        let (mut again, failed): (Vec<_>, Vec<_>) =
            entries.drain(..).partition(|entry| entry.failed_on.is_none());
        fail(failed, &error.clone().into());
        for entry in &mut again {
            (entry.failed_on, entry.lost) = (Some(worker), lost);
        }
        self.put_back_counted(&mut again, |rows| self.stats.retried(rows));
    }

    /// Puts rows back that came to a worker which had ended before it read them, and leaves those to which that has
    /// happened once too often: for them it counts as a try. The other workers, of which some may have ended as well,
    /// make sure of themselves before they take any.
    pub fn missed(&self, entries: &mut Vec<Entry>) {
        self.registry(|registry| registry.order(Order::Check));
        entries.iter_mut().for_each(|entry| entry.missed += 1);
        let mut again = entries.extract_if(.., |entry| entry.missed <= MISSES_MAX).collect();
        self.put_back(&mut again);
    }

    /// Puts rows of a batch that was not run back, before all others of their users.
    pub fn put_back(&self, entries: &mut Vec<Entry>) {
        self.put_back_counted(entries, |_| ());
    }

    /// The same, where `count` is told how many of them somebody waits for, before any is run.
    fn put_back_counted(&self, entries: &mut Vec<Entry>, count: impl FnOnce(usize)) {
        let mut state = self.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            fail(entries.drain(..), &error);
            return;
        }
        let now_us = self.clock.now_us();
        let is_over = |entry: &mut Entry| !entry.item.job.is_alive(now_us);
        let over: Vec<_> = entries.extract_if(.., is_over).collect();
        count(entries.len());
        for entry in entries.drain(..).rev() {
            state.queue.push_front(entry);
        }
        self.call_workers(state, true);
        fail(over, &Error::DeadlineExceeded);
    }

    /// What a worker does next; a batch is put into `plan`. With `wait`, waits if there is nothing.
    pub fn next_batch(&self, worker: usize, plan: &mut Plan<Row>, wait: bool) -> Next {
        let mut state = self.lock();
        let condvar = self.condvar(&state, worker);
        let mut times_left = 0_u32;
        loop {
            let now_us = self.clock.now_us();
            let timeout = match self.look(&mut state, (worker, now_us), plan) {
                Look::Found(next) => {
                    self.begins(state, next, (worker, now_us));
                    fail(std::mem::take(&mut plan.dead), &Error::DeadlineExceeded);
                    return next;
                }
                Look::Dead => {
                    // At once: they count until they are dropped, and this worker may go on to wait. Those that were
                    // cancelled have been told already.
                    drop(state);
                    fail(std::mem::take(&mut plan.dead), &Error::DeadlineExceeded);
                    state = self.lock();
                    continue;
                }
                Look::Leaves(_) | Look::Nothing(_) if !wait => return Next::Nothing,
                Look::Leaves(delay) => {
                    times_left += 1;
                    if times_left.is_multiple_of(2) {
                        // For whom it is left may sleep, if costs have changed since this one alone was woken for it.
                        self.work.notify_all();
                    }
                    Some(delay)
                }
                Look::Nothing(until_check) => {
                    times_left = 0;
                    until_check
                }
            };
            if timeout.is_some() {
                state.registry.set(worker, WorkerState::Idle);
            }
            state = condvar.wait(state, timeout);
        }
    }

    /// Looks for what a worker is to do now; a batch, and rows that nobody waits for any more, are put into `plan`.
    fn look(
        &self,
        state: &mut State,
        (worker, now_us): (usize, u64),
        plan: &mut Plan<Row>,
    ) -> Look {
        match self.duty(state, worker, now_us) {
            Some(Next::Nothing) => return Look::Nothing(None),
            Some(next) => return Look::Found(next),
            None => {}
        }
        let alive = |entry: &Entry| entry.item.job.is_alive(now_us);
        plan.dead = state.purge(&alive);
        if !plan.dead.is_empty() {
            return Look::Dead;
        }
        match self.turn(state, worker, now_us) {
            Ok(serves) => state.plan(worker, (serves, now_us), &alive, plan),
            Err(delay) => return Look::Leaves(delay),
        }
        match plan.batch.first() {
            Some(&Entry { class, uid, .. }) => {
                state.queue.begun(class, plan.aged, now_us);
                state.runs(worker, &plan.batch, now_us);
                state.recent.note(class, uid);
                Look::Found(Next::Batch)
            }
            None if !plan.dead.is_empty() => Look::Dead,
            None => Look::Nothing(Some(self.until_check(state, worker, now_us))),
        }
    }

    /// Wakes idle workers, if there are any: all if there is work for `many`, or if the one that wakes may leave it
    /// to another one.
    fn call_workers(&self, state: MutexGuard<'_, State>, many: bool) {
        let all = self.work.has_waiters(&state).then(|| many || state.is_choosy(self.clock));
        let reserve = self.reserve.has_waiters(&state) && state.calls_reserve();
        drop(state);
        if reserve {
            self.reserve.notify_all();
        }
        match all {
            Some(true) => self.work.notify_all(),
            Some(false) => self.work.notify_one(),
            None => {}
        }
    }

    /// Texts and tokens that wait.
    pub fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        (state.queue.texts(), state.queue.tokens())
    }

    /// What a worker waits on.
    fn condvar(&self, state: &State, worker: usize) -> &CountingCondvar {
        match state.registry.serves(worker) {
            Serves::Everybody | Serves::Bulk => &self.work,
            Serves::Interactive => &self.reserve,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn plan(
        &mut self,
        worker: usize,
        (serves, now_us): (Serves, u64),
        alive: &dyn Fn(&Entry) -> bool,
        plan: &mut Plan<Row>,
    ) {
        if serves == Serves::Interactive && !self.registry.wants_reserve() {
            plan.batch.clear();
            plan.dead.clear();
            return;
        }
        if let Some(planner) = self.registry.planner(worker) {
            planner.plan(&mut self.queue, (serves, now_us), alive, plan);
        }
    }

    /// Whether there is something for reserved workers: to be there, or to compute.
    fn calls_reserve(&self) -> bool {
        let computes = || {
            self.registry.has_reserve(WorkerState::Idle)
                && self.queue.has_interactive()
                && self.registry.wants_reserve()
        };
        (self.registry.has_reserve(WorkerState::Unloaded) && self.recent.has_both()) || computes()
    }

    /// Why nothing can be queued: the engine has stopped, or no worker can be had.
    fn refusal(&self) -> Option<Error> {
        match self.stopped {
            true => Some(Error::ShuttingDown),
            false => self.registry.refusal().map(Error::WorkerFailed),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn fail(entries: impl IntoIterator<Item = Entry>, error: &Error) {
    for entry in entries {
        entry.item.job.fail(error.clone());
    }
}

#[cfg(test)]
mod tests;
