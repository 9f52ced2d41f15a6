//! The proof: workers of the provider, started as the daemon starts them, and a batch on each.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use op_dbus_daemon::service::{Means, Service, WorkerProgram};
use op_dbus_daemon::settings::{Loaded, Provider};

use super::check::{Check, PROOF};
use super::facts;

/// How long the workers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Computes on the provider and on no other.
pub async fn check(loaded: &Loaded, provider: Provider) -> Check {
    let mut loaded = loaded.clone();
    loaded.settings.execution_provider = provider;
    // Itself: no other is tried, and no advice about the setting is added.
    loaded.settings.fallback = vec![provider];
    // What is packed or compiled here must not end up in the service's cache as another user's.
    let own = match is_own(&loaded.settings.cache_dir) {
        true => None,
        false => match tempfile::tempdir() {
            Ok(folder) => Some(folder),
            Err(error) => return Check::unchecked(PROOF, format!("no temporary folder: {error}")),
        },
    };
    if let Some(folder) = &own {
        folder.path().clone_into(&mut loaded.settings.cache_dir);
    }
    let begin = Instant::now();
    let means = Means { spawner: WorkerProgram::this().spawner(), devices: None };
    let service = Service::new(loaded, means, None);
    service.start().await;
    let check = match service.serving(None, None).await {
        Ok(served) => {
            let (mut devices, mut sandboxes): (Vec<String>, Vec<String>) = served
                .engine
                .descriptions()
                .into_iter()
                .map(|worker| (worker.description.device, worker.description.sandbox))
                .unzip();
            devices.dedup();
            sandboxes.dedup();
            let (devices, seconds) = (devices.join(", "), begin.elapsed().as_secs_f32());
            let precision = &served.precision;
            let model = &served.model;
            Check::ok(
                PROOF,
                format!(
                    "computed {model} in {precision} on {devices}, after {seconds:.1} s, confined by {}",
                    sandboxes.join("; ")
                ),
            )
        }
        Err(error) => {
            let reason = error.to_string();
            let next = facts::cure(&reason);
            Check::wrong(PROOF, reason, next)
        }
    };
    service.drain(Instant::now() + STOP_TIMEOUT).await;
    check
}

fn is_own(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|meta| meta.uid() == geteuid().as_raw())
}
