//! Memory that is given back: unloaded models, trimmed processes, a machine that sleeps.

use std::fs;
use std::io::{PipeWriter, Write};
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use op_dbus_api::{ErrorName, JobProxy};
use zbus::Connection;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::golden;
use crate::harness::logind::{Logind, closed};
use crate::harness::process::{anonymous, children, runs, send};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};
use crate::providers::ggml;

tests! {
    a_model_that_nobody_calls_is_unloaded: [Bus],
    calls_share_the_load_of_an_unloaded_model: [Bus, Low],
    an_unloaded_model_leaves_no_worker: [Bus, Low],
    an_unload_ends_what_a_slow_source_holds: [Bus, Low, Medium],
    an_idle_level_that_a_slow_source_holds_is_unloaded: [Bus, Low, Medium],
    an_unload_waits_for_calls_that_name_a_level: [Bus, Low, Medium],
    the_watchdog_loads_nothing: [Bus],
    memory_is_given_back_and_counted: [Bus, Low, Medium],
    an_idle_level_is_given_back: [Bus],
    devices_are_released_for_a_sleep: [Bus, Low, Ggml],
    what_is_loaded_during_a_sleep_waits_for_its_end: [Bus, Low, Medium, Ggml],
    calls_after_a_sleep_wait_for_no_answer_of_logind: [Bus, Low, Ggml],
    a_sleep_whose_end_is_not_heard_of_ends: [Bus],
}

/// Asks until the model is loaded, or not.
async fn loaded(daemon: &Daemon, wanted: bool) -> Outcome {
    eventually(&format!("loaded to become {wanted}"), async || {
        Ok(daemon.client().status::<bool>("loaded").await? == wanted)
    })
    .await
}

/// The service has none of these workers any more, and their processes end: the kernel may take longer for that than
/// the service waits.
async fn ended(daemon: &Daemon, workers: &[Pid]) -> Outcome {
    let there = daemon.workers().await?;
    assert!(!there.iter().any(|worker| workers.contains(worker)), "a worker is still there");
    let are_ended = async || Ok(!workers.iter().any(|worker| runs(*worker)));
    eventually("the end of the workers", are_ended).await
}

async fn a_model_that_nobody_calls_is_unloaded() -> Outcome {
    let (setup, manager) = Setup::sim()?.setting("idle_unload_s", "1").managed()?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    let expected = daemon.client().embedder.embed("x").await?;
    let space = daemon.client().embedder.vector_space().await?;
    // It may have been unloaded before the call as well.
    loaded(&daemon, false).await?;
    let told = manager.told("STATUS=Serving sim, unloaded after 1 s without a call").await?;
    assert!(told.contains("the next call loads it"), "{told}");
    assert_eq!(daemon.client().status::<String>("unloaded").await?, "idle");
    let embedder = &daemon.client().embedder;
    assert_eq!(embedder.state().await?, "ready");
    assert_eq!(embedder.vector_space().await?, space);
    assert_eq!(embedder.execution_provider().await?, "sim");
    assert_eq!(embedder.count_tokens(&["x"]).await?.len(), 1);
    assert!(!daemon.client().status::<bool>("loaded").await?, "counting tokens needs no worker");
    assert_eq!(embedder.embed("x").await?, expected);
    let log = daemon.process.stderr();
    assert!(log.contains(" unloaded after 1 s without a call"), "{log}");
    daemon.stop().await
}

async fn calls_share_the_load_of_an_unloaded_model() -> Outcome {
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let texts = golden::plain_texts()?;
    let expected = daemon.client().vectors(&texts).await?;
    daemon.client().manager.unload().await?;
    let clients = join_all((0..8).map(|_| Client::on(&bus))).await;
    let clients: Vec<Client> = clients.into_iter().collect::<Outcome<_>>()?;
    let replies = join_all(clients.iter().map(|client| client.vectors(&texts))).await;
    for reply in replies {
        assert_eq!(reply?, expected);
    }
    assert_eq!(daemon.workers().await?.len(), 1);
    assert_eq!(daemon.client().counter("worker_restarts").await?, 0);
    daemon.stop().await
}

async fn an_unloaded_model_leaves_no_worker() -> Outcome {
    let setup = Setup::real("low")?.setting("workers_per_device", "2");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let manager = &daemon.client().manager;
    let mut at_once = false;
    for _ in 0..5 {
        manager.warm_up().await?;
        let before = daemon.workers().await?;
        assert!(before.len() == 2 && before.iter().all(|worker| runs(*worker)), "{before:?}");
        manager.unload().await?;
        at_once |= !before.iter().any(|worker| runs(*worker));
        assert_eq!(daemon.client().status::<String>("unloaded").await?, "asked");
        ended(&daemon, &before).await?;
    }
    assert!(at_once, "it never waits for their end");
    // Again is no mistake.
    manager.unload().await?;
    manager.warm_up().await?;
    assert!(daemon.client().status::<bool>("loaded").await?);
    let after = daemon.workers().await?;
    assert!(after.len() == 2 && after.iter().all(|worker| runs(*worker)), "{after:?}");
    daemon.client().embedder.embed("x").await?;

    manager.set_vector_level("none").await?;
    manager.unload().await?;
    refused(manager.warm_up().await, ErrorName::Disabled)?;
    daemon.stop().await
}

/// A job with one line of a source that goes on later.
pub async fn slow_source(
    client: &Client,
    options: Options<'_>,
) -> Outcome<(PipeWriter, JobProxy<'static>)> {
    let (source, mut writer) = std::io::pipe()?;
    writer.write_all(b"a line\n")?;
    let job = client.start_job(source, options).await?;
    eventually("the first row", async || Ok(job.rows().await? != 0)).await?;
    Ok((writer, job))
}

/// The next line is answered as well.
async fn goes_on((mut writer, job): (PipeWriter, JobProxy<'_>)) -> Outcome {
    writer.write_all(b"and another\n")?;
    drop(writer);
    let (_, rows, ..) = within("the result", job.fetch()).await??;
    assert_eq!(rows, 2);
    Ok(())
}

async fn an_unload_ends_what_a_slow_source_holds() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let manager = &daemon.client().manager;
    let slow = slow_source(daemon.client(), Options::new()).await?;
    let before = daemon.workers().await?;
    manager.set_vector_level("medium").await?;
    assert!(before.iter().any(|worker| runs(*worker)), "the source has nobody to go on with");
    assert_eq!(daemon.workers().await?[1..], before, "what is in force comes first");
    manager.unload().await?;
    ended(&daemon, &before).await?;
    goes_on(slow).await?;
    daemon.stop().await
}

async fn an_idle_level_that_a_slow_source_holds_is_unloaded() -> Outcome {
    let setup = Setup::real("low")?.setting("idle_unload_s", "1");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let level = Options::from([("level", "medium".into())]);
    let slow = slow_source(daemon.client(), level).await?;
    let process = daemon.process.pid();
    eventually("no worker", async || Ok(children(process)?.is_empty())).await?;
    goes_on(slow).await?;
    daemon.stop().await
}

async fn an_unload_waits_for_calls_that_name_a_level() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let level = Options::from([("level", "medium".into())]);
    daemon.client().packed(&["x"], level).await?;
    let workers = daemon.workers().await?;
    let [_, worker] = workers[..] else { return Err("not one worker of each level".into()) };
    // The call has not ended before it is counted.
    send(Signal::SIGSTOP, worker).await?;
    let embedder = daemon.client().embedder.clone();
    let call = tokio::spawn(async move {
        let texts = vec!["word ".repeat(120); 16];
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let level = Options::from([("level", "medium".into())]);
        embedder.embed_packed(&texts, level).await
    });
    daemon.client().counted("in_flight_calls", 1).await?;
    let unload = daemon.client().manager.unload();
    let (unloaded, goes_on) = tokio::join!(unload, send(Signal::SIGCONT, worker));
    goes_on?;
    unloaded?;
    ended(&daemon, &workers).await?;
    let (_, rows, ..) = within("the call", call).await???;
    assert_eq!(rows, 16);
    daemon.stop().await
}

async fn the_watchdog_loads_nothing() -> Outcome {
    let (setup, manager) = Setup::sim()?.env("WATCHDOG_USEC", "100000").managed()?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    daemon.client().manager.unload().await?;
    manager.told("STATUS=Serving sim, unloaded").await?;
    for _ in 0..5 {
        manager.told("WATCHDOG=1").await?;
    }
    assert!(!daemon.client().status::<bool>("loaded").await?);
    daemon.stop().await
}

async fn memory_is_given_back_and_counted() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let texts = vec!["word ".repeat(120); 256];
    let expected = daemon.client().vectors(&texts).await?;
    // Of another level, with workers of its own.
    let medium = Options::from([("level", "medium".into())]);
    daemon.client().packed(&texts[..4], medium).await?;
    let worker = daemon.workers().await?[0];
    let (daemon_before, worker_before) = (anonymous(daemon.process.pid())?, anonymous(worker)?);
    let bytes = daemon.client().manager.trim_memory().await?;
    let (daemon_after, worker_after) = (anonymous(daemon.process.pid())?, anonymous(worker)?);
    println!(
        "{bytes} bytes; {daemon_before} and {worker_before}, then {daemon_after} and {worker_after}"
    );
    assert!(worker_after < worker_before, "{worker_before} and then {worker_after}");
    assert!(daemon_after < daemon_before, "{daemon_before} and then {daemon_after}");
    // The worker measures itself. The kernel counts a process's pages in batches for each thread, so
    // two looks at the same moment may differ a little.
    const BATCHED: u64 = 2 << 20;
    assert!(bytes + BATCHED > worker_before - worker_after, "the worker's part is counted");
    assert_eq!(daemon.client().status::<u64>("memory_given_back").await?, bytes);
    assert_eq!(daemon.client().status::<u64>("memory_trims").await?, 1);
    assert_eq!(daemon.workers().await?, [worker], "the model in force stays loaded");
    assert_eq!(daemon.client().vectors(&texts).await?, expected);
    // The C library would keep for itself what it once got back.
    daemon.client().manager.trim_memory().await?;
    let worker_again = anonymous(worker)?;
    assert!(worker_again <= worker_after + BATCHED, "{worker_after} and then {worker_again}");
    daemon.stop().await
}

async fn an_idle_level_is_given_back() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let other = Options::from([("level", "high".into())]);
    let told = |words: &str| daemon.process.stderr().matches(words).count();
    let loads = || told("model loaded: sim on sim:0");
    daemon.client().packed(&["x"], other.clone()).await?;
    daemon.client().packed(&["y"], other.clone()).await?;
    assert_eq!(loads(), 2, "at the start, and of this level once");
    let setup = setup.setting("idle_unload_s", "1");
    setup.write_config()?;
    daemon.client().manager.reload().await?;
    // With the settings go all but what is in force.
    daemon.client().packed(&["x"], other.clone()).await?;
    assert_eq!(loads(), 3);
    // Both: what is in force, and this level.
    let are_idle = async || Ok(told(" unloaded after 1 s without a call") == 2);
    eventually("the end of idle models", are_idle).await?;
    daemon.client().packed(&["x"], other).await?;
    assert_eq!(loads(), 4, "it was given back");
    assert!(!daemon.client().status::<bool>("loaded").await?, "another level was asked for");
    daemon.stop().await
}

/// A machine with logind, and a daemon.
struct Machine {
    bus: PrivateBus,
    logind: Logind,
    connection: Connection,
    daemon: Daemon,
    _setup: Setup,
}

async fn machine(setup: Setup) -> Outcome<Machine> {
    let folder = tempfile::tempdir()?;
    let policy = folder.path().join("login1.conf");
    let owner = nix::unistd::User::from_uid(nix::unistd::Uid::current())?.ok_or("no name")?.name;
    fs::write(
        &policy,
        format!(
            "<busconfig><policy user=\"{owner}\"><allow own=\"{0}\"/></policy>\
             <policy context=\"default\"><allow send_destination=\"{0}\"/></policy></busconfig>",
            Logind::NAME
        ),
    )?;
    let bus = PrivateBus::start_with(&[&policy], |dbus| dbus).await?;
    let logind = Logind::default();
    let connection = bus.connect().await?;
    connection.object_server().at(Logind::PATH, logind.clone()).await?;
    connection.request_name(Logind::NAME).await?;
    let daemon = setup.ready(&bus).await?;
    Ok(Machine { bus, logind, connection, daemon, _setup: setup })
}

async fn devices_are_released_for_a_sleep() -> Outcome {
    let Machine { bus, logind, connection, daemon, _setup } = machine(ggml()?).await?;
    let expected = daemon.client().embedder.embed("before and after").await?;
    let delay = logind.delayed().await?;
    let before = daemon.workers().await?;

    // Somebody else's signal is no reason to sleep.
    let stranger = bus.connect().await?;
    Logind::tell(&stranger, true).await?;
    daemon.client().embedder.embed("still here").await?;
    assert!(before.iter().all(|worker| runs(*worker)), "anybody can send the service to sleep");

    logind.turn(&connection, true).await?;
    closed(delay).await?;
    assert_eq!(daemon.client().status::<String>("unloaded").await?, "sleep");
    ended(&daemon, &before).await?;
    let waiting = daemon.client().embed_meanwhile("before and after");
    daemon.client().counted("in_flight_calls", 1).await?;
    logind.turn(&connection, false).await?;
    let found = within("the call that waited", waiting).await???;
    let cosine: f64 = found.iter().zip(&expected).map(|(a, b)| a * b).sum();
    assert!(cosine >= 0.9999, "{cosine}");
    loaded(&daemon, true).await?;
    drop(logind.delayed().await?);
    daemon.stop().await
}

/// Calls and changes that load a model may come after everybody was told of the sleep.
async fn what_is_loaded_during_a_sleep_waits_for_its_end() -> Outcome {
    let Machine { bus: _bus, logind, connection, daemon, _setup } = machine(ggml()?).await?;
    let delay = logind.delayed().await?;
    logind.turn(&connection, true).await?;
    closed(delay).await?;
    let embedder = daemon.client().embedder.clone();
    let call = tokio::spawn(async move {
        embedder.embed_packed(&["x"], Options::from([("level", "medium".into())])).await
    });
    for _ in 0..100 {
        assert_eq!(
            daemon.workers().await?.len(),
            1,
            "a device is taken while the machine falls asleep"
        );
        assert!(!call.is_finished(), "a device computes while the machine falls asleep");
    }
    logind.turn(&connection, false).await?;
    within("the call that waited", call).await???;
    daemon.stop().await
}

async fn calls_after_a_sleep_wait_for_no_answer_of_logind() -> Outcome {
    let Machine { bus, logind, connection, daemon, _setup } = machine(ggml()?).await?;
    let delay = logind.delayed().await?;
    logind.turn(&connection, true).await?;
    closed(delay).await?;
    logind.is_deaf.store(true, Ordering::SeqCst);
    logind.turn(&connection, false).await?;
    within("a call after the sleep", daemon.client().embedder.embed("x")).await??;
    // Nor for what anybody sends meanwhile, of which only so much has a place in a queue.
    let stranger = bus.connect().await?;
    let to = Some(op_dbus_api::BUS_NAME);
    for _ in 0..256 {
        let interface = Logind::NAME.to_owned() + ".Manager";
        stranger.emit_signal(to, Logind::PATH, interface, "PrepareForSleep", &true).await?;
    }
    within("a call after the flood", daemon.client().embedder.embed("x")).await??;
    logind.turn(&connection, true).await?;
    loaded(&daemon, false).await?;
    assert_eq!(daemon.client().status::<String>("unloaded").await?, "sleep");
    daemon.stop().await
}

/// As a bus that has no room for the signal drops it.
async fn a_sleep_whose_end_is_not_heard_of_ends() -> Outcome {
    let Machine { bus: _bus, logind, connection, daemon, _setup } = machine(Setup::sim()?).await?;
    let delay = logind.delayed().await?;
    logind.turn(&connection, true).await?;
    closed(delay).await?;
    logind.sleeps.store(false, Ordering::SeqCst);
    // Who is awake delays the next one.
    drop(logind.delayed().await?);
    daemon.stop().await
}
