//! What an unload and a trim reach, and what they wait for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use op_dbus_engine::{Absence, ArenaUse, Batch, Description, MemoryUse, Presence};

use super::*;
use crate::devices::Reader;
use crate::service::memory::{LOOK_AGAIN, unloaded};

/// Callers are let in before that has begun.
#[tokio::test]
async fn who_has_the_model_loaded_or_unloaded_at_once_waits_for_the_first_load() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let service = Service::new(loaded(&root, &[]), backends.means(), None);
    let mut warm_up = pin!(service.warm_up());
    assert!(warm_up.as_mut().now_or_never().is_none(), "it has loaded nothing");
    let mut unload = pin!(service.unload());
    assert!(unload.as_mut().now_or_never().is_none(), "what it unloads is yet to come");
    service.start().await;
    warm_up.await.unwrap();
    assert!(service.is_loaded());
    unload.await.unwrap();
    assert!(!service.is_loaded());
}

/// A source that says nothing for hours holds the engine that it began with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_the_traffic_has_left_are_unloaded_too() {
    for trims in [false, true] {
        let (_root, backends, service) = started(&[]).await;
        let left = service.serving(None, None).await.unwrap();
        service.set_level(Level::Low).await.unwrap();
        assert_eq!(left.engine.presence(), Presence::Loaded);
        match trims {
            true => drop(service.trim().await),
            false => service.unload().await.unwrap(),
        }
        assert_eq!(left.engine.presence(), Presence::Unloaded(Absence::Asked));
        assert_eq!(service.is_loaded(), trims, "a trim leaves what is in force");
        let call = Call { inputs: vec!["text".to_owned()].into(), ..Call::default() };
        assert_eq!(left.engine.embed(call).await.unwrap().rows, 1, "it goes on");
        assert_eq!(backends.made.load(Ordering::SeqCst), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trim_leaves_what_a_change_has_loaded() {
    let (_root, _, service) = started(&[]).await;
    // As a change of level has both until the disk has it.
    let change = service.0.change.lock().await;
    let next = service.serving(Some(Level::Low), None).await.unwrap();
    service.trim().await;
    assert_eq!(next.engine.presence(), Presence::Loaded);
    drop(change);
    service.trim().await;
    assert_eq!(next.engine.presence(), Presence::Unloaded(Absence::Asked));
}

#[tokio::test]
async fn an_unload_waits_for_calls_that_name_a_level() {
    let (_root, backends, service) = started(&[]).await;
    service.serving(Some(Level::High), None).await.unwrap().engine.unload().await;
    let held = Held::new(&backends.held);
    let mut call = pin!(embed(&service, Some(Level::High)));
    assert!(call.as_mut().now_or_never().is_none(), "it has its model loaded");
    let mut unload = pin!(service.unload());
    assert!(unload.as_mut().now_or_never().is_none(), "it does not wait for the call");
    drop(held);
    assert_eq!(call.await.unwrap(), 1);
    unload.await.unwrap();
    assert!(!service.is_loaded());
    assert_eq!(service.loaded().len(), 1, "what was named is gone");
}

#[tokio::test]
async fn a_load_under_way_outlives_an_unload() {
    let (_root, backends, service) = started(&[]).await;
    let held = Held::new(&backends.held);
    let mut first = pin!(embed(&service, Some(Level::High)));
    assert!(first.as_mut().now_or_never().is_none(), "it has its model loaded");
    service.unload().await.unwrap();
    let mut second = pin!(embed(&service, Some(Level::High)));
    assert!(second.as_mut().now_or_never().is_none(), "it waits for the same load");
    drop(held);
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (1, 1));
    assert_eq!(backends.made.load(Ordering::SeqCst), 2, "the same model was loaded twice");
}

#[tokio::test]
async fn who_asks_for_an_unload_is_told_what_is_not_gone() {
    let (_root, backends, service) = started(&[]).await;
    service.unload().await.unwrap();
    let served = service.serving(None, None).await.unwrap();
    let held = Held::new(&backends.held);
    let mut call = Box::pin(embed(&service, None));
    assert!(call.as_mut().now_or_never().is_none(), "it has its model loaded");
    while backends.made.load(Ordering::SeqCst) == 1 {
        tokio::task::yield_now().await;
    }
    let refusal = async || unloaded(&served, Instant::now().into()).await.unwrap_err().to_string();
    let told = refusal().await;
    assert!(told.ends_with("within 20 s: calls are still in flight; call again"), "{told}");
    drop(call);
    let told = refusal().await;
    assert!(told.contains("20 s: a worker still loads or computes, and goes when"), "{told}");
    drop(held);
    service.unload().await.unwrap();
}

/// A device that hangs may keep it for minutes, and nobody is left whom it would answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_load() {
    let (_root, backends, service) = started(&[]).await;
    service.unload().await.unwrap();
    let _held = Held::new(&backends.held);
    let mut warm_up = pin!(service.warm_up());
    assert!(warm_up.as_mut().now_or_never().is_none(), "it loads");
    while backends.made.load(Ordering::SeqCst) == 1 {
        tokio::task::yield_now().await;
    }
    let stop = service.drain(Instant::now() + Duration::from_secs(3600));
    tokio::time::timeout(Duration::from_secs(60), stop).await.expect("it waits for the load");
    assert!(matches!(warm_up.await, Err(Error::Engine(EngineError::ShuttingDown))));
}

/// They are computed, and their callers still read what was sent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_replies_that_have_no_room_yet_until_its_deadline() {
    for reads in [true, false] {
        let (_root, _, service) = started(&[]).await;
        let reply = service.replying();
        let time = if reads { Duration::from_secs(3600) } else { Duration::ZERO };
        let mut stop = pin!(service.drain(Instant::now() + time));
        if reads {
            let early = tokio::time::timeout(Duration::from_millis(200), stop.as_mut()).await;
            assert!(early.is_err() && service.ended().now_or_never().is_none());
            drop(reply);
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), stop).await;
        ended.expect("it waits for who does not read");
        assert!(service.ended().now_or_never().is_some());
    }
}

/// `auto` would take a GPU, of which no library is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_no_device_can_compute_is_loaded_during_a_sleep() {
    let (_root, _, service) = started(&[("execution_provider", "auto")]).await;
    service.sleep().await;
    let call = embed(&service, Some(Level::High));
    let call = tokio::time::timeout(Duration::from_secs(60), call).await;
    assert_eq!(call.expect("it waits for a device").unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_the_traffic_has_left_are_told_of_while_they_have_workers() {
    let (_root, _, service) = started(&[]).await;
    let left = service.serving(None, None).await.unwrap();
    service.set_level(Level::Low).await.unwrap();
    let is_told = || service.with_workers().iter().any(|it| Arc::ptr_eq(it, &left));
    assert!(is_told() && service.with_workers().len() == 2);
    assert!(!Arc::ptr_eq(&service.with_workers()[0], &left), "what is in force comes first");
    left.engine.unload().await;
    assert!(!is_told());
}

/// A simulator that begins no batch while somebody has its lock.
struct Stuck(SimBackend, Arc<Mutex<()>>);

impl Backend for Stuck {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        drop(self.1.lock());
        self.0.run(batch, out)
    }
}

/// It is no call, and would else put the end of an idle model off by all the time that it may be idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_for_idle_models_that_meets_the_watchdogs_text_comes_again_soon() {
    let (root, lock) = (tempfile::tempdir().unwrap(), Arc::<Mutex<()>>::default());
    let for_workers = lock.clone();
    let spawner: Spawner = Arc::new(move |blueprint, _| {
        let (lock, dimensions) = (for_workers.clone(), blueprint.region.dimensions);
        Box::new(move |_| Ok(Box::new(Stuck(SimBackend::new(dimensions), lock.clone()))))
    });
    let means = Means { spawner, devices: None };
    let service = Service::new(loaded(&root, &[("idle_unload_s", "86400")]), means, None);
    service.start().await;
    let served = service.serving(None, None).await.unwrap();
    let held = Held::new(&lock);
    let mut text = pin!(served.engine.canary());
    assert!(text.as_mut().now_or_never().is_none(), "nobody holds it up");
    assert_eq!(service.unload_idle().await, Some(LOOK_AGAIN));
    drop(held);
    text.await.unwrap();
    assert!(service.unload_idle().await.is_some_and(|next| next > LOOK_AGAIN));
}

/// It was unloaded before the setting was read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_model_is_told_of_without_a_time_where_models_stay() {
    let (_root, _, service) = started(&[("idle_unload_s", "0")]).await;
    let served = service.serving(None, None).await.unwrap();
    assert!(served.engine.unload_idle(Duration::ZERO));
    served.engine.unloaded().await;
    let told = "Serving sim, unloaded, as nobody called; the next call loads it";
    assert_eq!(service.now().summary(), told);
}

/// A simulator on a card of its own, of which a batch takes a gigabyte.
struct OnCard(SimBackend, Description);

impl Backend for OnCard {
    fn description(&self) -> &Description {
        &self.1
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.0.run(batch, out)
    }

    fn memory(&self) -> MemoryUse {
        let arena = ArenaUse { in_use_max: 1 << 30, ..ArenaUse::default() };
        MemoryUse { arena: Some(arena), ..MemoryUse::default() }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_beside_the_one_in_force_is_told_of_full_devices_as_well() {
    let root = tempfile::tempdir().unwrap();
    let program = root.path().join("program");
    let card = |number| format!(r#"{{"name":"cuda:{number}","provider":"cuda","memory_free":0}}"#);
    let told = format!("#!/bin/sh\necho '[{},{}]'\n", card(0), card(1));
    fs::write(&program, told).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let spawner: Spawner = Arc::new(|blueprint, _| {
        let dimensions = blueprint.region.dimensions;
        Box::new(move |number| {
            let sim = SimBackend::new(dimensions);
            let device = format!("cuda:{number}");
            let description = Description { device, ..sim.description().clone() };
            Ok(Box::new(OnCard(sim, description)))
        })
    });
    let means = Means { spawner, devices: Some(Arc::new(Reader::new(program))) };
    let service = Service::new(loaded(&root, &[("workers_per_device", "2")]), means, None);
    service.start().await;
    let beside = service.serving(Some(Level::Low), None).await.unwrap();
    assert!(!Arc::ptr_eq(&beside, &service.serving(None, None).await.unwrap()));
    assert_eq!(embed(&service, Some(Level::Low)).await.unwrap(), 1);
    let follows = tokio::spawn(service.clone().follow_memory());
    let is_short = || beside.engine.descriptions().iter().any(|worker| worker.is_short_of_memory);
    let calls = async {
        while !is_short() {
            embed(&service, Some(Level::Low)).await.unwrap();
        }
    };
    // More than a reading that has failed is kept.
    let told = tokio::time::timeout(Duration::from_secs(180), calls).await;
    told.expect("nobody tells it that they are full");
    follows.abort();
}
