//! Providers that fail one after another.

use op_dbus_engine::sim::{Faults, Faulty};

use super::guilt::{DEADLY, embed, embed_on, service, service_with, spawner};
use super::*;
use crate::service::failover::HELD_KIB_MAX;
use crate::service::{Now, Served};
use crate::settings::Precision;

/// Workers that fail each batch from this one on, but for the CPU's.
fn failing(fail_from_batch: u64) -> Spawner {
    Arc::new(move |blueprint, _| {
        let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
        let fails = (provider != Provider::Cpu).then_some(fail_from_batch);
        Box::new(move |_| {
            let sim = Box::new(SimBackend::of(&provider.to_string(), dimensions));
            let faults = Faults { fail_from_batch: fails, ..Faults::default() };
            Ok(Box::new(Faulty::new(sim, faults)) as Box<dyn Backend>)
        })
    })
}

/// The first is not taken again for what the second loses, nor are calls that have nothing blamed for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_two_that_fail_is_come_to() {
    let root = tempfile::tempdir().unwrap();
    let chain = [("execution_provider", "ggml"), ("fallback", "webgpu,cpu")];
    let service = service_with(&chain, &root, failing(6));
    service.start().await;
    let mut failed = 0;
    for _ in 0..1000 {
        match embed(&service, "a").await {
            Ok(provider) if provider == "cpu" => break,
            Ok(_) => {}
            Err(_) => failed += 1,
        }
    }
    for _ in 0..100 {
        assert_eq!(embed(&service, "a").await.unwrap(), "cpu", "behind {failed} that failed");
    }
    let why = service.now().fallback_reason();
    assert!(why.contains("ggml") && why.contains("webgpu"), "{why}");
}

/// As signals tell it: what runs again is neither what ran in between nor what was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_that_is_taken_back_is_told_of_as_often_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let chain = [("execution_provider", "coreml"), ("fallback", "ggml,cpu")];
    let service = service_with(&chain, &root, spawner(true));
    service.start().await;
    let mut changes = service.watch();
    for fallbacks in [1, 3, 5] {
        let is_back = |now: &Arc<Now>| now.served().is_some_and(|it| it.provider == "ggml");
        changes.wait_for(is_back).await.unwrap();
        assert_eq!(service.fallbacks(), fallbacks);
        embed(&service, "boom!").await.unwrap_err();
    }
}

/// A CPU that computes nothing but what others are compared with.
fn without_cpu() -> Spawner {
    let failing = failing(6);
    Arc::new(move |blueprint, settings| {
        let made = failing(blueprint, settings);
        let is_one = blueprint.host.provider == Provider::Cpu;
        let refuses = is_one && blueprint.precision != Precision::F32;
        Box::new(move |number| match refuses {
            true => Err(BackendError::Load {
                kind: LoadErrorKind::ProviderUnavailable,
                message: "the CPU is broken".to_owned(),
            }),
            false => made(number),
        })
    })
}

/// Has its workers lose what they compute, until they are given up.
async fn lose(served: &Served) {
    while !served.engine.is_failing() {
        let call = Call { inputs: vec!["a".to_owned()].into(), ..Call::default() };
        drop(served.engine.embed(call).await);
    }
}

/// Those before it are tried once more where those behind it do not work either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_others_do_not_compute_is_told_of_each_once() {
    let root = tempfile::tempdir().unwrap();
    let chain = [("execution_provider", "coreml"), ("fallback", "ggml,webgpu,cpu")];
    let service = service_with(&chain, &root, without_cpu());
    service.start().await;
    let fleet = service.now().fleet.clone();
    let mut served = service.now().served().unwrap().clone();
    for next in ["webgpu", "ggml"] {
        lose(&served).await;
        served = fleet.get_instead_of(&served).await.unwrap();
        assert_eq!(served.provider, next);
    }
    let why = &served.fallback_reason;
    for (of, times) in [("coreml needs", 1), ("webgpu lost", 1), ("is broken", 1), ("ggml", 0)] {
        assert_eq!(why.matches(of).count(), times, "{of}: {why}");
    }
}

/// As the thread of a direct connection that hangs in closing a descriptor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_never_asked_again_keeps_nothing_that_others_wait_for() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, failing(6));
    service.start().await;
    let failed = service.now().served().unwrap().clone();
    lose(&failed).await;
    let (mut changes, change) = (service.watch(), service.0.change.lock().await);
    let never = CancellationToken::default();
    let mut hangs = pin!(service.successor(&failed, Some(1), never, None));
    assert!(hangs.as_mut().now_or_never().is_none(), "another provider is looked for");
    service.now().fleet.get_instead_of(&failed).await.unwrap();
    assert!(hangs.as_mut().now_or_never().is_none(), "a change is under way");
    drop(change);
    let is_moved = |now: &Arc<Now>| now.served().is_some_and(|it| it.provider == "cpu");
    changes.wait_for(is_moved).await.unwrap();
    drop(service.0.change.lock().await);
    drop(service.0.held.acquire_many(u32::try_from(HELD_KIB_MAX).unwrap()).await.unwrap());
    assert_eq!(hangs.await.unwrap().unwrap().provider, "cpu");
}

/// It was lost as it was under the settings before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_from_before_a_change_takes_no_provider_from_those_behind_it() {
    let (root, is_mended) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let for_engines = is_mended.clone();
    let spawner: Spawner = Arc::new(move |blueprint, _| {
        let (provider, dimensions) = (blueprint.host.provider, blueprint.region.dimensions);
        let is_deadly = provider == Provider::Ggml && !for_engines.load(Ordering::SeqCst);
        let faults = Faults { die_on_token: is_deadly.then_some(DEADLY), ..Faults::default() };
        Box::new(move |_| {
            let sim = Box::new(SimBackend::of(&provider.to_string(), dimensions));
            Ok(Box::new(Faulty::new(sim, faults.clone())) as Box<dyn Backend>)
        })
    });
    let service = service(&root, spawner);
    service.start().await;
    let other = service.now().fleet.get(&Choice::Imported("other".to_owned())).await.unwrap();
    is_mended.store(true, Ordering::SeqCst);
    let next = service.fleet(Arc::new(Loaded::clone(&service.now().loaded)));
    service.moved(service.now().served().cloned(), |now| now.fleet = next);
    assert_eq!(embed_on(other, &service, "boom!").await.unwrap(), "ggml");
}

/// It is deadly there as well, which says that the workers from before were not to blame. They stay gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_change_has_replaced_is_not_taken_back() {
    let root = tempfile::tempdir().unwrap();
    let service = service(&root, spawner(true));
    service.start().await;
    let before = service.now().served().unwrap().clone();
    let loaded = Arc::new(Loaded::clone(&service.now().loaded));
    let next = service.fleet(loaded.clone());
    let new = next.get(&before.choice).await.unwrap();
    service.moved(Some(new), |now| (now.loaded, now.fleet) = (loaded, next));
    embed_on(before.clone(), &service, "boom!").await.unwrap_err();
    assert!(before.acquitted.lock().is_none());
}
