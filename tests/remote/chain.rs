//! A fleet among other providers: last in the chain of fallbacks, beside the CPU, and after a reload.

use std::fs;

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;

use super::{Far, TEXTS, fleet, impatient, nowhere, serves, some_more};
use crate::harness::bus::PrivateBus;
use crate::harness::client::refused;
use crate::harness::fleet::{Ports, Server, compiled};
use crate::harness::gateway::Gateway;
use crate::harness::load::Load;
use crate::harness::process::send;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};
use crate::providers::{movable, provider};

tests! {
    calls_move_from_a_device_to_triton_and_back: [Bus, Low, Runtime, Ggml, Triton],
    what_was_asked_of_the_device_does_not_hold_for_the_fleet: [Bus, Low],
    a_fleet_that_is_nowhere_is_a_reason_too: [Bus, Low],
    the_cpu_computes_beside_triton: [Bus, Low, Runtime, Triton],
    the_cpu_answers_who_waits_for_a_silent_fleet: [Bus, Low],
    a_reload_moves_to_other_endpoints_without_a_lost_call: [Bus, Low],
    a_reload_that_fails_changes_nothing: [Bus, Low],
    a_reload_reads_the_token_again: [Bus, Low],
}

async fn calls_move_from_a_device_to_triton_and_back() -> Outcome {
    let bus = PrivateBus::start().await?;
    let graph = compiled("low").await?;
    let triton = Server::triton(&graph, "low", Ports::default()).await?;
    let (setup, library, away) = movable()?;
    let setup = setup.setting("fallback", "remote");
    let setup = setup.setting("providers.remote.endpoints", triton.url());
    let setup = setup.setting("providers.remote.model", "low");
    let daemon = setup.ready(&bus).await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let load = Load::start(&bus, &TEXTS).await?;
    some_more(&daemon).await?;
    fs::rename(&library, &away)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "remote");
    assert!(reason.contains("ggml does not work here"), "{reason}");
    some_more(&daemon).await?;
    fs::rename(&away, &library)?;
    daemon.client().manager.reload().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    some_more(&daemon).await?;
    assert_eq!(load.stop().await?, ["ggml:0", "remote:0"].map(str::to_owned).into());
    daemon.stop().await
}

/// There is no such card, and no second endpoint either.
async fn what_was_asked_of_the_device_does_not_hold_for_the_fleet() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    let setup = setup.setting("execution_provider", "cuda").setting("fallback", "remote");
    let setup = setup.setting("gpu_device", "1").setting("precision", "f16");
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "remote");
    assert!(reason.starts_with("cuda"), "{reason}");
    let reply = daemon.client().packed(&["who?"], Default::default()).await?;
    assert_eq!(reply.info::<String>("device")?, "remote:0");
    assert_eq!(reply.info::<String>("precision")?, "f32");
    let said = daemon.process.stderr();
    assert!(said.contains("precision is f16") && said.contains("has no effect"), "{said}");
    daemon.stop().await?;
    far.daemon.stop().await
}

async fn a_fleet_that_is_nowhere_is_a_reason_too() -> Outcome {
    let (_reserved, nowhere) = nowhere()?;
    let setup = fleet("low", "oip", &[&nowhere])?;
    let setup = setup.setting("execution_provider", "cuda").setting("fallback", "remote,cpu");
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.contains(&format!("; remote: {nowhere} can't be used")), "{reason}");
    daemon.stop().await
}

async fn the_cpu_computes_beside_triton() -> Outcome {
    let bus = PrivateBus::start().await?;
    let graph = compiled("low").await?;
    let mut triton = Server::triton(&graph, "low", Ports::default()).await?;
    let setup = fleet("low", "oip", &[triton.url()])?;
    let setup = setup.setting("fallback", "cpu").setting("offload", "auto");
    let setup = setup.setting("providers.remote.model", "low");
    // More than a whole batch takes on a busy machine: nothing is to be lost while the fleet is there.
    let setup = setup.setting("providers.remote.batch_timeout_s", "16");
    let setup = setup.setting("providers.remote.request_timeout_s", "15");
    let daemon = setup.ready(&bus).await?;
    assert_eq!(provider(&daemon).await?, ("remote".to_owned(), String::new()));
    // More at once than either does in a moment, so that both compute.
    let load = Load::start(&bus, &TEXTS.repeat(200)).await?;
    some_more(&daemon).await?;
    let url = triton.url().to_owned();
    let ports = triton.kill().await?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.contains(&format!("remote: {url} can't be used")), "{reason}");
    some_more(&daemon).await?;
    triton = Server::triton(&graph, "low", ports).await?;
    daemon.client().manager.reload().await?;
    assert_eq!(provider(&daemon).await?, ("remote".to_owned(), String::new()));
    some_more(&daemon).await?;
    assert_eq!(load.stop().await?, ["remote:0", "cpu:0"].map(str::to_owned).into());
    drop(triton);
    daemon.stop().await
}

/// After a batch and one load that nobody answers: it would have been a batch and four loads.
async fn the_cpu_answers_who_waits_for_a_silent_fleet() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let setup = impatient(fleet("low", "openai", &[&gateway.url("")])?).setting("fallback", "cpu");
    let (_bus, _setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?.0, "remote");
    send(Signal::SIGSTOP, gateway.process.pid()).await?;
    let call = daemon.client().packed(&["is anybody there?"], Default::default());
    let reply = within("the CPU's answer", call).await??;
    assert_eq!(reply.info::<String>("device")?, "cpu:0");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    let lost = "remote could not be loaded again in ";
    assert!(reason.contains(lost) && reason.contains(&gateway.url("")), "{reason}");
    gateway.process.signal(Signal::SIGCONT)?;
    daemon.stop().await?;
    far.daemon.stop().await
}

async fn a_reload_moves_to_other_endpoints_without_a_lost_call() -> Outcome {
    let far = Far::start("low").await?;
    let (one, two) = (far.gateway().await?, far.gateway().await?);
    let (bus, setup, daemon) = fleet("low", "openai", &[&one.url("")])?.alone().await?;
    let load = Load::start(&bus, &TEXTS).await?;
    some_more(&daemon).await?;
    let setup = setup.setting("providers.remote.endpoints", &two.url(""));
    setup.write_config()?;
    // As systemd asks for it.
    let before = daemon.workers().await?;
    daemon.process.signal(Signal::SIGHUP)?;
    // They are told of until the last call has left them.
    eventually("other workers alone", async || {
        Ok(!daemon.workers().await?.iter().any(|worker| before.contains(worker)))
    })
    .await?;
    some_more(&daemon).await?;
    // Nobody asks there any more.
    one.process.signal(Signal::SIGKILL)?;
    some_more(&daemon).await?;
    load.stop().await?;
    serves(&daemon, "low").await?;
    let said = daemon.process.stderr();
    assert!(!said.contains("an endpoint is not used for now"), "{said}");
    daemon.stop().await?;
    far.daemon.stop().await
}

async fn a_reload_that_fails_changes_nothing() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let (_bus, setup, daemon) = fleet("low", "openai", &[&gateway.url("")])?.alone().await?;
    let worker = daemon.workers().await?;
    let mut setup = setup;
    let (_reserved, nowhere) = nowhere()?;
    let absent = "can't be used: Connection refused";
    for (endpoint, name, word) in [
        (nowhere.as_str(), ErrorName::ProviderUnavailable, absent),
        ("http://10.0.0.1:1", ErrorName::InvalidArgument, "endpoints has http for 10.0.0.1"),
        ("embed.example:1", ErrorName::InvalidArgument, "providers.remote.endpoints"),
    ] {
        setup = setup.setting("providers.remote.endpoints", endpoint);
        setup.write_config()?;
        let message = refused(daemon.client().manager.reload().await, name)?;
        assert!(message.contains(word), "{message}");
        serves(&daemon, "low").await?;
        assert_eq!(daemon.workers().await?, worker);
    }
    daemon.stop().await?;
    far.daemon.stop().await
}

async fn a_reload_reads_the_token_again() -> Outcome {
    let far = Far::start("low").await?;
    let credentials = tempfile::tempdir()?;
    let key = credentials.path().join("api-key");
    fs::write(&key, "the-first")?;
    let gateway = Gateway::with_key(&far.bus, &far.setup, credentials.path()).await?;
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "the-first")?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    let setup = setup.setting("providers.remote.token_file", &token.display().to_string());
    let (_bus, _setup, daemon) = setup.alone().await?;
    let manager = &daemon.client().manager;
    // A wrong one is told, and the one that is right goes on.
    fs::write(&token, "the-second")?;
    let message = refused(manager.reload().await, ErrorName::ProviderUnavailable)?;
    assert!(message.contains("it answers 401"), "{message}");
    serves(&daemon, "low").await?;
    fs::write(&token, "the-first")?;
    within("a reload", manager.reload()).await??;
    serves(&daemon, "low").await?;
    daemon.stop().await?;
    far.daemon.stop().await
}
