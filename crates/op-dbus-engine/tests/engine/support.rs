//! Engines to test with: plain, and one whose batches wait for the test.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use op_dbus_engine::sim::{Faults, Faulty, SimBackend};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, BatchCost, BatchLimits, Buckets, Call,
    Description, Engine, EngineConfig, Error, Limits, Meanwhile, ModelShape, Pool, Reference,
    Reply, Tokenizer,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

pub const DIMENSIONS: usize = 8;
pub const INPUT_MAX: usize = 32;

pub fn model() -> ModelShape {
    ModelShape { matryoshka: vec![4], ..ModelShape::new(DIMENSIONS, INPUT_MAX) }
}

pub fn config(limits: Limits) -> EngineConfig {
    EngineConfig { limits, tokenizer_threads: 2, ..EngineConfig::default() }
}

pub fn pools(factory: BackendFactory, workers: usize) -> Vec<Pool> {
    vec![Pool { workers, ..Pool::new(factory) }]
}

/// An engine of these pools, if it starts.
pub fn try_of_pools(pools: Vec<Pool>) -> Result<Engine, BackendError> {
    Engine::start(Tokenizer::bytes(INPUT_MAX), model(), pools, config(Limits::default()))
}

pub fn of_pools(pools: Vec<Pool>) -> Engine {
    try_of_pools(pools).unwrap()
}

pub fn configured(pools: Vec<Pool>, config: EngineConfig) -> Engine {
    Engine::start(Tokenizer::bytes(INPUT_MAX), model(), pools, config).unwrap()
}

pub fn start(factory: BackendFactory, limits: Limits, workers: usize) -> Engine {
    batched(factory, limits, BatchLimits::default(), workers)
}

pub fn batched(
    factory: BackendFactory,
    limits: Limits,
    batch: BatchLimits,
    workers: usize,
) -> Engine {
    configured(vec![Pool { workers, batch, ..Pool::new(factory) }], config(limits))
}

pub fn sim(faults: Faults) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(Faulty::new(Box::new(SimBackend::new(DIMENSIONS)), faults)))
}

/// What the simulator proves itself by.
pub fn reference() -> Reference {
    let factory: BackendFactory = Box::new(|_| sim(Faults::default()));
    op_dbus_engine::reference(&Tokenizer::bytes(INPUT_MAX), &model(), &factory, 0.9999).unwrap()
}

pub fn plain() -> Engine {
    start(Box::new(|_| sim(Faults::default())), Limits::default(), 2)
}

/// What a factory calls to have a load held: it tells of the load, and returns once the sender is dropped.
pub fn held() -> (impl Fn() + Send + Sync + 'static, UnboundedReceiver<()>, Sender<()>) {
    let (hold, held) = channel();
    let held = Mutex::new(held);
    let (loads, loading) = unbounded_channel();
    let wait = move || {
        let _ = loads.send(());
        let _ = held.lock().unwrap().recv();
    };
    (wait, loading, hold)
}

/// The `n`-th backend that is made shows the `n`-th faults; later ones show none.
pub fn with_faults(faults: Vec<Faults>, limits: Limits) -> Engine {
    let faults = Mutex::new(faults.into_iter());
    start(Box::new(move |_| sim(faults.lock().unwrap().next().unwrap_or_default())), limits, 1)
}

pub fn call(uid: u32, texts: &[&str]) -> Call {
    Call {
        uid,
        inputs: texts.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
        ..Call::default()
    }
}

/// Makes a call and goes on without its reply.
pub fn begin(engine: &Engine, call: Call) -> JoinHandle<Result<Reply, Error>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.embed(call).await })
}

/// What the simulator makes of a text that fits.
pub fn expected(text: &str) -> Vec<f32> {
    let bytes = text.bytes().map(i32::from);
    let ids: Vec<i32> = std::iter::once(256).chain(bytes).chain([257]).collect();
    let lengths = [i32::try_from(ids.len()).unwrap()];
    let batch = Batch { ids: &ids, lengths: &lengths };
    let mut vector = vec![0.0; DIMENSIONS];
    SimBackend::new(DIMENSIONS).run(&batch, &mut vector).unwrap();
    vector
}

/// An engine with a worker that shows the test each batch and runs it when told to.
pub struct Gate {
    pub engine: Engine,
    batches: Receiver<Vec<String>>,
    /// Those that were begun beside another one.
    begun: Receiver<Vec<String>>,
    go: Sender<()>,
}

impl Gate {
    pub fn new(limits: Limits) -> Self {
        Self::batched(limits, BatchLimits::default())
    }

    pub fn batched(limits: Limits, batch: BatchLimits) -> Self {
        Self::made((None, false), |factory| batched(factory, limits, batch, 1))
    }

    /// As on a device with memory of its own, whose next batch is planned while it computes.
    pub fn on_device(limits: Limits, batch: BatchLimits) -> Self {
        Self::device(Tokenizer::bytes(INPUT_MAX), limits, batch, None)
    }

    /// As on one that begins the next batch while it computes, where a full one is known to take `cost_us`.
    pub fn beginning(limits: Limits, batch: BatchLimits, cost_us: u64) -> Self {
        Self::tokenizing(Tokenizer::bytes(INPUT_MAX), limits, batch, cost_us)
    }

    /// The same with a tokenizer of its own, which puts a special token at each end.
    pub fn tokenizing(
        tokenizer: Tokenizer,
        limits: Limits,
        batch: BatchLimits,
        cost_us: u64,
    ) -> Self {
        Self::device(tokenizer, limits, batch, Some(cost_us))
    }

    fn device(
        tokenizer: Tokenizer,
        limits: Limits,
        batch: BatchLimits,
        cost_us: Option<u64>,
    ) -> Self {
        let BatchLimits { tokens_max, attention_max, rows_max, .. } = batch;
        let buckets =
            Buckets { tokens_max, attention_max, rows_max, length_max: INPUT_MAX, packed: false };
        let known = |us| ("sim:0".to_owned(), vec![BatchCost { tokens: tokens_max, us }]);
        let costs = cost_us.map(known).into_iter().collect();
        Self::made((Some(buckets), cost_us.is_some()), |factory| {
            let pools = vec![Pool { batch, costs, ..Pool::new(factory) }];
            Engine::start(tokenizer, model(), pools, config(limits)).unwrap()
        })
    }

    /// With a worker in reserve that is made by `reserve` and waits for nobody.
    pub fn reserved(reserve: fn() -> Result<Box<dyn Backend>, BackendError>) -> Self {
        Self::made((None, false), |gated| {
            let factory: BackendFactory =
                Box::new(move |number| if number == 0 { gated(number) } else { reserve() });
            of_pools(vec![Pool { reserved: 1, ..Pool::new(factory) }])
        })
    }

    fn made(
        (buckets, begins): (Option<Buckets>, bool),
        engine: impl FnOnce(BackendFactory) -> Engine,
    ) -> Self {
        let (shown, batches) = channel();
        let (begins_with, begun) = channel();
        let (go, wait) = channel();
        let wait = Arc::new(Mutex::new(wait));
        let factory: BackendFactory = Box::new(move |_| {
            let sim = SimBackend::new(DIMENSIONS);
            let description = Description { buckets, ..sim.description().clone() };
            let (shown, wait) = (shown.clone(), Arc::clone(&wait));
            let begins = begins.then(|| begins_with.clone());
            let next = None;
            Ok(Box::new(Gated { sim, description, shown, begins, next, wait, checked: false }))
        });
        Self { engine: engine(factory), batches, begun, go }
    }

    /// Makes a call and goes on without its reply.
    pub fn begin(&self, call: Call) -> JoinHandle<Result<Reply, Error>> {
        begin(&self.engine, call)
    }

    /// Waits until a batch is about to run; its texts in alphabetical order.
    pub fn next_batch(&self) -> Vec<String> {
        let mut texts = self.batches.recv().unwrap();
        texts.sort();
        texts
    }

    /// The batch that was begun meanwhile, if one was.
    pub fn begun_batch(&self) -> Option<Vec<String>> {
        self.begun.try_recv().ok()
    }

    /// Lets that batch run.
    pub fn go(&self) {
        self.go.send(()).unwrap();
    }
}

struct Gated {
    sim: SimBackend,
    description: Description,
    shown: Sender<Vec<String>>,
    begins: Option<Sender<Vec<String>>>,
    next: Option<Vec<String>>,
    wait: Arc<Mutex<Receiver<()>>>,
    checked: bool,
}

impl Backend for Gated {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        // The first batch is the engine's own check.
        if std::mem::replace(&mut self.checked, true) {
            let texts = texts(batch);
            if let Some(begun) = self.next.take() {
                assert_eq!(texts, begun, "not what was begun");
            }
            self.shown.send(texts).unwrap();
            // Fails when the test is over.
            let _ = self.wait.lock().unwrap().recv();
        }
        self.sim.run(batch, out)
    }

    fn begins(&self) -> bool {
        self.begins.is_some()
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        let mut next = None;
        meanwhile(&mut |batch| {
            if let Some(begins) = &self.begins {
                begins.send(texts(batch)).unwrap();
                next = Some(texts(batch));
            }
            self.begins.is_some()
        });
        let result = self.run(batch, out);
        self.next = next;
        result
    }
}

fn texts(batch: &Batch<'_>) -> Vec<String> {
    let text = |ids: &[i32]| {
        let bytes = ids[1..ids.len() - 1].iter().map(|id| *id as u8).collect();
        String::from_utf8(bytes).unwrap()
    };
    batch.texts().map(text).collect()
}
