//! How an engine ends.

use std::time::Instant;

use super::Engine;
use crate::registry::Registry;

impl Engine {
    /// Refuses new calls (`ShuttingDown`), finishes those in flight, then stops the workers. At
    /// `deadline` it stops them in any case, and calls that are still waiting, be it for a batch that runs,
    /// get `ShuttingDown`. A worker that loads then ends when it has: nobody is left whom it would answer, and its
    /// device may hang. Needs tokio's timer.
    pub async fn drain(&self, deadline: Instant) {
        let deadline = tokio::time::Instant::from_std(deadline);
        self.0.admission.close();
        let in_time = tokio::time::timeout_at(deadline, self.0.admission.idle()).await;
        self.scheduler().stop();
        let ended = self.scheduler().until_registry(Registry::all_but_loading_have_ended);
        let ended = tokio::time::timeout_at(deadline, ended).await;
        if in_time.is_err() || ended.is_err() {
            tracing::warn!("not all work was done by the deadline of the shutdown");
            self.0.gone.cancel();
        }
    }

    /// Refuses new calls and ends those in flight (`ShuttingDown`), and returns once all workers have let their
    /// backends go: dropping the engine does not wait for that.
    pub async fn close(&self) {
        self.0.admission.close();
        self.0.gone.cancel();
        self.scheduler().stop();
        self.scheduler().until_registry(Registry::all_have_ended).await;
    }
}
