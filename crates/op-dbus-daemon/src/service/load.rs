//! From a choice of model to an engine that answers: blocking work, done on a thread of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use op_dbus_engine::{Engine, EngineConfig, Limits, ModelShape, Tokenizer, sim};
use op_dbus_models::{Model, RuntimeStore, Store, runtime};

use super::served::{Choice, Served};
use super::worker::{Blueprint, Crew, Spawner};
use super::{Error, provider};
use crate::settings::{CpuEngine, Settings};

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
    runtime: std::path::PathBuf,
}

/// Loads a model and starts its workers; blocks until they have proved themselves.
///
/// # Errors
/// What stands in the way: the provider, the model, the runtime, the dimensions, the workers.
pub(super) fn load(
    choice: &Choice,
    settings: &Settings,
    spawner: &Spawner,
) -> Result<Served, Error> {
    provider::decide(settings).map_err(Error::Provider)?;
    let draft = match settings.cpu_engine {
        CpuEngine::Sim => simulated(),
        CpuEngine::Ort => installed(choice, settings)?,
    };
    check_dimensions(&draft, settings)?;
    let limits = limits(settings);
    let blueprint = Blueprint {
        model: draft.model.clone(),
        dimensions: draft.shape.dimensions,
        region: limits.region(&draft.shape),
        runtime: draft.runtime,
    };
    let shape = draft.shape.clone();
    let factory = spawner(&blueprint, settings);
    let engine = Engine::start(draft.tokenizer, draft.shape, factory, config(limits, settings))?;
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
        engine,
    })
}

/// The bounds that the settings leave to the engine.
pub(super) fn limits(settings: &Settings) -> Limits {
    Limits {
        batch_tokens_max: settings.batch_tokens_max,
        batch_delay_us_max: settings.batch_delay_us_max,
        queue_tokens_max: settings.queue_tokens_max,
        quota_tokens: settings.quota_tokens,
        ..Limits::default()
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
        runtime: std::path::PathBuf::new(),
    }
}

fn installed(choice: &Choice, settings: &Settings) -> Result<Draft, Error> {
    let model = Store::open(&settings.model_dir).verify(choice.model())?;
    let runtime = match &settings.runtime {
        Some(path) => path.clone(),
        None => RuntimeStore::open(runtime::beside(&settings.model_dir)).installed().ok_or_else(
            || {
                let missing = "the ONNX Runtime library is not installed";
                Error::Provider(format!("{missing}; type `op-dbus runtime pull`"))
            },
        )?,
    };
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
