//! The one interface between the engine and whatever computes: a batch of token ids in, vectors out.

use crate::batch::Batch;
use crate::buckets::Buckets;
use crate::usage::MemoryUse;

/// Devices that a backend may tell of, and that are told apart in a pool: no machine has more. There may be a worker
/// for each.
pub(crate) const DEVICES_MAX: usize = 1024;

/// What a backend says of itself once it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Description {
    /// Execution provider that computes, by its public name (`cpu`, `cuda`, …, `sim`).
    pub provider: String,
    /// Device that computes (`cpu:0`, `cuda:1`).
    pub device: String,
    /// Devices of this provider on this machine; 0 where it can't tell.
    pub devices: usize,
    /// Precision of the arithmetic (`f32`, …).
    pub precision: String,
    /// What computes on that device (`native`, `ort`, `sim`).
    pub engine: String,
    /// Instruction set that the engine was told to use; empty where it chooses by itself.
    pub isa: String,
    /// Length of one vector.
    pub dimensions: usize,
    /// Tokens of a batch beyond which its throughput hardly grows, as it was measured; 0 where it was
    /// not.
    pub batch_tokens: usize,
    /// The shapes that it rounds batches up to; none where it does not.
    pub buckets: Option<Buckets>,
    /// Tokens of the largest batch, padding included, that it has computed by itself since it was loaded, to measure or
    /// to prepare: that to which what its arena had in use at most belongs.
    pub largest_tokens: usize,
    /// Time from start to ready.
    pub load_ms: u64,
    /// Process that computes; our own for a backend that runs in-process.
    pub pid: u32,
    /// What confines that process, in a few words; empty for one that is not confined.
    pub sandbox: String,
}

/// Why a batch has no vectors.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BackendError {
    /// The backend is gone or can't be trusted any more; it must be replaced, the batch may be
    /// retried.
    #[error("the worker was lost: {0}")]
    Lost(String),
    /// As [`Lost`](Self::Lost), to somebody else who has ended its process.
    #[error("the worker was killed: {0}")]
    Killed(String),
    /// The device has no memory for a batch of this size; the backend lives on.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The backend refused or failed this batch. Whether it lives on the engine finds out by a text of its own.
    #[error("{0}")]
    Failed(String),
    /// The backend could not be made: a missing library, a damaged model, an unusable provider.
    #[error("{message}")]
    Load {
        /// What kind of thing is wrong, so that the caller can give it its public error name.
        kind: LoadErrorKind,
        /// One sentence for the administrator: what, where, what to do.
        message: String,
    },
}

impl BackendError {
    /// Whether the backend is gone.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Killed(_) | Self::Load { .. })
    }

    /// Whether it is the backend's own, or its batch's: others than these may kill it, or fill its memory.
    pub(crate) fn is_its_own(&self) -> bool {
        !matches!(self, Self::Killed(_) | Self::OutOfMemory(_))
    }
}

/// What stands in the way of a backend's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadErrorKind {
    /// The model is not in the store.
    ModelNotInstalled,
    /// A file of the model is damaged or not what its manifest says.
    ModelCorrupt,
    /// The runtime library or the provider can't be used.
    ProviderUnavailable,
    /// The provider can't have this model, and may have others: its graph or its precision is not one that the provider
    /// computes.
    Unfit,
    /// The provider has no memory for this model now, and may have for others.
    OutOfMemory,
    /// It loaded and computes, and its vectors are not the model's.
    Untrusted,
    /// Anything else.
    Other,
}

/// What the caller does while a batch is computed.
pub type Meanwhile<'a> = dyn FnMut(&mut Begin<'_>) + Send + 'a;

/// Gives the backend the batch that comes next, which it computes right after the one it is at; false where it was
/// not taken.
pub type Begin<'a> = dyn FnMut(&Batch<'_>) -> bool + 'a;

/// A loaded model on one device. One thread owns it; all calls block.
pub trait Backend: Send {
    /// What was loaded and where it runs. The device is that of the last batch, where there are
    /// several to compute on.
    fn description(&self) -> &Description;

    /// Computes `batch`, which has passed [`Batch::check`], into `out`, row-major
    /// `[rows, dimensions]`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] leaves the backend usable, and [`BackendError::Failed`] does where it is
    /// the batch that failed.
    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError>;

    /// As [`run`](Self::run), and calls `meanwhile` once at most. A backend that only waits for
    /// others to compute calls it while they do, so that what the caller does there costs no time.
    /// What comes next is then the batch that `meanwhile` has begun, if it has begun one, or
    /// [`forget_begun`](Self::forget_begun).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        meanwhile(&mut |_| false);
        self.run(batch, out)
    }

    /// Lets the batch go that was begun while another was computed, if there is one: nobody asks for its
    /// vectors any more.
    fn forget_begun(&mut self) {}

    /// Whether a batch can be begun while another is computed.
    fn begins(&self) -> bool {
        false
    }

    /// Whether it is lost because it had ended before it read what it was asked: of a batch that was no try.
    fn has_read_nothing(&self) -> bool {
        false
    }

    /// Gives back memory that only makes the next batch faster. Told is what our own process does not show:
    /// memory of a device, and all of a process of its own.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn trim(&mut self) -> Result<Footprint, BackendError> {
        Ok(Footprint::default())
    }

    /// What became of the memory that is kept for batches, up to the last of them. Cheap: it is asked
    /// for after each.
    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }
}

/// What a worker holds between two backends.
pub(crate) struct Gone(pub Description);

impl Backend for Gone {
    fn description(&self) -> &Description {
        &self.0
    }

    fn run(&mut self, _: &Batch<'_>, _: &mut [f32]) -> Result<(), BackendError> {
        Err(BackendError::Lost("it is being replaced".into()))
    }
}

/// Memory of processes that is theirs alone: neither files that are mapped nor what is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes that were given back.
    pub given_back: u64,
    /// Bytes that are left.
    pub resident: u64,
}

impl Footprint {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            given_back: self.given_back.saturating_add(other.given_back),
            resident: self.resident.saturating_add(other.resident),
        }
    }
}

/// Makes the backend of worker number `n`, at start and again after a [`BackendError::Lost`].
pub type BackendFactory =
    Box<dyn Fn(usize) -> Result<Box<dyn Backend>, BackendError> + Send + Sync>;

/// An error with its causes, as one sentence: what a backend says of it is all that anybody sees of it
/// outside of its process. A cause that its own error already quotes is not said twice.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("the file is of no use")]
        Silent(#[source] io::Error),
        #[error("the file is of no use ({0})")]
        Quoting(#[source] io::Error),
    }

    #[test]
    fn causes_are_told_once() {
        let cause = || io::Error::other("the disk is on fire");
        let silent = with_causes(&Outer::Silent(cause()));
        assert_eq!(silent, "the file is of no use: the disk is on fire");
        let quoting = with_causes(&Outer::Quoting(cause()));
        assert_eq!(quoting, "the file is of no use (the disk is on fire)");
    }
}
