//! A backend in a process of its own: token ids go in and vectors come out through shared memory,
//! a control socket (`SOCK_SEQPACKET`, JSON messages) carries the rest.
//!
//! The engine trusts nothing that comes from a worker. Its messages are bounded, parsed and
//! numbered; the shared memory can't be resized; vectors are copied out before they are checked;
//! and whoever answers wrongly, late or not at all is killed. A worker ends by itself when the
//! engine's end of the socket is closed.

mod child;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod link;
mod protocol;
mod region;
mod serve;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use child::ChildBackend;
pub use serve::serve;

/// Size of the memory that engine and worker share: the largest batch that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RegionShape {
    /// Tokens of the largest batch, without padding.
    pub tokens_max: usize,
    /// Rows of the largest batch.
    pub rows_max: usize,
    /// Length of one vector.
    pub dimensions: usize,
}

/// How long a worker may take; after that it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the start of the process to its being ready.
    pub load: Duration,
    /// For one batch.
    pub run: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { load: Duration::from_secs(300), run: Duration::from_secs(60) }
    }
}
