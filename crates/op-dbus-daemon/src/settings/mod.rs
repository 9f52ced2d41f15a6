//! Settings: one table, read from every source in order, checked as a whole.

mod check;
mod choices;
mod drop_ins;
mod in_vain;
mod kind;
mod layers;
mod listen;
mod loaded;
mod mistakes;
pub mod options;
mod render;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod together;
mod types;

use std::collections::BTreeMap;
use std::path::PathBuf;

use op_dbus_models::Level;
use serde::Deserialize;

pub(crate) use check::did_you_mean;
pub use kind::{Choice, Kind};
pub use layers::Sources;
pub use listen::Listen;
pub use loaded::{ChangeError, Loaded, Shown};
pub use mistakes::{Mistake, Mistakes, Origin, Warning};
pub use render::{
    OPTIONS_ABOUT, SOURCES, TABLES, Table, config_file, markdown, option_providers, remark, values,
};
pub use row::{Group, Row, Scope};
pub use table::{ROWS, row};
pub use types::{Bus, CpuEngine, Devices, Offload, Precision, Provider};

/// Every setting, checked and resolved. The table in `table.rs` says what each one means.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which level's model is served.
    #[serde(deserialize_with = "types::from_text")]
    pub vector_level: Level,
    /// The provider asked for.
    pub execution_provider: Provider,
    /// Providers to try, in order, when the one asked for does not work; empty is strict.
    pub fallback: Vec<Provider>,
    /// Seconds between two tries of a provider that did not work; 0 is never.
    pub provider_retry_s: u64,
    /// Devices of the provider.
    #[serde(deserialize_with = "types::from_text")]
    pub gpu_device: Devices,
    /// The number format to compute in.
    pub precision: Precision,
    /// An imported model, by name, in place of the level's.
    #[serde(deserialize_with = "types::text_or_empty")]
    pub model: Option<String>,
    /// The dimensions the model must have.
    #[serde(deserialize_with = "types::number_or_word")]
    pub expect_dimensions: Option<usize>,
    /// The model store.
    pub model_dir: PathBuf,
    /// The ONNX Runtime library; `None` is the one in the store beside the models.
    #[serde(deserialize_with = "types::text_or_empty")]
    pub runtime: Option<PathBuf>,
    /// Files that can be made again: packed weights, compiled graphs.
    pub cache_dir: PathBuf,
    /// Where changes made at run time are kept.
    pub state_file: PathBuf,
    /// The main configuration file.
    pub config: PathBuf,
    /// The bus that is served.
    #[serde(deserialize_with = "types::from_text")]
    pub bus: Bus,
    /// Tokens that one thread of the native engine, or one worker of another, gets in a batch; `None`
    /// is what the machine was measured to need.
    #[serde(deserialize_with = "types::number_or_word")]
    pub batch_tokens_max: Option<usize>,
    /// Microseconds a batch may wait for more texts while a worker is idle.
    pub batch_delay_us_max: u64,
    /// Threads each CPU worker computes with; `None` shares the CPUs between the workers.
    #[serde(deserialize_with = "types::number_or_word")]
    pub threads: Option<usize>,
    /// Worker processes for each device; `None` leaves it to the provider.
    #[serde(deserialize_with = "types::number_or_word")]
    pub workers_per_device: Option<usize>,
    /// What computes on the CPU.
    pub cpu_engine: CpuEngine,
    /// Instruction set of the native engine, by name, or `auto`.
    pub cpu_isa: String,
    /// Bytes of device memory that a worker's arena may take; `None` is no limit.
    #[serde(deserialize_with = "types::number_or_word")]
    pub gpu_memory_limit: Option<usize>,
    /// How the arena of device memory grows, by name, or `auto`.
    pub arena_strategy: String,
    /// Whether ONNX Runtime keeps buffers for inputs and outputs: `auto`, `on` or `off`.
    pub io_binding: String,
    /// Tokens of all callers that may wait or be computed at once.
    pub queue_tokens_max: usize,
    /// Tokens of one user that may wait or be computed at once.
    pub quota_tokens: usize,
    /// Seconds that a source of texts may be silent while they are wanted.
    pub source_silence_s: u64,
    /// Bytes of finished vectors kept for texts that come again.
    pub cache_bytes: u64,
    /// Seconds without a call after which a model is unloaded; 0 is never.
    pub idle_unload_s: u64,
    /// Seconds a worker may take to load a model.
    pub load_timeout_s: u64,
    /// Seconds a worker may take for a batch.
    pub batch_timeout_s: u64,
    /// Bytes of its own that a worker may ask for; `None` leaves it to the machine and the provider.
    #[serde(deserialize_with = "types::number_or_word")]
    pub worker_memory_max: Option<usize>,
    /// What is added to the nice value of workers that compute on the CPU.
    pub worker_nice: u8,
    /// Whether the CPU computes beside an accelerator.
    pub offload: Offload,
    /// Where the HTTP gateway answers.
    #[serde(deserialize_with = "types::from_text")]
    pub http_listen: Listen,
    /// The log filter.
    pub log: String,
    /// Whether the service and the gateway may leave a core dump.
    pub core_dumps: bool,
    /// What `[models.<name>]` tables say, by model name.
    #[serde(default)]
    pub models: BTreeMap<String, ModelSettings>,
    /// What `[providers.<name>]` tables say, by the provider's canonical name.
    #[serde(default)]
    pub providers: BTreeMap<String, ProviderSettings>,
}

/// What a `[providers.<name>]` table says about one execution provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderSettings {
    /// The plugin library that brings the provider.
    pub library: Option<PathBuf>,
    /// Faults that its workers show on purpose, as [`Faults`](op_dbus_engine::sim::Faults) reads them.
    pub faults: Option<String>,
    /// Options that there is no checked setting for, in the provider's own words.
    pub options: BTreeMap<String, String>,
    /// Options from the table of [`options`], by key, in the form that a flag would have.
    pub checked: BTreeMap<String, String>,
}

/// What a `[models.<name>]` table says about one model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// Prompts to add to the model's own, or to put in their place: name, text.
    pub prompts: BTreeMap<String, String>,
    /// The prompt used when a call names none; an empty name is none at all.
    pub default_prompt: Option<String>,
}

impl Settings {
    /// Reads and checks every source. Nothing is written, unless the sources say that a damaged
    /// state file is to be moved aside.
    ///
    /// # Errors
    /// All mistakes in all sources, also in values that a later source overrides.
    pub fn load(sources: &Sources) -> Result<Loaded, Mistakes> {
        loaded::load(sources, None)
    }
}
