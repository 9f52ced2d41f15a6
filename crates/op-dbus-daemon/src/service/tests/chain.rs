//! Providers that fail one after another.

use op_dbus_engine::sim::{Faults, Faulty};

use super::guilt::{embed, service_with};
use super::*;

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
