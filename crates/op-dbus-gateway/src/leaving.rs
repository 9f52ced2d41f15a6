//! The gateway's end, told before it comes to whoever asks `/ready`: a balancer then sends the next
//! requests elsewhere, and none to a socket that is about to be closed. Whose request takes longer than there
//! is time for is told as well.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use crate::limits::LIMITS;

/// Whether the gateway is about to end, and whether somebody wants to know.
#[derive(Default)]
pub struct Leaving {
    begun: AtomicBool,
    /// When `/ready` was asked last.
    asked: Mutex<Option<Instant>>,
    /// Whether no new requests are taken.
    is_drained: watch::Sender<bool>,
    /// Whether no request is waited for any more.
    is_over: watch::Sender<bool>,
}

impl Leaving {
    /// `/ready` is asked.
    pub fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The gateway was told to end.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether it was: `/ready` says so, and each connection ends with its next reply.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// No new requests are taken.
    pub fn drain(&self) {
        self.is_drained.send_replace(true);
    }

    /// Returns when that is so.
    pub async fn drained(&self) {
        // Its sender is ours.
        let _ = self.is_drained.subscribe().wait_for(|is_drained| *is_drained).await;
    }

    /// No request is waited for any more.
    pub fn end(&self) {
        self.is_over.send_replace(true);
    }

    /// Returns when that is so.
    pub async fn over(&self) {
        // Its sender is ours.
        let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
    }

    /// Whether `/ready` was asked lately, so that it will be asked again.
    pub fn is_watched(&self) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.is_some_and(|asked| asked.elapsed() < LIMITS.watch_time)
    }
}
