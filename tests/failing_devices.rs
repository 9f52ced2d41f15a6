//! Devices that fail on purpose, through the very processes that compute on them: what `faults` in a
//! provider's table brings about, and what becomes of calls then.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, pid, refused, value};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::golden::cosine;
use crate::harness::load::Load;
use crate::harness::needs::hang_in_its_load;
use crate::harness::process::{children, runs};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};
use crate::offload::much;
use crate::providers::{beside, fallbacks, ggml, movable, provider, told_of};

tests! {
    one_that_dies_in_its_proof_leaves_it_to_the_next: [Bus, Low, Ggml] =>
        leaves_it_to_the_next("die_on_batch=1", &["ggml does not work here", "die on batch 1"]),
    one_that_is_wrong_for_more_than_one_short_text_is_not_trusted: [Bus, Low, Ggml] =>
        leaves_it_to_the_next("wrong_above_tokens=16", &["can't be trusted on", "one of 3 in a batch"]),
    one_that_is_lost_now_and_then_loses_no_call: [Bus, Low, Ggml],
    one_that_is_lost_again_and_again_is_left_without_a_lost_call: [Bus, Low, Ggml],
    one_that_fails_whatever_it_is_asked_is_left_without_a_lost_call: [Bus, Low, Ggml],
    one_that_hangs_once_is_replaced: [Bus, Low, Ggml],
    one_that_hangs_whenever_it_is_asked_is_left_and_comes_back: [Bus, Low, Ggml],
    a_successor_that_takes_long_starves_no_watchdog: [Bus, Low, Ggml],
    one_that_takes_long_to_refuse_holds_no_change_up: [Bus, Low, Ggml],
    one_that_hangs_in_its_load_holds_no_stop_up: [Bus, Low, Ggml],
    one_without_memory_has_its_batches_halved: [Bus, Low, Ggml],
    one_that_answers_nonsense_is_asked_again: [Bus, Low, Ggml],
    one_that_was_not_there_is_taken_up_by_itself: [Bus, Low, Ggml],
    one_that_has_lost_a_level_does_not_come_into_force_with_it: [Bus, Low, Ggml],
    one_that_is_lost_for_good_computes_nowhere: [Bus, Low, Ggml],
    one_that_fails_another_level_after_a_change_is_told: [Bus, Low, High, Ggml],
    one_that_is_better_and_not_what_was_asked_for_is_told: [Bus, Low, Medium, Ggml],
    what_one_has_left_of_its_proof_goes: [Bus, Low, Ggml],
    one_that_is_not_there_is_refused_and_not_told_as_lost: [Bus, Low, Ggml],
    faults_that_are_none_are_named: [Bus],
}

fn with_fallback(faults: &str) -> Outcome<Setup> {
    let setup = Setup::real("low")?.setting("execution_provider", "ggml");
    Ok(setup.setting("providers.ggml.faults", faults))
}

/// What the CPU serves instead, and why.
async fn fell_back(daemon: &Daemon) -> Outcome<String> {
    let (active, reason) = provider(daemon).await?;
    assert_eq!(active, "cpu");
    let reply = daemon.client().packed(&["served"], HashMap::new()).await?;
    assert_eq!(reply.info::<String>("provider")?, "cpu");
    Ok(reason)
}

/// One with `faults` is left for the next, for these reasons.
async fn leaves_it_to_the_next(faults: &str, reasons: &[&str]) -> Outcome {
    let setup = with_fallback(faults)?.setting("cpu_isa", "portable");
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let reason = fell_back(&daemon).await?;
    assert!(reasons.iter().all(|part| reason.contains(part)), "{reason}");
    assert!(!reason.contains("cpu_isa"), "that is of the CPU alone: {reason}");
    assert!(daemon.process.stderr().contains("faults on purpose"), "{}", daemon.process.stderr());
    daemon.stop().await
}

async fn one_that_is_lost_now_and_then_loses_no_call() -> Outcome {
    let bus = PrivateBus::start().await?;
    // More batches until it is lost again than it takes to forget that, and than a batch has rows: each of these is
    // tried again alone, and once.
    let setup = with_fallback("die_on_batch=44")?.setting("batch_tokens_max", "128");
    let daemon = setup.ready(&bus).await?;
    let load = Load::start(&bus, &much()).await?;
    daemon.client().counted("worker_restarts", 3).await?;
    load.stop().await?;
    daemon.stop().await
}

/// Its workers compute some batches each: few, or many and fewer than one that is lost has texts.
async fn one_that_is_lost_again_and_again_is_left_without_a_lost_call() -> Outcome {
    let short: Vec<String> = (0..400).map(|n| format!("disk {n}")).collect();
    is_left_under_load("die_on_batch=9", &much(), "").await?;
    is_left_under_load("die_on_batch=40", &short, "").await
}

/// As in a context of CUDA's in which a kernel has failed: its workers live on, and compute nothing.
async fn one_that_fails_whatever_it_is_asked_is_left_without_a_lost_call() -> Outcome {
    is_left_under_load("fail_from_batch=9", &much(), "it failed a batch (it was told").await
}

/// One with `faults` is left for the CPU while clients call, for a loss that is told by words that begin so.
async fn is_left_under_load(faults: &str, texts: &[String], why: &str) -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_fallback(faults)?;
    let daemon = setup.ready(&bus).await?;
    let load = Load::start(&bus, texts).await?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let reason = fell_back(&daemon).await?;
    let lost = format!("ggml lost 2 batches of late (the worker was lost: {why}");
    assert!(reason.contains(&lost), "{reason}");
    assert_eq!(fallbacks(&daemon).await?, (1, 1));
    load.stop().await?;
    daemon.stop().await
}

/// What its proof may take on a busy machine is what a batch may take here.
const BATCH_S: &str = "10";

/// Each worker's fifth batch: those of its proof and one call are before it.
async fn one_that_hangs_once_is_replaced() -> Outcome {
    let setup = with_fallback("hang_on_batch=5")?.setting("batch_timeout_s", BATCH_S);
    let (_bus, _setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let expected = client.vectors(&["a text"]).await?;
    let before = daemon.workers().await?;
    let reply = client.packed(&["a text"], HashMap::new()).await?;
    assert!(cosine(&reply.vectors[0], &expected[0]) >= 0.9999);
    assert_eq!(reply.info::<String>("provider")?, "ggml");
    assert_eq!(
        (client.counter("worker_restarts").await?, client.counter("retries").await?),
        (1, 1)
    );
    assert_ne!(daemon.workers().await?, before);
    let said = daemon.process.stderr();
    assert!(said.contains(&format!("it said nothing for {BATCH_S} s")), "{said}");
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.stop().await
}

/// Its workers prove themselves and hang in the first batch of a caller.
async fn one_that_hangs_whenever_it_is_asked_is_left_and_comes_back() -> Outcome {
    let setup = with_fallback("hang_on_batch=4")?.setting("batch_timeout_s", BATCH_S);
    let (bus, _setup, daemon) = setup.setting("provider_retry_s", "3").alone().await?;
    let clients: Vec<Client> = vec![Client::on(&bus).await?, Client::on(&bus).await?];
    // One is computed when the device hangs, the other waits.
    let texts = much();
    let calls = clients.iter().map(|client| client.packed(&texts, HashMap::new()));
    for reply in join_all(calls).await {
        assert_eq!(reply?.info::<String>("provider")?, "cpu");
    }
    let said = daemon.process.stderr();
    let left = "another provider runs than was asked for: ggml lost 2 batches of late (the worker was lost: it said nothing";
    assert!(said.contains(left), "{said}");
    assert_eq!(daemon.client().counter("worker_restarts").await?, 2);
    // Nobody has to ask for it.
    assert_eq!(daemon.state(|state| state == "ready").await?, "ready");
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.stop().await
}

/// A fleet that says nothing is waited for, before the CPU takes over.
async fn a_successor_that_takes_long_starves_no_watchdog() -> Outcome {
    let bus = PrivateBus::start().await?;
    let fleet = TcpListener::bind("127.0.0.1:0")?;
    let setup = with_fallback("hang_on_batch=4")?.setting("batch_timeout_s", BATCH_S);
    let setup = setup.setting("providers.remote.batch_timeout_s", "3");
    let setup = setup.setting("fallback", "remote, cpu");
    let endpoint = format!("http://{}", fleet.local_addr()?);
    let setup = setup.setting("providers.remote.endpoints", &endpoint);
    let setup = setup.setting("providers.remote.request_timeout_s", "3");
    let (setup, manager) = setup.env("WATCHDOG_USEC", "2000000").managed()?;
    let daemon = setup.start(&bus).await?;
    manager.told("READY=1").await?;
    let client = Client::on(&bus).await?;
    let call = tokio::spawn(async move { client.packed(&["a text"], HashMap::new()).await });
    while !call.is_finished() {
        manager.told("WATCHDOG=1").await?;
    }
    assert_eq!(call.await??.info::<String>("provider")?, "cpu");
    let said = daemon.process.stderr();
    assert!(said.contains("ggml lost 2 batches of late"), "{said}");
    assert!(said.contains(&endpoint), "the fleet was not tried: {said}");
    // Once it may be: the next time still comes within the manager's limit.
    assert!(said.matches("the watchdog is not fed").count() < 2, "{said}");
    daemon.stop().await
}

/// The device is there again and hangs in its proof, for longer than anybody waits.
async fn one_that_takes_long_to_refuse_holds_no_change_up() -> Outcome {
    let (setup, library, away) = movable()?;
    let setup = setup.setting("providers.ggml.faults", "hang_on_batch=1");
    let setup = setup.setting("batch_timeout_s", "3600").setting("provider_retry_s", "1");
    fs::rename(&library, &away)?;
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let tries = || daemon.process.stderr().matches("faults on purpose").count();
    let before = tries();
    fs::rename(&away, &library)?;
    eventually("a try of what hangs", async || Ok(tries() > before)).await?;
    let manager = &daemon.client().manager;
    within("a change", manager.set_vector_level("none")).await??;
    assert_eq!(daemon.client().embedder.state().await?, "disabled");
    daemon.stop().await
}

/// When its model is loaded again.
async fn one_that_hangs_in_its_load_holds_no_stop_up() -> Outcome {
    let (setup, library, _) = movable()?;
    let (_bus, _setup, mut daemon) = setup.setting("load_timeout_s", "3600").alone().await?;
    let manager = daemon.client().manager.clone();
    manager.unload().await?;
    let process = daemon.process.pid();
    eventually("no worker", async || Ok(children(process)?.is_empty())).await?;
    hang_in_its_load(&library)?;
    let warm_up = tokio::spawn(async move { manager.warm_up().await });
    eventually("a worker that loads", async || Ok(!children(process)?.is_empty())).await?;
    let workers = children(process)?;
    daemon.process.signal(Signal::SIGTERM)?;
    refused(within("the end of the call", warm_up).await??, ErrorName::ShuttingDown)?;
    assert!(daemon.process.ended().await?.success());
    let said = daemon.process.stderr();
    assert!(!said.contains("not all work was done"), "{said}");
    let are_ended = async || Ok(!workers.iter().any(|worker| runs(*worker)));
    eventually("the end of the worker", are_ended).await
}

async fn one_without_memory_has_its_batches_halved() -> Outcome {
    // Of the largest batch an eighth fits in the first case and not in the second.
    for (fit, restarts_max) in [(3, 0), (1, 1)] {
        let setup = ggml()?.setting("providers.ggml.faults", &format!("oom_above_rows={fit}"));
        let (_bus, _setup, daemon) = setup.alone().await?;
        let texts: Vec<String> = (0..20).map(|n| format!("disk {n} is full")).collect();
        for _ in 0..3 {
            let reply = daemon.client().packed(&texts, HashMap::new()).await?;
            let provider = reply.info::<String>("provider")?;
            assert_eq!((reply.vectors.len(), provider), (20, "ggml".to_owned()));
        }
        assert!(daemon.client().counter("worker_restarts").await? <= restarts_max);
        assert!(daemon.client().counter("batches").await? >= 20 / fit, "smaller than {fit} rows");
        assert!(daemon.process.stderr().contains("at most for now: out of memory"));
    }
    Ok(())
}

async fn one_that_answers_nonsense_is_asked_again() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = ggml()?;
    let sound = setup.ready(&bus).await?;
    let expected = sound.client().vectors(&["a text"]).await?;
    sound.stop().await?;
    let setup = setup.setting("providers.ggml.faults", "nan_on_batch=8");
    let daemon = setup.ready(&bus).await?;
    // The eighth of its batches is among these.
    for _ in 0..8 {
        let found = daemon.client().vectors(&["a text"]).await?;
        assert!(cosine(&found[0], &expected[0]) >= 0.9999);
    }
    assert!(daemon.client().counter("worker_restarts").await? >= 1);
    daemon.stop().await
}

/// As a driver or a network that comes after the service: nothing serves, and nobody reloads.
async fn one_that_was_not_there_is_taken_up_by_itself() -> Outcome {
    let (setup, library, away) = movable()?;
    let setup = setup.setting("fallback", "none").setting("provider_retry_s", "1");
    fs::rename(&library, &away)?;
    let (_bus, _setup, daemon) = setup.alone_as("failed").await?;
    refused(daemon.client().embedder.embed("x").await, ErrorName::ProviderUnavailable)?;
    fs::rename(&away, &library)?;
    assert_eq!(daemon.state(|state| state != "failed").await?, "ready");
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// Waits until so many fallbacks are told, and no more.
async fn told(daemon: &Daemon, wanted: usize) -> Outcome {
    eventually("fallbacks in the log", async || Ok(fallbacks(daemon).await?.1 >= wanted)).await?;
    assert_eq!(fallbacks(daemon).await?, (wanted as u64, wanted));
    Ok(())
}

/// It computes what is in force, and nobody calls the other level meanwhile.
async fn one_that_fails_another_level_after_a_change_is_told() -> Outcome {
    // `high` ends each text with it, and `low` none.
    let setup = with_fallback("die_on_token=2")?.setting("execution_provider", "cpu");
    let (_bus, _setup, daemon) = setup.alone().await?;
    beside(&daemon, "high").await?;
    daemon.client().manager.set_execution_provider("ggml").await?;
    told(&daemon, 1).await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.stop().await
}

/// Both levels move from the last provider to the one before it, of three.
async fn one_that_is_better_and_not_what_was_asked_for_is_told() -> Outcome {
    let (setup, library, away) = movable()?;
    let setup = setup.setting("execution_provider", "coreml").setting("provider_retry_s", "1");
    let setup = setup.env("OP_DBUS_FALLBACK", "ggml,cpu");
    fs::rename(&library, &away)?;
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    beside(&daemon, "medium").await?;
    told(&daemon, 2).await?;
    fs::rename(&away, &library)?;
    told(&daemon, 4).await?;
    assert_eq!(provider(&daemon).await?.0, "ggml");
    daemon.stop().await
}

/// Of a worker that was ended meanwhile, once another one could not prove itself either.
async fn what_one_has_left_of_its_proof_goes() -> Outcome {
    let (_bus, setup, daemon) = ggml()?.alone().await?;
    let left = setup.cached()?.join(".proving-Xy12ab");
    fs::create_dir(&left)?;
    let long_ago = SystemTime::now() - Duration::from_secs(24 * 60 * 60);
    fs::File::open(&left)?.set_modified(long_ago)?;
    let change = daemon.client().manager.set_devices(&["7"]).await;
    refused(change, ErrorName::ProviderUnavailable)?;
    assert!(!left.exists());
    daemon.stop().await
}

/// Beside one that is there, whose worker goes with it.
async fn one_that_is_not_there_is_refused_and_not_told_as_lost() -> Outcome {
    let (_bus, _setup, daemon) = ggml()?.alone().await?;
    let change = daemon.client().manager.set_devices(&["0", "7"]).await;
    let why = refused(change, ErrorName::ProviderUnavailable)?;
    assert!(why.contains("ggml has one device here, 0, and gpu_device names 7"), "{why}");
    let said = daemon.process.stderr();
    assert!(said.contains("gpu_device is not changed to 0,7: "), "{said}");
    for lost in ["could not be loaded on", "worker lost", "can't be replaced"] {
        assert!(!said.contains(lost), "{said}");
    }
    daemon.stop().await
}

async fn faults_that_are_none_are_named() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("providers.ggml.faults", "explode=1");
    let Err(error) = setup.start(&bus).await else { return Err("it has started".into()) };
    let said = error.to_string();
    for part in ["providers.ggml.faults", "explode", "die_on_batch"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    Ok(())
}

/// It is loaded for calls that name it, and its worker can't be had again.
async fn one_that_has_lost_a_level_does_not_come_into_force_with_it() -> Outcome {
    let (setup, library, away) = movable()?;
    let (_bus, _setup, daemon) = setup.setting("fallback", "none").alone().await?;
    let before = daemon.client().workers().await?;
    beside(&daemon, "high").await?;
    fs::rename(&library, &away)?;
    for worker in daemon.client().workers().await? {
        if !before.iter().any(|known| pid(known).ok() == pid(&worker).ok()) {
            nix::sys::signal::kill(pid(&worker)?, Signal::SIGKILL)?;
        }
    }
    let high = || Options::from([("level", "high".into())]);
    refused(daemon.client().packed(&["x"], high()).await, ErrorName::WorkerFailed)?;
    let change = daemon.client().manager.set_vector_level("high").await;
    refused(change, ErrorName::ProviderUnavailable)?;
    assert_eq!(daemon.client().embedder.state().await?, "ready");
    assert_eq!(daemon.client().embedder.vector_level().await?, "low");
    daemon.client().embedder.embed("x").await?;
    fs::rename(&away, &library)?;
    daemon.client().manager.set_vector_level("high").await?;
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// And the list of providers says what keeps it from that.
async fn one_that_is_lost_for_good_computes_nowhere() -> Outcome {
    let (setup, library, away) = movable()?;
    let (_bus, _setup, daemon) = setup.setting("fallback", "none").alone().await?;
    let told = told_of(&daemon, "ggml").await?;
    assert_eq!(value::<Vec<String>>(&told, "devices")?, ["ggml:0"]);
    fs::rename(&library, &away)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    refused(daemon.client().embedder.embed("x").await, ErrorName::WorkerFailed)?;
    assert_eq!(daemon.state(|state| state != "ready").await?, "failed");
    let told = told_of(&daemon, "ggml").await?;
    assert!(value::<Vec<String>>(&told, "devices")?.is_empty(), "{told:?}");
    assert!(!value::<bool>(&told, "available")?);
    let reason: String = value(&told, "reason")?;
    assert!(reason.contains("its library"), "{reason}");
    daemon.stop().await
}
