//! From a choice of model to an engine that answers: blocking work, done on a thread of its own.

mod all;
mod draft;
mod explained;
mod refused;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use op_dbus_engine::{
    BackendError, BatchLimits, Engine, EngineConfig, Limits, LoadErrorKind, Pool, Reference,
};
use op_dbus_models::Model;
use op_dbus_models::manifest::halves_by_itself;
use parking_lot::Mutex;

use super::costs::{self, Place};
use super::provider::{self, Host};
use super::served::{Choice, Served};
use super::worker::{self, Blueprint, Crew, workers};
use super::{Error, Means, ignored};
use crate::settings::options::fleet;
use crate::settings::{CpuEngine, Devices, Loaded, Offload, Precision, Provider, Settings};
use draft::{Draft, installed, simulated};
use explained::{explained, with_origin};

pub(super) use explained::late;
pub(super) use refused::{Reasons, Refused, Worked};

/// What the CPU computes in what an accelerator is compared with, and beside one.
const REFERENCE_PRECISION: Precision = Precision::F32;
/// Name under which the simulator is seen.
pub(super) const SIM_MODEL: &str = "sim";
/// Batches that a device loses of late, each with a worker that had proved itself there, before the next
/// provider takes its place: as often as one text is tried.
pub(super) const LOSSES_MAX: u32 = 2;

/// Which providers are tried, in this order.
pub(super) struct Tries {
    /// The first of them that works is taken.
    pub(super) providers: Vec<Provider>,
    /// Why others are not taken.
    pub(super) reasons: Reasons,
    /// Whether the engine tells why those before it, and these others, do not work.
    pub(super) are_told: bool,
    /// Whether each of the devices has to compute, where another time one of several may come later.
    pub(super) whole: bool,
    /// What the engine takes the place of.
    pub(super) before: Option<Before>,
}

/// An engine in whose place another of its model is loaded.
pub(super) struct Before {
    /// What the store said of its model.
    pub(super) record: Option<Model>,
    /// Whether another model may follow, if the store has one under that name by now: this one serves no more.
    pub(super) may_go: bool,
}

impl Tries {
    /// Whether one of them may hold a device, which a sleep of the machine takes away. Looks for its libraries on
    /// the disk: one that can't be tried takes none.
    pub(super) fn may_hold_device(&self, loaded: &Loaded) -> bool {
        let may_be_tried = |provider| provider::host(provider, loaded, None).is_ok();
        self.providers.iter().any(|provider| holds_device(*provider) && may_be_tried(*provider))
    }
}

fn holds_device(provider: Provider) -> bool {
    !matches!(provider, Provider::Cpu | Provider::Remote)
}

/// Loads a model and starts its workers on the first provider of `tries` that works; blocks until they have
/// proved themselves. Its engine is made with `config`, but for what the settings say. Why providers that were
/// tried do not work goes to `refused`.
///
/// # Errors
/// What stands in the way: the provider, the model, the runtime, the dimensions, the workers.
pub(super) fn load(
    choice: &Choice,
    tries: &Tries,
    loaded: &Arc<Loaded>,
    (means, config): (&Means, EngineConfig),
    refused: &Refused,
) -> Result<Served, Error> {
    let settings = &loaded.settings;
    let draft = match settings.cpu_engine {
        CpuEngine::Sim => simulated(),
        CpuEngine::Native | CpuEngine::Ort => installed(choice, loaded)?,
    };
    if let Some(why) = loaded.wrong_dimensions(&draft.model, draft.shape.dimensions) {
        return Err(Error::Dimensions(why));
    }
    let replaced = tries.before.as_ref().filter(|before| before.record != draft.record);
    if replaced.is_some_and(|before| !before.may_go) {
        return Err(Error::Replaced { model: draft.model });
    }
    let (mut reasons, mut are_told) = (tries.reasons.clone(), tries.are_told);
    let mut passed_over: Vec<String> = Vec::new();
    for &provider in &tries.providers {
        let mut is_news = false;
        let started = match provider::host(provider, loaded, draft.own_graph()) {
            Ok(host) => {
                let end = start_trusted(&draft, host, loaded, (means, &config), tries.whole);
                is_news = refused.note(provider, &draft.model, &end);
                end
            }
            Err(missing) => Err(Error::Provider(missing)),
        };
        match started {
            Ok(started) => {
                if replaced.is_some() {
                    let model = &draft.model;
                    tracing::warn!(
                        model,
                        "another {model} is loaded than before: its provider has failed, and the store \
                         has this one by now"
                    );
                }
                // Who has what was asked for first misses nothing.
                let is_first = provider::candidates(settings).first() == Some(&provider);
                let reasons = match are_told && !is_first {
                    true => reasons.without(&provider.to_string()),
                    false => Reasons::default(),
                };
                tell_passed_over(&passed_over);
                return served((choice, loaded), draft, started, reasons);
            }
            // The next one may do.
            Err(refusal @ (Error::Provider(_) | Error::Unfit(_) | Error::NoRoom(_))) => {
                let reason = refusal.to_string();
                // What `auto` passes over nobody has asked for, but who has lost it is told.
                are_told |= refused.is_lost(provider, &draft.model, &refusal);
                let told = format!("{} is not computed by {provider}: {reason}", draft.model);
                match is_news && !are_told {
                    true => passed_over.push(told),
                    false => tracing::debug!("{told}"),
                }
                reasons.put(&provider.to_string(), reason);
            }
            Err(error) => {
                tell_passed_over(&passed_over);
                return Err(error);
            }
        }
    }
    // It tells of each.
    Err(Error::Provider(provider::none_left(settings, reasons.told())))
}

/// Tells the log why providers do not compute that nobody has asked for.
fn tell_passed_over(whys: &[String]) {
    for why in whys {
        tracing::info!("{why}");
    }
}

/// Workers that have proved themselves.
struct Started {
    engine: Engine,
    costs: Vec<Place>,
}

/// Starts the workers of a model on `host`, all of them if it is to be `whole`; in 32 bits if their vectors, in what
/// the provider computes in by itself, are not the model's.
fn start_trusted(
    draft: &Draft,
    host: Host,
    loaded: &Loaded,
    (means, config): (&Means, &EngineConfig),
    whole: bool,
) -> Result<Started, Error> {
    let precision = host.precision(&loaded.settings);
    let start =
        |precision| start(draft, (host.clone(), precision), loaded, (means, config.clone()), whole);
    let result = start(precision);
    let Err(Error::Backend(BackendError::Load { kind: LoadErrorKind::Untrusted, message })) =
        result
    else {
        return result;
    };
    // A graph of the user's own is computed as it is.
    let by_itself = precision == Precision::Auto && halves_by_itself(&host.provider.to_string());
    if !by_itself || draft.own_graph().is_some() {
        return Err(Error::Unfit(message));
    }
    let in_32_bits = start(Precision::F32);
    let started = in_32_bits.map_err(|error| {
        let too = if error.to_string() == message { String::new() } else { format!(": {error}") };
        let of_both = format!("{message}; nor in f32{too}");
        match error {
            Error::Provider(_) => Error::Provider(of_both),
            Error::NoRoom(_) => Error::NoRoom(of_both),
            Error::Unfit(_)
            | Error::Backend(BackendError::Load { kind: LoadErrorKind::Untrusted, .. }) => {
                Error::Unfit(of_both)
            }
            // It is of no provider.
            error => error,
        }
    })?;
    tracing::warn!(provider = %host.provider, "the model is computed in f32: {message}");
    Ok(started)
}

/// Starts the workers of a model on `host`, computing in `precision`.
fn start(
    draft: &Draft,
    (mut host, precision): (Host, Precision),
    loaded: &Loaded,
    (means, config): (&Means, EngineConfig),
    whole: bool,
) -> Result<Started, Error> {
    let (settings, spawner) = (&loaded.settings, &means.spawner);
    let blueprint = |host: &Host, precision| Blueprint {
        model: draft.model.clone(),
        space: draft.space.clone(),
        max_input_tokens: draft.shape.max_input_tokens,
        region: batch_limits(settings, host).region(&draft.shape),
        precision,
        host: host.clone(),
    };
    let pool = |host: &Host, precision, reference| Pool {
        factory: spawner(&blueprint(host, precision), settings),
        workers: workers(settings, host),
        reserved: reserved(host),
        batch: batch_limits(settings, host),
        reference,
        holds_device: holds_device(host.provider),
        devices: host.devices.iter().map(|n| format!("{}:{n}", host.provider)).collect(),
        whole,
        costs: BTreeMap::new(),
        losses_max: (!provider::is_last(host.provider, settings)).then_some(LOSSES_MAX),
    };
    provider::verify(&host, settings).map_err(Error::Provider)?;
    let provider = host.provider;
    warn_of_faults(provider, settings);
    let explained = |error| explained(error, provider, loaded);
    let (mut reference, mut beside) = (None, None);
    if host.provider != Provider::Cpu {
        let own_graph = draft.own_graph();
        let cpu = spawner(&blueprint(&host.reference(own_graph), REFERENCE_PRECISION), settings);
        let cosine_min = Reference::cosine_min_of(precision == Precision::F16);
        let computed = op_dbus_engine::reference(&draft.tokenizer, &draft.shape, &cpu, cosine_min);
        reference = Some(computed.map_err(|error| with_origin(error, loaded))?);
        if settings.offload == Offload::Auto {
            beside = Some(cpu_beside(&host, loaded, own_graph)?);
        }
    }
    let factory = |host: &Host| spawner(&blueprint(host, precision), settings);
    let known = || all::known(means.devices.as_deref());
    let devices = all::devices(&host, known, factory).map_err(explained)?;
    host.devices = devices.clone().unwrap_or_else(|| vec![0]);
    let mut pools = vec![pool(&host, precision, reference)];
    let mut blueprints = vec![blueprint(&host, precision)];
    if let Some(cpu) = beside {
        let cpu_pool = pool(&cpu, REFERENCE_PRECISION, None);
        pools.push(Pool { reserved: 0, losses_max: None, ..cpu_pool });
        blueprints.push(blueprint(&cpu, REFERENCE_PRECISION));
    }
    let places = costs::read(&blueprints, &mut pools, settings, means);
    let measured = pools.iter().any(|pool| pool.costs.len() < pool.devices.len());
    let tokenizer_threads = worker::cores();
    let limits = limits(settings);
    let config = EngineConfig { limits, tokenizer_threads, ..config };
    let engine = Engine::start(draft.tokenizer.clone(), draft.shape.clone(), pools, config);
    let engine = engine.map_err(explained)?;
    tell(&host, loaded);
    if devices.is_none() && means.devices.is_some() {
        all::warn(provider);
    }
    if measured {
        costs::keep(&places, &engine);
    }
    Ok(Started { engine, costs: places })
}

/// The CPU beside `host`. It may have a library that `host` does without.
fn cpu_beside(host: &Host, loaded: &Loaded, own_graph: Option<&str>) -> Result<Host, Error> {
    let cpu = provider::host(Provider::Cpu, loaded, own_graph);
    let cpu = cpu.unwrap_or_else(|_| host.reference(own_graph));
    provider::verify(&cpu, &loaded.settings).map_err(Error::Provider)?;
    Ok(cpu)
}

/// Tells the log of faults on purpose, which may be why what follows fails.
fn warn_of_faults(provider: Provider, settings: &Settings) {
    let provider = provider.to_string();
    let own = settings.providers.get(&provider);
    if let Some(faults) = own.and_then(|own| own.faults.as_ref()) {
        tracing::warn!(provider, "workers show faults on purpose, as the settings ask: {faults}");
    }
}

/// Tells the log what there is to know of a host before it computes for anybody. Not of one that does not
/// work: it is tried again and again.
fn tell(host: &Host, loaded: &Loaded) {
    for ignored in ignored::without_effect(host, loaded) {
        tracing::warn!("{ignored}");
    }
    if host.provider == Provider::Remote {
        let settings = &loaded.settings;
        let count = fleet::endpoints(settings).len();
        let what = if fleet::sends_texts(settings) { "texts" } else { "token ids of texts" };
        tracing::info!("{what} leave this machine; endpoints of the remote provider: {count}");
    }
}

/// Worker processes beside these for interactive work: where one takes no second copy of the weights. Beside
/// an accelerator there is none: two kinds of workers leave nobody waiting for long.
fn reserved(host: &Host) -> usize {
    usize::from(host.provider == Provider::Cpu && host.cpu_engine == CpuEngine::Native)
}

fn served(
    (choice, loaded): (&Choice, &Arc<Loaded>),
    draft: Draft,
    Started { engine, costs }: Started,
    reasons: Reasons,
) -> Result<Served, Error> {
    let mut workers = engine.descriptions().into_iter().map(|worker| worker.description);
    let first = workers.next().ok_or(Error::Fault("an engine without workers"))?;
    Ok(Served {
        choice: choice.clone(),
        model: draft.model,
        space: draft.space,
        dimensions: draft.shape.dimensions,
        max_input_tokens: draft.shape.max_input_tokens,
        prompts: draft.prompts,
        default_prompt: draft.default_prompt,
        record: draft.record,
        fallback_reason: reasons.told(),
        load_is_told: AtomicBool::new(false),
        fallback_is_told: AtomicBool::new(false),
        reasons,
        loaded: loaded.clone(),
        stand_in_told: Mutex::default(),
        replaced_is_told: AtomicBool::new(false),
        provider: first.provider,
        precision: first.precision,
        engine_name: first.engine,
        isa: first.isa,
        is_last: AtomicBool::new(false),
        acquitted: Mutex::default(),
        costs,
        engine,
    })
}

/// The bounds that the settings leave to the engine.
pub(super) fn limits(settings: &Settings) -> Limits {
    Limits {
        batch_delay_us_max: settings.batch_delay_us_max,
        queue_tokens_max: settings.queue_tokens_max,
        quota_tokens: settings.quota_tokens,
        ..Limits::default()
    }
}

/// The bounds on batches of `host`.
fn batch_limits(settings: &Settings, host: &Host) -> BatchLimits {
    let tokens_max = settings.batch_tokens_max;
    match (host.provider, host.cpu_engine) {
        (Provider::Cpu, engine @ CpuEngine::Native) => {
            BatchLimits::packed(Crew::of(settings, engine, Vec::new()).threads, tokens_max)
        }
        (Provider::Cpu, _) => BatchLimits::padded(tokens_max),
        (Provider::Remote, _) => BatchLimits {
            rows_max: fleet::rows_max(settings),
            ..BatchLimits::accelerator(tokens_max.or(Some(BatchLimits::ACCELERATOR_TOKENS)))
        },
        _ => BatchLimits::accelerator(tokens_max),
    }
}

/// How long the service manager has to allow for the first load: each provider that is asked for may take
/// its time before the next one is tried, and one that is tried in two precisions twice as long. Where all devices are
/// asked for the first one is loaded before, to tell how many there are. A device that hangs may do so in the batches
/// by which it proves itself.
pub(crate) fn start_time_max(settings: &Settings) -> Duration {
    // Reading and checking the files comes on top of what the workers may take.
    let one = Duration::from_secs(settings.load_timeout_s + settings.batch_timeout_s + 30);
    let again = usize::from(settings.precision == Precision::Auto);
    let each = if settings.gpu_device == Devices::All { 2 } else { 1 };
    one * u32::try_from(each * (1 + settings.fallback.len() + again)).unwrap_or(u32::MAX)
}
