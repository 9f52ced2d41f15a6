//! A loaded model that embeds texts in this process.

use std::path::PathBuf;
use std::sync::Arc;

use op_dbus_engine::{
    BackendError, BackendFactory, BatchLimits, Call, Description, Engine, EngineConfig, Limits,
    LoadErrorKind, ModelShape, Pool, Reference, Reply, Snapshot, Tokenizer, WorkerStatus,
};
use op_dbus_models::{Error as ModelError, Family, Model, Store, cache};

use crate::backend::{self, CPU, CpuEngine, Precision, Spec};
use crate::timer::Timer;
use crate::{Builder, Error, provider};

/// A model on a device, ready to embed. Cheap to clone; threads and tasks may share it, and their texts
/// are then batched together. When the last clone is gone the model is unloaded, soon after: who needs its memory
/// for the next one waits for that with [`close`](Self::close).
///
/// Its threads do not follow into a process that is made by `fork`, where its calls never end: build another there.
#[derive(Clone, Debug)]
pub struct Embedder {
    engine: Engine,
    served: Arc<Served>,
}

/// What does not change.
#[derive(Debug)]
struct Served {
    model: String,
    space: String,
    shape: ModelShape,
    description: Description,
    fallback_reason: String,
    timer: Timer,
}

impl Embedder {
    /// The options to load a model with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn start(builder: &Builder, candidates: &[String]) -> Result<Self, Error> {
        let model = match (&builder.model, builder.level.model()) {
            (Some(name), _) => name.as_str(),
            (None, Some(name)) => name,
            (None, None) => {
                let sentence = "level is none, which serves no model; low, medium or high is right";
                return Err(Error::Option(sentence.to_owned()));
            }
        };
        let model = Store::open(&builder.model_dir).get(model)?;
        model.verify()?;
        let json = model.read(&model.tokenizer())?;
        let tokenizer = Tokenizer::from_bytes(&json, model.max_input_tokens)
            .map_err(|source| Error::Tokenizer { model: model.name.clone(), source })?;
        let loading = Loading { builder, model: &model, tokenizer, cache_dir: cache_dir(builder)? };
        let mut refusals = Vec::new();
        for name in candidates {
            match loading.trusted(name) {
                // Nobody has asked for what `auto` passed over.
                Ok(engine) if builder.is_auto() => return loading.loaded(engine, String::new()),
                Ok(engine) => return loading.loaded(engine, refusals.join("; ")),
                // The next one may do.
                Err(Error::Provider(reason)) => refusals.push(reason),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Provider(refusals.join("; ")))
    }

    /// The vector of one text. A text that is longer than the model reads is cut at its end; to know
    /// whether it was, see [`embed_batch`](Self::embed_batch).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, Error> {
        Ok(self.embed_batch(&[text]).await?.vectors)
    }

    /// The vectors of many texts, in their order, row-major, with how they came to be. Dropping the
    /// future cancels the call.
    ///
    /// # Errors
    /// [`Error::Call`]; `TooLarge` says how many texts one call may have.
    pub async fn embed_batch<T: AsRef<str>>(&self, texts: &[T]) -> Result<Reply, Error> {
        let texts: Vec<_> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        self.call(Call { inputs: texts.into(), ..Call::default() }).await
    }

    /// The vectors of a call with all its options, on any executor. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn call(&self, call: Call) -> Result<Reply, Error> {
        let timed = call.deadline.is_some();
        let reply = self.engine.embed(call);
        // The caller's executor need not have tokio's timer.
        Ok(if timed { self.served.timer.around(reply).await } else { reply.await }?)
    }

    /// [`embed`](Self::embed) for threads that have no executor; it blocks.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on: await it there.
    pub fn embed_blocking(&self, text: &str) -> Result<Vec<f32>, Error> {
        futures_executor::block_on(self.embed(text))
    }

    /// [`embed_batch`](Self::embed_batch) for threads that have no executor; it blocks.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on: await it there.
    pub fn embed_batch_blocking<T: AsRef<str>>(&self, texts: &[T]) -> Result<Reply, Error> {
        futures_executor::block_on(self.embed_batch(texts))
    }

    /// Unloads the model and waits until its memory is free, which takes as long as the batches that are computed
    /// now. Calls in flight, and those of other clones from now on, get `ShuttingDown`.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on.
    pub fn close(self) {
        futures_executor::block_on(self.engine.close());
    }

    /// The counters since the model was loaded.
    pub fn statistics(&self) -> Snapshot {
        self.engine.stats()
    }

    /// What each worker is, does and has computed.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.engine.descriptions()
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.served.model
    }

    /// Fingerprint of the vector space, a dash, and the precision. Keep it with every index: vectors
    /// may be compared if, and only if, their fingerprints are equal.
    pub fn vector_space(&self) -> String {
        format!("{}-{}", self.served.space, self.precision())
    }

    /// Length of one vector.
    pub fn dimensions(&self) -> usize {
        self.served.shape.dimensions
    }

    /// Tokens that the model reads of one text, special tokens included.
    pub fn max_input_tokens(&self) -> usize {
        self.served.shape.max_input_tokens
    }

    /// Execution provider that verifiably runs.
    pub fn provider(&self) -> &str {
        &self.served.description.provider
    }

    /// Device that computes.
    pub fn device(&self) -> &str {
        &self.served.description.device
    }

    /// Precision of the arithmetic.
    pub fn precision(&self) -> &str {
        &self.served.description.precision
    }

    /// Why [`provider`](Self::provider) is not the one that was asked for; empty where it is.
    pub fn fallback_reason(&self) -> &str {
        &self.served.fallback_reason
    }
}

/// A model that is about to be loaded.
struct Loading<'a> {
    builder: &'a Builder,
    model: &'a Model,
    tokenizer: Tokenizer,
    cache_dir: PathBuf,
}

impl Loading<'_> {
    /// The engine with workers on `provider` that have proved themselves: in 32 bits if they do not in the 16 that
    /// `cuda` computes in by itself.
    fn trusted(&self, provider: &str) -> Result<Engine, Error> {
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
        if provider == "cuda"
            && precision.is_none()
            && let Ok(engine) = self.engine(provider, Some(Precision::F32))
        {
            tracing::warn!(provider, "the model is computed in f32: {message}");
            return Ok(engine);
        }
        Err(Error::Provider(message))
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
                let cosine_min = match spec.precision {
                    Some(Precision::F16) => Reference::F16_COSINE_MIN,
                    _ => Reference::F32_COSINE_MIN,
                };
                let reference =
                    op_dbus_engine::reference(&self.tokenizer, &shape, &cpu, cosine_min)?;
                (BatchLimits::accelerator(tokens_max), Some(reference))
            }
        };
        let workers = builder.workers.unwrap_or(1);
        let holds_device = provider != CPU;
        let (factory, reserved, costs) = (factory(spec), 0, Vec::new());
        let pool =
            Pool { workers, reserved, batch, reference, holds_device, costs, ..Pool::new(factory) };
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

    fn loaded(&self, engine: Engine, fallback_reason: String) -> Result<Embedder, Error> {
        let first = engine.descriptions().into_iter().next();
        let description = first.ok_or_else(|| Error::Provider("no worker was started".into()))?;
        let served = Served {
            model: self.model.name.clone(),
            space: self.model.vector_space(),
            shape: self.shape(),
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
                | LoadErrorKind::Untrusted,
            ..
        } => error.into(),
        error if provider != CPU => {
            Error::Provider(format!("{provider} does not work here: {error}"))
        }
        error => error.into(),
    }
}

fn no_library(provider: &str, error: ModelError) -> Error {
    Error::Provider(match error {
        // Begins with the provider.
        ModelError::NoLibrary(sentence) => sentence,
        error => format!("{provider}: {error}"),
    })
}

fn no_thread(error: std::io::Error) -> Error {
    let message = format!("can't start the thread of the timer: {error}");
    Error::Backend(BackendError::Load { kind: LoadErrorKind::Other, message })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where packed weights are kept, as the desktop's base directories have it.
fn cache_dir(builder: &Builder) -> Result<PathBuf, Error> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let users = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let found = builder.cache_dir.clone().or_else(|| Some(users()?.join("op-dbus")));
    found.ok_or_else(|| {
        Error::Option("cache_dir is not set, nor is HOME in the environment; set one".to_owned())
    })
}

#[cfg(test)]
mod tests;
