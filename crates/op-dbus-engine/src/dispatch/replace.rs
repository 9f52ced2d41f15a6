//! A worker's backend is lost, and another one takes its place.

use std::time::Duration;

use super::{WORKER_REPLACED_MESSAGE_ID, Worker};
use crate::backend::{BackendError, Gone};
use crate::error::is_same_news;
use crate::proof::load_again;
use crate::roster::Loaded;
use crate::scheduler::Entry;

/// The longest wait for the next try.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The same while other devices of the pool compute: one that is gone may stay so for ever, and each try loads its
/// driver and the model's graph again.
const BACKOFF_BESIDE_MAX: Duration = Duration::from_secs(300);

impl Worker {
    /// A text has no numbers for values that had failed before: it may be beyond what the precision holds, so that a
    /// new backend would compute no more of it. One that computes the engine's own text stays.
    ///
    /// # Errors
    /// The backend is lost.
    pub(super) fn has_no_numbers(
        &mut self,
        batch: &mut Vec<Entry>,
        error: BackendError,
    ) -> Result<(), BackendError> {
        if self.prove().is_err() {
            return self.lose(batch, error);
        }
        self.fail(batch, &error);
        Ok(())
    }

    /// A batch was lost, and the backend with it.
    pub(super) fn lose(
        &mut self,
        batch: &mut Vec<Entry>,
        error: BackendError,
    ) -> Result<(), BackendError> {
        self.shared.scheduler.put_back(&mut self.ahead.batch);
        self.fail(batch, &error);
        Err(error)
    }

    /// A batch was lost, which counts against the worker.
    fn fail(&self, batch: &mut Vec<Entry>, error: &BackendError) {
        let (scheduler, worker) = (&self.shared.scheduler, self.place.index);
        // Before anybody is told, who asks then whether there is hope.
        let failed_on = batch.iter().find_map(|entry| entry.failed_on);
        scheduler.change(|roster| roster.lost_batch(worker, failed_on, error));
        scheduler.try_again(worker, batch, error);
    }

    /// Makes a new backend, however long it takes, unless it is not to have one any more; false if the
    /// engine stops meanwhile. Other workers are not held up: the waiting is done on this thread.
    pub(super) fn replace(&mut self) -> bool {
        // The old one goes first: two copies of a model may not fit the device.
        self.backend = Box::new(Gone(self.backend.description().clone()));
        let (place, mut told) = (self.place.index, String::new());
        loop {
            let doublings = self.strikes.saturating_sub(2).min(16);
            let backoff = self.shared.backoff * (1 << doublings);
            let backoff = if self.strikes > 1 { backoff } else { Duration::ZERO };
            let waits = [BACKOFF_MAX, BACKOFF_BESIDE_MAX].map(|max| backoff.min(max));
            if !self.shared.scheduler.pause(place, waits) {
                return false;
            }
            if !self.shared.scheduler.wants(place) {
                self.unload();
                return true;
            }
            // Told, as a stop may have come just before, which waits for no load.
            self.shared.scheduler.change(|roster| roster.loads(place));
            let began_us = self.shared.scheduler.clock.now_us();
            match load_again(self.place, &self.shared) {
                Ok(backend) => {
                    let loaded = Loaded::of(backend.as_ref());
                    self.description = loaded.description.clone();
                    if self.strikes > 0 {
                        tracing::info!(
                            MESSAGE_ID = WORKER_REPLACED_MESSAGE_ID,
                            worker = place,
                            provider = self.description.provider,
                            "a worker is there again in place of the lost one"
                        );
                    }
                    self.shared.scheduler.loaded(place, loaded);
                    self.backend = backend;
                    return true;
                }
                Err(error) => {
                    let why = error.to_string();
                    if is_same_news(&why, &told) {
                        tracing::debug!("worker {place} can't be replaced yet: {why}");
                    } else {
                        tracing::error!("worker {place} can't be replaced yet: {why}");
                        told = why;
                    }
                    let took_us = self.shared.scheduler.clock.now_us() - began_us;
                    self.shared.scheduler.load_failed(place, &error, took_us);
                    self.strikes += 1;
                }
            }
        }
    }
}
