//! Every bound of the engine in one place, who computes, and the shape of the model that is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Ledger;
use crate::backend::BackendFactory;
use crate::batch::Batch;
use crate::buckets;
use crate::cache::Cache;
use crate::reference::Reference;
use crate::routing::BatchCost;
use crate::stats::Stats;
use crate::worker::RegionShape;

/// The bounds on calls and on what waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Texts in one call.
    pub texts_per_call_max: usize,
    /// Bytes of one text.
    pub text_bytes_max: usize,
    /// Bytes of all texts of one call together.
    pub call_bytes_max: usize,
    /// How long an idle worker waits for more texts before it runs a batch that is not full.
    /// Zero, the default: batches form while the workers are busy.
    pub batch_delay_us_max: u64,
    /// Tokens in flight for all callers, from admission to reply. Before it is tokenized, a text
    /// counts as the tokens it may have at most, but never less than one token per 32 bytes,
    /// so that this bounds the memory that texts take as well.
    pub queue_tokens_max: usize,
    /// Tokens in flight for one user.
    pub quota_tokens: usize,
    /// A call with at least this many texts is bulk, whatever its caller asks for.
    pub bulk_texts_min: usize,
    /// Ageing: while interactive work keeps all workers busy, bulk work gets one batch whenever it
    /// has waited this long since its last.
    pub bulk_wait_us_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            texts_per_call_max: 16_384,
            text_bytes_max: 1 << 20,
            call_bytes_max: 128 << 20,
            batch_delay_us_max: 0,
            queue_tokens_max: 8 << 20,
            quota_tokens: 4 << 20,
            bulk_texts_min: 64,
            bulk_wait_us_max: 500_000,
        }
    }
}

/// The bounds on one batch. The defaults suit a CPU worker; a GPU wants larger batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// How the backend lays a batch out, which decides what a batch costs.
    pub layout: BatchLayout,
    /// Tokens: rows × sequence length when padded, else those of its texts. Raised to the model's
    /// maximum input if that is more, because one text of full length must fit.
    pub tokens_max: usize,
    /// Whether a batch is to stop at what the backends were measured to need
    /// ([`Description::batch_tokens`](crate::Description)), if that is less.
    pub tokens_measured: bool,
    /// Rows.
    pub rows_max: usize,
    /// Rows × sequence length² when padded, else the sum of its texts' squares: what attention
    /// needs memory and time for. A single row is always accepted.
    pub attention_max: u64,
    /// Padding, in percent of its padded tokens; nothing to a packed layout. Batches of up to 64
    /// padded tokens are exempt: there a second batch would cost more than the padding.
    pub padding_percent_max: usize,
    /// Threads that a worker computes with, each of which takes its part of what is said here. A reserved
    /// worker has one, and batches of one part.
    pub threads: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            layout: BatchLayout::Padded,
            tokens_max: 512,
            tokens_measured: false,
            rows_max: 512,
            attention_max: 4 << 20,
            padding_percent_max: 12,
            threads: 1,
        }
    }
}

impl BatchLimits {
    /// Tokens for each thread beyond which no batch grows, however the machine was measured: whoever
    /// comes while it is computed has to wait.
    const MEASURED_TOKENS_MAX: usize = 2048;
    /// Padded tokens of a batch on an accelerator, which has more cores to fill than a CPU, where nothing was
    /// measured.
    pub const ACCELERATOR_TOKENS: usize = 8192;
    /// Those beyond which no batch on an accelerator grows, however it was measured.
    const ACCELERATOR_TOKENS_MAX: usize = 32_768;

    /// For a backend that pads nothing. What a batch may cost is said for one thread, and each of
    /// `threads` takes its part of the batch. Without `tokens_max` what was measured counts.
    pub fn packed(threads: usize, tokens_max: Option<usize>) -> Self {
        let one = Self::default();
        let tokens = tokens_max.unwrap_or(Self::MEASURED_TOKENS_MAX);
        Self {
            layout: BatchLayout::Packed,
            tokens_max: tokens.saturating_mul(threads),
            tokens_measured: tokens_max.is_none(),
            rows_max: one.rows_max.saturating_mul(threads),
            attention_max: one.attention_max.saturating_mul(threads as u64),
            threads,
            ..one
        }
    }

    /// The part of one thread.
    pub(crate) fn of_one_thread(self) -> Self {
        let threads = self.threads.max(1);
        Self {
            tokens_max: self.tokens_max / threads,
            rows_max: self.rows_max / threads,
            attention_max: self.attention_max / threads as u64,
            threads: 1,
            ..self
        }
    }

    /// For a CPU backend that pads.
    pub fn padded(tokens_max: Option<usize>) -> Self {
        let basic = Self::default();
        Self {
            tokens_max: tokens_max.unwrap_or(basic.tokens_max),
            tokens_measured: tokens_max.is_none(),
            ..basic
        }
    }

    /// For an accelerator, which has more cores to fill than a CPU. Without `tokens_max` what was measured
    /// counts.
    pub fn accelerator(tokens_max: Option<usize>) -> Self {
        let tokens = tokens_max.unwrap_or(Self::ACCELERATOR_TOKENS_MAX);
        let basic = Self::default();
        Self {
            tokens_max: tokens,
            // As many of the shortest rows as fill it, and of rows of 512 tokens.
            rows_max: basic.rows_max.max(tokens / buckets::LENGTH_STEP_MIN),
            attention_max: basic.attention_max.max((tokens as u64).saturating_mul(512)),
            ..Self::padded(tokens_max)
        }
    }

    /// The shared memory that a [`ChildBackend`](crate::worker::ChildBackend) needs for the largest
    /// batch that is made under these limits for `model`.
    pub fn region(&self, model: &ModelShape) -> RegionShape {
        RegionShape {
            tokens_max: self.tokens_max.max(model.max_input_tokens),
            rows_max: self.rows_max.max(1),
            dimensions: model.dimensions,
        }
    }
}

/// What a backend makes of the rows of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchLayout {
    /// Rows are padded to the longest: those of a batch should be of like length.
    #[default]
    Padded,
    /// Tokens are computed one after another: any texts go together, and none costs more for it.
    Packed,
}

impl BatchLayout {
    /// Tokens that a backend computes for `batch`, padding included.
    pub(crate) fn tokens(self, batch: &Batch<'_>) -> usize {
        match self {
            Self::Padded => batch.rows() * batch.longest(),
            Self::Packed => batch.tokens(),
        }
    }
}

/// How an engine runs.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The bounds.
    pub limits: Limits,
    /// Threads that tokenize large calls. Zero counts as one.
    pub tokenizer_threads: usize,
    /// A worker that has not embedded the engine's own text for this long does so, idle or between two batches, so
    /// that one that was lost meanwhile, or is not what it was, is replaced, if it is idle before anybody needs it.
    /// [`Engine::canary`](crate::Engine::canary) may have it asked sooner. Less than a millisecond counts as one.
    pub check_interval: Duration,
    /// Vectors of texts that come again; off by default. Engines may share one.
    pub cache: Arc<Cache>,
    /// What is counted of calls, batches and workers. Engines may count together: what is told outlives
    /// each of them then.
    pub stats: Arc<Stats>,
    /// What `queue_tokens_max` and `quota_tokens` of the limits are on. Engines that share one have them
    /// together.
    pub ledger: Arc<Ledger>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            tokenizer_threads: 1,
            check_interval: Duration::from_secs(60),
            cache: Arc::new(Cache::new(0)),
            stats: Arc::default(),
            ledger: Arc::default(),
        }
    }
}

/// Workers of one kind: what they compute with and what their batches may be.
pub struct Pool {
    /// Makes the backend of each worker.
    pub factory: BackendFactory,
    /// Workers; each has a thread in the engine and a backend from the factory. Zero counts as one.
    pub workers: usize,
    /// Workers beside these for interactive work alone, with the next numbers. They have a backend only
    /// while bulk work is about as well, and compute only while it keeps the others.
    pub reserved: usize,
    /// The bounds on their batches.
    pub batch: BatchLimits,
    /// What every backend has to make of the engine's own text before it is trusted; none where
    /// there is nothing to compare with.
    pub reference: Option<Reference>,
    /// Whether its workers hold a device beside the CPU, which they let go while the machine sleeps.
    pub holds_device: bool,
    /// Names of the devices that its workers take in turn, for what is told of one that has not loaded yet;
    /// empty where they are not known.
    pub devices: Vec<String>,
    /// Whether each of its workers has to load for the engine to start; else one that fails is tried again while the
    /// others compute.
    pub whole: bool,
    /// What its batches were known to cost on each device, by name. Of one of which nothing is known it is measured,
    /// where there is another pool or another device.
    pub costs: BTreeMap<String, Vec<BatchCost>>,
    /// So many batches lost, each before 32 were computed since the last, or one text lost twice by the pool, and a
    /// worker is given up as one that can't be loaded, though it can; none where nothing takes its place.
    pub losses_max: Option<u32>,
}

impl Pool {
    /// One worker under the default limits.
    pub fn new(factory: BackendFactory) -> Self {
        Self {
            factory,
            workers: 1,
            reserved: 0,
            batch: BatchLimits::default(),
            reference: None,
            holds_device: false,
            devices: Vec::new(),
            whole: false,
            costs: BTreeMap::new(),
            losses_max: None,
        }
    }

    /// The device of worker `number`, where it is known.
    pub(crate) fn device(&self, number: usize) -> Option<&String> {
        self.devices.get(number % self.devices.len().max(1))
    }
}

/// What the engine has to know of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Length of one vector.
    pub dimensions: usize,
    /// Tokens that the model reads at most, special tokens included.
    pub max_input_tokens: usize,
    /// Whether the backend's vectors have length one.
    pub normalized: bool,
    /// Sizes below `dimensions` that the model was trained to be cut to; empty for most models.
    pub matryoshka: Vec<usize>,
}

impl ModelShape {
    /// A model whose vectors have length one and are not to be cut.
    pub fn new(dimensions: usize, max_input_tokens: usize) -> Self {
        Self { dimensions, max_input_tokens, normalized: true, matryoshka: Vec::new() }
    }
}
