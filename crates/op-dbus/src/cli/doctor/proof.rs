//! The proof: workers of the provider, started as the daemon starts them, a batch on each, and a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use op_dbus_daemon::devices::Reader;
use op_dbus_daemon::service::{Error, Means, Options, Request, Served, Service, WorkerProgram};
use op_dbus_daemon::settings::{Devices, Loaded, Offload, Provider};
use op_dbus_engine::{CancellationToken, WorkerState, WorkerStatus};

use super::super::own_cache;
use super::check::{Check, PROOF, WORKERS};
use super::{devices, facts};

/// How long the workers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Tokens of a batch where the service would measure how many are best.
const BATCH_TOKENS: usize = 512;

/// Tells of the faults that the settings have the provider's workers show, which may be why these fail.
pub fn faults(loaded: &Loaded, provider: Provider) -> Option<Check> {
    let key = format!("providers.{provider}.faults");
    let set = loaded.show().into_iter().find(|one| one.key == key)?;
    let found = format!("its workers fail on purpose: {key} is {} ({})", set.value, set.origin);
    Some(Check::unchecked("faults", found))
}

/// Computes on the provider and on no other.
pub async fn check(loaded: &Loaded, provider: Provider) -> Vec<Check> {
    let mut loaded = alone(loaded, provider);
    // What is packed or compiled here must not end up in the service's cache as another user's, nor what batches cost
    // on several devices beside it.
    let is_one = matches!(&loaded.settings.gpu_device, Devices::List(numbers) if numbers.len() < 2);
    let own = match is_one {
        true => own_cache::instead_of(&loaded.settings.cache_dir),
        false => tempfile::tempdir().map(Some),
    };
    let own = match own {
        Ok(own) => own,
        Err(error) => {
            return vec![Check::unchecked(PROOF, format!("no temporary folder: {error}"))];
        }
    };
    if let Some(folder) = &own {
        folder.path().clone_into(&mut loaded.settings.cache_dir);
    }
    let begin = Instant::now();
    let worker = WorkerProgram::this();
    // Where all devices are asked for, drivers tell of some.
    let devices = Some(Arc::new(Reader::new(worker.exe.clone())));
    let means = Means { spawner: worker.spawner(), devices };
    let service = Service::new(loaded, means, None);
    service.start().await;
    let answered = match service.serving(None, None).await {
        Ok(served) => call(&served).await.map(|()| served),
        Err(error) => Err(error),
    };
    let checks = match answered {
        Ok(served) => {
            let Served { model, precision, .. } = &*served;
            let what = format!("{model} in {precision}");
            computed(&served.engine.descriptions(), (provider, &what), begin.elapsed())
        }
        Err(error) => {
            let reason = error.to_string();
            let next = facts::cure(provider, &reason);
            vec![Check::wrong(PROOF, reason, next)]
        }
    };
    service.drain(Instant::now() + STOP_TIMEOUT).await;
    checks
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

/// What the workers that were loaded have computed, and why others were not.
fn computed(
    workers: &[WorkerStatus],
    (provider, what): (Provider, &str),
    took: Duration,
) -> Vec<Check> {
    let is_away = |one: &&WorkerStatus| one.state == WorkerState::Restarting;
    let (away, there): (Vec<&WorkerStatus>, Vec<_>) = workers.iter().partition(is_away);
    let (mut devices, mut sandboxes): (Vec<&str>, Vec<&str>) =
        there.iter().map(|one| (&*one.description.device, &*one.description.sandbox)).unzip();
    devices.dedup();
    sandboxes.dedup();
    let (devices, sandboxes) = (devices.join(", "), sandboxes.join("; "));
    let seconds = took.as_secs_f32();
    let proof =
        format!("computed {what} on {devices}, after {seconds:.1} s, confined by {sandboxes}");
    let failed = |one: &&WorkerStatus| {
        let why = one.last_error.as_deref().unwrap_or("it is being replaced");
        // The provider works.
        let next = match facts::known(why) {
            None if provider != Provider::Cpu => facts::OTHER_DEVICE.to_owned(),
            _ => facts::cure(provider, why),
        };
        Check::wrong(WORKERS, format!("{}: {why}", one.description.device), next)
    };
    let mut checks = vec![Check::ok(PROOF, proof)];
    checks.extend(away.iter().map(failed));
    // Several of one device may have failed for the same reason.
    checks.dedup();
    checks
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::{Precision, Settings, Sources};

    use super::super::check::State;
    use super::*;

    #[test]
    fn what_was_not_loaded_has_not_computed() {
        let worker = |device: &str, state, why: Option<&str>| {
            let mut worker = WorkerStatus { state, ..WorkerStatus::default() };
            device.clone_into(&mut worker.description.device);
            "landlock".clone_into(&mut worker.description.sandbox);
            worker.last_error = why.map(str::to_owned);
            worker
        };
        let (idle, away) = (WorkerState::Idle, WorkerState::Restarting);
        let workers = [
            worker("cuda:0", idle, None),
            worker("cuda:0", idle, None),
            worker("cuda:1", away, Some("out of memory")),
            worker("cuda:1", away, Some("out of memory")),
            worker("cuda:2", away, Some("who knows")),
        ];
        let took = Duration::from_secs(2);
        let [proof, full, other] =
            computed(&workers, (Provider::Cuda, "m in f16"), took).try_into().unwrap();
        let found = "computed m in f16 on cuda:0, after 2.0 s, confined by landlock";
        assert_eq!(proof, Check::ok(PROOF, found));
        assert_eq!((full.state, &*full.found), (State::Wrong, "cuda:1: out of memory"));
        assert!(full.next.unwrap().contains("vector_level"));
        assert_eq!(other, Check::wrong(WORKERS, "cuda:2: who knows", facts::OTHER_DEVICE));
        let all = computed(&workers[..2], (Provider::Cuda, "m in f16"), took);
        assert_eq!(all, [Check::ok(PROOF, found)]);
    }

    #[test]
    fn faults_on_purpose_are_told_with_their_place() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/op-dbus");
        std::fs::create_dir_all(&folder).unwrap();
        let table = "[providers.ggml]\nfaults = \"hang_on_batch=1\"\n";
        std::fs::write(folder.join("config.toml"), table).unwrap();
        let loaded = Settings::load(&Sources::under(root.path())).unwrap();
        let told = faults(&loaded, Provider::Ggml).unwrap();
        let found = "its workers fail on purpose: providers.ggml.faults is hang_on_batch=1 (";
        assert!(told.found.starts_with(found), "{}", told.found);
        assert!(told.found.ends_with("config.toml, line 2)"), "{}", told.found);
        assert_eq!(faults(&loaded, Provider::Cpu), None);
    }

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
