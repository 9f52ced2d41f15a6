//! The CPU that stands in for a device beside which it computes: told once, and until the device has proved itself.

use op_dbus_engine::{Batch, Description};

use super::guilt::{embed, embed_on, service_with};
use super::*;
use crate::service::{Now, Served};

/// The CPU computes beside ggml.
const BESIDE: [(&str, &str); 2] = [("execution_provider", "ggml"), ("offload", "auto")];

/// ggml, which may be away.
#[derive(Clone, Default)]
struct Device {
    away: Arc<AtomicBool>,
    /// How often a worker was made there.
    tries: Arc<AtomicUsize>,
}

/// A worker that is lost once its device is away.
struct Worker {
    sim: SimBackend,
    device: Option<Device>,
}

impl Backend for Worker {
    fn description(&self) -> &Description {
        self.sim.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        if self.device.as_ref().is_some_and(Device::is_away) {
            return Err(BackendError::Lost("its device is away".to_owned()));
        }
        self.sim.run(batch, out)
    }
}

impl Device {
    fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    /// Workers of which those for `model` are there with the device, and all others always.
    fn spawner(&self, model: &'static str) -> Spawner {
        let device = self.clone();
        Arc::new(move |blueprint, _| {
            let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
            let is_its_own = provider == Provider::Ggml && blueprint.model == model;
            let device = is_its_own.then(|| device.clone());
            Box::new(move |_| {
                if let Some(device) = &device {
                    let before = device.tries.fetch_add(1, Ordering::SeqCst);
                    if device.is_away() {
                        let kind = LoadErrorKind::ProviderUnavailable;
                        let message = format!("away at try {before}");
                        return Err(BackendError::Load { kind, message });
                    }
                }
                let sim = SimBackend::of(&provider.to_string(), dimensions);
                Ok(Box::new(Worker { sim, device: device.clone() }) as Box<dyn Backend>)
            })
        })
    }

    /// It goes, and the CPU computes alone for this model.
    async fn goes(&self, served: &Served) {
        self.away.store(true, Ordering::SeqCst);
        // Every worker proves itself.
        served.engine.wake();
        served.engine.stand_in_other_than(false).await;
    }

    /// It is there again, and its worker has proved itself twice, after which what failed before counts no more.
    async fn comes_back(&self, served: &Served) {
        self.away.store(false, Ordering::SeqCst);
        served.engine.stand_in_other_than(true).await;
        served.engine.wake();
        served.engine.trim().await;
    }

    /// Returns once it was tried twice more: how the first of them has ended is known by then.
    async fn tried_again(&self) {
        let before = self.tries.load(Ordering::SeqCst);
        while self.tries.load(Ordering::SeqCst) < before + 2 {
            tokio::task::yield_now().await;
        }
    }
}

/// What computes in place of the provider of the model in force, and why.
fn stand_in(service: &Service) -> (Option<String>, String) {
    let (stand_in, why) = service.now().stand_in();
    (stand_in.map(|it| it.provider), why)
}

/// A service whose device was lost, with no other to take its place, which was told; the engine in force, and what was
/// told.
async fn lost(root: &tempfile::TempDir, device: &Device) -> (Service, Arc<Served>, String) {
    let flags = [&BESIDE[..], &[("fallback", "none")]].concat();
    let service = service_with(&flags, root, device.spawner("tiny"));
    service.start().await;
    tokio::spawn(service.clone().tell_presence());
    let served = service.now().served().unwrap().clone();
    device.goes(&served).await;
    while service.fallbacks() == 0 {
        tokio::task::yield_now().await;
    }
    let (computes, why) = stand_in(&service);
    assert_eq!(computes.as_deref(), Some("cpu"));
    (service, served, why)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_is_not_told_as_back_by_an_unload_or_a_sleep() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::default());
    let (service, served, why) = lost(&root, &device).await;
    let told = (Some("cpu".to_owned()), why);
    service.unload().await.unwrap();
    assert_eq!(stand_in(&service), told, "unloaded");
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
    assert_eq!(stand_in(&service), told, "loaded again");
    service.sleep().await;
    assert_eq!(stand_in(&service), told, "asleep");
    service.wake();
    device.tried_again().await;
    assert_eq!(stand_in(&service), told, "awake");
    device.comes_back(&served).await;
    assert_eq!(stand_in(&service), (None, String::new()));
    assert_eq!(service.fallbacks(), 1, "it was lost once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_device_was_lost_and_when_it_came_back_is_told() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::default());
    let flags = [&BESIDE[..], &[("fallback", "none")]].concat();
    let service = service_with(&flags, &root, device.spawner("tiny"));
    service.start().await;
    tokio::spawn(service.clone().tell_presence());
    let served = service.now().served().unwrap().clone();
    let mut changes = service.watch();
    let mut since = service.now().since;
    for is_lost in [true, false] {
        match is_lost {
            true => device.goes(&served).await,
            false => device.comes_back(&served).await,
        }
        let is_told = |now: &Arc<Now>| now.fallback_reason().is_empty() != is_lost;
        let told = changes.wait_for(|now| now.since != since && is_told(now));
        let told = tokio::time::timeout(Duration::from_secs(60), told).await;
        since = told.expect("it is told as of before").unwrap().since;
        service.replace(|_| {});
        assert_eq!(service.now().since, since, "nothing has changed, lost: {is_lost}");
    }
}

/// Signals tell of nothing else, however often a device is tried that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_the_cpu_stands_in_stays_as_it_was_told() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::default());
    let (service, _, why) = lost(&root, &device).await;
    assert!(why.starts_with("ggml could not be loaded again (away at try"), "{why}");
    device.tried_again().await;
    assert_eq!(stand_in(&service).1, why);
}

/// Where nobody follows it but its callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_beside_the_one_in_force_is_told_of_as_well() {
    let (root, device) = (tempfile::tempdir().unwrap(), Device::default());
    let service = service_with(&BESIDE, &root, device.spawner("other"));
    service.start().await;
    let other = Choice::Imported("other".to_owned());
    let other = service.now().fleet.get(&other).await.unwrap();
    for losses in [1, 2] {
        device.goes(&other).await;
        for _ in 0..2 {
            assert_eq!(embed_on(other.clone(), &service, "a").await.unwrap(), "cpu");
            assert_eq!(service.fallbacks(), losses, "once for each loss");
        }
        let (computes, why) = service.now().stand_in_of(&other);
        assert_eq!(computes.unwrap().provider, "cpu");
        assert!(why.starts_with("ggml could not be loaded again"), "{why}");
        assert_eq!(stand_in(&service), (None, String::new()), "the one in force has its device");
        device.comes_back(&other).await;
        embed_on(other.clone(), &service, "a").await.unwrap();
        assert_eq!(service.now().stand_in_of(&other), (None, String::new()));
    }
}

/// It has come back while nobody called, and one that is told already would not be told again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_back_when_its_model_comes_into_force_is_told_when_it_is_lost_again() {
    for served_before in [true, false] {
        let (root, device) = (tempfile::tempdir().unwrap(), Device::default());
        let flags = [&BESIDE[..], &[("fallback", "none")]].concat();
        let service = service_with(&flags, &root, device.spawner("other"));
        service.start().await;
        let other = Choice::Imported("other".to_owned());
        let other = service.now().fleet.get(&other).await.unwrap();
        device.goes(&other).await;
        assert_eq!(embed_on(other.clone(), &service, "a").await.unwrap(), "cpu");
        assert_eq!(service.fallbacks(), 1);
        device.comes_back(&other).await;
        if !served_before {
            service.fail(Arc::new(Error::Fault("on purpose")));
        }
        // Each time it is asked it does all that there is to do.
        let mut tells = pin!(service.clone().tell_presence());
        assert!(tells.as_mut().now_or_never().is_none());
        service.moved(Some(other.clone()), |_| {});
        assert!(tells.as_mut().now_or_never().is_none());
        let told = other.stand_in_told.lock().clone();
        assert_eq!(told, None, "what served before: {served_before}");
        device.goes(&other).await;
        assert!(tells.as_mut().now_or_never().is_none());
        assert_eq!(service.fallbacks(), 2, "what served before: {served_before}");
    }
}
