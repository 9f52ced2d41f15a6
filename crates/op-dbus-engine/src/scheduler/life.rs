//! The life of workers: lost and replaced, unloaded and loaded again, ended; and what they are asked
//! for between two batches.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{Entry, Next, Scheduler, State, fail};
use crate::backend::{BackendError, Footprint};
use crate::error::Error;
use crate::presence::{Absence, Presence};
use crate::registry::{Loaded, Order, Registry};
use crate::reserve::Serves;
use crate::routing::Running;
use crate::status::WorkerState;
use crate::wait::until;

impl Scheduler {
    /// What `ask` makes of the registry; nobody waits for what it changes.
    pub fn registry<T>(&self, ask: impl FnOnce(&mut Registry) -> T) -> T {
        ask(&mut self.lock().registry)
    }

    /// Changes what a worker does, has or is asked for, and wakes who waits for that.
    pub fn change(&self, change: impl FnOnce(&mut Registry)) {
        self.registry(change);
        self.purge_for_nobody();
        self.changed.notify_waiters();
    }

    /// A worker begins a part of a batch. It is no less busy with it than with a whole one.
    pub fn runs(&self, worker: usize, part: &[Entry]) {
        self.lock().runs(worker, part, self.clock.now_us());
    }

    /// A worker was lost and is to be replaced.
    pub fn lost(&self, worker: usize, error: &BackendError) {
        let mut state = self.lock();
        state.registry.lost(worker, error);
        self.stats.restarted();
        let given_up = state.give_up();
        // Others may have left to it what waits.
        self.call_workers(state, false);
        // Or have waited longer for their next try, as it computed.
        self.stop.notify_all();
        tell(given_up);
        self.purge_for_nobody();
        self.changed.notify_waiters();
    }

    /// A worker could not be loaded, which took so many microseconds. Once none is left, what waits is failed.
    pub fn load_failed(&self, worker: usize, error: &BackendError, took_us: u64) {
        let mut state = self.lock();
        state.registry.load_failed(worker, error, took_us);
        let given_up = state.give_up();
        drop(state);
        tell(given_up);
        self.changed.notify_waiters();
    }

    /// Waits until this holds of the registry.
    pub async fn until_registry(&self, condition: impl Fn(&Registry) -> bool) {
        self.until(|state| condition(&state.registry)).await;
    }

    /// A worker has a backend, its first or another one.
    pub fn loaded(&self, worker: usize, loaded: Loaded) {
        let mut state = self.lock();
        state.registry.loaded(worker, loaded);
        state.loaded_at = Instant::now();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Whether a worker is to have a backend.
    pub fn wants(&self, worker: usize) -> bool {
        self.lock().wants(worker)
    }

    /// Waits, but not on once the engine stops or the worker is not to have a backend any more; false
    /// if the engine has stopped. The second time holds for as long as other devices of its pool compute.
    pub fn pause(&self, worker: usize, [alone, beside]: [Duration; 2]) -> bool {
        let began = Instant::now();
        let mut state = self.lock();
        while !state.stopped {
            let whole = if state.registry.has_other_devices(worker) { beside } else { alone };
            let left = whole.saturating_sub(began.elapsed());
            if left.is_zero() || !state.wants(worker) {
                return true;
            }
            state = self.stop.wait(state, Some(left));
        }
        false
    }

    /// Stops: workers end after the batch that they run, what waits is failed.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let entries = state.queue.clear();
        drop(state);
        self.call_all();
        fail(entries, &Error::ShuttingDown);
    }

    /// Has the workers let their backends go if they are loaded for `time` and `idle` still holds; false
    /// if not. What is pushed later has them load again.
    pub fn unload_if(&self, why: Absence, time: Duration, idle: impl FnOnce() -> bool) -> bool {
        let mut state = self.lock();
        // Asked under the lock that a call's rows have to pass: they come before this, and `idle` does
        // not hold, or after it.
        if state.loaded_at.elapsed() < time || !idle() {
            return false;
        }
        let before = state.presence();
        state.absence.get_or_insert((why, before));
        drop(state);
        self.call_all();
        true
    }

    /// How long ago a worker was loaded.
    pub fn loaded_for(&self) -> Duration {
        self.lock().loaded_at.elapsed()
    }

    /// Has unloaded workers load again.
    pub fn load(&self) {
        self.lock().absence = None;
        self.call_all();
    }

    /// Returns once the workers have let their backends go, or are to have them again.
    pub async fn all_unloaded(&self) {
        self.until(|state| state.absence.is_none() || state.registry.all_are_away()).await;
    }

    /// Returns once every worker that is to have a backend has one or is given up.
    ///
    /// # Errors
    /// None can be had.
    pub async fn all_loaded(&self) -> Result<(), Error> {
        self.until(|state| state.stopped || state.is_settled()).await;
        self.lock().refusal().map_or(Ok(()), Err)
    }

    /// Has the workers that hold a device let it go until [`wake`](Self::wake), and returns once they
    /// have.
    pub async fn sleep(&self) {
        self.begin_sleep();
        self.until(|state| !state.asleep || state.devices_are_free()).await;
    }

    /// [`sleep`](Self::sleep), without waiting for it.
    pub fn begin_sleep(&self) {
        self.lock().asleep = true;
        self.call_all();
    }

    /// Has the workers that held a device load again, and the others make sure that they compute.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.asleep = false;
        state.registry.order(Order::Check);
        drop(state);
        self.call_all();
    }

    /// Has the workers make sure that they compute, before their next batch.
    pub fn check(&self) {
        self.registry(|registry| registry.order(Order::Check));
        self.call_all();
    }

    /// Has the workers give back memory that they can do without, and tells how much that was.
    pub async fn trim(&self) -> Footprint {
        let before = self.registry(|registry| {
            registry.order(Order::Trim);
            registry.footprint()
        });
        self.call_all();
        self.until(|state| !state.registry.is_ordered(Order::Trim)).await;
        let Footprint { given_back, resident } = self.registry(|registry| registry.footprint());
        // Who asked at the same time is told the same.
        Footprint { given_back: given_back.saturating_sub(before.given_back), resident }
    }

    /// Whether the workers have their backends.
    pub fn presence(&self) -> Presence {
        self.lock().presence()
    }

    /// Waits until [`presence`](Self::presence) is another one than `known`.
    pub async fn presence_other_than(&self, known: Presence) -> Presence {
        self.until(|state| state.presence() != known).await;
        self.presence()
    }

    /// Whether a text of the engine's own would only tell what is known: no worker is to have a
    /// backend, or all are on their way, be it in place of a lost one.
    pub fn is_away(&self) -> bool {
        let state = self.lock();
        let loading = state.presence() != Presence::Loaded || state.registry.is_only_loading();
        let away = state.absence.is_some() || loading;
        away && state.refusal().is_none()
    }

    /// What a worker has to do before it looks for a batch; `Nothing` if it is to wait.
    pub(super) fn duty(&self, state: &mut State, worker: usize, now_us: u64) -> Option<Next> {
        if state.stopped {
            return Some(Next::Stopped);
        }
        match (state.wants(worker), state.registry.is(worker, WorkerState::Unloaded)) {
            (true, true) => Some(Next::Load),
            (false, false) => Some(Next::Unload),
            (false, true) => Some(Next::Nothing),
            (true, false) => match state.registry.order_of(worker) {
                Some(Order::Check) => Some(Next::Check),
                Some(Order::Trim) => Some(Next::Trim),
                // However much waits: a device that turns wrong answers until it is asked.
                None => self.until_check(state, worker, now_us).is_zero().then_some(Next::Check),
            },
        }
    }

    /// Takes note of what a worker goes to do, and wakes another one for what waits: it alone may have been notified
    /// of that.
    pub(super) fn begins(
        &self,
        mut state: MutexGuard<'_, State>,
        next: Next,
        (worker, now_us): (usize, u64),
    ) {
        match next {
            Next::Check | Next::Trim => state.registry.obeys(worker, now_us),
            Next::Unload => state.registry.leaves_backend(worker),
            _ => {}
        }
        if state.queue.texts() > 0 {
            self.call_workers(state, false);
        }
    }

    /// How long it is until a worker that has a backend is to make sure that it computes.
    pub(super) fn until_check(&self, state: &mut State, worker: usize, now_us: u64) -> Duration {
        let proved_us = state.registry.proved_us(worker, now_us);
        self.check_interval.saturating_sub(Duration::from_micros(now_us.saturating_sub(proved_us)))
    }

    /// Wakes every worker, whatever it waits for.
    fn call_all(&self) {
        self.work.notify_all();
        self.reserve.notify_all();
        self.stop.notify_all();
        self.changed.notify_waiters();
    }

    /// Waits until `condition` holds, which is asked after each change in the life of a worker.
    async fn until(&self, condition: impl Fn(&State) -> bool) {
        until(&self.changed, || condition(&self.lock()).then_some(())).await;
    }
}

impl State {
    /// Takes out what waits for nobody, if there is none left who computes it, and why.
    fn give_up(&mut self) -> Option<(Vec<Entry>, Error)> {
        let error = self.refusal()?;
        Some((self.queue.clear(), error))
    }

    /// A worker begins a batch, or a part of one.
    pub fn runs(&mut self, worker: usize, batch: &[Entry], started_us: u64) {
        if let Some(&Entry { class, .. }) = batch.first() {
            let tokens = batch.iter().map(|entry| entry.tokens).sum();
            self.registry.runs(worker, Running { class, tokens, started_us });
        }
    }

    fn wants(&self, worker: usize) -> bool {
        let needed = self.registry.serves(worker) == Serves::Everybody || self.recent.has_both();
        self.absence.is_none() && needed && !(self.asleep && self.registry.holds_device(worker))
    }

    fn devices_are_free(&self) -> bool {
        self.registry.devices().all(WorkerState::is_away)
    }

    fn is_settled(&self) -> bool {
        self.registry.is_settled(|worker| self.wants(worker))
    }

    fn presence(&self) -> Presence {
        match self.absence {
            Some((why, _)) if self.registry.all_are_away() => Presence::Unloaded(why),
            // They are still at it, and those that could not be had are not there by that.
            Some((_, before)) => before,
            None if self.registry.refusal().is_some() => Presence::Lost,
            None if self.asleep && self.registry.devices().count() > 0 => self.presence_asleep(),
            None if self.registry.is_only_coming() => Presence::Loading,
            None => Presence::Loaded,
        }
    }

    /// The same while the machine sleeps or is about to.
    fn presence_asleep(&self) -> Presence {
        let all_load = || self.registry.devices().all(|state| state == WorkerState::Loading);
        match () {
            // Others, as the CPU beside a device, answer meanwhile.
            () if self.registry.any_is_there() => Presence::Loaded,
            () if self.devices_are_free() => Presence::Unloaded(Absence::Sleep),
            // Those that are still at it were not there before, and are not by that the others let go.
            () if self.registry.all_are_lost() => Presence::Lost,
            () if self.registry.is_only_coming() && all_load() => Presence::Loading,
            () => Presence::Loaded,
        }
    }
}

fn tell(given_up: Option<(Vec<Entry>, Error)>) {
    if let Some((entries, error)) = given_up {
        fail(entries, &error);
    }
}
