//! Memory that large requests have left behind.
//!
//! The C library keeps what is freed for later: after 64 requests of 8 MiB each that was 1 GB, until the
//! gateway ended.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::limits;

/// Calls `trim` whenever no `large` request was answered for a while after another: those that follow
/// one another use the memory again. Never ends.
pub async fn give_back(large: Arc<Notify>, trim: fn()) {
    loop {
        large.notified().await;
        while timeout(limits::SPARE_TIME, large.notified()).await.is_ok() {}
        // It takes a while. Nobody waits for it, and at the gateway's end it may be cut off.
        let _ = spawn_blocking(trim).await;
    }
}
