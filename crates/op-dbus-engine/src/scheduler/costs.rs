//! What batches cost, in time and in memory, as far as that depends on the time or is told to others.

use super::{Scheduler, micros};

/// After so many checks of a worker, ten minutes by itself, a device that leaves batches to others is measured anew.
const LEFT_CHECKS_MAX: u32 = 10;

impl Scheduler {
    /// Whether a worker is to be measured anew: its device has left batches to others for so long that
    /// what is known of it may not be so any more.
    pub fn is_to_measure(&self, worker: usize) -> bool {
        let (us, now_us) = (micros(self.check_interval * LEFT_CHECKS_MAX), self.clock.now_us());
        self.registry(|registry| registry.is_to_measure(worker, us, now_us))
    }

    /// Takes note of the bytes that are free on a device.
    pub fn set_free(&self, device: &str, free: Option<u64>) {
        let changed = self.lock().registry.set_free(device, free);
        for (worker, is_short) in &changed {
            match is_short {
                true => tracing::warn!(
                    "{device} has too little free memory for a full batch of worker {worker}, \
                     {} bytes; others get those",
                    free.unwrap_or_default()
                ),
                false => {
                    tracing::info!("{device} has enough free memory again for worker {worker}")
                }
            }
        }
        if !changed.is_empty() {
            self.work.notify_all();
        }
    }
}
