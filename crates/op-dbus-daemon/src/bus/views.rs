//! What the manager's reading methods answer: plain dictionaries, flat keys, typed values.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use op_dbus_api::Error;
use op_dbus_engine::{BufferUse, MemoryUse, Times, TransferUse, WorkerState, WorkerStatus};
use op_dbus_models::{Level, Model, Store};
use tokio::sync::Semaphore;
use zbus::Variant;

use super::bulk::while_wanted;
use super::caller::Caller;
use super::calls::Calls;
use super::facts::Facts;
use super::reply::{Dictionary, wire};
use crate::devices::{Device, with_use};
use crate::service::{Choice, Service, absence_name, blocking, unavailable};
use crate::settings::{Kind, Loaded, Provider, row};

/// Threads that read the disk for views at once. Where it hangs they stay, and further calls wait without one.
const READERS_MAX: usize = 16;

static READERS: Semaphore = Semaphore::const_new(READERS_MAX);

/// Runs a view that waits for the disk.
///
/// # Errors
/// `Failed` when it ended early; `Cancelled`.
pub async fn on_disk(
    calls: Calls,
    caller: &Caller,
    view: fn(&Service) -> Vec<Dictionary>,
) -> Result<Vec<Dictionary>, Error> {
    let read = async {
        let place = READERS.acquire().await;
        let work = move || {
            // As long as the thread is there, whoever still waits for it.
            let _place = place;
            view(&calls.service)
        };
        Ok(blocking("disk", work).await?)
    };
    while_wanted(caller, None, read).await
}

fn store(service: &Service) -> Store {
    Store::open(&service.now().settings().model_dir)
}

/// The levels, what each stands for, whether it is installed, and where it computes while it is loaded.
pub fn levels(service: &Service) -> Vec<Dictionary> {
    let (store, now, loaded) = (store(service), service.now(), service.loaded());
    let describe = |level: Level| {
        let name = level.model().unwrap_or_default();
        let built_in = op_dbus_models::manifest::find(name);
        let served = loaded.iter().find(|served| served.choice == Choice::Level(level));
        let (provider, reason) = served.map(|served| now.runs_on(served)).unwrap_or_default();
        HashMap::from([
            ("name", level.as_str().into()),
            ("model", name.into()),
            ("installed", (level == Level::None || store.get(name).is_ok()).into()),
            ("dimensions", wire(built_in.map_or(0, |model| model.dimensions)).into()),
            ("max_input_tokens", wire(built_in.map_or(0, |model| model.max_input_tokens)).into()),
            ("provider", provider.into()),
            ("fallback_reason", reason.into()),
        ])
    };
    Level::ALL.into_iter().map(describe).collect()
}

/// The models in the store; one that can't be understood has nothing but an `error`.
pub fn models(service: &Service) -> Vec<Dictionary> {
    let store = store(service);
    let describe = |name: &String| store.get(name).map_or_else(damaged, |model| installed(&model));
    store.names().iter().map(describe).collect()
}

fn installed(model: &Model) -> Dictionary {
    let prompts: Vec<String> = model.prompts.keys().cloned().collect();
    HashMap::from([
        ("name", model.name.clone().into()),
        ("level", model.level.map_or("", Level::as_str).into()),
        ("dimensions", wire(model.dimensions).into()),
        ("max_input_tokens", wire(model.max_input_tokens).into()),
        ("normalized", model.normalize.into()),
        ("prompts", prompts.into()),
        ("space", model.vector_space().into()),
        ("bytes", model.bytes().into()),
        ("source", model.source.clone().into()),
        ("revision", model.revision.clone().into()),
        ("error", "".into()),
    ])
}

fn damaged(error: op_dbus_models::Error) -> Dictionary {
    HashMap::from([("name", "".into()), ("error", error.to_string().into())])
}

/// The execution providers, whether each can be used here, and the devices on which it computes now: also
/// beside another one, and for a model beside the one in force.
pub fn providers(service: &Service) -> Vec<Dictionary> {
    let (now, loaded) = (service.now(), service.loaded());
    let (lost, there): (Vec<_>, Vec<_>) =
        loaded.into_iter().partition(|served| served.engine.refusal().is_some());
    let workers: Vec<_> = there.iter().flat_map(|served| served.computing()).collect();
    let describe = |(provider, name): &(Provider, &'static str)| {
        let mut devices = Vec::new();
        for worker in workers.iter().filter(|worker| worker.provider == *name) {
            if !devices.contains(&worker.device) {
                devices.push(worker.device.clone());
            }
        }
        let lost = lost.iter().find(|served| served.provider == *name);
        let reason = match lost.and_then(|served| served.engine.refusal()) {
            _ if !devices.is_empty() => None,
            Some(why) => Some(why.to_string()),
            None => unavailable(*provider, &now.loaded, now.refused(*provider)),
        };
        HashMap::from([
            ("name", (*name).into()),
            ("aliases", aliases(name).to_vec().into()),
            ("available", reason.is_none().into()),
            ("reason", reason.unwrap_or_default().into()),
            ("devices", devices.into()),
        ])
    };
    Provider::ALL.iter().filter(|(provider, _)| *provider != Provider::Auto).map(describe).collect()
}

fn aliases(name: &str) -> &'static [&'static str] {
    let Some(Kind::Choice(choices)) = row("execution_provider").map(|row| &row.kind) else {
        return &[];
    };
    choices.iter().find(|choice| choice.name == name).map_or(&[], |choice| choice.aliases)
}

/// The devices that were read, and which of them compute now.
pub fn devices(service: &Service, known: Vec<Device>) -> Vec<Dictionary> {
    let engines = service.with_workers().into_iter();
    // Of one that is unloaded or asleep it is known where it did, and will: it has no process there now.
    let workers = engines.flat_map(|served| served.computing()).filter(|worker| worker.pid > 0);
    let computing: Vec<_> = workers.map(|worker| (worker.provider, worker.device)).collect();
    with_use(known, &computing).into_iter().map(device).collect()
}

/// Only what is known.
fn device((device, in_use): (Device, bool)) -> Dictionary {
    let mut view = HashMap::from([
        ("name", Variant::from(device.name)),
        ("provider", device.provider.into()),
        ("in_use", in_use.into()),
    ]);
    let known = [
        ("description", device.description.map(Variant::from)),
        ("pci", device.pci.map(Variant::from)),
        ("driver", device.driver.map(Variant::from)),
        ("problem", device.problem.map(Variant::from)),
        ("memory_total", device.memory_total.map(Variant::from)),
        ("memory_used", device.memory_used.map(Variant::from)),
        ("memory_free", device.memory_free.map(Variant::from)),
        ("utilisation_percent", device.utilisation_percent.map(Variant::from)),
        ("temperature_celsius", device.temperature_celsius.map(Variant::from)),
        ("power_watts", device.power_watts.map(Variant::from)),
        ("energy_joules", device.energy_joules.map(Variant::from)),
    ];
    view.extend(known.into_iter().filter_map(|(key, value)| Some((key, value?))));
    view
}

/// What runs now.
pub fn status(service: &Service) -> Dictionary {
    let now = &*service.now();
    let facts = Facts::of(now);
    let (given_back, kept) = (service.given_back(), service.kept());
    let since = now.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let workers = service.with_workers().into_iter().flat_map(|served| {
        let of = |status: &WorkerStatus| worker(&served.model, status);
        served.engine.descriptions().iter().map(of).collect::<Vec<_>>()
    });
    let workers: Vec<Dictionary> = workers.collect();
    let stats = service.statistics();
    let (engine, isa) = match (now.stand_in().0, now.served()) {
        (Some(it), _) => (it.engine, it.isa),
        (None, Some(served)) => (served.engine_name.clone(), served.isa.clone()),
        (None, None) => Default::default(),
    };
    HashMap::from([
        ("version", super::VERSION.into()),
        ("loaded", service.is_loaded().into()),
        ("unloaded", now.absence().map_or("", absence_name).into()),
        ("memory_trims", given_back.trims.into()),
        ("memory_given_back", given_back.bytes.into()),
        ("cache_vectors", kept.vectors.into()),
        ("cache_bytes", kept.bytes.into()),
        ("state", facts.state.as_str().into()),
        ("status", now.summary().into()),
        ("level", facts.vector_level.into()),
        ("model", facts.model.into()),
        ("vector_space", facts.vector_space.into()),
        ("dimensions", facts.dimensions.into()),
        ("max_input_tokens", facts.max_input_tokens.into()),
        ("provider", facts.execution_provider.into()),
        ("device", now.served().map(|served| served.device()).unwrap_or_default().into()),
        ("requested_provider", facts.requested_execution_provider.into()),
        ("fallback_reason", facts.fallback_reason.into()),
        ("provider_fallbacks", service.fallbacks().into()),
        ("precision", facts.precision.into()),
        ("engine", engine.into()),
        ("isa", isa.into()),
        ("since", u64::try_from(since.as_micros()).unwrap_or_default().into()),
        ("pid", std::process::id().into()),
        ("queue_tokens", number(stats.queue_tokens)),
        ("in_flight_calls", number(stats.in_flight_calls)),
        ("in_flight_tokens", number(stats.in_flight_tokens)),
        ("workers", workers.into()),
    ])
}

fn worker(model: &str, worker: &WorkerStatus) -> Dictionary {
    let about = &worker.description;
    let mut view = HashMap::from([
        ("model", model.to_owned().into()),
        ("provider", about.provider.clone().into()),
        ("device", about.device.clone().into()),
        ("precision", about.precision.clone().into()),
        ("engine", about.engine.clone().into()),
        ("isa", about.isa.clone().into()),
        ("pid", about.pid.into()),
        ("state", state(worker.state).into()),
        ("reserved", worker.reserved.into()),
        ("batches", worker.batches.into()),
        ("rows", worker.rows.into()),
        ("tokens", worker.tokens.into()),
        ("busy_us", worker.busy_us.into()),
        ("restarts", worker.restarts.into()),
        ("last_error", worker.last_error.clone().unwrap_or_default().into()),
        ("load_ms", about.load_ms.into()),
        ("batch_tokens", number(about.batch_tokens)),
        ("sandbox", about.sandbox.clone().into()),
        ("short_of_memory", worker.is_short_of_memory.into()),
    ]);
    view.extend(memory(worker.memory));
    view
}

/// What is known of the memory that is kept for batches.
fn memory(memory: MemoryUse) -> Dictionary {
    let MemoryUse { buffers, transfers, arena, replays } = memory;
    let known = [
        ("buffer_reuse_ratio", buffers.and_then(BufferUse::reuse_ratio).map(Variant::from)),
        ("zero_copy_ratio", transfers.and_then(TransferUse::zero_copy_ratio).map(Variant::from)),
        ("arena_bytes", arena.map(|arena| arena.bytes.into())),
        ("arena_bytes_in_use", arena.map(|arena| arena.in_use.into())),
        ("arena_bytes_in_use_max", arena.map(|arena| arena.in_use_max.into())),
        ("arena_hits", arena.map(|arena| arena.hits.into())),
        ("arena_misses", arena.map(|arena| arena.misses.into())),
        ("graph_replays", replays.map(Variant::from)),
    ];
    known.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Idle => "idle",
        WorkerState::Busy => "busy",
        WorkerState::Restarting => "restarting",
        WorkerState::Unloaded => "unloaded",
        WorkerState::Loading => "loading",
        WorkerState::Stopped => "stopped",
    }
}

/// What was counted since the start, of all models, and what is in flight.
pub fn statistics(service: &Service) -> Dictionary {
    let stats = service.statistics();
    let padding = match stats.tokens {
        0 => 0.0,
        tokens => stats.padded_tokens as f64 / tokens as f64,
    };
    let mut view = HashMap::from([
        ("calls", Variant::from(stats.calls)),
        ("texts", stats.texts.into()),
        ("rows", stats.rows.into()),
        ("tokens", stats.tokens.into()),
        ("padded_tokens", stats.padded_tokens.into()),
        ("padded_over_tokens", padding.into()),
        ("batches", stats.batches.into()),
        ("truncated", stats.truncated.into()),
        ("cached", stats.cached.into()),
        ("retries", stats.retries.into()),
        ("worker_restarts", stats.worker_restarts.into()),
        ("queue_texts", number(stats.queue_texts)),
        ("queue_tokens", number(stats.queue_tokens)),
        ("in_flight_calls", number(stats.in_flight_calls)),
        ("in_flight_tokens", number(stats.in_flight_tokens)),
        ("failures", service.failures().into()),
    ]);
    view.extend(times(QUEUE_TIMES, stats.queue_us));
    view.extend(times(COMPUTE_TIMES, stats.compute_us));
    view.extend(memory(stats.memory));
    view
}

/// The keys under which times are told: three quantiles, the sum, and the buckets.
type TimesKeys = [&'static str; 5];

const QUEUE_TIMES: TimesKeys =
    ["queue_us_p50", "queue_us_p95", "queue_us_p99", "queue_us_sum", "queue_us_buckets"];
const COMPUTE_TIMES: TimesKeys =
    ["compute_us_p50", "compute_us_p95", "compute_us_p99", "compute_us_sum", "compute_us_buckets"];

fn times(keys: TimesKeys, times: Times) -> Dictionary {
    let [p50, p95, p99] = [50, 95, 99].map(|percent| Variant::from(times.quantile(percent)));
    // Pairs and no dictionary: JSON, and so busctl's, has no numbers as keys.
    let buckets: Vec<(u64, u64)> = times.buckets.into_iter().collect();
    keys.into_iter().zip([p50, p95, p99, times.sum_us.into(), buckets.into()]).collect()
}

/// Each setting, its value and where it came from.
pub fn settings(loaded: &Loaded) -> Vec<Dictionary> {
    let describe = |shown: crate::settings::Shown| {
        let default = row(&shown.key).map_or("", |row| row.default);
        let pinned = loaded.pinned_by(&shown.key).is_some();
        HashMap::from([
            ("key", shown.key.into()),
            ("value", shown.value.into()),
            ("origin", shown.origin.into()),
            ("default", default.into()),
            ("pinned", pinned.into()),
        ])
    };
    loaded.show().into_iter().map(describe).collect()
}

fn number(count: usize) -> Variant<'static> {
    Variant::from(u64::try_from(count).unwrap_or(u64::MAX))
}
