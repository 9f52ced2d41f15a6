//! A backend in a process of its own: token ids go in and vectors come out through shared memory, a
//! control socket carries the rest.

use std::process::Command;
use std::time::Duration;

use crate::backend::{Backend, BackendError, Batch, Description};

/// Size of the memory that engine and worker share: the largest batch that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RegionShape {
    /// Padded tokens of the largest batch.
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

/// A worker process, seen from the engine.
#[derive(Debug)]
pub struct ChildBackend {
    description: Description,
}

impl ChildBackend {
    /// Starts `command` as a worker and waits until it has loaded.
    ///
    /// # Errors
    /// `Load`
    pub fn spawn(
        _command: Command,
        _shape: RegionShape,
        _timeouts: Timeouts,
    ) -> Result<Self, BackendError> {
        Err(BackendError::Lost("not built yet".into()))
    }
}

impl Backend for ChildBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, _batch: &Batch<'_>, _out: &mut [f32]) -> Result<(), BackendError> {
        Err(BackendError::Lost("not built yet".into()))
    }
}

/// The worker's side.
///
/// # Errors
/// Of the socket.
pub fn serve(
    _load: impl FnOnce() -> Result<Box<dyn Backend>, BackendError>,
) -> std::io::Result<()> {
    Err(std::io::Error::other("not built yet"))
}
