//! What a history knows: its engine, its callers and its dice; and how calls may end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};

use super::super::{Shared, Worker};
use super::text::Text;
use super::world;
use crate::admission::{Admission, Ledger};
use crate::backend::{Backend, BackendError};
use crate::batch::Batch;
use crate::buckets::Buckets;
use crate::cache::Cache;
use crate::call::{Reply, Truncate};
use crate::config::{BatchLayout, BatchLimits, Limits, ModelShape, Pool};
use crate::error::Error;
use crate::job::Job;
use crate::prepare::{Chunk, Preparer};
use crate::proof::load;
use crate::registry::{Loaded, Registry};
use crate::routing::BatchCost;
use crate::scheduler::Scheduler;
use crate::sim::{SimBackend, SplitMix64};
use crate::start::{CANARY, probe, worker_ids};
use crate::tokenizer::Tokenizer;

pub const DIMENSIONS: usize = 4;
pub const INPUT_MAX: usize = 64;
/// What backends compute on.
pub const DEVICES: [&str; 2] = ["sim:0", "sim:1"];

pub struct World {
    pub random: Random,
    pub preparer: Preparer,
    pub admission: Arc<Admission>,
    /// What the bounds of admission are on, and these.
    pub ledger: Arc<Ledger>,
    pub limits: Limits,
    pub workers: Vec<Option<Worker>>,
    pub calls: Vec<Asked>,
    /// Texts that no tokenizer thread has taken yet.
    pub chunks: Vec<Chunk<Text>>,
    /// What happens beside the tokenizing of a text.
    pub meanwhile: fn(),
    pub now_us: u64,
    /// Of backends on a device, whose next batch is planned while they compute.
    pub buckets: Option<Buckets>,
    pub depth: usize,
    /// Whether backends may fail, and how often they did.
    pub faulty: bool,
    pub faults: usize,
    pub stopped: bool,
    /// Whether something was found wrong where the engine takes a panic for the backend's.
    pub broken: bool,
}

/// Notes a panic that passes by on its way to the engine.
pub struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            world(|w| w.broken = true);
        }
    }
}

/// A call, as its caller knows it.
pub struct Asked {
    pub texts: Vec<String>,
    pub truncate: Truncate,
    pub deadline_us: Option<u64>,
    pub job: Arc<Job>,
    pub result: oneshot::Receiver<Result<Reply, Error>>,
    /// Left, or told.
    pub over: bool,
}

/// What happens, by a seed.
pub struct Random(pub SplitMix64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

impl World {
    /// An engine without workers yet, which are made of what is returned.
    pub fn new(seed: u64, tokenizer: &Tokenizer, backend: Make) -> (Self, Arc<Shared>) {
        let mut random = Random(SplitMix64(seed));
        let (shared, limits) = shared(&mut random, backend);
        let scheduler = Arc::clone(&shared.scheduler);
        let ledger = Arc::<Ledger>::default();
        let (tokens_max, attention_max, rows_max) = (1 << 20, u64::MAX, 1 << 10);
        let buckets =
            Buckets { tokens_max, attention_max, rows_max, length_max: INPUT_MAX, packed: false };
        let world = Self {
            buckets: random.one_in(2).then_some(buckets),
            random,
            preparer: Preparer { tokenizer: tokenizer.clone(), scheduler },
            admission: Admission::new(&limits, Arc::clone(&ledger)),
            ledger,
            limits,
            workers: Vec::new(),
            calls: Vec::new(),
            chunks: Vec::new(),
            meanwhile: || (),
            now_us: 0,
            depth: 0,
            faulty: false,
            faults: 0,
            stopped: false,
            broken: false,
        };
        (world, Arc::new(shared))
    }

    /// Whether a call has ended, and ended as it may.
    pub fn told(&mut self, index: usize) -> bool {
        let call = &mut self.calls[index];
        let late = call.deadline_us.is_some_and(|at| self.now_us >= at);
        match call.result.try_recv() {
            Ok(Ok(reply)) => self.check(index, &reply),
            Ok(Err(Error::DeadlineExceeded)) => assert!(late, "a deadline before its time"),
            Ok(Err(Error::ShuttingDown)) => assert!(self.stopped, "shut down while running"),
            Ok(Err(Error::WorkerFailed(_) | Error::OutOfMemory(_))) => {
                assert!(self.faults > 0, "a call failed where nothing did");
            }
            Ok(Err(other)) => panic!("a call ended with {other}"),
            Err(TryRecvError::Empty) => return late,
            Err(TryRecvError::Closed) => panic!("a call was dropped without an answer"),
        }
        true
    }

    /// Every vector of a reply is that of its text.
    fn check(&self, index: usize, reply: &Reply) {
        let call = &self.calls[index];
        assert_eq!(reply.vectors.len(), call.texts.len() * DIMENSIONS);
        let mut cut = Vec::new();
        let vectors = reply.vectors.chunks_exact(DIMENSIONS);
        for (number, (text, vector)) in call.texts.iter().zip(vectors).enumerate() {
            let encoded = self.preparer.tokenizer.encode(text, call.truncate).unwrap();
            cut.extend(encoded.truncated.then_some(number as u32));
            if let [row] = encoded.windows.as_slice() {
                assert_eq!(vector, alone(&row.ids), "text {number} has another vector");
            }
            let square: f32 = vector.iter().map(|x| x * x).sum();
            assert!((square - 1.0).abs() < 1e-3, "text {number}: {vector:?}");
        }
        assert_eq!(reply.truncated, cut);
    }
}

/// The vector of one row.
fn alone(ids: &[i32]) -> Vec<f32> {
    let lengths = [ids.len() as i32];
    let mut vector = vec![0.0; DIMENSIONS];
    let batch = Batch { ids, lengths: &lengths };
    SimBackend::new(DIMENSIONS).run(&batch, &mut vector).unwrap();
    vector
}

/// Makes the backend of a worker whose batches have these bounds.
type Make = fn(BatchLimits) -> Result<Box<dyn Backend>, BackendError>;

/// What the workers of a history share, and the bounds on its calls.
fn shared(random: &mut Random, backend: Make) -> (Shared, Limits) {
    let limits = Limits {
        queue_tokens_max: random.of(&[300, 3_000]),
        quota_tokens: random.of(&[200, 2_000]),
        batch_delay_us_max: random.of(&[0, 0, 50]),
        bulk_wait_us_max: random.of(&[0, 100, 10_000]),
        ..Limits::default()
    };
    let model = ModelShape::new(DIMENSIONS, INPUT_MAX);
    let pools: Vec<Pool> = (0..random.of(&[1, 2])).map(|_| pool(random, backend)).collect();
    let registry = Registry::new(&pools, &model);
    let scheduler =
        Arc::new(Scheduler::new(&limits, Duration::from_secs(60), registry, Arc::default()));
    let probe = probe(&Tokenizer::bytes(INPUT_MAX), CANARY).unwrap();
    let (cache, number, backoff) = (Arc::new(Cache::new(0)), 0, Duration::ZERO);
    (Shared { scheduler, cache, number, pools, model, probe, backoff }, limits)
}

/// Workers of one kind, whose batches are known to cost something or other, or will be.
fn pool(random: &mut Random, backend: Make) -> Pool {
    let batch = BatchLimits {
        layout: random.of(&[BatchLayout::Padded, BatchLayout::Packed]),
        tokens_max: random.of(&[32, 128]),
        rows_max: random.of(&[2, 8]),
        ..BatchLimits::default()
    };
    let known = random.of(&[None, Some(10), Some(1_000)]);
    let costs = |us| (DEVICES[0].to_owned(), vec![BatchCost { tokens: 16, us }]);
    Pool {
        workers: random.of(&[1, 2, 3]),
        reserved: random.of(&[0, 1]),
        batch,
        holds_device: random.one_in(2),
        losses_max: random.of(&[None, Some(2)]),
        costs: known.map(costs).into_iter().collect(),
        ..Pool::new(Box::new(move |_| backend(batch)))
    }
}

/// The workers of an engine, all loaded but those that are reserved.
pub fn workers(shared: &Arc<Shared>) -> Vec<Worker> {
    let ids = worker_ids(&shared.pools);
    let (reserved, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| id.reserved);
    let worker = |id| Worker::new(id, Arc::clone(shared), load(id, shared).unwrap());
    let mut workers: Vec<Worker> = others.into_iter().map(worker).collect();
    let loaded = workers.iter().map(|worker| (worker.id.pool, Loaded::of(worker.backend.as_ref())));
    shared.scheduler.registry(|registry| registry.add(loaded.collect()));
    workers.extend(reserved.into_iter().map(|id| Worker::without_backend(id, Arc::clone(shared))));
    workers
}
