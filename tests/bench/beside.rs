//! The bench beside a service that is there: what it can't set of that, it refuses to measure.

use super::bench;
use crate::harness::Outcome;
use crate::harness::command::finish;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    bench_refuses_to_measure_a_cache: [Bus],
    bench_refuses_a_level_that_is_not_served: [Bus],
}

async fn bench_refuses_to_measure_a_cache() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.setting("cache_bytes", "1000000").alone().await?;
    let beside = ["--bus", bus.address(), "--at", "daemon", "--only", "latency"];
    let refused = finish(bench(&beside), "").await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("from its cache"), "{}", refused.stderr);
    assert!(refused.stderr.contains("cache_bytes = 0"), "{}", refused.stderr);
    daemon.stop().await
}

async fn bench_refuses_a_level_that_is_not_served() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let beside = ["--bus", bus.address(), "--at", "daemon", "--only", "latency", "--level"];
    let refused = finish(bench(&[&beside[..], &["high"]].concat()), "").await?;
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("serves low, not high"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--spawn"), "{}", refused.stderr);
    finish(bench(&[&beside[..], &["low"]].concat()), "").await?.success()?;
    daemon.stop().await
}
