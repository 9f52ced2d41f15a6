//! Whose fault it is that workers are lost with a call: the device's, or that of what the call has.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use op_dbus_engine::sim::{Faults, Faulty, SimBackend};
use op_dbus_engine::{Backend, BackendError, CancellationToken, LoadErrorKind};
use op_dbus_models::{ImportOptions, Level, OnnxFacts, Progress, Store};

use super::{Held, loaded};
use crate::service::{Choice, Error, Means, Options, Phase, Request, Served, Service, Spawner};
use crate::settings::{Precision, Provider};

/// The id of "!" in the model that is imported here.
pub(super) const DEADLY: i32 = 52;

/// Workers that are lost with "!" on ggml and, if it is `deadly` there as well, on the CPU.
pub(super) fn spawner(deadly_on_cpu: bool) -> Spawner {
    Arc::new(move |blueprint, _| {
        let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
        let deadly = provider == Provider::Ggml || deadly_on_cpu;
        Box::new(move |_| {
            let die_on_token = deadly.then_some(DEADLY);
            let sim = Box::new(SimBackend::of(&provider.to_string(), dimensions));
            let faults = Faults { die_on_token, ..Faults::default() };
            Ok(Box::new(Faulty::new(sim, faults)) as Box<dyn Backend>)
        })
    })
}

/// A service of the tiny model on ggml, which falls back to the CPU for a day.
pub(super) fn service(root: &tempfile::TempDir, spawner: Spawner) -> Service {
    service_with(&[("execution_provider", "ggml")], root, spawner)
}

/// The same with these flags.
pub(super) fn service_with(
    more: &[(&str, &str)],
    root: &tempfile::TempDir,
    spawner: Spawner,
) -> Service {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tiny-bert");
    let models = root.path().join("models");
    let options = ImportOptions {
        inspect: &|_| Ok(OnnxFacts { dimensions: None, pooled: true, finished: true }),
        tokenizer: &|_, _| Ok(()),
        model: &|_| Ok(()),
        progress: &Progress::silent(),
        pooling: None,
        dimensions: None,
        max_input_tokens: None,
    };
    for name in ["tiny", "other"] {
        Store::open(&models).import(&tiny, name, &options).unwrap();
    }
    let library = root.path().join("ggml.so").display().to_string();
    let file = root.path().join("etc/op-dbus/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let of = |provider| format!("[providers.{provider}]\nlibrary = \"{library}\"\n");
    std::fs::write(&file, ["ggml", "webgpu"].map(of).concat()).unwrap();
    let flags = [
        ("cpu_engine", "native"),
        ("model", "tiny"),
        ("model_dir", &*models.display().to_string()),
        ("cache_dir", &*root.path().join("cache").display().to_string()),
        ("fallback", "cpu"),
        ("provider_retry_s", "86400"),
        ("runtime", &*library),
    ];
    let means = Means { spawner, devices: None };
    Service::new(loaded(root, &[&flags[..], more].concat()), means, None)
}

/// The provider that computed a text.
pub(super) async fn embed(service: &Service, text: &str) -> Result<String, Error> {
    embed_on(service.serving(None, None).await?, service, text).await
}

/// The same of a text for this engine.
pub(super) async fn embed_on(
    served: Arc<Served>,
    service: &Service,
    text: &str,
) -> Result<String, Error> {
    let request = Request {
        uid: 0,
        cancel: CancellationToken::default(),
        inputs: vec![text.to_owned()].into(),
        options: Options::default(),
        wait: false,
        sink: None,
    };
    Ok(service.embed(served, request).await?.0.provider)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_deadly_on_the_next_provider_as_well_takes_no_device_out() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, spawner(true));
    service.start().await;
    let mut changes = service.watch();
    for fallbacks in [1, 2] {
        assert_eq!(embed(&service, "a").await.unwrap(), "ggml");
        embed(&service, "boom!").await.unwrap_err();
        assert_eq!(service.fallbacks(), fallbacks, "it was tried there");
        let is_back = |now: &Arc<crate::service::Now>| now.fallback_reason().is_empty();
        changes.wait_for(is_back).await.unwrap();
    }
    assert_eq!(embed(&service, "a").await.unwrap(), "ggml");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_alone_is_lost_with_a_text_is_left() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, spawner(false));
    service.start().await;
    assert_eq!(embed(&service, "boom!").await.unwrap(), "cpu");
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
}

/// As where weights can't be read any more that its workers have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_loses_a_text_computes_on_where_the_model_can_not_be_loaded_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, spawner(false));
    service.start().await;
    std::fs::remove_file(root.path().join("models/tiny/model.safetensors")).unwrap();
    embed(&service, "boom!").await.unwrap_err();
    assert_eq!(embed(&service, "a").await.unwrap(), "ggml");
}

/// The CPU, as the next provider: it can be `broken`, and none of its workers is made while somebody has `held`.
#[derive(Clone, Default)]
struct Next {
    made: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
    held: Arc<Mutex<()>>,
}

impl Next {
    /// Workers that are lost with "!" on ggml, and this CPU behind it.
    fn spawner(&self) -> Spawner {
        let next = self.clone();
        Arc::new(move |blueprint, settings| {
            let (next, made) = (next.clone(), spawner(false)(blueprint, settings));
            let is_cpu = blueprint.host.provider == Provider::Cpu;
            Box::new(move |number| {
                if is_cpu {
                    next.made.fetch_add(1, Ordering::SeqCst);
                    drop(next.held.lock());
                }
                if is_cpu && next.broken.load(Ordering::SeqCst) {
                    let (kind, message) = (LoadErrorKind::ProviderUnavailable, "broken".to_owned());
                    return Err(BackendError::Load { kind, message });
                }
                made(number)
            })
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_leave_a_failover_have_one_successor_loaded_for_all_of_them() {
    let (root, next) = (tempfile::tempdir().unwrap(), Next::default());
    let service = service(&root, next.spawner());
    service.start().await;
    let other = service.now().fleet.get(&Choice::Imported("other".to_owned())).await.unwrap();
    let failed = service.now().served().unwrap().clone();
    next.made.store(0, Ordering::SeqCst);
    let held = Held::new(&next.held);
    let first = tokio::spawn({
        let service = service.clone();
        async move { embed(&service, "boom!").await }
    });
    while next.made.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    first.await.unwrap_err();
    for _ in 0..10 {
        let call = service.replace_failed(&failed);
        assert!(call.now_or_never().is_none(), "it waits, until its client leaves");
    }
    drop(held);
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
    assert_eq!(next.made.load(Ordering::SeqCst), 1, "loads of which all but one are for nobody");
    let fleet = service.now().fleet.served();
    assert!(fleet.iter().any(|served| Arc::ptr_eq(served, &other)), "it was loaded, and still is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_kept_as_nothing_else_works_is_left_once_something_does() {
    for reloads in [false, true] {
        let (root, next) = (tempfile::tempdir().unwrap(), Next::default());
        let service = service(&root, next.spawner());
        service.start().await;
        next.broken.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            service.improve().await;
            embed(&service, "boom!").await.unwrap_err();
        }
        next.broken.store(false, Ordering::SeqCst);
        embed(&service, "a").await.unwrap();
        match reloads {
            true => service.reload().await.unwrap(),
            false => drop(service.improve().await),
        }
        assert_eq!(embed(&service, "boom!").await.unwrap(), "cpu");
    }
}

/// Workers of which the first on ggml is lost with "!", and none can be had there while it is `away`.
fn coming_back(away: Arc<AtomicBool>) -> Spawner {
    let made = Arc::new(AtomicUsize::new(0));
    Arc::new(move |blueprint, settings| {
        let (away, made) = (away.clone(), made.clone());
        let deadly = spawner(false)(blueprint, settings);
        let harmless = {
            let mut elsewhere = blueprint.clone();
            elsewhere.host.provider = Provider::Cpu;
            spawner(false)(&elsewhere, settings)
        };
        let is_device = blueprint.host.provider == Provider::Ggml;
        Box::new(move |number| {
            if is_device && away.load(Ordering::SeqCst) {
                let (kind, message) = (LoadErrorKind::ProviderUnavailable, "away".to_owned());
                return Err(BackendError::Load { kind, message });
            }
            let is_first = is_device && made.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first { deadly(number) } else { harmless(number) }
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_answered_by_its_own_device_where_that_is_back_before_another_is_found() {
    let (root, away) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let service = service(&root, coming_back(away.clone()));
    service.start().await;
    away.store(true, Ordering::SeqCst);
    // Whoever looks for another waits for this to decide.
    let change = service.0.change.lock().await;
    let call = tokio::spawn({
        let service = service.clone();
        async move { embed(&service, "boom!").await }
    });
    let served = service.serving(None, None).await.unwrap();
    served.engine.failing().await;
    while served.engine.stats().failures.is_empty() {
        tokio::task::yield_now().await;
    }
    away.store(false, Ordering::SeqCst);
    while served.engine.is_failing() {
        tokio::task::yield_now().await;
    }
    drop(change);
    call.await.unwrap().unwrap();
    assert_eq!(service.fallbacks(), 0);
    assert!(Arc::ptr_eq(&served, &service.serving(None, None).await.unwrap()), "it serves on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_an_unloaded_model_warmed_up_gets_the_next_provider_as_a_call_would() {
    let (root, away) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let service = service(&root, coming_back(away.clone()));
    service.start().await;
    assert_eq!(service.now().served().unwrap().provider, "ggml");
    service.unload().await.unwrap();
    away.store(true, Ordering::SeqCst);
    service.warm_up().await.unwrap();
    assert_eq!(service.now().served().unwrap().provider, "cpu");
    assert!(service.is_loaded());
    assert_eq!(service.fallbacks(), 1);
}

/// Has the store say that `tiny` reads so many tokens less.
fn import_anew(root: &tempfile::TempDir, by: u64) {
    let record = root.path().join("models/tiny/op-dbus.json");
    let mut own: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    own["max_input_tokens"] = (own["max_input_tokens"].as_u64().unwrap() - by).into();
    std::fs::write(&record, own.to_string()).unwrap();
}

/// Provider in force, and tokens that the model reads there.
fn in_force(service: &Service) -> (String, usize) {
    let now = service.now();
    let served = now.served().unwrap();
    (served.provider.clone(), served.max_input_tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_better_provider_takes_no_other_model_up() {
    let (root, away) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(true)));
    let service = service(&root, coming_back(away.clone()));
    service.start().await;
    let (provider, tokens) = in_force(&service);
    assert_eq!(provider, "cpu");
    import_anew(&root, 8);
    away.store(false, Ordering::SeqCst);
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    let subscriber = tracing_subscriber::fmt().with_env_filter("op_dbus_daemon=debug");
    let told = tracing::subscriber::set_default(subscriber.with_writer(writer).finish());
    for _ in 0..2 {
        service.improve().await;
        assert_eq!(in_force(&service), ("cpu".to_owned(), tokens));
    }
    drop(told);
    let log = std::fs::read_to_string(log.path()).unwrap();
    let lines = |about: &str| log.lines().filter(|line| line.contains(about)).count();
    assert_eq!(lines("has another tiny by now"), 2, "{log}");
    assert_eq!(lines("no better provider is taken"), 1, "{log}");
    service.reload().await.unwrap();
    assert_eq!(in_force(&service), ("ggml".to_owned(), tokens - 8));
}

/// The one that served can be had no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_is_better_than_none() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, spawner(false));
    service.start().await;
    let (_, tokens) = in_force(&service);
    import_anew(&root, 8);
    // Its vectors would not be those that were asked for.
    embed(&service, "boom!").await.unwrap_err();
    assert_eq!(in_force(&service), ("cpu".to_owned(), tokens - 8));
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
}

/// Whoever looks for another provider may have to wait for minutes, if that hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_waits_for_who_looks_for_another_provider() {
    let (root, next) = (tempfile::tempdir().unwrap(), Next::default());
    let service = service(&root, next.spawner());
    service.start().await;
    next.made.store(0, Ordering::SeqCst);
    let held = Held::new(&next.held);
    let call = tokio::spawn({
        let service = service.clone();
        async move { embed(&service, "boom!").await }
    });
    while next.made.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mut looking = pin!(service.reconsider());
    assert!(looking.as_mut().now_or_never().is_none(), "it waits for the next provider");
    let change = tokio::time::timeout(Duration::from_secs(60), service.set_level(Level::None));
    change.await.expect("it waits, too").unwrap();
    drop(held);
    looking.await;
    // Its callers have what was loaded for them, and nobody else has it.
    call.await.unwrap().unwrap();
    assert_eq!(next.made.load(Ordering::SeqCst), 1);
    assert!(service.now().fleet.served().is_empty());
    assert!(matches!(service.now().phase, Phase::Disabled), "what was changed meanwhile stays");
}

/// A backend of a provider, and whether what it gives are no numbers.
fn made(provider: &str, dimensions: usize, wrong: bool) -> Result<Box<dyn Backend>, BackendError> {
    let sim = Box::new(SimBackend::of(provider, dimensions));
    let faults = Faults { nan_on_batch: wrong.then_some(1), ..Faults::default() };
    Ok(Box::new(Faulty::new(sim, faults)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuda_is_kept_for_a_model_that_halves_do_not_get_along_with() {
    for (in_f32, serves, reason) in
        [(false, "cuda", ""), (true, "cpu", "cuda can't be trusted on cuda:0")]
    {
        let root = tempfile::tempdir().unwrap();
        let spawner: Spawner = Arc::new(move |blueprint, _| {
            let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
            let is_wrong = match blueprint.precision {
                Precision::Auto => provider == Provider::Cuda,
                _ => provider == Provider::Cuda && in_f32,
            };
            Box::new(move |_| made(&provider.to_string(), dimensions, is_wrong))
        });
        let service = service_with(&[("execution_provider", "cuda")], &root, spawner);
        service.start().await;
        assert_eq!(embed(&service, "a").await.unwrap(), serves);
        let told = service.watch().borrow().fallback_reason();
        assert!(told.starts_with(reason) && told.is_empty() == reason.is_empty(), "{told}");
    }
}
