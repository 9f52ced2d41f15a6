//! Whether a backend is what it was: it proves itself again.

use std::sync::Arc;

use super::Worker;
use crate::backend::{BackendError, Footprint};
use crate::proof;
use crate::registry::Order;

impl Worker {
    /// Has the backend embed the engine's own text, as when it was loaded.
    ///
    /// # Errors
    /// It can't be trusted any more.
    pub(super) fn check(&mut self) -> Result<(), BackendError> {
        self.prove()?;
        self.moves();
        let shared = Arc::clone(&self.shared);
        if shared.scheduler.is_to_measure(self.id.index) {
            let costs = proof::costs(self.backend.as_mut(), self.id, &shared);
            let costs = costs.inspect_err(|error| self.doubt_if_wrong(error));
            // Also where the backend is lost with that: what was known stays for a while.
            let (device, known) = (&self.description.device, costs.as_deref().unwrap_or_default());
            shared.scheduler.registry(|registry| registry.measured(self.id.pool, device, known));
            costs?;
        }
        let did = (Footprint::default(), self.backend.memory());
        shared.scheduler.change(|registry| registry.obeyed(self.id.index, Order::Check, did));
        self.strikes = 0;
        Ok(())
    }

    /// Has the backend embed the engine's own text, and does nothing else.
    ///
    /// # Errors
    /// It can't be trusted any more.
    pub(super) fn prove(&mut self) -> Result<(), BackendError> {
        let (shared, pool) = (&self.shared, &self.shared.pools[self.id.pool]);
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
                worker = self.id.index,
                %error,
                "{vectors} vectors that were kept are forgotten, as they may be wrong: {error}"
            );
        }
    }
}
