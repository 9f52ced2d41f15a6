//! Whether the service embeds, as balancers ask it.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use super::limits::{all_answered, requests};
use super::{Stage, sentence};
use crate::harness::balancer::Balancer;
use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};

tests! {
    a_busy_service_is_ready_while_vectors_come: [Bus, Curl, Low, Ggml],
    a_service_that_refuses_the_trial_is_ready_while_vectors_come: [Bus, Curl],
    a_balancer_finds_a_gateway_without_a_key: [Bus, Haproxy],
    who_has_no_key_is_told_that_it_does_not_embed_and_not_why: [Bus, Curl],
}

async fn a_busy_service_is_ready_while_vectors_come() -> Outcome {
    let setup = Setup::real("low")?.setting("batch_tokens_max", "128");
    let setup = setup.setting("execution_provider", "ggml");
    let stage = Stage::of(setup.setting("providers.ggml.faults", "us_per_token=2000")).await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    // 13 s of work, begun when all of it is there, and the trial is behind it.
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = requests(gateway, 64, &["word ".repeat(100).as_str()])?;
    client.counted("in_flight_calls", 64).await?;
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    gateway.get("/ready").await?.ok()?;
    assert!(client.counter("in_flight_calls").await? > 0, "the trial was embedded");
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let is_told = async || Ok(gateway.get("/ready").await?.status == 503);
    eventually("a worker that hangs to be told", is_told).await?;
    drop(waiting);
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    stage.end().await.map(drop)
}

async fn a_service_that_refuses_the_trial_is_ready_while_vectors_come() -> Outcome {
    for _ in 0..5 {
        // On a busy machine the vectors may come too late.
        if ready_after_a_refusal().await? == 200 {
            return Ok(());
        }
    }
    Err("never ready".into())
}

/// What `/ready` answers where the trial is refused and vectors come behind that.
async fn ready_after_a_refusal() -> Outcome<u16> {
    let stage = Stage::of(Setup::sim()?.setting("batch_tokens_max", "256")).await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    let text = "x".repeat(100);
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let slow = requests(gateway, 1, &[text.as_str(); 2])?;
    client.counted("in_flight_calls", 1).await?;
    // For the 10 s until this gives up, so that the service has seen some 20 tokens a second.
    assert_eq!(gateway.get("/ready").await?.status, 503);
    all_answered(&stage, slow).await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = requests(gateway, 1, &[text.as_str(); 8])?;
    client.counted("in_flight_calls", 1).await?;
    let vectors_come = async {
        eventually("the trial's refusal", async || Ok(client.failures("overloaded").await? > 0))
            .await?;
        all_answered(&stage, waiting).await
    };
    let (ready, ()) = tokio::try_join!(gateway.get("/ready"), vectors_come)?;
    stage.end().await?;
    Ok(ready.status)
}

async fn a_balancer_finds_a_gateway_without_a_key() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let gateway = Gateway::start(&bus, &setup).await?;
    let node = gateway.url("");
    let balancer = Balancer::of_one(node.trim_start_matches("http://"), &setup.path("")).await?;
    balancer.has(1, "DOWN").await?;
    let daemon = setup.ready(&bus).await?;
    balancer.has(1, "UP").await?;
    drop(balancer);
    gateway.stop().await?;
    daemon.stop().await
}

async fn who_has_no_key_is_told_that_it_does_not_embed_and_not_why() -> Outcome {
    let setup = Setup::sim()?.setting("cpu_engine", "native").setting("model", "own");
    let (bus, setup, daemon) = setup.alone_as("failed").await?;
    let open = Gateway::start(&bus, &setup).await?;
    fs::write(setup.path("api-key"), "open-sesame")?;
    let locked = Gateway::with_key(&bus, &setup, &setup.path("")).await?;
    let key = |key| format!("Authorization: Bearer {key}");
    for (gateway, key, is_told) in [
        (&open, key("none"), true),
        (&locked, key("none"), false),
        (&locked, key("open-sesame"), true),
    ] {
        let ready = gateway.curl("/ready", &["-H", &key], "").await?;
        assert_eq!((ready.status, &ready.json()?["code"]), (503, &json!("model_not_installed")));
        let said = sentence(&ready, "/")?;
        assert_eq!(said.contains("config.toml"), is_told, "{said}");
        assert_eq!(said.contains("ask with the API key why"), !is_told, "{said}");
    }
    for gateway in [open, locked] {
        gateway.stop().await?;
    }
    daemon.stop().await
}
