//! What becomes of a batch that has no vectors, and of the backend that failed it.
//!
//! It is run in halves, or its rows are tried once more ([`Worker::refused`]); or the backend is lost with it
//! ([`Worker::lose`]), which counts against the worker, and its rows are tried on another one.

use super::Worker;
use crate::backend::{BackendError, Description};
use crate::error::is_same_news;
use crate::proof::not_finite;
use crate::scheduler::Entry;

/// How often a batch that does not fit the device is halved.
const HALVINGS_MAX: u32 = 3;

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
    /// The device, or the server that computes for it, has no memory for a batch.
    ///
    /// # Errors
    /// The backend is lost.
    pub(super) fn did_not_fit(
        &mut self,
        batch: &mut Vec<Entry>,
        error: BackendError,
        halvings: u32,
    ) -> Result<(), BackendError> {
        let on_device = self.shared.pools[self.id.pool].holds_device;
        // What a server takes at once is for its own backend to know.
        if on_device {
            self.shrink(batch, &error);
            // Planned as large as this one was.
            self.shared.scheduler.put_back(&mut self.ahead.batch);
        }
        if halvings < HALVINGS_MAX && batch.len() > 1 {
            let mut rest = batch.split_off(batch.len() / 2);
            if let Err(error) = self.run(batch, halvings + 1) {
                self.shared.scheduler.put_back(&mut rest);
                return Err(error);
            }
            return self.run(&mut rest, halvings + 1);
        }
        // A new worker begins with all of a device's memory that is free.
        if on_device {
            return self.lose(batch, error);
        }
        // One text may be what the backend refuses; its neighbours must not pay for it.
        self.refused(batch, &error);
        Ok(())
    }

    /// Has the pool's batches made smaller than one that did not fit the device.
    fn shrink(&self, batch: &[Entry], error: &BackendError) {
        let (scheduler, worker) = (&self.shared.scheduler, self.id.index);
        let (tokens, now_us) = (batch.iter().map(|row| row.tokens).sum(), scheduler.clock.now_us());
        let fewer = scheduler.registry(|all| all.planner(worker)?.did_not_fit(tokens, now_us));
        if let Some(fewer) = fewer {
            let Description { provider, device, .. } = &self.description;
            tracing::warn!(
                worker,
                provider,
                %error,
                "a batch of {tokens} tokens did not fit {device}, batches have {fewer} at most for now: {error}"
            );
        }
    }

    /// The backend failed a batch: one text of it may be what it refuses, or it refuses all from here on, as a driver
    /// does in whose context a kernel has failed.
    ///
    /// # Errors
    /// The backend is lost.
    pub(super) fn failed(
        &mut self,
        batch: &mut Vec<Entry>,
        error: &BackendError,
    ) -> Result<(), BackendError> {
        match self.prove() {
            Ok(()) => {
                self.refused(batch, error);
                Ok(())
            }
            Err(gone @ (BackendError::Lost(_) | BackendError::Killed(_))) => self.lose(batch, gone),
            Err(also) => {
                let why =
                    format!("it failed a batch ({error}) and then the engine's own text: {also}");
                self.lose(batch, BackendError::Lost(why))
            }
        }
    }

    /// A batch failed and its backend goes on. Its rows are tried once more, each alone, and their calls may never
    /// hear of it: the log has why, once for each reason.
    fn refused(&mut self, batch: &mut Vec<Entry>, error: &BackendError) {
        let (worker, rows, why) = (self.id.index, batch.len(), error.to_string());
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
        self.shared.scheduler.try_again(worker, batch, error, false);
    }

    /// The backend is gone. What it had not read is no try of the texts.
    ///
    /// # Errors
    /// In any case: the backend is lost.
    pub(super) fn ended(
        &mut self,
        batch: &mut Vec<Entry>,
        error: BackendError,
    ) -> Result<(), BackendError> {
        if self.backend.has_read_nothing() {
            self.shared.scheduler.put_back(&mut self.ahead.batch);
            self.shared.scheduler.missed(batch);
            if batch.is_empty() {
                return Err(error);
            }
        }
        self.lose(batch, error)
    }

    /// A text has no numbers for values that had failed before: it may be beyond what the precision holds, so that a
    /// new backend would compute no more of it. One that computes the engine's own text stays.
    ///
    /// # Errors
    /// The backend is lost.
    pub(super) fn not_finite_again(&mut self, batch: &mut Vec<Entry>) -> Result<(), BackendError> {
        let error = not_finite();
        if self.prove().is_err() {
            return self.lose(batch, error);
        }
        self.lose_batch(batch, &error);
        Ok(())
    }

    /// A batch was lost, and the backend with it.
    fn lose(&mut self, batch: &mut Vec<Entry>, error: BackendError) -> Result<(), BackendError> {
        self.shared.scheduler.put_back(&mut self.ahead.batch);
        self.lose_batch(batch, &error);
        Err(error)
    }

    /// A batch was lost, which counts against the worker.
    fn lose_batch(&self, batch: &mut Vec<Entry>, error: &BackendError) {
        let (scheduler, worker) = (&self.shared.scheduler, self.id.index);
        // Before anybody is told, who asks then whether there is hope.
        let lost_on = batch.iter().find(|entry| entry.lost).and_then(|entry| entry.failed_on);
        scheduler.change(|registry| registry.lost_batch(worker, lost_on, error));
        scheduler.try_again(worker, batch, error, error.is_its_own());
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
