//! The proof: workers of the provider, started as the daemon starts them, a batch on each, and a call.

use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use op_dbus_daemon::service::{Error, Means, Options, Request, Served, Service, WorkerProgram};
use op_dbus_daemon::settings::{Loaded, Offload, Provider};
use op_dbus_engine::CancellationToken;

use super::super::own_cache;
use super::check::{Check, PROOF};
use super::{devices, facts};

/// How long the workers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Tokens of a batch where the service would measure how many are best.
const BATCH_TOKENS: usize = 512;

/// Computes on the provider and on no other.
pub async fn check(loaded: &Loaded, provider: Provider) -> Check {
    let mut loaded = alone(loaded, provider);
    // What is packed or compiled here must not end up in the service's cache as another user's.
    let own = match own_cache::instead_of(&loaded.settings.cache_dir) {
        Ok(own) => own,
        Err(error) => return Check::unchecked(PROOF, format!("no temporary folder: {error}")),
    };
    if let Some(folder) = &own {
        folder.path().clone_into(&mut loaded.settings.cache_dir);
    }
    let begin = Instant::now();
    let means = Means { spawner: WorkerProgram::this().spawner(), devices: None };
    let service = Service::new(loaded, means, None);
    service.start().await;
    let answered = match service.serving(None, None).await {
        Ok(served) => call(&served).await.map(|()| served),
        Err(error) => Err(error),
    };
    let check = match answered {
        Ok(served) => computed(&served, begin),
        Err(error) => {
            let reason = error.to_string();
            let next = facts::cure(provider, &reason);
            Check::wrong(PROOF, reason, next)
        }
    };
    service.drain(Instant::now() + STOP_TIMEOUT).await;
    check
}

/// The settings under which the provider computes as it would in the service, and no other does.
fn alone(loaded: &Loaded, provider: Provider) -> Loaded {
    let mut alone = loaded.clone();
    let settings = &mut alone.settings;
    // By what is asked for there: a fallback has other devices than that, and may be asked for another precision.
    settings.gpu_device = devices::given(loaded, provider);
    settings.precision = devices::precision(loaded, provider);
    settings.execution_provider = provider;
    // Itself: no other is tried, and no advice about the setting is added.
    settings.fallback = vec![provider];
    settings.offload = Offload::Off;
    if provider == Provider::Cpu {
        // What the CPU does best is not measured anew beside a service that may have it: the measurement
        // would be kept in the cache, and only some are made.
        settings.batch_tokens_max.get_or_insert(BATCH_TOKENS);
    }
    alone
}

/// One text, as a caller would send it: settings may leave no room for any.
async fn call(served: &Served) -> Result<(), Error> {
    let request = Request {
        uid: geteuid().as_raw(),
        cancel: CancellationToken::default(),
        inputs: vec!["a text".to_owned()].into(),
        options: Options::default(),
        wait: false,
        sink: None,
    };
    served.embed(request).await.map(drop)
}

fn computed(served: &Served, begin: Instant) -> Check {
    let Served { model, precision, .. } = served;
    let (mut devices, mut sandboxes): (Vec<String>, Vec<String>) = served
        .engine
        .descriptions()
        .into_iter()
        .map(|worker| (worker.description.device, worker.description.sandbox))
        .unzip();
    devices.dedup();
    sandboxes.dedup();
    let (devices, seconds) = (devices.join(", "), begin.elapsed().as_secs_f32());
    let sandboxes = sandboxes.join("; ");
    Check::ok(
        PROOF,
        format!(
            "computed {model} in {precision} on {devices}, after {seconds:.1} s, confined by {sandboxes}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::{Precision, Settings, Sources};

    use super::*;

    /// A fleet in the place of a device need not have what is wanted of that.
    #[test]
    fn a_fallback_is_proved_in_what_the_service_would_ask_it_for() {
        let proved_in = |asked_for, fallback: &[Provider], provider| {
            let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
            loaded.settings.execution_provider = asked_for;
            loaded.settings.fallback = fallback.to_vec();
            loaded.settings.precision = Precision::F16;
            let fleet = loaded.settings.providers.entry("remote".to_owned()).or_default();
            fleet.checked.insert("endpoints".to_owned(), "https://embed.example".to_owned());
            alone(&loaded, provider).settings.precision
        };
        let (cuda, remote) = (Provider::Cuda, Provider::Remote);
        assert_eq!(proved_in(cuda, &[remote], remote), Precision::Auto);
        assert_eq!(proved_in(cuda, &[remote], cuda), Precision::F16);
        assert_eq!(proved_in(remote, &[], remote), Precision::F16);
        assert_eq!(proved_in(cuda, &[], remote), Precision::F16, "if it were asked for");
    }
}
