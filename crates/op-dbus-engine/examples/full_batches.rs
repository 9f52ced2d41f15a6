//! Prints how far a device is kept busy by full batches, of which each takes it 6 ms: with a backend in this
//! process, in a worker process that is given one after the other, and in one that has the next one already.
//!
//!     full_batches [CALLS]

use std::process::Command;
use std::time::{Duration, Instant};

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::worker::{ChildBackend, RegionShape, Timeouts, serve};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, BatchLimits, Buckets, Call, Description, Engine,
    EngineConfig, Error, Meanwhile, ModelShape, Pool, Tokenizer,
};

const SHAPE: RegionShape = RegionShape { tokens_max: 32_768, rows_max: 2_048, dimensions: 384 };
/// What the device takes for a batch.
const BATCH_TIME: Duration = Duration::from_millis(6);
/// Clients that send full calls to it.
const CLIENTS: u32 = 16;
/// How often each of them does, if nothing else is asked for.
const CALLS: usize = 60;
/// How often all of it is measured.
const ROUNDS: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let asked = std::env::args().nth(1);
    if asked.as_deref() == Some("worker") {
        return Ok(serve("", device)?);
    }
    let calls = asked.map_or(Ok(CALLS), |calls| calls.parse())?;
    for _ in 0..ROUNDS {
        bulk("in process", Box::new(|_| device()), calls)?;
        bulk("one by one", Box::new(|_| Ok(Box::new(OneByOne(child()?)))), calls)?;
        bulk("begun", Box::new(|_| child()), calls)?;
    }
    Ok(())
}

fn child() -> Result<Box<dyn Backend>, BackendError> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("worker");
    Ok(Box::new(ChildBackend::spawn(command, SHAPE, Timeouts::default())?))
}

/// A device with memory of its own, whose time for a batch is known.
struct Device(Description);

fn device() -> Result<Box<dyn Backend>, BackendError> {
    let RegionShape { tokens_max, rows_max, dimensions } = SHAPE;
    let (attention_max, length_max) = (u64::MAX, 256);
    let buckets = Buckets { tokens_max, attention_max, rows_max, length_max, packed: true };
    let description = SimBackend::new(dimensions).description().clone();
    Ok(Box::new(Device(Description { buckets: Some(buckets), ..description })))
}

impl Backend for Device {
    fn description(&self) -> &Description {
        &self.0
    }

    fn run(&mut self, _: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        std::thread::sleep(BATCH_TIME);
        out.fill((SHAPE.dimensions as f32).sqrt().recip());
        Ok(())
    }
}

/// A backend that is given no batch while it computes another.
struct OneByOne(Box<dyn Backend>);

impl Backend for OneByOne {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.0.run(batch, out)
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        self.0.run_while(batch, out, meanwhile)
    }
}

/// Clients with many texts a call.
fn bulk(name: &str, factory: BackendFactory, calls: usize) -> Result<(), Failure> {
    let batch = BatchLimits::accelerator(Some(SHAPE.tokens_max));
    let model = ModelShape::new(SHAPE.dimensions, 256);
    let pools = vec![Pool { batch, ..Pool::new(factory) }];
    let engine = Engine::start(Tokenizer::bytes(256), model, pools, EngineConfig::default())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let texts = vec!["x".repeat(23); 1_000];
    let begin = Instant::now();
    let client = |uid| {
        let (engine, texts) = (engine.clone(), texts.clone());
        async move {
            for _ in 0..calls {
                let call = Call { uid, inputs: texts.clone().into(), ..Call::default() };
                engine.embed(call).await?;
            }
            Ok::<(), Error>(())
        }
    };
    let clients: Vec<_> = (0..CLIENTS).map(|uid| runtime.spawn(client(uid))).collect();
    for client in clients {
        runtime.block_on(client)??;
    }
    let took = begin.elapsed();
    let stats = engine.stats();
    let busy = BATCH_TIME.as_secs_f64() * stats.batches as f64 / took.as_secs_f64();
    let rate = f64::from(CLIENTS) * calls as f64 * 1e3 / took.as_secs_f64();
    println!("{name:12} {rate:7.0} texts/s  device busy {:4.1} %", 100.0 * busy);
    Ok(())
}
