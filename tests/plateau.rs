//! Memory that stays what it is, however long the service runs and whatever shapes its batches have.

use std::collections::HashMap;

use zbus::OwnedVariant;

use crate::harness::client::{Client, value};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::process;
use crate::harness::random::Random;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture};

tests! {
    native_memory_reaches_a_plateau: [Bus] => plateau(tiny().await?),
    onnx_runtime_memory_reaches_a_plateau: [Bus, Runtime] =>
        plateau(tiny().await?.setting("cpu_engine", "ort")),
    bound_memory_reaches_a_plateau: [Bus, Runtime] =>
        plateau(tiny().await?.setting("cpu_engine", "ort").setting("io_binding", "on")),
    ggml_memory_reaches_a_plateau: [Bus, Ggml] =>
        plateau(tiny().await?.setting("execution_provider", "ggml").setting("fallback", "none")),
    memory_of_batches_is_told: [Bus, Runtime],
}

/// A daemon with a tiny model, of which a batch costs next to nothing.
pub async fn tiny() -> Outcome<Setup> {
    let setup = Setup::with_store()?;
    setup.import(fixture("golden/tiny-bert"), &["--name", "tiny"]).await?.success()?;
    let setup = setup.setting("model", "tiny").setting("workers_per_device", "1");
    Ok(setup.setting("batch_tokens_max", "256"))
}

/// A number of `GetStatistics`, if it is told.
pub async fn told<T: TryFrom<OwnedVariant>>(client: &Client, key: &str) -> Outcome<Option<T>> {
    let mut statistics: HashMap<String, OwnedVariant> = client.manager.get_statistics().await?;
    statistics.remove(key).map(|value| value.try_into().map_err(|_| key.into())).transpose()
}

/// Bytes that the first worker has in memory.
pub async fn resident(daemon: &Daemon) -> Outcome<u64> {
    let worker = daemon.workers().await?[0];
    process::resident(worker)
}

/// Computes batches of random numbers of texts of random lengths until there were `count` more.
async fn batches(client: &Client, random: &mut Random, count: u64) -> Outcome {
    let until = client.counter("batches").await? + count;
    while client.counter("batches").await? < until {
        for texts in [1, 2, 3, 5, 400] {
            let text = |_| "word ".repeat(1 + random.below(40));
            client.vectors(&(0..texts).map(text).collect::<Vec<_>>()).await?;
        }
    }
    Ok(())
}

/// Bytes that 8,000 batches or more may leave: one that left 300 bytes would be seen.
const GROWTH_MAX: u64 = 2 << 20;

/// From the 2,000th batch on memory stays what it is.
async fn plateau(setup: Setup) -> Outcome {
    const BATCHES: u64 = 10_000;
    const WARM: u64 = 2_000;
    let (_bus, _setup, daemon) = setup.alone().await?;
    let mut random = Random::new(20_817);
    batches(daemon.client(), &mut random, WARM).await?;
    let warm = resident(&daemon).await?;
    batches(daemon.client(), &mut random, BATCHES - WARM).await?;
    let end = resident(&daemon).await?;
    println!("{warm} bytes after {WARM} batches, {end} after {BATCHES}");
    assert!(end <= warm + GROWTH_MAX, "{warm} and then {end}");
    daemon.stop().await
}

async fn memory_of_batches_is_told() -> Outcome {
    let (bus, setup, daemon) = tiny().await?.alone().await?;
    for key in ["buffer_reuse_ratio", "zero_copy_ratio"] {
        assert_eq!(
            told::<f64>(daemon.client(), key).await?,
            None,
            "the native engine has no {key}"
        );
    }
    daemon.stop().await?;

    let setup = setup.setting("cpu_engine", "ort").setting("io_binding", "on");
    let daemon = setup.ready(&bus).await?;
    let client = daemon.client();
    // The first batch was the proof, of another length.
    for text in ["one two three", "one two three", "one two", "one two three"] {
        client.vectors(&[text]).await?;
    }
    assert_eq!(told(client, "buffer_reuse_ratio").await?, Some(2.0 / 5.0));
    assert_eq!(told(client, "zero_copy_ratio").await?, Some(1.0));
    assert_eq!(told::<u64>(client, "arena_bytes").await?, None, "the CPU has no arena");
    let worker = client.workers().await?.remove(0);
    assert_eq!(value::<f64>(&worker, "buffer_reuse_ratio")?, 2.0 / 5.0);
    daemon.stop().await?;

    let setup = setup.setting("io_binding", "off");
    let daemon = setup.ready(&bus).await?;
    daemon.client().vectors(&["one two three"]).await?;
    let ratio = told::<f64>(daemon.client(), "zero_copy_ratio").await?.ok_or("no ratio")?;
    assert!(0.0 < ratio && ratio < 1.0, "results are copied: {ratio}");
    assert_eq!(told::<f64>(daemon.client(), "buffer_reuse_ratio").await?, None);
    daemon.stop().await
}
