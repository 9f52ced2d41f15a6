//! The text by which an engine shows that it computes.

use std::time::{Duration, Instant};

use super::Engine;
use crate::admission::OWN_UID;
use crate::backend::BackendError;
use crate::call::Call;
use crate::error::Error;
use crate::start::CANARY;

/// How long [`Engine::canary`] waits. Backends that can be killed bound a single batch themselves.
const CANARY_TIME_MAX: Duration = Duration::from_secs(60);

impl Engine {
    /// Embeds one short text on the real path, counted against nobody's quota: while this succeeds
    /// the engine does its work. An engine that is unloaded, or loads again, stays that, and nothing
    /// is embedded. Needs tokio's timer.
    ///
    /// # Errors
    /// As [`embed`](Self::embed); `DeadlineExceeded` after a minute; `WorkerFailed` where the vector is not the
    /// model's: each worker then proves itself before the next batch that it takes, and one that can't is replaced.
    pub async fn canary(&self) -> Result<(), Error> {
        let permit = self.0.admission.admit_own()?;
        // Asked behind the permit, with which nobody unloads.
        if self.is_away() {
            return Ok(());
        }
        let call = Call {
            uid: OWN_UID,
            inputs: vec![CANARY.to_owned()].into(),
            deadline: Some(Instant::now() + CANARY_TIME_MAX),
            ..Call::default()
        };
        let output = self.0.output(None, None)?;
        // What was computed before would prove nothing.
        let reply = self.run(call, output, permit, None).await?;
        let Some(reference) = &self.0.reference else { return Ok(()) };
        reference.check(&reply.vectors).map_err(|difference| {
            // Whose it is the reply does not tell. Else it would go on to answer callers.
            self.scheduler().check();
            Error::WorkerFailed(BackendError::Lost(difference))
        })
    }
}
