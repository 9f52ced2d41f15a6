//! What a change that is refused leaves, and what it does not wait for.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use super::guilt::{embed as embed_tiny, service_with};
use super::*;

#[tokio::test]
async fn what_is_known_to_be_missing_is_told_before_anything_is_loaded() {
    let (_root, backends, service) = started(&[]).await;
    for provider in ["coreml", "directml", "ggml"] {
        let change = service.change("execution_provider", provider.to_owned());
        let Some(Err(Error::Provider(reason))) = change.now_or_never() else {
            panic!("{provider} is waited for")
        };
        assert!(reason.starts_with(provider), "{reason}");
    }
    assert_eq!(backends.made.load(Ordering::SeqCst), 1, "a fallback was loaded to be thrown away");
    assert_eq!(embed(&service, None).await.unwrap(), 1);
    service.set_level(Level::None).await.unwrap();
    service.change("execution_provider", "coreml".to_owned()).await.unwrap_err();
    assert_eq!(service.now().settings().execution_provider, Provider::Cpu);
}

#[tokio::test]
async fn a_refused_change_leaves_the_failure_that_is_told() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    let flags = [("fallback", "none")];
    backends.broken.store(true, Ordering::SeqCst);
    let service = Service::new(loaded(&root, &flags), backends.means(), None);
    service.start().await;
    let told = service.now().summary();
    service.change("execution_provider", "coreml".to_owned()).await.unwrap_err();
    assert_eq!(service.now().summary(), told);
    let error = service.change("gpu_device", "1".to_owned()).await.unwrap_err();
    assert!(matches!(error.root(), Error::Provider(_)), "{error}");
    assert_eq!(service.now().summary(), told);
}

/// Which would have the CPU compute, and nobody told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_not_there_is_refused_where_auto_is_asked_for_too() {
    let root = tempfile::tempdir().unwrap();
    let spawner: Spawner = Arc::new(|blueprint, _| {
        let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
        let is_there = provider == Provider::Cpu || blueprint.host.devices == [0];
        Box::new(move |_| {
            if !is_there {
                let message = "no such card".to_owned();
                let kind = LoadErrorKind::ProviderUnavailable;
                return Err(BackendError::Load { kind, message });
            }
            Ok(Box::new(SimBackend::of(&provider.to_string(), dimensions)) as Box<dyn Backend>)
        })
    });
    let service = service_with(&[("execution_provider", "auto")], &root, spawner);
    service.start().await;
    assert_eq!(embed_tiny(&service, "a").await.unwrap(), "cuda");
    let error = service.change("gpu_device", "7".to_owned()).await.unwrap_err();
    assert_eq!(error.to_string(), "no such card");
    assert_eq!(embed_tiny(&service, "a").await.unwrap(), "cuda");
}

/// Calls in flight may take as long as they like, and an unload waits for them.
#[tokio::test]
async fn a_change_does_not_wait_for_an_unload() {
    let (_root, backends, service) = started(&[]).await;
    service.unload().await.unwrap();
    embed(&service, Some(Level::High)).await.unwrap();
    let held = Held::new(&backends.held);
    let mut call = pin!(embed(&service, None));
    assert!(call.as_mut().now_or_never().is_none(), "it has its model loaded");
    let mut unload = pin!(service.unload());
    assert!(unload.as_mut().now_or_never().is_none(), "it waits for the call");
    let change = tokio::time::timeout(Duration::from_secs(60), service.set_level(Level::High));
    change.await.expect("it waits for the unload").unwrap();
    drop(held);
    assert_eq!(call.await.unwrap(), 1);
    unload.await.unwrap();
    assert!(!service.is_loaded(), "what took the place of the unloaded one stays loaded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_loaded_answers_while_the_one_in_force_is_tried_again() {
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    backends.broken.store(true, Ordering::SeqCst);
    let service = Service::new(loaded(&root, &[]), backends.means(), None);
    service.start().await;
    backends.broken.store(false, Ordering::SeqCst);
    embed(&service, Some(Level::High)).await.unwrap();
    let held = Held::new(&backends.held);
    let mut reload = pin!(service.reload());
    while !matches!(service.now().phase, Phase::Loading(_)) {
        assert!(reload.as_mut().now_or_never().is_none(), "it loads");
        tokio::task::yield_now().await;
    }
    assert_eq!(embed(&service, Some(Level::High)).await.unwrap(), 1);
    for level in [None, Some(Level::Medium), Some(Level::Low)] {
        let early = embed(&service, level).await.unwrap_err();
        assert!(matches!(early, Error::NotReady { .. }), "{level:?}: {early}");
    }
    drop(held);
    reload.await.unwrap();
    assert_eq!(embed(&service, None).await.unwrap(), 1);
}

/// What another change took the place of meanwhile serves nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_level_that_is_brought_along_to_what_is_over_nothing_is_told() {
    let (_root, backends, service) = started(&[]).await;
    embed(&service, Some(Level::High)).await.unwrap();
    let now = service.now();
    let coreml = Arc::new(now.loaded.with("execution_provider", "coreml").unwrap());
    let between = service.fleet(coreml);
    let held = Held::new(&backends.held);
    service.bring_along(vec![Choice::Level(Level::High)], between.clone());
    drop(held);
    let high = between.get(&Choice::Level(Level::High)).await.unwrap();
    assert!(!high.fallback_reason.is_empty());
    // Who told has let go of the fleet.
    while Arc::strong_count(&between) > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(service.fallbacks(), 0);
}

/// A device may have memory for one more, and not for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn levels_are_brought_along_one_after_the_other() {
    let (_root, backends, service) = started(&[]).await;
    let others = [Level::High, Level::Low].map(Choice::Level);
    for level in [Level::High, Level::Low] {
        embed(&service, Some(level)).await.unwrap();
    }
    let auto = Arc::new(service.now().loaded.with("execution_provider", "auto").unwrap());
    let fleet = service.fleet(auto);
    service.moved(service.now().served().cloned(), |now| now.fleet = fleet.clone());
    let held = Held::new(&backends.held);
    let before = backends.made.load(Ordering::SeqCst);
    service.bring_along(others.to_vec(), fleet.clone());
    while backends.made.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    // Whoever does not wait for the first has its chance.
    let second = async {
        while backends.made.load(Ordering::SeqCst) < before + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_millis(200), second).await.unwrap_err();
    drop(held);
    while fleet.served().len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(backends.making.lock().unwrap().1, 1);
}

/// Whoever is told that the service shuts down takes it that nothing has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_a_stop_comes_before_is_not_kept() {
    for is_level in [true, false] {
        let (root, backends, service) = started(&[]).await;
        let held = Held::new(&backends.held);
        let mut change = match is_level {
            true => service.set_level(Level::High).boxed(),
            false => service.change("gpu_device", "1".to_owned()).boxed(),
        };
        assert!(change.as_mut().now_or_never().is_none(), "it loads");
        service.drain(Instant::now()).await;
        drop(held);
        assert!(matches!(change.await, Err(Error::ShuttingDown)), "a level: {is_level}");
        assert!(!root.path().join("state.json").exists(), "a level: {is_level}");
    }
}

/// With a change of level, which goes on with the same fleet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_was_let_go_meanwhile_is_not_brought_along() {
    let (_root, backends, service) = started(&[]).await;
    let fleet = service.fleet(service.now().loaded.clone());
    service.moved(service.now().served().cloned(), |now| now.fleet = fleet.clone());
    let held = Held::new(&backends.held);
    let before = backends.made.load(Ordering::SeqCst);
    service.bring_along([Level::High, Level::Low].map(Choice::Level).to_vec(), fleet.clone());
    while backends.made.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    service.set_level(Level::Medium).await.unwrap();
    drop(held);
    // Who brings along has let go of the fleet: it is the service's, and ours.
    while Arc::strong_count(&fleet) > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(backends.made.load(Ordering::SeqCst), before + 1);
    assert_eq!(fleet.served().len(), 1, "nobody has called for another one since");
}

/// The manager would start what waits for the service, or take it that it goes on. In a process of its own, which is
/// told where that listens.
#[tokio::test]
async fn no_reload_before_the_first_load_or_in_a_stop_tells_of_readiness() {
    const OWN: &str = "BEFORE_THE_FIRST_LOAD";
    const NAME: &str =
        "service::tests::changes::no_reload_before_the_first_load_or_in_a_stop_tells_of_readiness";
    let (root, backends) = (tempfile::tempdir().unwrap(), Backends::default());
    if std::env::var_os(OWN).is_some() {
        let service = Service::new(loaded(&root, &[]), backends.means(), None);
        let file = root.path().join("etc/op-dbus/config.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "vector_level = \"none at all\"\n").unwrap();
        service.reload().await.unwrap_err();
        service.drain(Instant::now()).await;
        assert!(matches!(service.reload().await, Err(Error::ShuttingDown)));
        return;
    }
    let path = root.path().join("manager");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", NAME, "--test-threads=1"]).env(OWN, "1").env("NOTIFY_SOCKET", &path);
    let said = String::from_utf8(own.output().unwrap().stdout).unwrap();
    assert!(said.contains("1 passed"), "{said}");
    manager.set_nonblocking(true).unwrap();
    let mut told = String::new();
    let mut message = [0; 4096];
    while let Ok(length) = manager.recv(&mut message) {
        told += std::str::from_utf8(&message[..length]).unwrap();
    }
    assert_eq!(told.matches("RELOADING=1").count(), 1, "{told}");
    assert!(!told.contains("READY=1"), "{told}");
}
