//! What every test stands on: a private bus, the daemon as a process, clients, and needs.

pub mod balancer;
pub mod bus;
pub mod client;
pub mod command;
pub mod daemon;
pub mod files;
pub mod fleet;
pub mod gateway;
pub mod golden;
pub mod introspection;
pub mod journal;
pub mod load;
pub mod logind;
pub mod manager;
pub mod needs;
pub mod network;
pub mod polkit;
pub mod process;
pub mod random;
pub mod registry;
pub mod terminal;
pub mod users;

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// What a test and every step of it answers: any error ends the test with its text.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Nothing that a test waits for takes this long on any machine, except when it never comes; on an idle one the longest
/// takes a minute.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Waits for something that must come; `what` names it in the failure.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Outcome<T> {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => Ok(value),
        Err(_) => Err(format!("waited {PATIENCE:?} in vain for {what}").into()),
    }
}

/// Asks until `is_so`, about what has no signal of its own; `what` names it in the failure. At a pace: workers
/// give way to others, and who asks without a pause would take the processor from them.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> Outcome<bool>) -> Outcome {
    let mut turns = interval(Duration::from_millis(2));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    soon(what, async || {
        turns.tick().await;
        is_so().await
    })
    .await
}

/// The same without a pause, about what may be over in a moment.
pub async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> Outcome<bool>) -> Outcome {
    within(what, async {
        while !is_so().await? {
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await?
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the test suite.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
