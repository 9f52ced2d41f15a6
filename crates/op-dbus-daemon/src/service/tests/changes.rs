//! What a change that is refused leaves, and what it does not wait for.

use std::sync::mpsc;

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

/// Calls in flight may take as long as they like, and an unload waits for them.
#[tokio::test]
async fn a_change_does_not_wait_for_an_unload() {
    let (_root, backends, service) = started(&[]).await;
    service.unload().await.unwrap();
    embed(&service, Some(Level::High)).await.unwrap();
    let (is_held, wait) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let held = backends.held.clone();
    let holder = std::thread::spawn(move || {
        let _held = held.lock();
        is_held.send(()).unwrap();
        let _ = released.recv();
    });
    wait.recv().unwrap();
    let mut call = pin!(embed(&service, None));
    assert!(call.as_mut().now_or_never().is_none(), "it has its model loaded");
    let mut unload = pin!(service.unload());
    assert!(unload.as_mut().now_or_never().is_none(), "it waits for the call");
    let change = tokio::time::timeout(Duration::from_secs(10), service.set_level(Level::High));
    change.await.expect("it waits for the unload").unwrap();
    drop(release);
    holder.join().unwrap();
    assert_eq!(call.await.unwrap(), 1);
    unload.await.unwrap();
    assert!(!service.is_loaded(), "what took the place of the unloaded one stays loaded");
}
