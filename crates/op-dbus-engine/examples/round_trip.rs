//! Prints what a worker process costs over a backend in this process: one short text at a time, on
//! the simulator, so that nothing but the way there and back is measured.
//!
//!     round_trip [ROUNDS]

use std::process::Command;
use std::time::{Duration, Instant};

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::worker::{ChildBackend, RegionShape, Timeouts, serve};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, Call, Engine, EngineConfig, ModelShape, Pool,
    Tokenizer,
};

const SHAPE: RegionShape = RegionShape { tokens_max: 512, rows_max: 512, dimensions: 384 };
/// If none are asked for.
const ROUNDS: usize = 20_000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let asked = std::env::args().nth(1);
    if asked.as_deref() == Some("worker") {
        serve("", local)?;
        return Ok(());
    }
    let rounds = asked.map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    backend("in process", local()?, rounds)?;
    backend("child", child()?, rounds)?;
    engine("in process", Box::new(|_| local()), rounds)?;
    engine("child", Box::new(|_| child()), rounds)?;
    Ok(())
}

fn local() -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(SimBackend::new(SHAPE.dimensions)))
}

fn child() -> Result<Box<dyn Backend>, BackendError> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("worker");
    Ok(Box::new(ChildBackend::spawn(command, SHAPE, Timeouts::default())?))
}

fn backend(name: &str, mut backend: Box<dyn Backend>, rounds: usize) -> Result<(), Failure> {
    let batch = Batch { ids: &[7; 12], lengths: &[12] };
    let mut out = vec![0.0; SHAPE.dimensions];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        backend.run(&batch, &mut out)?;
        times.push(start.elapsed());
    }
    report("backend", name, times);
    Ok(())
}

fn engine(name: &str, factory: BackendFactory, rounds: usize) -> Result<(), Failure> {
    let model = ModelShape {
        dimensions: SHAPE.dimensions,
        max_input_tokens: 256,
        normalized: true,
        matryoshka: vec![],
    };
    let engine = Engine::start(
        Tokenizer::bytes(256),
        model,
        vec![Pool::new(factory)],
        EngineConfig::default(),
    )?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let call = Call { inputs: vec!["a short text".to_owned()].into(), ..Call::default() };
        let start = Instant::now();
        runtime.block_on(engine.embed(call))?;
        times.push(start.elapsed());
    }
    report("engine", name, times);
    Ok(())
}

fn report(what: &str, name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100].as_nanos() as f64 / 1e3;
    println!("{what:8} {name:11} p50 {:6.1} µs  p99 {:6.1} µs", at(50), at(99));
}
