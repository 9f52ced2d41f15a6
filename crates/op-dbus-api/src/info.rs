//! What a reply tells beside its vectors.

use zbus::{DeserializeDict, SerializeDict, Type};

/// The information (`a{sv}`) in each packed reply and in the result of each job: how the vectors came to be.
///
/// Vectors may be compared if, and only if, the fingerprints of their [`space`](Info::space)s are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, SerializeDict, DeserializeDict, Type)]
#[zbus(signature = "a{sv}")]
pub struct Info {
    /// Vector space of the vectors: its fingerprint, a dash, the precision.
    pub space: String,
    /// Level that served; empty for an imported model.
    pub level: String,
    /// Model that served.
    pub model: String,
    /// Length of one vector.
    pub dimensions: u32,
    /// Execution provider that computed; several with commas in between.
    pub provider: String,
    /// Device that computed; several with commas in between.
    pub device: String,
    /// Precision of the arithmetic; several with commas in between.
    pub precision: String,
    /// Tokens of the texts as they were embedded, special tokens included; of cached ones, too.
    pub tokens: u64,
    /// Indices of the texts that were longer than the model reads, ascending.
    pub truncated: Vec<u32>,
    /// How many texts were longer, where `truncated` lists the first of them: in the replies to texts from a file
    /// descriptor.
    pub truncated_count: Option<u64>,
    /// Texts answered from a cache.
    pub cached: u32,
    /// Microseconds from admission to the first batch.
    pub queue_us: u64,
    /// Microseconds in the batches of this call.
    pub compute_us: u64,
}
