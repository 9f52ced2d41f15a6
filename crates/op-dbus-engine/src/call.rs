//! What a caller hands in and gets back.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::config::Limits;

/// One call: texts of one user that are embedded together.
#[derive(Debug, Default)]
pub struct Call {
    /// Who asks; the user whose quota and share of the queue it takes.
    pub uid: u32,
    /// What is embedded. Nothing at all is fine and gives no vectors.
    pub inputs: Inputs,
    /// Put before each text, and counted as its part; token ids stay as they are.
    pub prefix: String,
    /// What happens to texts that are longer than the model reads.
    pub truncate: Truncate,
    /// Class in the queue; by default, and always from `Limits::bulk_texts_min` texts on, by size.
    pub priority: Option<Priority>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// Whether vectors have length one; by default as the model does it.
    pub normalize: Option<bool>,
    /// Cut vectors to this length; only sizes that the model was trained for.
    pub dimensions: Option<usize>,
    /// Cancels the call from elsewhere.
    pub cancel: CancellationToken,
    /// Waits until there is room in the queue and in the user's quota, instead of being refused. A
    /// stream of calls that has nobody to tell when to come back.
    pub wait: bool,
    /// Takes the vectors, each as soon as it is there; the reply has none then.
    pub sink: Option<RowSink>,
}

impl Call {
    /// Its class in the queue.
    pub(crate) fn class(&self, limits: &Limits) -> Priority {
        let large = self.inputs.len() >= limits.bulk_texts_min;
        let asked = self.priority.unwrap_or(Priority::Interactive);
        if large { Priority::Bulk } else { asked }
    }
}

/// Takes each vector of a call once: the index of a text, and the vectors of it and of those that follow,
/// row-major, as the caller wants them. Such runs come in any order, on the worker's thread, which waits
/// for it; those of vectors that were kept come on the caller's task or a tokenizer thread. It is dropped before the
/// reply is told, or when nobody waits for that any more. One that panics is not asked again, and its call is refused
/// with [`Error::InvalidArgument`](crate::Error::InvalidArgument).
/// In it nobody may wait for vectors of the same engine or for its end, as the library's `embed_blocking` and
/// `close` do: the worker that would have to compute and to end waits for the sink, and both would for ever.
pub struct RowSink(Option<Box<Take>>);

/// What a sink does with the index of a text and the vectors from there on.
type Take = dyn FnMut(u32, &[f32]) + Send;

impl RowSink {
    /// A sink that hands all vectors to `take`.
    pub fn new(take: impl FnMut(u32, &[f32]) + Send + 'static) -> Self {
        Self(Some(Box::new(take)))
    }

    pub(crate) fn take(&mut self, first: u32, vectors: &[f32]) {
        let Some(take) = &mut self.0 else { return };
        // It runs on a thread that all calls need.
        if catch_unwind(AssertUnwindSafe(|| take(first, vectors))).is_err() {
            self.0 = None;
        }
    }

    pub(crate) fn has_panicked(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for RowSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowSink")
    }
}

/// What a call embeds: one vector for each text, or for each list of token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Texts.
    Texts(Vec<String>),
    /// Token ids of the model's own vocabulary. The special tokens that the model wants are put
    /// around each list, unless they are there.
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// Number of texts or lists, which is the number of vectors.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Tokens(lists) => lists.len(),
        }
    }

    /// The memory that they take, without that of the lists themselves.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Tokens(lists) => lists.iter().map(|ids| size_of_val(ids.as_slice())).sum(),
        }
    }

    /// Puts `prefix` before each text.
    pub(crate) fn put_before(&mut self, prefix: &str) {
        if let (Self::Texts(texts), false) = (self, prefix.is_empty()) {
            texts.iter_mut().for_each(|text| text.insert_str(0, prefix));
        }
    }

    /// Whether there is nothing to embed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Inputs {
    fn default() -> Self {
        Self::Texts(Vec::new())
    }
}

impl From<Vec<String>> for Inputs {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

/// What happens to a text with more tokens than the model reads. Cuts fall between tokens, and the
/// special tokens stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Truncate {
    /// Refuse the call with [`Error::TooLong`](crate::Error::TooLong).
    Error,
    /// Cut the end off.
    #[default]
    End,
    /// Cut the start off.
    Start,
    /// Embed all of it in windows; the vector is their mean weighted by tokens.
    Mean,
}

/// Class in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for it: served first.
    Interactive,
    /// Served when there is nothing interactive, and now and then in any case.
    Bulk,
}

/// The vectors of a call, and how they came to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The vectors in the order of the texts, row-major `[rows, dimensions]`; all are finite. Empty
    /// where [`Call::sink`] took them.
    pub vectors: Vec<f32>,
    /// Number of vectors, which is the number of texts.
    pub rows: usize,
    /// Length of one vector.
    pub dimensions: usize,
    /// Tokens of the texts as they were embedded, now or where a vector was kept in the call before: after
    /// truncation, special tokens included.
    pub tokens: u64,
    /// Indices of the texts that were longer than the model reads, ascending.
    pub truncated: Vec<u32>,
    /// Texts whose vectors were kept from a call before ([`Cache`](crate::Cache)).
    pub cached: usize,
    /// From the call's arrival to the start of its first batch, tokenizing included.
    pub queue_us: u64,
    /// From the start of its first batch to the end of its last.
    pub compute_us: u64,
    /// Execution provider that computed; several with commas in between.
    pub provider: String,
    /// Device that computed; several with commas in between.
    pub device: String,
    /// Precision of the arithmetic; several with commas in between.
    pub precision: String,
}

impl Reply {
    /// Notes that some of the vectors were computed by what computed those of `other`.
    pub fn also_computed_by(&mut self, other: &Self) {
        self.computed_by(&other.provider, &other.device, &other.precision);
    }

    /// Notes what has computed some of the vectors.
    pub(crate) fn computed_by(&mut self, provider: &str, device: &str, precision: &str) {
        note(&mut self.provider, provider);
        note(&mut self.device, device);
        note(&mut self.precision, precision);
    }
}

/// Adds names to a list, both with commas in between, unless they are there.
fn note(list: &mut String, names: &str) {
    // The usual case: the same as before.
    if list == names {
        return;
    }
    for name in names.split(',') {
        if list.split(',').any(|known| known == name) {
            continue;
        }
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(name);
    }
}
