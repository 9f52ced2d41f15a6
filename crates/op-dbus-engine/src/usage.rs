//! What became of the memory that backends keep for batches: counted where it happens.

use serde::{Deserialize, Serialize};

/// Counts since a backend was loaded. What a backend does not keep, or can't tell of, is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// The buffers that are kept for the shapes of batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<BufferUse>,
    /// Inputs and results on their way to and from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<TransferUse>,
    /// The arena that what is computed in between lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena: Option<ArenaUse>,
    /// Batches for which the device was given a recording of the shape; none where nothing is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replays: Option<u64>,
}

/// Batches by whether there were buffers of their shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferUse {
    /// Batches that found buffers which an earlier one had left.
    pub found: u64,
    /// Batches that had theirs made.
    pub made: u64,
}

/// Bytes of inputs and results, padding included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferUse {
    /// That the device read or wrote where the backend fills them in and takes them out.
    pub in_place: u64,
    /// That a runtime or a driver copied in between.
    pub copied: u64,
}

/// An arena: memory that a runtime has of a device and gives out itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaUse {
    /// Bytes that it has of the device now.
    pub bytes: u64,
    /// Bytes of these that are given out now: between two batches what the model itself takes.
    pub in_use: u64,
    /// The most that was given out at once.
    pub in_use_max: u64,
    /// Requests that it served from what it had.
    pub hits: u64,
    /// Requests for which it had to have more of the device.
    pub misses: u64,
}

impl MemoryUse {
    /// Both together. They may be what a process tells that is not to be trusted.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            buffers: both(self.buffers, other.buffers, |a, b| BufferUse {
                found: a.found.saturating_add(b.found),
                made: a.made.saturating_add(b.made),
            }),
            transfers: both(self.transfers, other.transfers, |a, b| TransferUse {
                in_place: a.in_place.saturating_add(b.in_place),
                copied: a.copied.saturating_add(b.copied),
            }),
            arena: both(self.arena, other.arena, |a, b| ArenaUse {
                bytes: a.bytes.saturating_add(b.bytes),
                in_use: a.in_use.saturating_add(b.in_use),
                in_use_max: a.in_use_max.saturating_add(b.in_use_max),
                hits: a.hits.saturating_add(b.hits),
                misses: a.misses.saturating_add(b.misses),
            }),
            replays: both(self.replays, other.replays, u64::saturating_add),
        }
    }
}

impl BufferUse {
    /// Share of the batches that found their buffers; `None` before the first.
    pub fn reuse_ratio(self) -> Option<f64> {
        share(self.found, self.made)
    }
}

impl TransferUse {
    /// Share of the bytes that nobody copied; `None` before the first.
    pub fn zero_copy_ratio(self) -> Option<f64> {
        share(self.in_place, self.copied)
    }

    /// Counts `bytes`.
    pub fn count(&mut self, bytes: usize, in_place: bool) {
        let counter = if in_place { &mut self.in_place } else { &mut self.copied };
        *counter += bytes as u64;
    }
}

fn both<T>(a: Option<T>, b: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(add(a, b)),
        (a, b) => a.or(b),
    }
}

fn share(part: u64, rest: u64) -> Option<f64> {
    let all = part.saturating_add(rest);
    (all > 0).then(|| part as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backend_does_not_tell_is_left_out_of_the_sum() {
        let some = MemoryUse {
            buffers: Some(BufferUse { found: 3, made: 1 }),
            transfers: Some(TransferUse { in_place: 10, copied: 30 }),
            arena: None,
            replays: Some(3),
        };
        assert_eq!(some.and(MemoryUse::default()), some);
        let both = MemoryUse::default().and(some).and(some);
        assert_eq!(both.buffers, Some(BufferUse { found: 6, made: 2 }));
        assert_eq!(both.buffers.and_then(BufferUse::reuse_ratio), Some(0.75));
        assert_eq!(both.transfers.and_then(TransferUse::zero_copy_ratio), Some(0.25));
        assert_eq!(both.replays, Some(6));
        assert_eq!((both.arena, BufferUse::default().reuse_ratio()), (None, None));
    }
}
