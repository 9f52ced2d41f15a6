//! The free memory of devices, followed for every engine that has a choice of them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Service;
use super::served::Served;
use crate::devices::{Device, is_same};

/// Between two readings while calls come.
const EVERY: Duration = Duration::from_secs(5);

impl Service {
    /// Tells engines, in force or beside it, what is free on their devices, for as long as the service lives.
    /// Drivers are asked while calls come, and where there is more than one device.
    pub async fn follow_memory(self) {
        let Some(devices) = &self.0.means.devices else { return };
        let mut changes = self.watch();
        loop {
            changes.mark_unchanged();
            for served in self.engines() {
                let used = devices_of(&served);
                let idle = served.engine.idle_for().is_some_and(|idle| idle > EVERY);
                if used.len() > 1 && !idle {
                    let known = devices.read().await;
                    for device in used {
                        served.engine.set_free_memory(&device, free(&known, &device));
                    }
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }
}

fn devices_of(served: &Served) -> BTreeSet<String> {
    served.engine.descriptions().into_iter().map(|worker| worker.description.device).collect()
}

/// Bytes that are free on a device. Memory of the CPU is the system's to give out.
fn free(known: &[Device], name: &str) -> Option<u64> {
    let accelerators = known.iter().filter(|device| device.provider != "cpu");
    accelerators.into_iter().find(|device| is_same(&device.name, name))?.memory_free
}
