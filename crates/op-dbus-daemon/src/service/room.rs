//! The free memory of devices, followed for the engine in force where it has a choice of devices.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Service;
use super::served::Served;
use crate::devices::{Device, is_same};

/// Between two readings while calls come.
const EVERY: Duration = Duration::from_secs(5);

impl Service {
    /// Tells the engine in force what is free on its devices, for as long as the service lives. Drivers
    /// are asked while calls come, and where there is more than one device.
    pub async fn follow_memory(self) {
        let Some(devices) = &self.0.means.devices else { return };
        let mut changes = self.watch();
        loop {
            let served = changes.borrow_and_update().served().cloned();
            if let Some(served) = served {
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
