//! The service without a bus: shared loads, warm switches, retries after a failure, provider choice.

mod chain;
mod changes;
mod failures;
mod guilt;
mod libraries;
mod looks;
mod memory;
mod stand_ins;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{
    Backend, BackendError, Call, CancellationToken, Error as EngineError, LoadErrorKind,
};
use op_dbus_models::Level;

use super::provider::{candidates, host, none_left};
use super::{Choice, Error, Means, Options, Phase, Request, Service, Spawner, start_time_max};
use crate::settings::{Loaded, Provider, Settings, Sources};

fn loaded(root: &tempfile::TempDir, flags: &[(&str, &str)]) -> Loaded {
    let state = root.path().join("state.json").display().to_string();
    let base = [("cpu_engine", "sim"), ("state_file", &*state), ("workers_per_device", "1")];
    Settings::load(&Sources::under(root.path()).with_flags(&base).with_flags(flags)).unwrap()
}

/// Backends that are counted, and can be told not to load.
#[derive(Clone, Default)]
struct Backends {
    made: Arc<AtomicUsize>,
    /// Those that are being made, and the most there were of them.
    making: Arc<Mutex<(usize, usize)>>,
    broken: Arc<AtomicBool>,
    /// None is made while somebody has this.
    held: Arc<Mutex<()>>,
}

impl Backends {
    fn spawner(&self) -> Spawner {
        let backends = self.clone();
        Arc::new(move |blueprint, _| {
            let (backends, dimensions) = (backends.clone(), blueprint.region.dimensions);
            Box::new(move |_| backends.make(dimensions))
        })
    }

    fn means(&self) -> Means {
        Means { spawner: self.spawner(), devices: None }
    }

    fn make(&self, dimensions: usize) -> Result<Box<dyn Backend>, BackendError> {
        let count = |by: isize| {
            let (now, most) = &mut *self.making.lock().unwrap();
            *now = now.saturating_add_signed(by);
            *most = (*most).max(*now);
        };
        count(1);
        self.made.fetch_add(1, Ordering::SeqCst);
        drop(self.held.lock());
        count(-1);
        if self.broken.load(Ordering::SeqCst) {
            let message = "broken on purpose".to_owned();
            return Err(BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message });
        }
        Ok(Box::new(SimBackend::new(dimensions)))
    }
}

/// Somebody has a lock until this is dropped: a thread of its own, so that a test may wait meanwhile.
struct Held(Option<(Sender<()>, JoinHandle<()>)>);

impl Held {
    fn new(lock: &Arc<Mutex<()>>) -> Self {
        let (is_held, wait) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let lock = lock.clone();
        let holder = std::thread::spawn(move || {
            let _held = lock.lock();
            is_held.send(()).unwrap();
            let _ = released.recv();
        });
        wait.recv().unwrap();
        Self(Some((release, holder)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((release, holder)) = self.0.take() else { return };
        drop(release);
        holder.join().unwrap();
    }
}

/// A service that has started with these flags, on backends that load.
async fn started(flags: &[(&str, &str)]) -> (tempfile::TempDir, Backends, Service) {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let service = Service::new(loaded(&root, flags), backends.means(), None);
    service.start().await;
    (root, backends, service)
}

async fn embed(service: &Service, level: Option<Level>) -> Result<usize, Error> {
    let served = service.serving(level, None).await?;
    let request = Request {
        uid: 0,
        cancel: CancellationToken::default(),
        inputs: vec!["text".to_owned()].into(),
        options: Options::default(),
        wait: false,
        sink: None,
    };
    Ok(served.embed(request).await?.rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_share_one_load() {
    let (_root, backends, service) = started(&[]).await;
    let calls = (0..16).map(|_| embed(&service, Some(Level::High)));
    for rows in join_all(calls).await {
        assert_eq!(rows.unwrap(), 1);
    }
    assert_eq!(backends.made.load(Ordering::SeqCst), 2, "one for each level in use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_the_level_changes() {
    let (_root, _, service) = started(&[]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = tokio::spawn({
        let (service, stop) = (service.clone(), stop.clone());
        async move {
            let mut calls = 0;
            while !stop.load(Ordering::SeqCst) {
                embed(&service, None).await.unwrap();
                calls += 1;
            }
            calls
        }
    });
    for level in [Level::High, Level::Low, Level::Medium, Level::High] {
        service.set_level(level).await.unwrap();
        assert_eq!(service.now().level(), Some(level));
    }
    stop.store(true, Ordering::SeqCst);
    assert!(traffic.await.unwrap() > 0);
}

/// A level that is loaded and not in force yet is idle to whoever gives memory back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_into_force_is_loaded_once_whatever_is_trimmed() {
    let (_root, _, service) = started(&[]).await;
    let high = Choice::Level(Level::High);
    let served = service.now().fleet.get(&high).await.unwrap();
    service.trim().await;
    let next = service.now().loaded.with("vector_level", "high").unwrap();
    service.moved(Some(served.clone()), |now| now.loaded = Arc::new(next));
    let again = service.now().fleet.get_anew(&high).await.unwrap();
    assert!(Arc::ptr_eq(&again, &served), "a second engine of the model in force");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_nobody_waited_for_is_there_all_the_same() {
    let (_root, _, service) = started(&[]).await;
    drop(service.serving(Some(Level::High), None).now_or_never());
    while service.now().fleet.served().len() < 2 {
        tokio::task::yield_now().await;
    }
}

/// As that of a direct connection does, with the last one of its user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_goes_on_when_the_runtime_ends_of_who_asked_for_it() {
    let (_root, backends, service) = started(&[]).await;
    let held = Held::new(&backends.held);
    let caller = service.clone();
    let asks = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let asked = async { caller.serving(Some(Level::High), None).now_or_never().is_none() };
        runtime.block_on(asked)
    };
    assert!(std::thread::spawn(asks).join().unwrap(), "it was loaded at once");
    drop(held);
    let found = async {
        while service.now().fleet.served().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("nobody saw its end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_the_traffic_has_left_counts_until_its_last_call_has_ended() {
    let (_root, _, service) = started(&[]).await;
    embed(&service, None).await.unwrap();
    embed(&service, Some(Level::High)).await.unwrap();
    assert_eq!((service.statistics().calls, service.statistics().texts), (2, 2));
    let old = service.serving(None, None).await.unwrap();
    service.set_level(Level::Low).await.unwrap();
    // That of high has no call left, but for the task that has loaded it.
    while service.engines().len() != 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(service.loaded().len(), 1, "a new call finds one");
    assert_eq!(service.statistics().calls, 2, "what was counted stays");
    service.drain(Instant::now() + Duration::from_secs(10)).await;
    let call = Call { inputs: vec!["text".to_owned()].into(), ..Call::default() };
    assert_eq!(old.engine.embed(call).await.unwrap_err(), EngineError::ShuttingDown);
    drop(old);
    assert_eq!(service.engines().len(), 1);
}

#[tokio::test]
async fn a_failed_load_is_told_and_tried_again() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    backends.broken.store(true, Ordering::SeqCst);
    let service = Service::new(loaded(&root, &[]), backends.means(), None);
    service.start().await;
    assert!(matches!(service.now().phase, Phase::Failed(_)));
    let error = embed(&service, None).await.unwrap_err();
    assert!(matches!(error.root(), Error::Provider(_)), "{error}");
    embed(&service, Some(Level::Medium)).await.unwrap_err();
    assert_eq!(backends.made.load(Ordering::SeqCst), 1, "a call does not try again by itself");

    service.set_level(Level::Medium).await.unwrap_err();
    assert_eq!(backends.made.load(Ordering::SeqCst), 2);
    backends.broken.store(false, Ordering::SeqCst);
    service.reload().await.unwrap();
    assert_eq!(embed(&service, None).await.unwrap(), 1);
}

#[tokio::test]
async fn a_level_that_does_not_load_leaves_the_old_one() {
    let (_root, backends, service) = started(&[]).await;
    backends.broken.store(true, Ordering::SeqCst);
    service.set_level(Level::High).await.unwrap_err();
    assert_eq!(service.now().level(), Some(Level::Medium));
    assert_eq!(embed(&service, None).await.unwrap(), 1);
}

#[tokio::test]
async fn who_calls_too_soon_is_told_what_is_being_loaded() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let folder = root.path().join("etc/op-dbus");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "vector_level = \"none\"\n").unwrap();
    let service = Service::new(loaded(&root, &[]), backends.means(), None);
    service.start().await;
    assert!(matches!(embed(&service, None).await, Err(Error::Disabled)));
    let held = backends.held.clone();
    let held = held.lock().unwrap();
    let mut change = pin!(service.set_level(Level::Low));
    assert!(change.as_mut().now_or_never().is_none(), "it loads");
    let early = embed(&service, None).now_or_never().unwrap().unwrap_err();
    assert!(early.to_string().starts_with("sim is being loaded"), "{early}");
    assert_eq!(service.now().summary(), "Loading sim");
    drop(held);
    change.await.unwrap();
    assert_eq!(embed(&service, None).await.unwrap(), 1);
}

/// Callers are let in before the first load begins.
#[tokio::test]
async fn a_change_before_the_first_load_is_not_done_again() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let file = root.path().join("etc/op-dbus/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "vector_level = \"none\"\n").unwrap();
    let service = Service::new(loaded(&root, &[]), backends.means(), None);
    std::fs::write(&file, "vector_level = \"low\"\n").unwrap();
    backends.broken.store(true, Ordering::SeqCst);
    service.reload().await.unwrap_err();
    let end = {
        let held = backends.held.clone();
        let _held = held.lock().unwrap();
        service.start().now_or_never().expect("nothing is loaded")
    };
    assert!(end.is_none(), "what the reload was told is no news");
    assert!(matches!(embed(&service, None).await, Err(Error::InForce(_))));
}

#[tokio::test]
async fn a_level_beside_the_one_in_force_tells_of_its_provider_once() {
    let (_root, _, service) = started(&[("execution_provider", "coreml")]).await;
    assert_eq!(service.fallbacks(), 1);
    for _ in 0..2 {
        embed(&service, Some(Level::High)).await.unwrap();
        assert_eq!(service.fallbacks(), 2);
    }
}

#[tokio::test]
async fn what_waits_for_a_level_counts_against_its_users_quota() {
    let flags = [("quota_tokens", "100"), ("queue_tokens_max", "180")];
    let (_root, backends, service) = started(&flags).await;
    let held = backends.held.clone();
    let held = held.lock().unwrap();
    let call = |uid, size| service.serving_to(uid, size, Some(Level::High), None);
    let mut first = pin!(call(1, (60, 0)));
    assert!(first.as_mut().now_or_never().is_none(), "it waits");
    let refused = |uid, size| match call(uid, size).now_or_never() {
        Some(Err(Error::Engine(error))) => error,
        Some(_) => panic!("what is not loaded has answered"),
        None => panic!("user {uid} waits, too"),
    };
    // 32 bytes are a token at least.
    assert!(matches!(refused(1, (1, 60 * 32)), EngineError::QuotaExceeded { .. }));
    assert!(matches!(refused(2, (101, 0)), EngineError::TooLarge { .. }));
    {
        let mut other = pin!(call(2, (100, 0)));
        assert!(other.as_mut().now_or_never().is_none(), "another user's is its own");
        assert!(matches!(refused(3, (30, 0)), EngineError::Overloaded { .. }));
    }
    assert!(call(3, (30, 0)).now_or_never().is_none(), "who has left waits no more");
    // What serves makes nobody wait.
    let in_force = service.serving_to(1, (90, 0), None, None);
    assert!(in_force.now_or_never().is_some_and(|end| end.is_ok()));
    drop(held);
    first.await.unwrap();
    call(1, (60, 0)).await.unwrap();
}

#[tokio::test]
async fn draining_is_final() {
    let (_root, _, service) = started(&[]).await;
    service.drain(Instant::now()).await;
    assert!(matches!(embed(&service, None).await, Err(Error::ShuttingDown)));
    assert!(matches!(service.set_level(Level::Low).await, Err(Error::ShuttingDown)));
    assert!(matches!(service.now().phase, Phase::Draining(_)));
}

#[test]
fn providers_are_chosen_and_reasons_told() {
    let root = tempfile::tempdir().unwrap();
    let with = |provider: &str, fallback: &str| {
        let models = root.path().display().to_string();
        let more = [("cpu_engine", "native"), ("model_dir", &*models)];
        let chosen = [("execution_provider", provider), ("fallback", fallback)];
        loaded(&root, &[&chosen[..], &more].concat())
    };
    let order = |provider: &str, fallback: &str| candidates(&with(provider, fallback).settings);
    assert_eq!(order("cpu", "cpu"), [Provider::Cpu]);
    assert_eq!(order("auto", "none"), [Provider::Cuda, Provider::Cpu]);
    assert_eq!(order("gpu", "webgpu,cpu"), [Provider::Cuda, Provider::WebGpu, Provider::Cpu]);
    assert_eq!(order("trt", "none"), [Provider::TensorRt]);

    let needs = |provider| host(provider, &with("cpu", "cpu"), None).map(|_| ()).unwrap_err();
    assert!(needs(Provider::CoreMl).starts_with("coreml needs macOS; this is linux-"));
    assert!(needs(Provider::DirectMl).starts_with("directml needs Windows; this is linux-"));
    assert!(needs(Provider::WebGpu).contains("op-dbus runtime pull"));
    assert!(host(Provider::Cpu, &with("cpu", "cpu"), None).is_ok());
    let own = host(Provider::Cpu, &with("cpu", "cpu"), Some("own")).map(|_| ()).unwrap_err();
    assert!(own.contains("OP_DBUS_CPU_ENGINE=ort"), "{own}");
    let strict = none_left(&with("cuda", "none").settings, "cuda is not there".to_owned());
    assert!(strict.contains("fallback is none"), "{strict}");
    let all = none_left(&with("auto", "none").settings, "cpu does not work".to_owned());
    assert_eq!(all, "cpu does not work");
}

#[test]
fn numbers_of_devices_are_of_what_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let devices = |asked_for: &str, numbers: &str, provider| {
        let chosen = [("execution_provider", asked_for), ("gpu_device", numbers)];
        let more = [("cpu_engine", "native"), ("runtime", "/own.so")];
        host(provider, &loaded(&root, &[chosen, more].concat()), None).unwrap().devices
    };
    assert_eq!(devices("ggml", "1,2", Provider::Ggml), [1, 2]);
    assert_eq!(devices("coreml", "1,2", Provider::Ggml), [0]);
    assert_eq!(devices("tensorrt", "1,2", Provider::Cuda), [1, 2], "these are the same cards");
    assert_eq!(devices("auto", "1", Provider::Cuda), [1]);
    assert!(devices("coreml", "all", Provider::Ggml).is_empty(), "how many, a worker tells");
}

#[test]
fn a_start_may_take_as_long_as_all_that_is_tried_in_it() {
    let root = tempfile::tempdir().unwrap();
    let time = |devices| start_time_max(&loaded(&root, &[("gpu_device", devices)]).settings);
    assert_eq!(time("all"), 2 * time("0"));
    let slow = [("batch_timeout_s", "600"), ("fallback", "cpu"), ("precision", "f32")];
    let time = start_time_max(&loaded(&root, &slow).settings);
    assert!(time >= 2 * Duration::from_secs(720), "as first batches may, too: {time:?}");
}
