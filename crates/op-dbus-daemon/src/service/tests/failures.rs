//! What becomes of a model that could not be loaded, once it is there.

use super::guilt::service;
use super::*;

/// A service whose model was not there when it started, and is now.
async fn fetched(root: &tempfile::TempDir) -> Service {
    let service = service(root, Backends::default().spawner());
    let [there, away] = ["models/tiny", "away"].map(|name| root.path().join(name));
    std::fs::rename(&there, &away).unwrap();
    service.start().await;
    assert!(matches!(service.now().phase, Phase::Failed(_)));
    std::fs::rename(&away, &there).unwrap();
    service
}

fn serves(service: &Service) -> bool {
    matches!(service.now().phase, Phase::Serving(_))
}

/// Who keeps the properties as signals tell them has the new ones then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_warmed_up_is_in_force_before_that_is_told() {
    let root = tempfile::tempdir().unwrap();
    let service = fetched(&root).await;
    service.warm_up().await.unwrap();
    assert!(serves(&service));
}

/// As one does whose deadline comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_caller_has_left_that_had_it_loaded_comes_into_force() {
    let root = tempfile::tempdir().unwrap();
    let service = fetched(&root).await;
    assert!(embed(&service, None).now_or_never().is_none(), "it is loaded at once");
    let is_told = service.0.tried.notified().now_or_never();
    assert!(is_told.is_some(), "nobody takes up what comes of it");
    service.revive(true).await;
    assert!(serves(&service));
}
