//! When a provider is tried that is better than the one that serves.

use super::guilt::{embed, service};
use super::*;

/// The CPU, and ggml, which can be away; how often that was tried.
fn device(away: &Arc<AtomicBool>, tries: &Arc<AtomicUsize>) -> Spawner {
    let (away, tries) = (away.clone(), tries.clone());
    Arc::new(move |blueprint, _| {
        let (away, tries) = (away.clone(), tries.clone());
        let (provider, dimensions) = (blueprint.host.provider, blueprint.dimensions);
        Box::new(move |_| {
            let is_away = provider == Provider::Ggml && away.load(Ordering::SeqCst);
            let is_ggml = usize::from(provider == Provider::Ggml);
            let before = tries.fetch_add(is_ggml, Ordering::SeqCst);
            if is_away {
                let message = format!("away at try {before}");
                let kind = LoadErrorKind::ProviderUnavailable;
                return Err(BackendError::Load { kind, message });
            }
            Ok(Box::new(SimBackend::of(&provider.to_string(), dimensions)) as Box<dyn Backend>)
        })
    })
}

fn look_every(service: &Service, seconds: u64) {
    let mut loaded = Loaded::clone(&service.now().loaded);
    loaded.settings.provider_retry_s = seconds;
    service.replace(|now| now.loaded = Arc::new(loaded));
}

/// Else one whose callers come rarely stays where it is for ever: it may be unloaded at each look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unloaded_model_that_a_look_passed_over_has_its_turn_once_it_is_loaded() {
    let (away, tries) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, device(&away, &tries));
    service.start().await;
    let in_force = service.now().served().unwrap().clone();
    in_force.engine.unload().await;
    // What a look does about this one tells of it.
    let other = Choice::Imported("other".to_owned());
    let _loaded = service.now().fleet.get(&other).await.unwrap();
    let before = tries.load(Ordering::SeqCst);
    tokio::spawn(service.clone().tell_presence());
    tokio::spawn(service.clone().look_after());
    look_every(&service, 1);
    while tries.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    look_every(&service, 31_536_000);
    away.store(false, Ordering::SeqCst);
    let mut changes = service.watch();
    assert_eq!(embed(&service, "a").await.unwrap(), "cpu");
    let is_back = changes.wait_for(|now| now.fallback_reason().is_empty());
    let is_back = tokio::time::timeout(Duration::from_secs(60), is_back).await;
    drop(is_back.expect("it waits for the next look").unwrap());
    assert_eq!(embed(&service, "a").await.unwrap(), "ggml");
}

/// What a look, or a start, has found of those that do not compute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_was_refused_for_last_is_kept_until_it_works() {
    let (away, tries) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, device(&away, &tries));
    service.start().await;
    let refused = || service.now().refused(Provider::Ggml);
    let first = refused().unwrap();
    assert!(first.contains("away at try"), "{first}");
    assert_eq!(service.now().refused(Provider::Cpu), None);
    service.improve().await;
    let last = refused().unwrap();
    assert!(last.contains("away at try") && last != first, "{last} is the first refusal");
    away.store(false, Ordering::SeqCst);
    service.improve().await;
    assert_eq!(refused(), None);
}
