//! How a call comes in: at once or not at all, or when there is room.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::{Engine, until};
use crate::admission::{Claim, Permit, Time};
use crate::error::Error;
use crate::job::Lookup;

impl Engine {
    pub(super) async fn admit_when_free(
        &self,
        claim: Claim,
        deadline: Option<Instant>,
        cancel: &CancellationToken,
    ) -> Result<Permit, Error> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled),
            permit = self.0.admission.admit_when_free(claim) => permit,
            () = until(deadline) => Err(Error::DeadlineExceeded),
        }
    }

    /// `lookup` tells what of the call was kept.
    pub(super) fn admit(
        &self,
        claim: Claim,
        deadline: Option<Instant>,
        lookup: Option<&Lookup>,
    ) -> Result<Permit, Error> {
        let scheduler = self.scheduler();
        let time =
            |at| Time::until(at, scheduler.registry(|registry| registry.tokens_per_s_seen()));
        // What was kept as a whole comes before all that is queued.
        let queues = !lookup.is_some_and(Lookup::is_whole);
        let claim = Claim { time: deadline.filter(|_| queues).and_then(time), ..claim };
        let admission = &self.0.admission;
        match admission.admit(claim, f64::INFINITY) {
            Err(Error::QuotaExceeded { .. } | Error::Overloaded { .. } | Error::Late { .. }) => {
                // Calls that are over count until a worker takes out what is left of them, and none may have come by.
                scheduler.purge();
                // Of use to a refusal alone, and each call that asks for it keeps the workers from their queue.
                let tokens_per_s = scheduler.registry(|registry| registry.tokens_per_s());
                admission.admit(claim, tokens_per_s)
            }
            result => result,
        }
    }
}
