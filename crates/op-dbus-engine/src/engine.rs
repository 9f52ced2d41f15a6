//! The engine as its users see it.

use std::time::Instant;

use crate::backend::{BackendError, BackendFactory, Description};
use crate::call::{Call, Reply};
use crate::config::{EngineConfig, ModelShape};
use crate::error::Error;
use crate::stats::Snapshot;
use crate::tokenizer::Tokenizer;

/// The engine. Cheap to clone; the workers stop when the last clone is gone.
#[derive(Clone)]
pub struct Engine {}

/// What one worker is and does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// What it has loaded and where it runs.
    pub description: Description,
    /// What it does now.
    pub state: WorkerState,
    /// Batches that it ran.
    pub batches: u64,
    /// How often it was replaced.
    pub restarts: u64,
    /// Why it was replaced last.
    pub last_error: Option<String>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerState {
    /// It waits for work.
    Idle,
    /// It runs a batch.
    Busy,
    /// It was lost and is being replaced.
    Restarting,
    /// It has ended with the engine.
    Stopped,
}

impl Engine {
    /// Loads all workers and blocks until each has passed a check batch.
    ///
    /// # Errors
    /// That of the first worker that could not be loaded or failed its check.
    pub fn start(
        _tokenizer: Tokenizer,
        _model: ModelShape,
        _factory: BackendFactory,
        _config: EngineConfig,
    ) -> Result<Self, BackendError> {
        Err(BackendError::Lost("not built yet".into()))
    }

    /// Embeds the texts of a call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn embed(&self, _call: Call) -> Result<Reply, Error> {
        Err(Error::ShuttingDown)
    }

    /// Tokens of each text before truncation, special tokens included.
    ///
    /// # Errors
    /// `TooLarge`, `InvalidArgument`, `ShuttingDown`.
    pub async fn count_tokens(&self, _texts: Vec<String>) -> Result<Vec<u32>, Error> {
        Err(Error::ShuttingDown)
    }

    /// What each worker is and does.
    pub fn descriptions(&self) -> Vec<WorkerStatus> {
        Vec::new()
    }

    /// The counters now.
    pub fn stats(&self) -> Snapshot {
        Snapshot::default()
    }

    /// Refuses new calls, finishes queued ones until `deadline`, then stops the workers.
    pub async fn drain(&self, _deadline: Instant) {}

    /// One short text through the real path, not counted against any quota.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn canary(&self) -> Result<(), Error> {
        Err(Error::ShuttingDown)
    }
}
