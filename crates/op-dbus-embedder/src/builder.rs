//! What an embedder is made of: options, each of which does something or is refused.

mod check;

use std::path::PathBuf;

use op_dbus_models::Level;

use crate::backend::{CPU, CpuEngine, Precision};
use crate::{Embedder, Error, provider};

pub(crate) use check::cores;

/// Options of an [`Embedder`]. Without any it serves level `medium` on the CPU.
#[derive(Clone, Debug)]
#[must_use = "nothing is loaded before `build`"]
pub struct Builder {
    pub(crate) level: Option<Level>,
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<String>,
    pub(crate) model_dir: PathBuf,
    pub(crate) cache_dir: Option<PathBuf>,
    provider: String,
    fallback: Vec<String>,
    pub(crate) device: Option<usize>,
    pub(crate) provider_options: Vec<(String, String)>,
    pub(crate) memory_limit: Option<usize>,
    pub(crate) io_binding: Option<bool>,
    pub(crate) own: provider::Own,
    pub(crate) cpu_engine: Option<CpuEngine>,
    pub(crate) cpu_isa: Option<String>,
    pub(crate) precision: Option<Precision>,
    pub(crate) threads: Option<usize>,
    pub(crate) workers: Option<usize>,
    pub(crate) batch_tokens_max: Option<usize>,
    pub(crate) queue_tokens_max: Option<usize>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            level: None,
            model: None,
            prompt: None,
            model_dir: PathBuf::from(op_dbus_models::USUAL_DIR),
            cache_dir: None,
            provider: CPU.to_owned(),
            fallback: Vec::new(),
            device: None,
            provider_options: Vec::new(),
            memory_limit: None,
            io_binding: None,
            own: provider::Own::default(),
            cpu_engine: None,
            cpu_isa: None,
            precision: None,
            threads: None,
            workers: None,
            batch_tokens_max: None,
            queue_tokens_max: None,
        }
    }
}

impl Builder {
    /// Preset: the CPU, with our own kernels on all its cores.
    pub fn cpu(self) -> Self {
        Self { cpu_engine: Some(CpuEngine::Native), ..self.provider(CPU).fallback([""; 0]) }
    }

    /// Preset: an NVIDIA GPU or an error; never something else in its place.
    pub fn gpu(self) -> Self {
        self.provider("cuda").fallback([""; 0])
    }

    /// The built-in model of a level; `medium` by default.
    pub fn level(self, level: Level) -> Self {
        Self { level: Some(level), ..self }
    }

    /// A model of the store by its name, in place of a level's.
    pub fn model(self, name: impl Into<String>) -> Self {
        Self { model: Some(name.into()), ..self }
    }

    /// Name of the model's prompt that is put before each text, `""` for none; by default the model's own default
    /// prompt, as in a service whose settings name no other. [`Embedder::prompts`] lists them.
    pub fn prompt(self, name: impl Into<String>) -> Self {
        Self { prompt: Some(name.into()), ..self }
    }

    /// The model store; libraries of providers are looked for beside it. `/var/lib/op-dbus/models` by
    /// default.
    pub fn model_dir(self, folder: impl Into<PathBuf>) -> Self {
        Self { model_dir: folder.into(), ..self }
    }

    /// Where packed weights and compiled graphs are kept; by default `op-dbus` in the user's cache.
    pub fn cache_dir(self, folder: impl Into<PathBuf>) -> Self {
        Self { cache_dir: Some(folder.into()), ..self }
    }

    /// Execution provider by its name or alias, or `auto`: `cuda` where it works, else `cpu`, and no other. `cpu` by
    /// default.
    pub fn provider(self, name: impl Into<String>) -> Self {
        Self { provider: name.into(), ..self }
    }

    /// What is tried, in order, when the provider does not work; nothing by default: then that is an
    /// error. What was passed over and why tells [`Embedder::fallback_reason`].
    ///
    /// A process has one ONNX Runtime, the first that is loaded, which a provider that was tried in vain has loaded for
    /// good: of those that need another one none works after it, but for the CPU, which computes with any.
    pub fn fallback<N: Into<String>>(self, providers: impl IntoIterator<Item = N>) -> Self {
        Self { fallback: providers.into_iter().map(Into::into).collect(), ..self }
    }

    /// Number of the device among those of the provider, which is to be the only accelerator that may be tried,
    /// unless they are `cuda` and `tensorrt`; 0 by default.
    pub fn device(self, number: usize) -> Self {
        Self { device: Some(number), ..self }
    }

    /// A setting of the provider, in its own words; it is to be the only accelerator that may be tried. What another
    /// option of this builder decides is refused, and so is the address of something in memory.
    pub fn provider_option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.provider_options.push((key.into(), value.into()));
        self
    }

    /// Bytes of the device's memory that each worker may take for the model's weights and its batches; no bound
    /// by default. `cuda` and `migraphx` have such a limit, for their arenas; what their libraries take beside
    /// it is not counted. An option of the provider that says the same in its own words goes first.
    pub fn memory_limit(self, bytes: usize) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// Whether ONNX Runtime keeps buffers for inputs and outputs, one set for each shape of batch, in
    /// memory that the device reads by itself where the provider has such. By default it does where the
    /// device has memory of its own. Without effect on graphs of your own.
    pub fn io_binding(self, on: bool) -> Self {
        Self { io_binding: Some(on), ..self }
    }

    /// An ONNX Runtime library of your own, in place of the one that was pulled.
    pub fn runtime(mut self, library: impl Into<PathBuf>) -> Self {
        self.own.runtime = Some(library.into());
        self
    }

    /// A plugin library of your own that brings the provider, which is to be the only accelerator that may be tried.
    pub fn provider_library(mut self, library: impl Into<PathBuf>) -> Self {
        self.own.plugin = Some(library.into());
        self
    }

    /// What computes on the CPU; our own kernels by default.
    pub fn cpu_engine(self, engine: CpuEngine) -> Self {
        Self { cpu_engine: Some(engine), ..self }
    }

    /// Instruction set of our own kernels, such as `avx2`; the best by default.
    pub fn cpu_isa(self, name: impl Into<String>) -> Self {
        Self { cpu_isa: Some(name.into()), ..self }
    }

    /// Precision of the arithmetic; by default what suits the device. ONNX Runtime has `F32` and
    /// `F16`, and `Bf16` with OpenVINO and TensorRT; the native engine all but `F16`.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision: Some(precision), ..self }
    }

    /// Threads of the CPU that compute one batch together, of which no more than there are cores have an
    /// effect; by default as many, shared out between the workers.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Workers, each with a model of its own on the device and a thread that feeds it; 1 by default, 256 at
    /// most.
    pub fn workers(self, workers: usize) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// Tokens of one batch at most, for each thread of the native engine. By default what this machine
    /// was measured to need; the first time that takes some seconds, later it is read from the cache, but an
    /// accelerator is measured at each load. No more than 1048576.
    pub fn batch_tokens(self, tokens_max: usize) -> Self {
        Self { batch_tokens_max: Some(tokens_max), ..self }
    }

    /// Tokens between call and reply at most, which bounds memory; calls beyond are refused. It is to have
    /// room for one text that is as long as the model reads.
    pub fn queue_tokens(self, tokens_max: usize) -> Self {
        Self { queue_tokens_max: Some(tokens_max), ..self }
    }

    /// Loads the model and blocks until its workers have proved themselves.
    ///
    /// # Errors
    /// Any [`Error`] but `Call`.
    pub fn build(self) -> Result<Embedder, Error> {
        let candidates = provider::candidates(&self.provider, &self.fallback)?;
        self.check(&candidates)?;
        Embedder::start(&self, &candidates)
    }

    pub(crate) fn is_auto(&self) -> bool {
        self.provider == "auto"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: Builder) -> String {
        builder.build().expect_err("a refusal").to_string()
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let builder = Embedder::builder().model_dir(folder.path().join("models"));
        let builder = builder.cache_dir(folder.path());
        let message = refused(builder.clone());
        assert!(message.contains("all-MiniLM-L6-v2 is not installed"), "{message}");
        assert!(refused(builder.level(Level::None)).contains("level is none"));
    }
}
