//! From a model of the store and the builder's options to workers that have proved themselves.

use std::path::PathBuf;
use std::sync::Arc;

use op_dbus_engine::{
    BackendError, BackendFactory, BatchLimits, Engine, EngineConfig, Limits, LoadErrorKind,
    ModelShape, Pool, Reference, Tokenizer,
};
use op_dbus_models::manifest::halves_by_itself;
use op_dbus_models::{Error as ModelError, Family, Model, cache};

use super::{Embedder, Served};
use crate::backend::{self, CPU, CpuEngine, Precision, Spec};
use crate::builder::cores;
use crate::timer::Timer;
use crate::{Builder, Error, provider};

/// A model that is about to be loaded.
pub(super) struct Loading<'a> {
    pub(super) builder: &'a Builder,
    pub(super) model: &'a Model,
    /// What is put before each text.
    pub(super) prompt: String,
    pub(super) tokenizer: Tokenizer,
    pub(super) cache_dir: PathBuf,
}

impl Loading<'_> {
    /// The engine with workers on `provider` that have proved themselves: in 32 bits if they do not in the 16 that it
    /// computes in by itself.
    pub(super) fn trusted(&self, provider: &str) -> Result<Engine, Error> {
        let precision = self.builder.precision;
        let result = self.engine(provider, precision);
        let Err(Error::Backend(BackendError::Load { kind: LoadErrorKind::Untrusted, message })) =
            result
        else {
            return result;
        };
        if provider == CPU {
            return Err(Error::Backend(BackendError::Lost(message)));
        }
        // A graph of the user's own is computed as it is.
        let by_itself = precision.is_none() && halves_by_itself(provider);
        if !by_itself || self.model.family == Family::Onnx {
            return Err(Error::Provider(message));
        }
        let in_32_bits = self.engine(provider, Some(Precision::F32));
        let engine = in_32_bits.map_err(|error| neither(&message, &error))?;
        tracing::warn!(provider, "the model is computed in f32: {message}");
        Ok(engine)
    }

    /// The engine with workers that compute in `precision`.
    fn engine(&self, provider: &str, precision: Option<Precision>) -> Result<Engine, Error> {
        let builder = self.builder;
        let spec = Spec { precision, ..self.spec(provider)? };
        let shape = self.shape();
        let tokens_max = builder.batch_tokens_max;
        let (batch, reference) = match (provider, spec.cpu_engine) {
            (CPU, CpuEngine::Native) => (BatchLimits::packed(spec.threads, tokens_max), None),
            (CPU, CpuEngine::Ort) => (BatchLimits::padded(tokens_max), None),
            _ => {
                let cpu = factory(self.reference(&spec));
                let cosine_min = Reference::cosine_min_of(spec.precision == Some(Precision::F16));
                let reference =
                    op_dbus_engine::reference(&self.tokenizer, &shape, &cpu, cosine_min)?;
                (BatchLimits::accelerator(tokens_max), Some(reference))
            }
        };
        let workers = builder.workers.unwrap_or(1);
        let holds_device = provider != CPU;
        let pool = Pool { workers, batch, reference, holds_device, ..Pool::new(factory(spec)) };
        let basic = Limits::default();
        let queue_tokens_max = builder.queue_tokens_max.unwrap_or(basic.queue_tokens_max);
        // One process is one user, who may have the whole queue.
        let limits = Limits { queue_tokens_max, quota_tokens: queue_tokens_max, ..basic };
        let config = EngineConfig { limits, tokenizer_threads: cores(), ..EngineConfig::default() };
        let engine = Engine::start(self.tokenizer.clone(), shape, vec![pool], config);
        engine.map_err(|error| refused(provider, error))
    }

    fn spec(&self, provider: &str) -> Result<Spec, Error> {
        let builder = self.builder;
        let cpu_engine = builder.cpu_engine.unwrap_or_default();
        let libraries = provider::libraries(provider, cpu_engine, &builder.own, &builder.model_dir)
            .map_err(|error| no_library(provider, error))?;
        let workers = builder.workers.unwrap_or(1);
        let largest = BatchLimits::accelerator(builder.batch_tokens_max).region(&self.shape());
        let space = self.model.vector_space();
        Ok(Spec {
            model_dir: builder.model_dir.clone(),
            model: self.model.name.clone(),
            cache_dir: cache::make(&self.cache_dir, &self.model.name, &space),
            space,
            max_input_tokens: self.model.max_input_tokens,
            runtime: libraries.runtime,
            threads: builder.threads.unwrap_or(cores() / workers).clamp(1, cores()),
            cpu_engine,
            cpu_isa: builder.cpu_isa.clone().unwrap_or_else(|| "auto".to_owned()),
            cpus: Vec::new(),
            calibrate: builder.batch_tokens_max.is_none(),
            provider: provider.to_owned(),
            provider_library: libraries.plugin,
            provider_options: options(builder, provider),
            device: builder.device.unwrap_or(0),
            precision: builder.precision,
            batch_tokens_max: largest.tokens_max,
            batch_rows_max: largest.rows_max,
            io_binding: builder.io_binding,
        })
    }

    /// The CPU, as it computes what accelerators are measured against.
    fn reference(&self, accelerated: &Spec) -> Spec {
        Spec {
            provider: CPU.to_owned(),
            cpu_engine: match self.model.family {
                Family::Onnx => CpuEngine::Ort,
                _ => CpuEngine::Native,
            },
            provider_library: None,
            provider_options: Vec::new(),
            device: 0,
            calibrate: false,
            precision: Some(Precision::F32),
            io_binding: None,
            ..accelerated.clone()
        }
    }

    fn shape(&self) -> ModelShape {
        ModelShape {
            dimensions: self.model.dimensions,
            max_input_tokens: self.model.max_input_tokens,
            normalized: self.model.normalize,
            matryoshka: self.model.matryoshka.clone(),
        }
    }

    pub(super) fn loaded(
        &self,
        engine: Engine,
        fallback_reason: String,
    ) -> Result<Embedder, Error> {
        let first = engine.descriptions().into_iter().next();
        let description = first.ok_or_else(|| Error::Provider("no worker was started".into()))?;
        let served = Served {
            model: self.model.clone(),
            prompt: self.prompt.clone(),
            description: description.description,
            fallback_reason,
            timer: Timer::start().map_err(no_thread)?,
        };
        Ok(Embedder { engine, served: Arc::new(served) })
    }
}

/// What ONNX Runtime is told of a provider, in the provider's own words.
fn options(builder: &Builder, provider: &str) -> Vec<(String, String)> {
    if provider == CPU {
        return Vec::new();
    }
    let mut options = builder.provider_options.clone();
    if let (Some(bytes), Some(key)) = (builder.memory_limit, provider::memory_option(provider))
        && options.iter().all(|(said, _)| said != key)
    {
        options.push((key.to_owned(), bytes.to_string()));
    }
    options
}

/// Makes the backend of each worker, in the worker's own thread.
fn factory(spec: Spec) -> BackendFactory {
    Box::new(move |_worker| backend::load(&spec))
}

/// A device whose worker fails, in whatever way, leaves it to the next provider, as one that says that it can't. What
/// is wrong with the model is wrong everywhere, and vectors that are not the model's may be in 32 bits.
fn refused(provider: &str, error: BackendError) -> Error {
    match error {
        BackendError::Load {
            kind:
                LoadErrorKind::ModelNotInstalled
                | LoadErrorKind::ModelCorrupt
                | LoadErrorKind::ProviderUnavailable
                | LoadErrorKind::Unfit
                | LoadErrorKind::OutOfMemory
                | LoadErrorKind::Untrusted,
            ..
        } => error.into(),
        error if provider != CPU => {
            Error::Provider(format!("{provider} does not work here: {error}"))
        }
        error => error.into(),
    }
}

/// Why vectors are not trusted in 16 bits, and are not had in 32 either.
fn neither(in_16_bits: &str, in_32_bits: &Error) -> Error {
    let told = in_32_bits.to_string();
    let too = if told == in_16_bits { String::new() } else { format!(": {told}") };
    Error::Provider(format!("{in_16_bits}; nor in f32{too}"))
}

fn no_library(provider: &str, error: ModelError) -> Error {
    Error::Provider(match error {
        // Begins with the provider, and names the service's variable.
        ModelError::NoLibrary(sentence) => sentence.replace("OP_DBUS_RUNTIME", "`runtime`"),
        error => format!("{provider}: {error}"),
    })
}

fn no_thread(error: std::io::Error) -> Error {
    let message = format!("can't start the thread of the timer: {error}");
    Error::Backend(BackendError::Load { kind: LoadErrorKind::Other, message })
}

/// Where packed weights are kept, as the desktop's base directories have it.
pub(super) fn cache_dir(builder: &Builder) -> Result<PathBuf, Error> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let users = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let found = builder.cache_dir.clone().or_else(|| Some(users()?.join("op-dbus")));
    found.ok_or_else(|| {
        Error::Option("cache_dir is not set, nor is HOME in the environment; set one".to_owned())
    })
}

#[cfg(test)]
mod tests;
