//! When a provider is tried that is better than the one that serves.

use std::sync::Weak;

use super::guilt::{embed, service, service_with};
use super::*;
use crate::service::Served;

/// The CPU, and a device, which is away at first.
#[derive(Clone)]
struct Device {
    away: Arc<AtomicBool>,
    /// How often the device was tried.
    tries: Arc<AtomicUsize>,
    /// No try ends while somebody has this.
    held: Arc<Mutex<()>>,
}

impl Device {
    fn away() -> Self {
        let (tries, held) = Default::default();
        Self { away: Arc::new(AtomicBool::new(true)), tries, held }
    }

    fn spawner(&self) -> Spawner {
        let device = self.clone();
        Arc::new(move |blueprint, _| {
            let device = device.clone();
            let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
            Box::new(move |_| device.make(provider, dimensions))
        })
    }

    fn make(
        &self,
        provider: Provider,
        dimensions: usize,
    ) -> Result<Box<dyn Backend>, BackendError> {
        if provider != Provider::Cpu {
            let before = self.tries.fetch_add(1, Ordering::SeqCst);
            drop(self.held.lock());
            if self.away.load(Ordering::SeqCst) {
                let message = format!("away at try {before}");
                let kind = LoadErrorKind::ProviderUnavailable;
                return Err(BackendError::Load { kind, message });
            }
        }
        Ok(Box::new(SimBackend::of(&provider.to_string(), dimensions)))
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }

    /// Returns once it is tried again, after so many tries.
    async fn tried_after(&self, before: usize) {
        while self.tries() == before {
            tokio::task::yield_now().await;
        }
    }
}

fn look_every(service: &Service, seconds: u64) {
    let mut loaded = Loaded::clone(&service.now().loaded);
    loaded.settings.provider_retry_s = seconds;
    service.replace(|now| now.loaded = Arc::new(loaded));
}

/// Else one whose callers come rarely stays where it is for ever: it may be unloaded at each look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unloaded_model_that_a_look_passed_over_has_its_turn_once_it_is_loaded() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let in_force = service.now().served().unwrap().clone();
    in_force.engine.unload().await;
    // What a look does about this one tells of it.
    let other = Choice::Imported("other".to_owned());
    let _loaded = service.now().fleet.get(&other).await.unwrap();
    let before = device.tries();
    tokio::spawn(service.clone().tell_presence());
    tokio::spawn(service.clone().look_after());
    look_every(&service, 1);
    device.tried_after(before).await;
    look_every(&service, 31_536_000);
    device.away.store(false, Ordering::SeqCst);
    let mut changes = service.watch();
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
    let is_back = changes.wait_for(|now| now.fallback_reason().is_empty());
    let is_back = tokio::time::timeout(Duration::from_secs(60), is_back).await;
    drop(is_back.expect("it waits for the next look").unwrap());
    assert_eq!(embed(&service, "a").await.unwrap(), "ggml");
}

/// The better one would take its device as soon as that was given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_unloaded_during_a_look_stays_unloaded() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    device.away.store(false, Ordering::SeqCst);
    let (held, before) = (Held::new(&device.held), device.tries());
    let looks = service.clone();
    let look = tokio::spawn(async move { looks.improve().await });
    device.tried_after(before).await;
    service.unload().await.unwrap();
    drop(held);
    assert!(look.await.unwrap(), "it has its turn once it is loaded");
    assert_eq!(service.now().served().unwrap().provider, "cpu");
    assert!(!service.is_loaded());
}

/// Each may take minutes to refuse, and what a change has let go of has no callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_ends_with_the_settings_that_it_began_under() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let other = Choice::Imported("other".to_owned());
    let _loaded = service.now().fleet.get(&other).await.unwrap();
    let (held, before) = (Held::new(&device.held), device.tries());
    let looks = service.clone();
    let look = tokio::spawn(async move { looks.improve().await });
    device.tried_after(before).await;
    let next = service.fleet(service.now().loaded.clone());
    service.moved(service.now().served().cloned(), |now| now.fleet = next);
    drop(held);
    look.await.unwrap();
    assert_eq!(device.tries(), before + 1, "it goes on to the second model");
}

/// As one that a sleep of the machine holds up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_has_waited_begins_under_no_settings_that_are_over() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    service.sleep().await;
    let before = device.tries();
    let mut look = pin!(service.improve());
    assert!(look.as_mut().now_or_never().is_none(), "it waits for the machine");
    let next = service.fleet(service.now().loaded.clone());
    service.moved(service.now().served().cloned(), |now| now.fleet = next);
    service.wake();
    look.await;
    assert_eq!(device.tries(), before, "it takes what the other settings want");
}

/// It wants the same device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_waits_for_a_change_that_is_under_way() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let change = service.0.change.lock().await;
    let before = device.tries();
    let mut look = pin!(service.improve());
    assert!(look.as_mut().now_or_never().is_none());
    let next = service.fleet(service.now().loaded.clone());
    service.moved(service.now().served().cloned(), |now| now.fleet = next);
    drop(change);
    look.await;
    assert_eq!(device.tries(), before);
}

/// What it has of a device is what the next one may need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_a_change_lets_go_of_ends_while_a_look_goes_on() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let served = Arc::downgrade(service.now().served().unwrap());
    let (held, before) = (Held::new(&device.held), device.tries());
    let looks = service.clone();
    let look = tokio::spawn(async move { looks.improve().await });
    device.tried_after(before).await;
    service.set_level(Level::None).await.unwrap();
    ended(&served).await;
    drop(held);
    assert!(!look.await.unwrap());
}

/// Returns once nobody holds this engine any more.
async fn ended(served: &Weak<Served>) {
    let ended = async {
        while served.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is held");
}

/// As above; here it is one that calls name, beside the one in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_a_change_lets_go_of_ends_while_a_failed_one_is_tried_again() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let refuses = Arc::new(AtomicBool::new(true));
    let spawner = refusing_other(&device, &refuses, LoadErrorKind::ProviderUnavailable);
    let flags = [("execution_provider", "ggml"), ("fallback", "none"), ("model", "other")];
    let service = service_with(&flags, &root, spawner);
    service.start().await;
    assert!(matches!(service.now().phase, Phase::Failed(_)));
    let tiny = Choice::Imported("tiny".to_owned());
    let tiny = Arc::downgrade(&service.now().fleet.get(&tiny).await.unwrap());
    refuses.store(false, Ordering::SeqCst);
    let (held, before) = (Held::new(&device.held), device.tries());
    let tries = service.clone();
    let look = tokio::spawn(async move { tries.revive(false).await });
    device.tried_after(before).await;
    let next = service.fleet(service.now().loaded.clone());
    service.replace(|now| now.fleet = next);
    ended(&tiny).await;
    drop(held);
    look.await.unwrap();
}

/// As above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_a_change_lets_go_of_ends_while_a_call_waits_for_another() {
    let (_root, backends, service) = started(&[]).await;
    let served = Arc::downgrade(service.now().served().unwrap());
    let (held, before) = (Held::new(&backends.held), backends.made.load(Ordering::SeqCst));
    let calls = service.clone();
    let size = (1, 0);
    let call =
        tokio::spawn(async move { calls.serving_to(1, size, Some(Level::High), None).await });
    while backends.made.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    service.set_level(Level::None).await.unwrap();
    ended(&served).await;
    drop(held);
    call.await.unwrap().unwrap();
}

/// What a look, or a start, has found of those that do not compute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_was_refused_for_last_is_kept_until_it_works() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let refused = || service.now().refused(Provider::Ggml);
    let first = refused().unwrap();
    assert!(first.contains("away at try"), "{first}");
    assert_eq!(service.now().refused(Provider::Cpu), None);
    service.improve().await;
    let last = refused().unwrap();
    assert!(last.contains("away at try") && last != first, "{last} is the first refusal");
    device.away.store(false, Ordering::SeqCst);
    service.improve().await;
    assert_eq!(refused(), None);
}

/// Such as one whose worker ends: another process of the same fate. The bus has no signal of it either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_refuses_a_reload_as_it_did_before_is_told_once() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let service = service(&root, device.spawner());
    service.start().await;
    let first = service.now().fallback_reason();
    assert!(first.contains("away at try"), "{first}");
    assert_eq!(service.fallbacks(), 1);
    service.reload().await.unwrap();
    let last = service.now().fallback_reason();
    assert!(last.contains("away at try") && last != first, "{last} is the first refusal");
    assert_eq!(service.fallbacks(), 1);
}

/// Nobody has asked for it by `auto`. But who has had one is told of it, whatever is loaded then, and also where the
/// settings were read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_auto_has_had_and_lost_is_told() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let auto = [("execution_provider", "auto")];
    let service = service_with(&auto, &root, device.spawner());
    service.start().await;
    assert_eq!(service.now().served().unwrap().provider, "cpu");
    assert_eq!(service.now().fallback_reason(), "", "it has never been there");
    let anew = || service.fleet(service.now().loaded.clone());
    let other = Choice::Imported("other".to_owned());
    device.away.store(false, Ordering::SeqCst);
    assert_eq!(anew().get(&other).await.unwrap().provider, "cuda");
    device.away.store(true, Ordering::SeqCst);
    let other = anew().get(&other).await.unwrap();
    assert_eq!(other.provider, "cpu");
    assert!(other.fallback_reason.contains("away at try"), "{}", other.fallback_reason);
}

/// Backends of a device that is there, and has no memory for the model `other` while `is_full`.
fn full_for_other(device: &Device, is_full: &Arc<AtomicBool>) -> Spawner {
    refusing_other(device, is_full, LoadErrorKind::OutOfMemory)
}

/// Backends of a device that is there, and refuses the model `other` while it `refuses`, as a worker does.
fn refusing_other(device: &Device, refuses: &Arc<AtomicBool>, kind: LoadErrorKind) -> Spawner {
    device.away.store(false, Ordering::SeqCst);
    let (there, refuses) = (device.spawner(), refuses.clone());
    Arc::new(move |blueprint, settings| {
        let is_other = blueprint.model == "other" && blueprint.host.provider != Provider::Cpu;
        let (made, refuses) = (there(blueprint, settings), refuses.clone());
        Box::new(move |number| match is_other && refuses.load(Ordering::SeqCst) {
            true => Err(BackendError::Load { kind, message: "it refuses".to_owned() }),
            false => made(number),
        })
    })
}

/// Somebody else may have had that memory just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_auto_had_no_memory_for_is_tried_again() {
    let (root, is_full) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(true)));
    let spawner = full_for_other(&Device::away(), &is_full);
    let service = service_with(&[("execution_provider", "auto")], &root, spawner);
    service.start().await;
    let other = Choice::Imported("other".to_owned());
    let runs_on = async || service.now().fleet.get(&other).await.unwrap().provider.clone();
    assert_eq!(runs_on().await, "cpu");
    service.improve().await;
    assert_eq!(runs_on().await, "cpu");
    is_full.store(false, Ordering::SeqCst);
    service.improve().await;
    assert_eq!(runs_on().await, "cuda");
    assert_eq!(service.fallbacks(), 0, "nobody has lost anything");
}

/// Each look would load its driver and compile its graph, and be refused as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_auto_can_never_have_is_not_tried_again_before_a_reload() {
    let (root, refuses) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(true)));
    let spawner = refusing_other(&Device::away(), &refuses, LoadErrorKind::Unfit);
    let auto = [("execution_provider", "auto"), ("model", "other")];
    let service = service_with(&auto, &root, spawner);
    service.start().await;
    let in_force = || service.now().served().unwrap().provider.clone();
    assert_eq!(in_force(), "cpu");
    // By which it is known that the device computes.
    let tiny = Choice::Imported("tiny".to_owned());
    assert_eq!(service.now().fleet.get(&tiny).await.unwrap().provider, "cuda");
    refuses.store(false, Ordering::SeqCst);
    service.improve().await;
    assert_eq!(in_force(), "cpu");
    service.reload().await.unwrap();
    assert_eq!(in_force(), "cuda");
}

/// It may be too large for a card that computes another one. That says nothing of the card, whatever it does by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_too_large_for_auto_is_no_lost_device() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::away());
    let is_full = Arc::new(AtomicBool::new(true));
    let spawner = full_for_other(&device, &is_full);
    let service = service_with(&[("execution_provider", "auto")], &root, spawner);
    service.start().await;
    assert_eq!(service.now().served().unwrap().provider, "cuda");
    let other = Choice::Imported("other".to_owned());
    let told = async || {
        let fleet = service.fleet(service.now().loaded.clone());
        let served = fleet.get(&other).await.unwrap();
        assert_eq!(served.provider, "cpu");
        served.fallback_reason.clone()
    };
    assert_eq!(told().await, "", "its device computes");
    service.unload().await.unwrap();
    device.away.store(true, Ordering::SeqCst);
    assert_eq!(told().await, "");
    // Nobody has called the one that had it, so that nothing knows yet of what it has lost.
    is_full.store(false, Ordering::SeqCst);
    let why = told().await;
    assert!(why.contains("away at try"), "{why}");
}
