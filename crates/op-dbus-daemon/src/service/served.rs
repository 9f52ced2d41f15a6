//! A loaded model with its engine, and what a request asks of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use op_dbus_engine::{
    Call, CancellationToken, Description, Engine, Excess, Inputs, Limits, Piece, Presence,
    Priority, Reply, RowSink, Truncate,
};
use op_dbus_models::{Level, Model, Store};
use parking_lot::Mutex;
use tracing::warn;

use super::costs::{self, Place};
use super::load::{Reasons, late};
use super::{Error, shown};
use crate::settings::{Loaded, Provider};

/// Which model is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The built-in model of a level; never `none`.
    Level(Level),
    /// An imported model, by name.
    Imported(String),
}

impl Choice {
    /// The level; an imported model has none.
    pub fn level(&self) -> Option<Level> {
        match self {
            Self::Level(level) => Some(*level),
            Self::Imported(_) => None,
        }
    }

    /// The model's name in the store.
    pub fn model(&self) -> &str {
        match self {
            Self::Level(level) => level.model().unwrap_or_default(),
            Self::Imported(name) => name,
        }
    }
}

/// A model that answers calls.
pub struct Served {
    /// Which model was meant.
    pub choice: Choice,
    /// Its name.
    pub model: String,
    /// Fingerprint of its vector space, 64 hexadecimal digits.
    pub space: String,
    /// Length of its vectors.
    pub dimensions: usize,
    /// Tokens that it reads of one text, special tokens included.
    pub max_input_tokens: usize,
    /// Texts put before an input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt that is used when the caller names none.
    pub default_prompt: Option<String>,
    /// What the store said of it; nothing of the simulator, which is in none.
    pub(super) record: Option<Model>,
    /// Set once the journal was told that it is loaded.
    pub(super) load_is_told: AtomicBool,
    /// Why it is not the provider that was asked for; empty where it is.
    pub fallback_reason: String,
    /// Set once that was told.
    pub(super) fallback_is_told: AtomicBool,
    /// Why others that come before its provider, or were tried before it, are not taken.
    pub(super) reasons: Reasons,
    /// The settings that it was loaded under.
    pub(super) loaded: Arc<Loaded>,
    /// Why the CPU beside its provider stands in for that, as it was told; none once the provider is back.
    pub(super) stand_in_told: Mutex<Option<String>>,
    /// Set once the journal was told that the store has another model under its name, which keeps it from a better
    /// provider.
    pub(super) replaced_is_told: AtomicBool,
    /// Execution provider that computes, as the workers report it.
    pub provider: String,
    /// Precision of the arithmetic.
    pub precision: String,
    /// What computes on the device: `native`, `ort` or `sim`.
    pub engine_name: String,
    /// Instruction set that it uses; empty where it chooses by itself.
    pub isa: String,
    /// Set once its provider has failed and no other was found: nobody waits for one any more.
    pub(super) is_last: AtomicBool,
    /// When its workers' losses were last laid to a call.
    pub(super) acquitted: Mutex<Option<Instant>>,
    /// Where it is kept what batches cost on each device; empty where there is no choice of devices.
    pub(super) costs: Vec<Place>,
    /// What computes.
    pub engine: Engine,
}

/// What the caller wants done with the texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Another level than the one in force.
    pub level: Option<Level>,
    /// Cut the vectors to this length.
    pub dimensions: Option<usize>,
    /// Unit length or not.
    pub normalize: Option<bool>,
    /// Name of a prompt of the model.
    pub prompt: Option<String>,
    /// What happens to texts that are too long.
    pub truncate: Truncate,
    /// Class in the queue.
    pub priority: Option<Priority>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// The vector space that the caller's index is in.
    pub expect_space: Option<String>,
    /// Device that must compute.
    pub device: Option<String>,
}

/// What one caller wants embedded together.
#[derive(Clone)]
pub struct Request {
    /// The caller's user.
    pub uid: u32,
    /// Cancels the request.
    pub cancel: CancellationToken,
    /// The texts, or their token ids.
    pub inputs: Inputs,
    /// What is wanted.
    pub options: Options,
    /// Waits for room instead of being refused.
    pub wait: bool,
    /// Makes what takes the vectors, which the reply does not have then; once for each try.
    pub sink: Option<MakeSink>,
}

/// Makes a [`RowSink`]. What the one before took does not count any more.
pub type MakeSink = Arc<dyn Fn() -> RowSink + Send + Sync>;

impl Served {
    /// What computes: the workers, without those that others stand in for.
    pub fn computing(&self) -> Vec<Description> {
        let workers = self.engine.descriptions().into_iter().map(|worker| worker.description);
        match self.engine.stand_in() {
            Some((stand_in, _)) => workers.filter(|it| it.provider == stand_in.provider).collect(),
            None => workers.collect(),
        }
    }

    /// Devices that compute, with commas in between; of an unloaded model those that did. Workers of a fleet move.
    pub fn device(&self) -> String {
        let mut devices: Vec<String> = Vec::new();
        for worker in self.computing() {
            for device in worker.device.split(',') {
                if !devices.iter().any(|known| known == device) {
                    devices.push(device.to_owned());
                }
            }
        }
        devices.join(",")
    }

    /// Whether the store has another model under this name by now. The journal is told of one that is
    /// gone; reads files.
    pub(super) fn is_replaced(&self, store: &Path) -> bool {
        let Some(record) = &self.record else { return false };
        match Store::open(store).get(self.choice.model()) {
            Ok(found) => found != *record,
            Err(error) => {
                let has = match self.engine.presence() {
                    Presence::Loaded => "serves from memory",
                    _ => "has no worker now",
                };
                warn!("{} {has}, and can't be loaded again: {error}", self.model);
                false
            }
        }
    }

    /// The vector space as callers see it: fingerprint and precision.
    pub fn vector_space(&self) -> String {
        self.space_in(&self.precision)
    }

    /// The vector space of vectors in this precision, or in these with commas in between: a call may
    /// have been computed on several providers, or be answered with what was kept of another one.
    pub fn space_in(&self, precision: &str) -> String {
        format!("{}-{precision}", self.space)
    }

    /// Whether it makes the same vectors of the same texts and options, in whatever precision: what is put before
    /// a text, and where it is cut, are no part of the space.
    pub(super) fn makes_the_same(&self, other: &Self) -> bool {
        self.choice == other.choice
            && self.space == other.space
            && self.max_input_tokens == other.max_input_tokens
            && self.prompts == other.prompts
            && self.default_prompt == other.default_prompt
    }

    /// Keeps what batches were seen to cost for the next start. Waits for the disk.
    pub(super) fn keep_costs(&self) {
        costs::keep(&self.costs, &self.engine);
    }

    /// Whether `provider` computes.
    pub(super) fn is_on(&self, provider: Provider) -> bool {
        Provider::ALL.contains(&(provider, self.provider.as_str()))
    }

    /// Embeds texts, or token ids.
    ///
    /// # Errors
    /// `InvalidArgument`, `WrongSpace`, or what the engine answers.
    pub async fn embed(&self, request: Request) -> Result<Reply, Error> {
        let Request { uid, cancel, inputs, options, wait, sink } = request;
        self.check_space(options.expect_space.as_deref())?;
        self.check_device(options.device.as_deref())?;
        let prompt = self.prompt(options.prompt.as_deref())?;
        // Where one token ends and the next begins would depend on the prompt.
        if let (Some(_), Inputs::Tokens(_)) = (prompt, &inputs) {
            return Err(Error::InvalidArgument(format!(
                "{} puts a prompt before each text, which token ids can't be given afterwards; send \
                 texts, or have its tokens in the ids and ask for the prompt \"\", which is none",
                self.model
            )));
        }
        let call = Call {
            uid,
            inputs,
            prefix: prompt.unwrap_or_default().to_owned(),
            truncate: options.truncate,
            priority: options.priority,
            deadline: options.deadline,
            normalize: options.normalize,
            dimensions: options.dimensions,
            cancel,
            wait,
            sink: sink.map(|make| make()),
        };
        let reply = self.engine.embed(call).await;
        Ok(reply.map_err(|error| late(error, &self.loaded))?)
    }

    /// How many of `texts`, from the first on, one of so many requests with these options may have.
    pub fn fitting<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a String>,
        options: &Options,
        requests: usize,
    ) -> usize {
        // A prompt that there is none of is told by the request.
        let prompt = self.prompt(options.prompt.as_deref()).ok().flatten().unwrap_or_default();
        self.engine.fitting(texts, (prompt.len(), options.truncate), requests)
    }

    /// Length of the vectors under these options. One that the model does not have is told by the request,
    /// and not by what their size would be.
    pub fn length(&self, options: &Options) -> usize {
        options.dimensions.map_or(self.dimensions, |cut| cut.min(self.dimensions))
    }

    /// Tokens of each text with the default prompt, before truncation, special tokens included.
    ///
    /// # Errors
    /// What the engine answers.
    pub async fn count_tokens(&self, uid: u32, mut texts: Vec<String>) -> Result<Vec<u32>, Error> {
        let prompt = self.prompt(None)?.unwrap_or_default();
        // As the engine has it: copies of a long prompt must not take memory before they are found
        // too many.
        let limit = Limits::default().call_bytes_max;
        let sizes = texts.iter().map(|text| text.len().saturating_add(prompt.len()));
        let found = sizes.fold(0, usize::saturating_add);
        if found > limit {
            let excess = Excess::CallBytes;
            return Err(op_dbus_engine::Error::TooLarge { excess, found, limit }.into());
        }
        texts.iter_mut().for_each(|text| text.insert_str(0, prompt));
        Ok(self.engine.count_tokens(uid, texts).await?)
    }

    /// The tokens of each text with its prompt, before truncation, special tokens included.
    ///
    /// # Errors
    /// `InvalidArgument`, or what the engine answers.
    pub async fn tokenize(
        &self,
        uid: u32,
        texts: Vec<String>,
        prompt: Option<&str>,
    ) -> Result<Vec<Vec<Piece>>, Error> {
        let prompt = self.prompt(prompt)?.unwrap_or_default();
        Ok(self.engine.tokenize(uid, texts, prompt).await?)
    }

    /// Bytes of a prompt, or of the default one.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn prompt_bytes(&self, name: Option<&str>) -> Result<usize, Error> {
        Ok(self.prompt(name)?.map_or(0, str::len))
    }

    /// The text of a prompt, or of the default one.
    fn prompt(&self, name: Option<&str>) -> Result<Option<&str>, Error> {
        let Some(name) = name.or(self.default_prompt.as_deref()).filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        match self.prompts.get(name) {
            Some(text) => Ok(Some(text)),
            None => Err(Error::InvalidArgument(format!(
                "option prompt is {}, which {} does not have; it has {}",
                shown(name),
                self.model,
                listed(self.prompts.keys().map(String::as_str)),
            ))),
        }
    }

    /// Precisions of one space may be compared, so only the fingerprints must be equal.
    fn check_space(&self, expected: Option<&str>) -> Result<(), Error> {
        let Some(expected) = expected else { return Ok(()) };
        if expected.split('-').next() == Some(self.space.as_str()) {
            return Ok(());
        }
        let found = self.vector_space();
        Err(Error::WrongSpace { expected: shown(expected), found })
    }

    fn check_device(&self, wanted: Option<&str>) -> Result<(), Error> {
        let Some(wanted) = wanted else { return Ok(()) };
        let device = self.device();
        if wanted == device || self.may_move_to(wanted) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "option device is {}, and the service computes on {device} and decides itself where; \
             leave the option out",
            shown(wanted),
        )))
    }

    /// Whether all these devices are endpoints of a fleet, of which each batch takes one that answers.
    fn may_move_to(&self, devices: &str) -> bool {
        let workers = self.engine.descriptions();
        let count = workers.first().map_or(0, |worker| worker.description.devices);
        let is_one = |device: &str| {
            let number = device.strip_prefix("remote:").and_then(|number| number.parse().ok());
            number.is_some_and(|number: usize| number < count)
        };
        self.is_on(Provider::Remote) && devices.split(',').all(is_one)
    }
}

/// The names, for a sentence.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
