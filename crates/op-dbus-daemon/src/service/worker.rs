//! Worker processes: how many, with how many threads, on which CPUs, and how each is started.

mod config;
mod memory;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use op_dbus_engine::worker::{ChildBackend, RegionShape, Timeouts};
use op_dbus_engine::{Backend, BackendError, BackendFactory, LoadErrorKind};
use op_dbus_models::cache;

use super::proofs;
use super::provider::{self, Host};
use crate::memory_limit;
use crate::settings::{CpuEngine, Precision, Provider, Settings};

pub use config::WorkerConfig;

/// More workers than this only share the memory bandwidth of one machine.
const WORKERS_AUTO_MAX: usize = 8;

/// What of our environment a worker gets: nothing that changes which code it loads.
const ENVIRONMENT: [&str; 5] = ["PATH", "HOME", "LANG", "TZ", "JOURNAL_STREAM"];

/// By which names drivers are told where to keep what they compile for a device: a worker can't write
/// where they would by themselves.
const DRIVER_CACHES: [&str; 3] = ["CUDA_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "NEO_CACHE_DIR"];

/// What workers are started for.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The model's name in the store.
    pub model: String,
    /// Fingerprint of the model that was verified: a worker serves no other.
    pub space: String,
    /// Tokens of the longest text that they get: what stands in the store may say something else by then.
    pub max_input_tokens: usize,
    /// The largest batch.
    pub region: RegionShape,
    /// Precision of the arithmetic.
    pub precision: Precision,
    /// What they compute on.
    pub host: Host,
}

impl Blueprint {
    /// The model's own folder in the cache, the one that these workers may write in. It is made before they
    /// are started: they may make nothing beside it.
    pub(super) fn cache(&self, settings: &Settings) -> PathBuf {
        cache::make(&settings.cache_dir, &self.model, &self.space)
    }

    /// What each worker is told, by its number.
    pub fn configs(
        &self,
        settings: &Settings,
    ) -> impl Fn(usize) -> WorkerConfig + Send + Sync + 'static {
        let host = &self.host;
        // Accelerators leave the CPUs to everybody.
        let cpus = if host.provider == Provider::Cpu { allowed_cpus() } else { Vec::new() };
        let workers = workers(settings, host);
        // More than the CPU would have, where there are more devices.
        let crew = Crew { workers, ..Crew::of(settings, host.cpu_engine, cpus) };
        let memory = memory_limit::for_us();
        let memory_max = memory::max(settings, host.provider, workers, memory);
        let (blueprint, settings) = (self.clone(), settings.clone());
        move |number| WorkerConfig::of(&blueprint, &settings, (number, &crew), memory_max)
    }
}

/// Makes the backends of one engine. The daemon starts processes; tests compute in-process.
pub type Spawner = Arc<dyn Fn(&Blueprint, &Settings) -> BackendFactory + Send + Sync>;

/// The program that is started as a worker.
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// Path of the `op-dbus` binary.
    pub exe: PathBuf,
}

impl WorkerProgram {
    /// The very program that runs now, also after an upgrade has put another file in its place.
    pub fn this() -> Self {
        Self { exe: PathBuf::from("/proc/self/exe") }
    }

    /// A spawner whose backends are processes of this program.
    pub fn spawner(self) -> Spawner {
        Arc::new(move |blueprint, settings| {
            let region = blueprint.region;
            let (program, configs) = (self.clone(), blueprint.configs(settings));
            let [load, run] = [settings.load_timeout_s, settings.batch_timeout_s];
            let timeouts =
                Timeouts { load: Duration::from_secs(load), run: Duration::from_secs(run) };
            let cache = blueprint.cache(settings);
            let (host, settings) = (blueprint.host.clone(), settings.clone());
            Box::new(move |number| {
                // A library may have been replaced since it was compared for the worker whose place this one takes.
                provider::verify_again(&host, &settings).map_err(|message| BackendError::Load {
                    kind: LoadErrorKind::ProviderUnavailable,
                    message,
                })?;
                proofs::remove(&cache);
                let command = program.command(&configs(number), host.provider)?;
                let child = ChildBackend::spawn(command, region, timeouts)?;
                Ok::<Box<dyn Backend>, BackendError>(Box::new(child))
            })
        })
    }

    /// The process of a worker that is told `config`, not started yet.
    ///
    /// # Errors
    /// A path in `config` is no text.
    pub(super) fn command(
        &self,
        config: &WorkerConfig,
        provider: Provider,
    ) -> Result<Command, BackendError> {
        let config_json = serde_json::to_string(config).map_err(|error| BackendError::Load {
            kind: LoadErrorKind::Other,
            message: format!("a worker can't be told what to load: {error}"),
        })?;
        let mut command = Command::new(&self.exe);
        // The program may be named by a link of the kernel's; people look for this name.
        // What ends everything in the daemon's terminal is for the daemon: workers compute what it has in flight.
        command.arg0("op-dbus").process_group(0).arg("worker").arg(config_json);
        environment(provider, &config.backend.cache_dir, &mut command);
        Ok(command)
    }
}

/// The workers: how many, and of those of the CPU which CPUs each has to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crew {
    /// Worker processes.
    pub workers: usize,
    /// Threads that each computes with.
    pub threads: usize,
    /// CPUs to share out; empty leaves the placing to the kernel.
    cpus: Vec<usize>,
}

/// One worker's share.
#[derive(Debug, PartialEq, Eq)]
struct Member<'a> {
    threads: usize,
    cpus: &'a [usize],
}

/// CPUs that may be computed on, which a quota makes fewer.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Crew {
    /// Shares `cpus` between the workers that the settings ask for.
    pub fn of(settings: &Settings, engine: CpuEngine, cpus: Vec<usize>) -> Self {
        Self::on(cores(), settings, engine, cpus)
    }

    fn on(cores: usize, settings: &Settings, engine: CpuEngine, mut cpus: Vec<usize>) -> Self {
        let native = engine == CpuEngine::Native;
        // Threads of one process share its copy of the weights; ONNX Runtime's share badly.
        let auto = if native { 1 } else { cores.min(WORKERS_AUTO_MAX) };
        let workers = settings.workers_per_device.unwrap_or(auto).max(1);
        // More would only wait for each other.
        let threads = settings.threads.unwrap_or(cores / workers).clamp(1, cores);
        // Pinning helps only where every thread can have its CPU to itself, and would hurt under a
        // CPU quota, where the kernel must be free to choose.
        let free = match native {
            true => workers * threads != cores,
            false => workers == 1 || workers * threads > cores,
        };
        if free || cpus.len() != cores {
            cpus.clear();
        }
        Self { workers, threads, cpus }
    }

    /// The share of worker `number`. One beyond the crew is reserved for what can't wait for the others: a
    /// thread that the kernel puts where there is most room.
    fn member(&self, number: usize) -> Member<'_> {
        if number >= self.workers {
            return Member { threads: 1, cpus: &[] };
        }
        let start = number * self.threads;
        let cpus = self.cpus.get(start..start + self.threads).unwrap_or_default();
        Member { threads: self.threads, cpus }
    }
}

/// Gives a worker the environment that it needs, and nothing else of ours.
fn environment(provider: Provider, cache: &Path, command: &mut Command) {
    command.env_clear();
    for name in ENVIRONMENT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // The one folder that a worker may write in.
    command.env("TMPDIR", cache);
    // ONNX Runtime would keep what it tells Microsoft there, and make a thread that tries to.
    command.env("ORT_DISABLE_TELEMETRY", "1");
    if provider == Provider::Ggml {
        // It would tell each step of its compilation.
        command.env("ORT_GGML_LOG", "warn");
    }
    if provider != Provider::Cpu {
        // By itself CUDA numbers the fastest first, and everybody else by the bus.
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let compiled = cache.join("drivers");
        command.envs(DRIVER_CACHES.map(|name| (name, &compiled)));
    }
}

/// Worker processes: as many as the CPU wants, or one or more for each device.
pub(super) fn workers(settings: &Settings, host: &Host) -> usize {
    match host.provider {
        Provider::Cpu => Crew::of(settings, host.cpu_engine, Vec::new()).workers,
        _ => host.devices.len() * settings.workers_per_device.unwrap_or(1),
    }
}

/// The CPUs that we may run on; empty when the kernel does not say.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use op_dbus_engine::spec;

    use super::super::costs;
    use super::*;
    use crate::settings::Sources;
    use crate::settings::options::Told;

    fn crew(flags: &[(&str, &str)], cpus: &[usize]) -> Crew {
        let settings = settings(flags);
        Crew::on(16, &settings, settings.cpu_engine, cpus.to_vec())
    }

    fn settings(flags: &[(&str, &str)]) -> Settings {
        Settings::load(&Sources::under("/nowhere").with_flags(flags)).unwrap().settings
    }

    #[test]
    fn one_native_worker_has_all_threads_and_others_have_one_worker_a_core() {
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(crew(&[], &all), Crew { workers: 1, threads: 16, cpus: all.clone() });
        let halves = crew(&[("workers_per_device", "2")], &all);
        assert_eq!((halves.workers, halves.threads), (2, 8));
        assert_eq!(halves.member(1).cpus, &all[8..]);
        let ort = crew(&[("cpu_engine", "ort")], &all);
        assert_eq!((ort.workers, ort.threads), (WORKERS_AUTO_MAX, 2));
        assert!(crew(&[("cpu_engine", "ort"), ("workers_per_device", "1")], &all).cpus.is_empty());
    }

    #[test]
    fn threads_are_pinned_only_where_they_take_up_the_cpus_and_no_quota_is_in_force() {
        let all: Vec<usize> = (0..16).collect();
        assert!(crew(&[("threads", "4")], &all).cpus.is_empty());
        let many = crew(&[("threads", "20"), ("workers_per_device", "2")], &all);
        assert_eq!(many, Crew { workers: 2, threads: 16, cpus: Vec::new() });
        assert!(crew(&[], &(0..32).collect::<Vec<_>>()).cpus.is_empty());
    }

    #[test]
    fn the_workers_of_all_devices_are_whole_ones() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings { workers_per_device: Some(1), ..costs::tests::settings(&root) };
        let mut blueprint = costs::tests::blueprint();
        (blueprint.host.devices, blueprint.host.calibrate) = (vec![0, 1], true);
        let configs = blueprint.configs(&settings);
        let calibrates = |number| configs(number).backend.calibrate;
        assert_eq!([0, 1, 2].map(calibrates), [true, true, false], "the third is in reserve");
    }

    #[test]
    fn a_simulator_is_confined_as_what_needs_no_library() {
        let root = tempfile::tempdir().unwrap();
        let settings = costs::tests::settings(&root);
        let mut blueprint = costs::tests::blueprint();
        (blueprint.host.provider, blueprint.host.cpu_engine) = (Provider::Cpu, CpuEngine::Sim);
        let config = blueprint.configs(&settings)(0);
        assert!(config.simulated && config.backend.cpu_engine == spec::CpuEngine::Native);
    }

    #[test]
    fn no_worker_is_started_with_a_file_that_others_may_write() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        let settings = Settings { runtime: Some(file.clone()), ..costs::tests::settings(&root) };
        let (mut library, mut fleet) = (costs::tests::blueprint(), costs::tests::blueprint());
        library.host.runtime.clone_from(&file);
        fleet.host.provider = Provider::Remote;
        let path = Told::Value(file.display().to_string());
        fleet.host.options = vec![("ca_file".to_owned(), path)];
        // There is no such program, which is what is told of one that would be started.
        let program = WorkerProgram { exe: root.path().join("no-program") };
        let set = [(library, "`runtime` names for cuda"), (fleet, "`ca_file` names for remote")];
        for (blueprint, named) in set {
            let start = program.clone().spawner()(&blueprint, &settings);
            let refusal = || start(0).err().unwrap().to_string();
            fs::write(&file, "").unwrap();
            assert!(refusal().contains("no-program"), "{}", refusal());
            fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
            assert!(refusal().contains(&format!("{named}, is not used")), "{}", refusal());
            fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn members_share_the_cpus() {
        let crew = Crew { workers: 2, threads: 2, cpus: vec![0, 1, 4, 5] };
        assert_eq!(crew.member(0).cpus, [0, 1]);
        assert_eq!(crew.member(1).cpus, [4, 5]);
        let reserved = Member { threads: 1, cpus: &[] };
        assert_eq!(crew.member(2), reserved, "a number beyond the crew is not pinned");
    }
}
