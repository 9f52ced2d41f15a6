//! What a reply tells beside its vectors.

use zbus::{DeserializeDict, SerializeDict, Type};

/// The information (`a{sv}`) in each reply of the packed and fd methods, and of a job's `Fetch`: how the vectors came
/// to be.
///
/// Vectors may be compared if, and only if, the fingerprints of their [`space`](Info::space)s are equal.
///
/// A key that comes with a later version is an `Option` here: an older service does not send it.
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
    /// Indices of the texts that were longer than the model reads, ascending; of texts from a file descriptor the first
    /// [`TRUNCATED_LISTED_MAX`](crate::TRUNCATED_LISTED_MAX).
    pub truncated: Vec<u32>,
    /// How many these are, also where not all are listed: of texts from a file descriptor alone.
    pub truncated_count: Option<u64>,
    /// Texts answered from a cache.
    pub cached: u32,
    /// Microseconds from the call's arrival to the start of its first batch.
    pub queue_us: u64,
    /// Microseconds from the start of its first batch to the end of its last.
    pub compute_us: u64,
}
