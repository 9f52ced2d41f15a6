//! A worker's backend is lost, and another one takes its place.

use std::time::Duration;

use super::{WORKER_REPLACED_MESSAGE_ID, Worker};
use crate::backend::Gone;
use crate::error::is_same_news;
use crate::proof::load_again;
use crate::registry::Loaded;

/// The longest wait for the next try.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The same while other devices of the pool compute: one that is gone may stay so for ever, and each try loads its
/// driver and the model's graph again.
const BACKOFF_BESIDE_MAX: Duration = Duration::from_secs(300);

impl Worker {
    /// Makes a new backend, however long it takes, unless it is not to have one any more; false if the
    /// engine stops meanwhile. Other workers are not held up: the waiting is done on this thread.
    pub(super) fn replace(&mut self) -> bool {
        // The old one goes first: two copies of a model may not fit the device.
        self.backend = Box::new(Gone(self.backend.description().clone()));
        let (worker, mut told) = (self.id.index, String::new());
        loop {
            let doublings = self.strikes.saturating_sub(2).min(16);
            let backoff = self.shared.backoff * (1 << doublings);
            let backoff = if self.strikes > 1 { backoff } else { Duration::ZERO };
            let waits = [BACKOFF_MAX, BACKOFF_BESIDE_MAX].map(|max| backoff.min(max));
            if !self.shared.scheduler.pause(worker, waits) {
                return false;
            }
            if !self.shared.scheduler.wants(worker) {
                self.unload();
                return true;
            }
            // Told, as a stop may have come just before, which waits for no load.
            self.shared.scheduler.change(|registry| registry.loads(worker));
            let began_us = self.shared.scheduler.clock.now_us();
            match load_again(self.id, &self.shared) {
                Ok(backend) => {
                    let loaded = Loaded::of(backend.as_ref());
                    self.description = loaded.description.clone();
                    if self.strikes > 0 {
                        tracing::info!(
                            MESSAGE_ID = WORKER_REPLACED_MESSAGE_ID,
                            worker,
                            provider = self.description.provider,
                            "a worker is there again in place of the lost one"
                        );
                    }
                    self.shared.scheduler.loaded(worker, loaded);
                    self.backend = backend;
                    return true;
                }
                Err(error) => {
                    let why = error.to_string();
                    if is_same_news(&why, &told) {
                        tracing::debug!("worker {worker} can't be replaced yet: {why}");
                    } else {
                        tracing::error!("worker {worker} can't be replaced yet: {why}");
                        told = why;
                    }
                    let took_us = self.shared.scheduler.clock.now_us() - began_us;
                    self.shared.scheduler.load_failed(worker, &error, took_us);
                    self.strikes += 1;
                }
            }
        }
    }
}
