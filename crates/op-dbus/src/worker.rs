//! `op-dbus worker`: one model on one device, computing for the daemon that started it.
//!
//! Not for people: standard input is the daemon's control socket. What stands in the way of loading
//! is told over that socket, so that the daemon can give it its public error name.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use op_dbus_daemon::telemetry;
use op_dbus_engine::sim::{self, Faults, SimBackend};
use op_dbus_engine::{Backend, BackendError, LoadErrorKind};
use op_dbus_graph::cache::{CacheKey, GraphCache, Origin};
use op_dbus_graph::{DenseFiles, Dialect, Layout, ModelFiles, Precision, Recipe, Target};
use op_dbus_models::{Family, Model, Pooling, Store};
use op_dbus_ort::{Graph, Options, OrtBackend};

/// The runtime's own chatter is left out below its errors.
const LOG_FILTER: &str = "warn,ort=error";

/// Computes for the daemon that started it (internal)
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// Model store
    #[arg(long)]
    model_dir: PathBuf,
    /// Name of the model in the store
    #[arg(long)]
    model: String,
    /// Folder of compiled graphs
    #[arg(long)]
    cache_dir: PathBuf,
    /// ONNX Runtime library; empty for the simulator
    #[arg(long)]
    runtime: OsString,
    /// Threads that compute one batch together
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// What computes
    #[arg(long)]
    cpu_engine: CpuEngine,
    /// CPUs to stay on; all if absent
    #[arg(long, value_delimiter = ',')]
    cpu_list: Vec<usize>,
    /// Execution provider
    #[arg(long)]
    provider: Provider,
    /// Precision of the arithmetic
    #[arg(long)]
    precision: WorkerPrecision,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum CpuEngine {
    Ort,
    Sim,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Provider {
    Cpu,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum WorkerPrecision {
    F32,
}

/// Serves the daemon on standard input until it hangs up.
pub fn run(args: Args) -> ExitCode {
    if let Err(error) = telemetry::start(LOG_FILTER) {
        eprintln!("op-dbus worker: no log: {error}");
    }
    // Bound to the thread that started us, which is also the one that owns us: with it goes the
    // only user of our results. The end of the control socket says the same, but is not seen in
    // the middle of a batch.
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        tracing::warn!(%error, "the worker may outlive a killed daemon by one batch");
    }
    if let Err(error) = pin(&args.cpu_list) {
        tracing::warn!(%error, cpus = ?args.cpu_list, "the worker can't be kept on its CPUs");
    }
    match op_dbus_engine::worker::serve(|| load(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the worker can't speak to its daemon");
            ExitCode::FAILURE
        }
    }
}

/// Keeps this thread, and the threads it will start, on `cpus`.
fn pin(cpus: &[usize]) -> nix::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|&cpu| set.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

fn load(args: &Args) -> Result<Box<dyn Backend>, BackendError> {
    let Provider::Cpu = args.provider;
    if let CpuEngine::Sim = args.cpu_engine {
        return Ok(Box::new(SimBackend::new(sim::DIMENSIONS, Faults::default())));
    }
    let model = Store::open(&args.model_dir).get(&args.model).map_err(|e| model_error(&e))?;
    model.verify().map_err(|error| model_error(&error))?;
    let graph = match model.family {
        Family::Bert => Graph::Compiled(compiled(&model, op_dbus_graph::Family::Bert, args)?),
        Family::Mpnet => Graph::Compiled(compiled(&model, op_dbus_graph::Family::Mpnet, args)?),
        Family::Roberta => Graph::Compiled(compiled(&model, op_dbus_graph::Family::Roberta, args)?),
        Family::Distilbert => {
            Graph::Compiled(compiled(&model, op_dbus_graph::Family::Distilbert, args)?)
        }
        Family::Onnx => own(&model)?,
    };
    let options = Options {
        runtime: PathBuf::from(&args.runtime),
        threads: args.threads,
        graph,
        dimensions: model.dimensions,
    };
    Ok(Box::new(OrtBackend::load(options)?))
}

/// The model's graph for the CPU, from the cache or compiled now.
fn compiled(
    model: &Model,
    family: op_dbus_graph::Family,
    args: &Args,
) -> Result<Vec<u8>, BackendError> {
    let WorkerPrecision::F32 = args.precision;
    let target =
        Target { precision: Precision::F32, layout: Layout::Padded, dialect: Dialect::OnnxRuntime };
    let pooling = match model.pooling {
        Pooling::Mean => op_dbus_graph::Pooling::Mean,
        Pooling::Cls => op_dbus_graph::Pooling::Cls,
        Pooling::Max => op_dbus_graph::Pooling::Max,
    };
    let (weights, config) = (model.weights(), model.config());
    let key = CacheKey {
        weights_sha256: digest(model, &weights)?,
        config_sha256: digest(model, &config)?,
        dense_sha256: dense_digests(model)?,
        family,
        pooling,
        normalize: model.normalize,
        max_input_tokens: model.max_input_tokens,
        target,
        provider: "cpu".to_owned(),
    };
    let build = || {
        let recipe = Recipe {
            pooling,
            normalize: model.normalize,
            max_input_tokens: model.max_input_tokens,
            target,
        };
        let (config, weights_bytes) = (read_json(&config)?, read(&weights)?);
        let dense = model.dense_files().map(|[c, w]| Ok((read_json(&c)?, read(&w)?)));
        let dense: Vec<_> = dense.collect::<Result<_, BackendError>>()?;
        let dense = dense.iter().map(|(config, weights)| DenseFiles { config, weights }).collect();
        let files = ModelFiles { family, config: &config, weights: &weights_bytes, dense };
        op_dbus_graph::compile(&recipe, &files).map_err(|e| corrupt(&weights, &e))
    };
    let (graph, origin) = GraphCache::new(&args.cache_dir).load_or_compile(&key, build)?;
    tracing::info!(model = model.name, built = origin == Origin::Built, "graph ready");
    Ok(graph)
}

/// A user's own graph, after a look at where its tensors are.
fn own(model: &Model) -> Result<Graph, BackendError> {
    let path = model.weights();
    op_dbus_graph::inspect::inspect(&read(&path)?).map_err(|error| corrupt(&path, &error))?;
    let pooling = match model.pooling {
        Pooling::Mean => op_dbus_ort::Pooling::Mean,
        Pooling::Cls => op_dbus_ort::Pooling::Cls,
        Pooling::Max => op_dbus_ort::Pooling::Max,
    };
    Ok(Graph::Own { path, pooling, normalize: model.normalize })
}

/// SHA-256 of one of the model's files, from its record.
fn digest(model: &Model, path: &Path) -> Result<String, BackendError> {
    let record = model.files.iter().find(|file| model.dir.join(&file.path) == path);
    record.map(|file| file.sha256.clone()).ok_or_else(|| BackendError::Load {
        kind: LoadErrorKind::ModelCorrupt,
        message: format!("the record of {} does not list {}", model.name, path.display()),
    })
}

/// SHA-256 of configuration and weights of each Dense module.
fn dense_digests(model: &Model) -> Result<Vec<[String; 2]>, BackendError> {
    let digests =
        |[config, weights]: [PathBuf; 2]| Ok([digest(model, &config)?, digest(model, &weights)?]);
    model.dense_files().map(digests).collect()
}

fn read_json(path: &Path) -> Result<serde_json::Value, BackendError> {
    serde_json::from_slice(&read(path)?).map_err(|error| corrupt(path, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, BackendError> {
    fs::read(path).map_err(|error| BackendError::Load {
        kind: LoadErrorKind::Other,
        message: format!("can't read {}: {error}", path.display()),
    })
}

fn corrupt(path: &Path, error: &dyn Error) -> BackendError {
    let message = format!("{}: {}", path.display(), sentence(error));
    BackendError::Load { kind: LoadErrorKind::ModelCorrupt, message }
}

fn model_error(error: &op_dbus_models::Error) -> BackendError {
    use op_dbus_models::Error as Models;
    let kind = match error {
        Models::NotInstalled { .. } => LoadErrorKind::ModelNotInstalled,
        Models::Corrupt { .. } => LoadErrorKind::ModelCorrupt,
        _ => LoadErrorKind::Other,
    };
    BackendError::Load { kind, message: sentence(error) }
}

/// An error with its causes, which only the worker knows, as text for the daemon. A cause that its
/// own error already quotes is not said twice.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_and_an_impossible_cpu_is_an_error() {
        let pinned = std::thread::spawn(|| {
            let before = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            let first = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
            pin(&[first]).unwrap();
            let after = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|&cpu| after.is_set(cpu).unwrap()).eq([first])
        });
        assert!(pinned.join().unwrap());
        assert!(pin(&[usize::MAX]).is_err());
        assert!(pin(&[]).is_ok());
    }

    #[test]
    fn causes_are_told_once() {
        let cause = std::io::Error::other("the disk is on fire");
        let error = op_dbus_models::Error::Io { action: "read", path: "x".into(), source: cause };
        assert_eq!(sentence(&error), "cannot read x: the disk is on fire");
    }
}
