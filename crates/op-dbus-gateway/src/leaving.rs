//! The gateway's end, told before it comes to whoever asks `/ready`: a balancer then sends the next
//! requests elsewhere, and none to a socket that is about to be closed. Whose request takes longer than there
//! is time for is told as well.

use std::time::Instant;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::limits;

/// Whether the gateway is about to end, and whether somebody wants to know.
#[derive(Default)]
pub struct Leaving {
    /// When `/ready` was asked last.
    asked: Mutex<Option<Instant>>,
    /// Cancelled when the gateway was told to end: `/ready` says so, and each connection ends with its next reply.
    pub begun: CancellationToken,
    /// Cancelled when no new requests are taken.
    pub drained: CancellationToken,
    /// Cancelled when no request is waited for any more.
    pub over: CancellationToken,
}

impl Leaving {
    /// `/ready` is asked.
    pub fn ask(&self) {
        *self.asked.lock() = Some(Instant::now());
    }

    /// Whether `/ready` was asked lately, so that it will be asked again.
    pub fn is_watched(&self) -> bool {
        self.asked.lock().is_some_and(|asked| asked.elapsed() < limits::WATCH_TIME)
    }
}
