//! Which of two kinds of workers computes, by what batches cost on each, and what `bench` tells of that.

use std::collections::HashMap;

use serde_json::Value;

use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::needs::{op_dbus, store};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};
use crate::offload::{much, records};

tests! {
    small_work_goes_where_it_is_done_first_and_bulk_to_both: [Bus, Low, Ggml],
    bench_tells_where_the_two_meet: [Low, Ggml],
}

/// Microseconds that a batch of few tokens takes, by what is known of it.
fn smallest(record: &str) -> Outcome<u64> {
    let json: Value = serde_json::from_str(record)?;
    json["costs"][0]["us"].as_u64().ok_or_else(|| format!("no costs: {record}").into())
}

/// Which has a batch of few tokens done first, if that is clear by what is known now.
fn first(setup: &Setup) -> Outcome<Option<&'static str>> {
    // In the order of their names: that of the CPU first.
    let known = records(setup)?;
    let [(_, cpu), (_, ggml)] = &known[..] else { return Err("not two records".into()) };
    let (cpu, ggml) = (smallest(cpu)?, smallest(ggml)?);
    println!("{cpu} us on the CPU, {ggml} with ggml");
    let is_clear = |least, most| most > least + least / 2;
    Ok(match (is_clear(cpu, ggml), is_clear(ggml, cpu)) {
        (true, _) => Some("cpu"),
        (_, true) => Some("ggml"),
        _ => None,
    })
}

async fn small_work_goes_where_it_is_done_first_and_bulk_to_both() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "ggml");
    let (bus, setup, daemon) = setup.setting("offload", "auto").alone().await?;
    let before = first(&setup)?;
    let mut computed: HashMap<String, usize> = HashMap::new();
    for _ in 0..30 {
        let reply = daemon.client().packed(&["a short text"], HashMap::new()).await?;
        *computed.entry(reply.info("provider")?).or_default() += 1;
    }
    daemon.stop().await?;
    println!("{computed:?}");
    // What another program takes away for a moment may send a few to the other one. Where it took so much that
    // they are near each other or have changed places, the batches say nothing.
    if let (Some(before), Some(after)) = (before, first(&setup)?)
        && before == after
    {
        assert!(computed.get(after).is_some_and(|texts| *texts > 15), "{after}: {computed:?}");
    }
    let daemon = setup.ready(&bus).await?;
    // One that was measured at a bad moment may have nothing to do at first.
    eventually("a call that both compute", async || {
        let reply = daemon.client().packed(&much(), HashMap::new()).await?;
        let provider: String = reply.info("provider")?;
        Ok(provider.contains("cpu") && provider.contains("ggml"))
    })
    .await?;
    daemon.stop().await
}

async fn bench_tells_where_the_two_meet() -> Outcome {
    let cache = tempfile::tempdir()?;
    let mut command = clean(op_dbus());
    command.args(["bench", "--json", "--at", "engine", "--rounds", "2", "--seconds", "0.01"]);
    command.args(["--only", "calls", "--level", "low", "--provider", "ggml", "--offload"]);
    command.env("OP_DBUS_MODEL_DIR", store().join("models"));
    command.env("OP_DBUS_CACHE_DIR", cache.path()).env("OP_DBUS_BATCH_TOKENS_MAX", "512");
    let report: Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
    let crossover = &report["crossovers"][0];
    let devices = crossover["devices"].as_array().ok_or("no devices")?;
    let names: Vec<_> = devices.iter().map(|device| device["device"].clone()).collect();
    assert_eq!(names, ["ggml:0", "cpu:0"], "{report}");
    let firsts = crossover["first"].as_array().ok_or("nobody is first")?;
    assert_eq!(Some(firsts.len()), crossover["tokens"].as_array().map(Vec::len));
    for (size, first) in firsts.iter().enumerate() {
        let cost = |device: &Value| device["batch_us"][size].as_u64();
        let least = devices.iter().min_by_key(|device| cost(device)).ok_or("no devices")?;
        assert_eq!(cost(least), devices.iter().find(|d| d["device"] == *first).and_then(cost));
    }
    Ok(())
}
