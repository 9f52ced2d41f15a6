//! A loaded model that embeds texts in this process.

mod loading;

use std::collections::BTreeMap;
use std::sync::Arc;

use op_dbus_engine::{Call, Description, Engine, Reply, Snapshot, Tokenizer, WorkerStatus};
use op_dbus_models::{Level, Model, Store};

use crate::timer::Timer;
use crate::{Builder, Error};
use loading::{Loading, cache_dir};

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
    model: Model,
    prompt: String,
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
        let level = builder.level.unwrap_or(Level::Medium);
        let model = match (&builder.model, level.model()) {
            (Some(name), _) => name.as_str(),
            (None, Some(name)) => name,
            (None, None) => {
                let sentence = "level is none, which serves no model; low, medium or high is right";
                return Err(Error::Option(sentence.to_owned()));
            }
        };
        let model = Store::open(&builder.model_dir).get(model)?;
        model.verify()?;
        let prompt = prompt(builder.prompt.as_deref(), &model)?;
        let json = model.read(&model.tokenizer())?;
        let tokenizer = Tokenizer::from_bytes(&json, model.max_input_tokens)
            .map_err(|source| Error::Tokenizer { model: model.name.clone(), source })?;
        let cache_dir = cache_dir(builder)?;
        let loading = Loading { builder, model: &model, prompt, tokenizer, cache_dir };
        let mut refusals = Vec::new();
        for name in candidates {
            match loading.trusted(name) {
                Ok(engine) => {
                    builder.tell_without_effect(name);
                    // Nobody has asked for what `auto` passed over.
                    let told = if builder.is_auto() { String::new() } else { refusals.join("; ") };
                    return loading.loaded(engine, told);
                }
                // The next one may do.
                Err(Error::Provider(reason)) => refusals.push(reason),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Provider(refusals.join("; ")))
    }

    /// The vector of one text, with the [prompt](Self::prompt) before it. A text that is longer than the model reads is
    /// cut at its end; to know whether it was, see [`embed_batch`](Self::embed_batch).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, Error> {
        Ok(self.embed_batch(&[text]).await?.vectors)
    }

    /// The vectors of many texts, each with the [prompt](Self::prompt) before it, in their order, row-major, with how
    /// they came to be. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`Error::Call`]; `TooLarge` says how many texts one call may have.
    pub async fn embed_batch<T: AsRef<str>>(&self, texts: &[T]) -> Result<Reply, Error> {
        let texts: Vec<_> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        let prefix = self.served.prompt.clone();
        self.call(Call { inputs: texts.into(), prefix, ..Call::default() }).await
    }

    /// The vectors of a call with all its options, on any executor. Dropping the future cancels the call. No text has
    /// the [prompt](Self::prompt) before it here, but what `prefix` says.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn call(&self, call: Call) -> Result<Reply, Error> {
        // The caller's executor need not have tokio's timer.
        Ok(self.served.timer.around(self.engine.embed(call)).await?)
    }

    /// [`embed`](Self::embed) for threads that have no executor; it blocks.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on: await it there.
    pub fn embed_blocking(&self, text: &str) -> Result<Vec<f32>, Error> {
        block_on(self.embed(text))
    }

    /// [`embed_batch`](Self::embed_batch) for threads that have no executor; it blocks.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on: await it there.
    pub fn embed_batch_blocking<T: AsRef<str>>(&self, texts: &[T]) -> Result<Reply, Error> {
        block_on(self.embed_batch(texts))
    }

    /// Unloads the model and waits until its memory is free, which takes as long as the batches that are computed
    /// now. Calls in flight, and those of other clones from now on, get `ShuttingDown`.
    ///
    /// # Panics
    /// On a thread that `futures::executor` runs a task on.
    pub fn close(self) {
        block_on(self.engine.close());
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
        &self.served.model.name
    }

    /// Fingerprint of the vector space, a dash, and the precision. Keep it with every index: vectors
    /// may be compared if, and only if, their fingerprints are equal.
    pub fn vector_space(&self) -> String {
        format!("{}-{}", self.served.model.vector_space(), self.precision())
    }

    /// Length of one vector.
    pub fn dimensions(&self) -> usize {
        self.served.model.dimensions
    }

    /// Tokens that the model reads of one text, special tokens included.
    pub fn max_input_tokens(&self) -> usize {
        self.served.model.max_input_tokens
    }

    /// Texts that the model was trained to have before others, by name.
    pub fn prompts(&self) -> &BTreeMap<String, String> {
        &self.served.model.prompts
    }

    /// What [`embed`](Self::embed) and [`embed_batch`](Self::embed_batch) put before each text: the prompt that
    /// [`Builder::prompt`] names, by default the model's own default prompt; empty where there is none.
    pub fn prompt(&self) -> &str {
        &self.served.prompt
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

    /// Why [`provider`](Self::provider) is not the one that was asked for; empty where it is, and where `auto` chose.
    pub fn fallback_reason(&self) -> &str {
        &self.served.fallback_reason
    }
}

/// Blocks until `future` is ready. In a task of tokio's that has done much, what is ready would want that to yield
/// first, and would be told once it has: who blocks here never does.
fn block_on<F: Future>(future: F) -> F::Output {
    futures_executor::block_on(tokio::task::coop::unconstrained(future))
}

/// The text of the prompt `name`, or of the model's default prompt.
fn prompt(name: Option<&str>, model: &Model) -> Result<String, Error> {
    let name = name.or(model.default_prompt.as_deref()).unwrap_or_default();
    if name.is_empty() {
        return Ok(String::new());
    }
    model.prompts.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = model.prompts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let model = &model.name;
        Error::Option(format!("prompt is {name:?}, which {model} does not have; it has {known}"))
    })
}

#[cfg(test)]
mod tests;
