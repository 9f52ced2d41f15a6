//! From a choice of model to an engine that answers: blocking work, done on a thread of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use op_dbus_engine::{
    BackendError, BatchLayout, Engine, EngineConfig, Limits, LoadErrorKind, ModelShape, Tokenizer,
    sim,
};
use op_dbus_models::{Family, Model, RuntimeStore, Store, runtime};

use super::served::{Choice, Served};
use super::worker::{Blueprint, Crew, Spawner};
use super::{Error, provider};
use crate::settings::{CpuEngine, Loaded, Origin, Settings};

/// Tokens for each thread beyond which no batch grows, however the machine was measured: whoever comes
/// while it is computed has to wait.
const CALIBRATED_TOKENS_MAX: usize = 2048;
const SIM_INPUT_TOKENS: usize = 256;
/// SHA-256 of "op-dbus simulated vectors 1": no model's space, and the same everywhere.
const SIM_SPACE: &str = "5947c198f843bc1ef8e81a3a20a93c51354f3324174e6cb8befab16e83d4b21d";
/// Name under which the simulator is seen.
pub(super) const SIM_MODEL: &str = "sim";

/// What is known of a model before any worker runs.
struct Draft {
    model: String,
    space: String,
    shape: ModelShape,
    tokenizer: Tokenizer,
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    runtime: PathBuf,
}

/// Loads a model and starts its workers; blocks until they have proved themselves.
///
/// # Errors
/// What stands in the way: the provider, the model, the runtime, the dimensions, the workers.
pub(super) fn load(choice: &Choice, loaded: &Loaded, spawner: &Spawner) -> Result<Served, Error> {
    let settings = &loaded.settings;
    provider::decide(settings).map_err(Error::Provider)?;
    let draft = match settings.cpu_engine {
        CpuEngine::Sim => simulated(),
        CpuEngine::Native | CpuEngine::Ort => installed(choice, loaded)?,
    };
    check_dimensions(&draft, settings)?;
    let limits = limits(settings);
    let blueprint = Blueprint {
        model: draft.model.clone(),
        space: draft.space.clone(),
        dimensions: draft.shape.dimensions,
        region: limits.region(&draft.shape),
        runtime: draft.runtime,
    };
    let shape = draft.shape.clone();
    let factory = spawner(&blueprint, settings);
    let engine = Engine::start(draft.tokenizer, draft.shape, factory, config(limits, settings))
        .map_err(|error| explained(error, loaded))?;
    let first = engine.descriptions().into_iter().next().map(|worker| worker.description);
    let first = first.ok_or(Error::Fault("an engine without workers"))?;
    Ok(Served {
        choice: choice.clone(),
        model: draft.model,
        space: draft.space,
        dimensions: shape.dimensions,
        max_input_tokens: shape.max_input_tokens,
        prompts: draft.prompts,
        default_prompt: draft.default_prompt,
        provider: first.provider,
        device: first.device,
        precision: first.precision,
        engine_name: first.engine,
        isa: first.isa,
        engine,
    })
}

/// The bounds that the settings leave to the engine.
pub(super) fn limits(settings: &Settings) -> Limits {
    let basic = Limits::default();
    let native = settings.cpu_engine == CpuEngine::Native;
    let (layout, threads, unmeasured) = match native {
        // What a batch may cost is said for one thread, and each takes its part of the batch.
        true => {
            (BatchLayout::Packed, Crew::of(settings, Vec::new()).threads, CALIBRATED_TOKENS_MAX)
        }
        false => (BatchLayout::Padded, 1, basic.batch_tokens_max),
    };
    let batch_tokens_max = settings.batch_tokens_max.unwrap_or(unmeasured);
    Limits {
        batch_layout: layout,
        batch_tokens_max: batch_tokens_max.saturating_mul(threads),
        batch_tokens_measured: settings.batch_tokens_max.is_none(),
        batch_rows_max: basic.batch_rows_max.saturating_mul(threads),
        batch_attention_max: basic.batch_attention_max.saturating_mul(threads as u64),
        batch_delay_us_max: settings.batch_delay_us_max,
        queue_tokens_max: settings.queue_tokens_max,
        quota_tokens: settings.quota_tokens,
        ..basic
    }
}

fn config(limits: Limits, settings: &Settings) -> EngineConfig {
    EngineConfig {
        limits,
        workers: Crew::of(settings, Vec::new()).workers,
        tokenizer_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..EngineConfig::default()
    }
}

fn simulated() -> Draft {
    Draft {
        model: SIM_MODEL.to_owned(),
        space: SIM_SPACE.to_owned(),
        shape: ModelShape {
            dimensions: sim::DIMENSIONS,
            max_input_tokens: SIM_INPUT_TOKENS,
            normalized: true,
            matryoshka: Vec::new(),
        },
        tokenizer: Tokenizer::bytes(SIM_INPUT_TOKENS),
        prompts: BTreeMap::new(),
        default_prompt: None,
        runtime: PathBuf::new(),
    }
}

fn installed(choice: &Choice, loaded: &Loaded) -> Result<Draft, Error> {
    let settings = &loaded.settings;
    let model = Store::open(&settings.model_dir).get(choice.model())?;
    let runtime = match settings.cpu_engine {
        CpuEngine::Ort => library(loaded)?,
        CpuEngine::Native if model.family == Family::Onnx => {
            return Err(Error::Provider(format!(
                "{} is an ONNX graph, which ONNX Runtime computes, and cpu_engine is native ({}); \
                 set OP_DBUS_CPU_ENGINE=ort, and type `op-dbus runtime pull` for the library",
                model.name,
                origin(loaded, "cpu_engine"),
            )));
        }
        CpuEngine::Native | CpuEngine::Sim => PathBuf::new(),
    };
    model.verify()?;
    let tokenizer = tokenizer(&model)?;
    let mut prompts = model.prompts.clone();
    let mut default_prompt = model.default_prompt.clone();
    if let Some(own) = settings.models.get(&model.name) {
        prompts.extend(own.prompts.clone());
        default_prompt = own.default_prompt.clone().or(default_prompt);
    }
    Ok(Draft {
        space: model.vector_space(),
        shape: ModelShape {
            dimensions: model.dimensions,
            max_input_tokens: model.max_input_tokens,
            normalized: model.normalize,
            matryoshka: model.matryoshka.clone(),
        },
        model: model.name,
        tokenizer,
        prompts,
        default_prompt,
        runtime,
    })
}

/// The ONNX Runtime library that is named, else the one that was pulled.
fn library(loaded: &Loaded) -> Result<PathBuf, Error> {
    let settings = &loaded.settings;
    if let Some(path) = &settings.runtime {
        return Ok(path.clone());
    }
    let missing = || {
        Error::Provider(format!(
            "cpu_engine is ort ({}), and the ONNX Runtime library is not installed; type `op-dbus \
             runtime pull`, or set cpu_engine to native",
            origin(loaded, "cpu_engine")
        ))
    };
    RuntimeStore::open(runtime::beside(&settings.model_dir)).installed().ok_or_else(missing)
}

/// Where the value of a setting comes from.
fn origin(loaded: &Loaded, key: &str) -> Origin {
    loaded.origins.get(key).cloned().unwrap_or(Origin::Default)
}

/// A worker that refuses the instruction set does not know who asked for it.
fn explained(error: BackendError, loaded: &Loaded) -> Error {
    match error {
        BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
            if loaded.settings.cpu_engine == CpuEngine::Native
                && loaded.settings.cpu_isa != "auto" =>
        {
            let origin = origin(loaded, "cpu_isa");
            Error::Provider(format!("{message} (cpu_isa comes from: {origin})"))
        }
        error => error.into(),
    }
}

fn tokenizer(model: &Model) -> Result<Tokenizer, Error> {
    let path = model.tokenizer();
    let json = std::fs::read(&path).map_err(|source| op_dbus_models::Error::Io {
        action: "read",
        path,
        source,
    })?;
    let name = || model.name.clone();
    Tokenizer::from_bytes(&json, model.max_input_tokens)
        .map_err(|source| Error::Tokenizer { model: name(), source })
}

fn check_dimensions(draft: &Draft, settings: &Settings) -> Result<(), Error> {
    let found = draft.shape.dimensions;
    match settings.expect_dimensions {
        Some(expected) if expected != found => {
            Err(Error::Dimensions { model: draft.model.clone(), expected, found })
        }
        _ => Ok(()),
    }
}

/// How long the service manager has to allow for one load.
pub(crate) fn load_time_max(settings: &Settings) -> Duration {
    // Reading and checking the files comes on top of what the workers may take.
    Duration::from_secs(settings.load_timeout_s + 30)
}
