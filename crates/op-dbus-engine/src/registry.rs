//! Who computes: the workers of each pool, what they do, and what batches cost on their devices.

mod costs;
mod given_up;
mod orders;
mod reserve;
mod room;
mod routing;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::backend::{Backend, BackendError, Description, Footprint};
use crate::batch::Batch;
use crate::config::{self, BatchLimits, ModelShape};
use crate::planner::Planner;
use crate::routing::Running;
use crate::status::{WorkerState, WorkerStatus};
use crate::usage::MemoryUse;
use costs::DeviceCosts;

pub(crate) use costs::TOKENS_PER_S_ASSUMED;
pub(crate) use orders::Order;

/// A worker that is busy for longer with one batch is not waited for.
const BUSY_US_MAX: u64 = 1_000_000;

/// All workers. The first pool is the one that was asked for; others help.
#[derive(Debug)]
pub(crate) struct Registry {
    pools: Vec<Pool>,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Pool {
    batch: BatchLimits,
    reserved: usize,
    holds_device: bool,
    losses_max: Option<u32>,
    planner: Planner,
    /// What its batches cost on each device that a worker was or is on.
    costs: Vec<DeviceCosts>,
}

#[derive(Debug, Default)]
struct Worker {
    pool: usize,
    /// Where in the costs of its pool those of its device are.
    device_index: usize,
    status: WorkerStatus,
    running: Option<Running>,
    load_failures: u32,
    /// Time that they took.
    load_failures_us: u64,
    /// Batches lost of late: until it has computed so many.
    losses: u32,
    forgets_at: u64,
    /// Whether it was given up and then unloaded, and has not proved itself since.
    was_given_up: bool,
    /// What it is asked for and has not done yet.
    orders: BTreeSet<Order>,
    /// When it first looked for something to do after it had proved itself; none until it does.
    proved_us: Option<u64>,
    /// Whether a backend is being made for it now.
    is_loading: bool,
    /// Whether it lets its backend go now.
    is_leaving: bool,
    /// Whether it is measured anew now.
    measures: bool,
    /// What it gave back in all, and had left when it last did.
    footprint: Footprint,
    /// Tokens of the largest batch that its backend ran.
    largest: usize,
    /// Bytes that batches moved to and from its devices, and their tokens.
    moved: (u64, u64),
    /// Bytes that are free on its device; none where that is not known.
    free: Option<u64>,
}

/// What a backend tells once it has proved itself.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub description: Description,
    pub memory: MemoryUse,
}

impl Loaded {
    pub fn of(backend: &dyn Backend) -> Self {
        Self { description: backend.description().clone(), memory: backend.memory() }
    }

    /// What is told of another one like it that is not there, on `device` where that is known.
    pub fn absent(&self, device: Option<&String>) -> Self {
        let device = device.unwrap_or(&self.description.device).clone();
        let description = Description { pid: 0, device, ..self.description.clone() };
        Self { description, memory: MemoryUse::default() }
    }
}

impl Worker {
    /// Whether it has a backend now.
    fn is_there(&self) -> bool {
        matches!(self.status.state, WorkerState::Idle | WorkerState::Busy)
    }

    /// Whether it has one and does not let it go, so that others may leave work to it.
    fn stays(&self) -> bool {
        self.is_there() && !self.is_leaving
    }

    /// What it computes on.
    fn device(&self) -> &str {
        &self.status.description.device
    }

    /// For how long it has been busy.
    fn busy_us(&self, now_us: u64) -> u64 {
        self.running.map_or(0, |running| now_us.saturating_sub(running.started_us))
    }
}

/// How long one of these is waited for at most, of which the busy may hang; none where there is nobody to wait for.
fn longest_wait<'a>(workers: impl Iterator<Item = &'a Worker>, now_us: u64) -> Option<Duration> {
    let left = workers.filter_map(|worker| BUSY_US_MAX.checked_sub(worker.busy_us(now_us)));
    left.max().filter(|left| *left > 0).map(Duration::from_micros)
}

impl Registry {
    /// These pools, without workers yet.
    pub fn new(pools: &[config::Pool], model: &ModelShape) -> Self {
        let pool = |pool: &config::Pool| {
            let limits = pool.batch;
            let tokens_max = limits.tokens_max.max(model.max_input_tokens);
            let batch = BatchLimits { tokens_max, rows_max: limits.rows_max.max(1), ..limits };
            let (planner, costs) = (Planner::new(batch), DeviceCosts::all(&pool.costs));
            let config::Pool { reserved, holds_device, losses_max, .. } = *pool;
            Pool { batch, reserved, holds_device, losses_max, planner, costs }
        };
        Self { pools: pools.iter().map(pool).collect(), workers: Vec::new() }
    }

    /// Plans a pool's batches by what its backends said of themselves when they were loaded, each of which may
    /// have measured them anew: no larger than is good for any of them. One in reserve measures nothing, and one
    /// that is given up has no part in it.
    fn plan_for(&mut self, pool: usize) {
        let workers =
            self.ordinary().filter(|worker| worker.pool == pool && self.is_relied_on(worker));
        let told = workers.map(|worker| &worker.status.description);
        let least = told.min_by_key(|description| description.batch_tokens);
        let Some(&Description { batch_tokens, buckets, .. }) = least else { return };
        let Some(pool) = self.pools.get_mut(pool) else { return };
        if let Some(buckets) = buckets {
            pool.planner.round_up(buckets);
        }
        if pool.batch.tokens_measured && batch_tokens > 0 {
            pool.planner.set_tokens_max(batch_tokens.min(pool.batch.tokens_max));
        }
    }

    /// The workers, all loaded and idle, each with its pool. Behind them come those that the pools
    /// reserve, without backends.
    pub fn add(&mut self, workers: Vec<(usize, Loaded)>) {
        let worker = |(pool, loaded): (usize, Loaded), reserved, state| Worker {
            pool,
            status: WorkerStatus {
                description: loaded.description,
                memory: loaded.memory,
                reserved,
                state,
                ..WorkerStatus::default()
            },
            ..Worker::default()
        };
        let reserved = self.like_loaded(&workers);
        let loaded = workers.into_iter().map(|of| worker(of, false, WorkerState::Idle));
        let reserved = reserved.into_iter().map(|of| worker(of, true, WorkerState::Unloaded));
        self.workers = loaded.chain(reserved).collect();
        (0..self.workers.len()).for_each(|worker| self.note_device(worker));
        (0..self.pools.len()).for_each(|pool| self.plan_for(pool));
    }

    /// The planner of a worker's batches.
    pub fn planner(&mut self, worker: usize) -> Option<&mut Planner> {
        let pool = self.workers.get(worker)?.pool;
        self.pools.get_mut(pool).map(|pool| &mut pool.planner)
    }

    /// How long `worker` leaves a row whose batch failed on `failed_on` to somebody further from that: in another pool,
    /// as what took one device may have taken all of its kind; else on another device, or another worker of the same.
    /// None where it takes it itself, as it does in the end where those are busy: they may hang.
    pub fn wait_for_another(
        &self,
        worker: usize,
        failed_on: usize,
        now_us: u64,
    ) -> Option<Duration> {
        let pool = |index: usize| Some(self.workers.get(index)?.pool);
        let device = |index: usize| self.workers.get(index).map(Worker::device);
        let distance = |index| {
            let elsewhere = (pool(index) != pool(failed_on), device(index) != device(failed_on));
            (elsewhere, index != failed_on)
        };
        let others = self.workers.iter().enumerate();
        let others = others.filter(|(_, other)| other.stays() && !other.status.reserved);
        let further = others.filter(|(index, _)| distance(*index) > distance(worker));
        longest_wait(further.map(|(_, other)| other), now_us)
    }

    /// For how long the worker that has computed longest has done so; none where nobody computes.
    pub fn busy_us(&self, now_us: u64) -> Option<u64> {
        let running = self.ordinary().filter_map(|worker| worker.running);
        running.map(|running| now_us.saturating_sub(running.started_us)).max()
    }

    /// A worker begins a batch.
    pub fn runs(&mut self, worker: usize, running: Running) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.status.state = WorkerState::Busy;
        worker.running = Some(running);
    }

    /// A worker has computed a batch, which took `us`.
    pub fn ran(
        &mut self,
        worker: usize,
        batch: &Batch<'_>,
        (us, stayed): (u64, bool),
        memory: MemoryUse,
    ) {
        let Some(own) = self.workers.get_mut(worker) else { return };
        own.has_moved(memory, batch.tokens());
        let Worker { status, running, largest, losses, forgets_at, .. } = own;
        *running = None;
        *largest = batch.tokens().max(*largest);
        status.memory = memory;
        status.batches += 1;
        if status.batches >= *forgets_at {
            *losses = 0;
        }
        status.rows += batch.rows() as u64;
        status.tokens += batch.tokens() as u64;
        status.busy_us += us;
        // Which computes with one thread, beside the others.
        if stayed && !status.reserved {
            self.learn(worker, batch.tokens(), us);
        }
    }

    /// A worker does something else than to compute.
    pub fn set(&mut self, worker: usize, state: WorkerState) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.status.state = state;
        worker.running = None;
        (worker.is_loading, worker.is_leaving, worker.measures) = (false, false, false);
    }

    /// A backend is being made for a worker.
    pub fn loads(&mut self, worker: usize) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.is_loading = true;
        }
    }

    /// A worker was lost and is to be replaced.
    pub fn lost(&mut self, worker: usize, error: &BackendError) {
        self.set(worker, WorkerState::Restarting);
        let Some(worker) = self.workers.get_mut(worker) else { return };
        // One that is loaded has proved itself, and has nothing to give back.
        worker.orders.clear();
        worker.footprint.resident = 0;
        worker.largest = 0;
        worker.status.restarts += 1;
        worker.status.memory = MemoryUse::default();
        worker.status.last_error = Some(error.to_string());
    }

    /// A worker has a backend again.
    pub fn loaded(&mut self, worker: usize, loaded: Loaded) {
        let Some(own) = self.workers.get_mut(worker) else { return };
        (own.is_loading, own.was_given_up) = (false, false);
        (own.load_failures, own.load_failures_us) = (0, 0);
        own.proved_us = None;
        own.status.state = WorkerState::Idle;
        own.status.description = loaded.description;
        own.status.memory = loaded.memory;
        let pool = own.pool;
        self.plan_for(pool);
        self.note_device(worker);
    }

    /// A worker computes on another device than before.
    pub fn moved(&mut self, worker: usize, device: &str) {
        let Some(own) = self.workers.get_mut(worker) else { return };
        device.clone_into(&mut own.status.description.device);
        self.note_device(worker);
    }

    /// A worker has let its backend go. It will try anew to have one, whatever failed before.
    pub fn unloaded(&mut self, worker: usize) {
        let is_given_up = self.workers.get(worker).is_some_and(|own| !self.is_relied_on(own));
        self.set(worker, WorkerState::Unloaded);
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.was_given_up |= is_given_up;
        worker.orders.clear();
        (worker.load_failures, worker.load_failures_us, worker.losses) = (0, 0, 0);
        worker.footprint.resident = 0;
        worker.largest = 0;
        worker.status.description.pid = 0;
        worker.status.memory = MemoryUse::default();
    }

    /// What a worker is, or was and is to be.
    pub fn description(&self, worker: usize) -> Option<Description> {
        self.workers.get(worker).map(|worker| worker.status.description.clone())
    }

    /// Whether a worker is in this state.
    pub fn is(&self, worker: usize, state: WorkerState) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.status.state == state)
    }

    /// Whether no worker has a backend or is about to have one.
    pub fn all_are_away(&self) -> bool {
        self.workers.iter().all(|worker| worker.status.state.is_away())
    }

    /// Whether the threads of all workers have ended.
    pub fn all_have_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.status.state == WorkerState::Stopped)
    }

    /// The same of those that do not just make a backend.
    pub fn all_but_loading_have_ended(&self) -> bool {
        let has_ended = |worker: &Worker| worker.status.state == WorkerState::Stopped;
        self.workers.iter().all(|worker| worker.is_loading || has_ended(worker))
    }

    /// Whether none has a backend, and one that is not given up is to have one. Reserved ones are not waited for.
    pub fn is_only_coming(&self) -> bool {
        let coming = |worker: &Worker| {
            let state = worker.status.state;
            matches!(state, WorkerState::Unloaded | WorkerState::Loading)
                && !self.is_given_up(worker)
        };
        !self.any_is_there() && self.ordinary().any(coming)
    }

    /// Whether one has a backend now.
    pub fn any_is_there(&self) -> bool {
        self.ordinary().any(Worker::is_there)
    }

    /// Whether none has a backend, and one is being made: nobody could tell more by waiting for a batch.
    pub fn is_only_loading(&self) -> bool {
        !self.any_is_there() && self.ordinary().any(|worker| worker.is_loading)
    }

    /// Whether every worker that is to have a backend has one, or is given up.
    pub fn is_settled(&self, wants: impl Fn(usize) -> bool) -> bool {
        let settled =
            |worker: &Worker| worker.stays() || worker.status.reserved || self.is_given_up(worker);
        let mut workers = self.workers.iter().enumerate();
        workers.all(|(index, worker)| settled(worker) || !wants(index))
    }

    /// Whether a worker holds a device beside the CPU when it has a backend.
    pub fn holds_device(&self, worker: usize) -> bool {
        self.workers.get(worker).is_some_and(|worker| self.pools[worker.pool].holds_device)
    }

    /// The device that each worker computes on, in the order of their numbers.
    pub fn on(&self) -> impl Iterator<Item = &String> {
        self.workers.iter().map(|worker| &worker.status.description.device)
    }

    /// What each worker does that may hold a device.
    pub fn devices(&self) -> impl Iterator<Item = WorkerState> {
        let held = |worker: &&Worker| self.pools[worker.pool].holds_device;
        self.workers.iter().filter(held).map(|worker| worker.status.state)
    }

    /// What each worker is and does, without reserved ones that have no backend.
    pub fn statuses(&self) -> Vec<WorkerStatus> {
        let away = |worker: &&Worker| worker.status.reserved && !worker.is_there();
        let told = self.workers.iter().filter(|worker| !away(worker));
        told.map(|worker| worker.status.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
