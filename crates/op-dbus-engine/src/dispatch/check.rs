//! Whether a backend is what it was: it proves itself again, and goes on after a batch that it refused.

use std::sync::Arc;

use super::Worker;
use crate::backend::{BackendError, Description, Footprint};
use crate::error::is_same_news;
use crate::proof;
use crate::roster::Order;
use crate::scheduler::Entry;

/// Reasons that are kept at most, so that none is told twice.
const REASONS_MAX: usize = 16;

/// Why a worker refused batches, as the log has it.
#[derive(Debug, Default)]
pub(super) struct Reasons(Vec<String>);

impl Reasons {
    /// Whether it is not there yet, which it is from now on.
    fn is_new(&mut self, why: &str) -> bool {
        if self.0.iter().any(|told| is_same_news(told, why)) {
            return false;
        }
        if self.0.len() == REASONS_MAX {
            self.0.remove(0);
        }
        self.0.push(why.to_owned());
        true
    }
}

impl Worker {
    /// Has the backend embed the engine's own text, as when it was loaded.
    ///
    /// # Errors
    /// It can't be trusted any more.
    pub(super) fn check(&mut self) -> Result<(), BackendError> {
        self.prove()?;
        self.moves();
        let shared = Arc::clone(&self.shared);
        if shared.scheduler.is_to_measure(self.place.index) {
            let costs = proof::costs(self.backend.as_mut(), self.place, &shared);
            let costs = costs.inspect_err(|error| self.doubt_if_wrong(error));
            // Also where the backend is lost with that: what was known stays for a while.
            let (device, known) = (&self.description.device, costs.as_deref().unwrap_or_default());
            shared.scheduler.roster(|roster| roster.measured(self.place.pool, device, known));
            costs?;
        }
        let did = (Footprint::default(), self.backend.memory());
        shared.scheduler.change(|roster| roster.obeyed(self.place.index, Order::Check, did));
        self.strikes = 0;
        Ok(())
    }

    /// Has the backend embed the engine's own text, and does nothing else.
    ///
    /// # Errors
    /// It can't be trusted any more.
    pub(super) fn prove(&mut self) -> Result<(), BackendError> {
        let (shared, pool) = (&self.shared, &self.shared.pools[self.place.pool]);
        let vector = proof::probe(self.backend.as_mut(), &shared.model, &shared.probe);
        let proved = vector.and_then(|vector| proof::trust(pool, &self.description, &vector));
        proved.inspect_err(|error| self.doubt_if_wrong(error))
    }

    /// Where a backend computes others than the model's vectors, has all workers prove themselves, which may be on the
    /// same device, and forgets the vectors that were kept: nobody knows since when they are wrong.
    fn doubt_if_wrong(&self, error: &BackendError) {
        if !matches!(error, BackendError::Load { .. }) {
            return;
        }
        self.shared.scheduler.check();
        let vectors = self.shared.cache.forget(self.shared.number).vectors;
        if vectors > 0 {
            tracing::warn!(
                worker = self.place.index,
                %error,
                "{vectors} vectors that were kept are forgotten, as they may be wrong: {error}"
            );
        }
    }

    /// A batch failed and its backend goes on. Its rows are tried once more, each alone, and their calls may never
    /// hear of it: the log has why, once for each reason.
    pub(super) fn refused(&mut self, batch: &mut Vec<Entry>, error: &BackendError) {
        let (worker, rows, why) = (self.place.index, batch.len(), error.to_string());
        // Who has failed before is told why.
        if batch.iter().any(|entry| entry.failed_on.is_none()) && self.told.is_new(&why) {
            let Description { provider, device, .. } = &self.description;
            tracing::warn!(
                worker,
                provider,
                %error,
                "{device} refused a batch of {rows} rows, each of which is tried alone: {why}"
            );
        }
        self.shared.scheduler.try_again(worker, batch, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_once_also_where_they_take_turns() {
        let mut told = Reasons::default();
        let is_new = ["no room", "no text", "no room", "no text"].map(|why| told.is_new(why));
        assert_eq!(is_new, [true, true, false, false]);
        let letters = ('a'..='z').filter(|letter| told.is_new(&letter.to_string()));
        assert_eq!((letters.count(), told.0.len()), (26, REASONS_MAX));
    }
}
