//! What a worker tells of itself.

use crate::backend::Description;
use crate::usage::MemoryUse;

/// What one worker is and does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// What it has loaded and where it runs.
    pub description: Description,
    /// Whether it computes interactive work alone, while bulk keeps the others.
    pub reserved: bool,
    /// What it does now.
    pub state: WorkerState,
    /// Batches that it ran.
    pub batches: u64,
    /// Rows in these batches.
    pub rows: u64,
    /// Tokens in these batches, without padding.
    pub tokens: u64,
    /// Time that these batches took together, in microseconds.
    pub busy_us: u64,
    /// What became of the memory that its backend keeps for batches, since that was loaded.
    pub memory: MemoryUse,
    /// How often it was replaced.
    pub restarts: u64,
    /// Whether its device has too little free memory for a full batch: others get those.
    pub is_short_of_memory: bool,
    /// Why it was replaced last, or why it can't be.
    pub last_error: Option<String>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerState {
    /// It waits for work.
    Idle,
    /// It runs a batch.
    Busy,
    /// It was lost and is being replaced.
    Restarting,
    /// It has let its backend go.
    #[default]
    Unloaded,
    /// It makes itself a backend again.
    Loading,
    /// It has ended with the engine.
    Stopped,
}

impl WorkerState {
    /// Whether it has no backend and is not about to have one.
    pub(crate) fn is_away(self) -> bool {
        matches!(self, Self::Unloaded | Self::Stopped)
    }
}
