//! Start, reload, stop and restart, and what the bus and the service manager are told meanwhile.

mod priority;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use op_dbus_api::{BUS_NAME, ErrorName, MANAGER_INTERFACE, ROOT_PATH};
use tokio::net::UnixListener;
use zbus::fdo::PropertiesProxy;
use zbus::message::Type;
use zbus::{MatchRule, Message, MessageStream};

use crate::faults::limit;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, Told, refused};
use crate::harness::command::{clean, finish, started_by};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::manager::ServiceManager;
use crate::harness::needs::op_dbus;
use crate::harness::process::{Process, children, runs};
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, eventually, within};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    [tests(), priority::tests()].into_iter().flatten().collect()
}

tests! {
    the_service_manager_is_told: [Bus],
    the_watchdog_is_fed: [Bus],
    the_watchdog_is_fed_while_a_worker_hangs: [Bus],
    the_watchdog_is_not_fed_while_no_worker_can_be_had: [Bus],
    a_reload_takes_new_settings: [Bus],
    a_reload_with_mistakes_changes_nothing: [Bus],
    a_change_of_level_is_told_and_kept: [Bus],
    a_change_is_told_before_its_reply: [Bus],
    the_first_workers_end_with_the_first_change: [Bus],
    a_damaged_state_file_is_moved_aside: [Bus],
    a_second_daemon_gives_way: [Bus],
    workers_go_first_when_memory_runs_out: [Bus],
    more_files_than_a_shell_leaves_it: [Bus],
    a_bus_that_dies_ends_the_daemon: [Bus],
    a_bus_that_hangs_does_not_keep_the_daemon: [Bus],
    workers_log_what_the_setting_says: [Bus, Low],
    a_fallback_is_told: [Bus],
    without_a_fallback_it_fails: [Bus],
    other_dimensions_are_refused: [Bus],
}

async fn the_service_manager_is_told() -> Outcome {
    let (setup, manager) = Setup::sim()?.managed()?;
    let (_bus, _setup, mut daemon) = setup.alone().await?;
    let started = manager.told("READY=1").await?;
    assert!(started.contains("STATUS="), "{started}");

    daemon.process.signal(Signal::SIGHUP)?;
    let reloading = manager.told("RELOADING=1").await?;
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    // What it loads may take longer than a reload may by itself.
    manager.told("EXTEND_TIMEOUT_USEC=120000000").await?;
    manager.told("READY=1").await?;

    daemon.client().manager.set_vector_level("none").await?;
    manager.told("STATUS=").await?;
    daemon.process.signal(Signal::SIGTERM)?;
    manager.told("STOPPING=1").await?;
    assert!(daemon.process.ended().await?.success());
    Ok(())
}

/// A daemon whose watchdog a service manager waits for; it was fed once.
async fn watched() -> Outcome<(PrivateBus, Setup, ServiceManager, Daemon)> {
    let bus = PrivateBus::start().await?;
    let (setup, manager) = Setup::sim()?.env("WATCHDOG_USEC", "200000").managed()?;
    let daemon = setup.ready(&bus).await?;
    manager.told("WATCHDOG=1").await?;
    Ok((bus, setup, manager, daemon))
}

async fn the_watchdog_is_fed() -> Outcome {
    let (_bus, _setup, manager, daemon) = watched().await?;
    manager.told("WATCHDOG=1").await?;
    daemon.stop().await
}

/// It will be replaced, and its batch be computed by another; a new start of the service would lose calls.
async fn the_watchdog_is_fed_while_a_worker_hangs() -> Outcome {
    let (_bus, _setup, manager, daemon) = watched().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let call = daemon.client().embed_meanwhile("in flight");
    daemon.client().counted("in_flight_calls", 1).await?;
    for _ in 0..3 {
        manager.told_by_now().await?;
        manager.told("WATCHDOG=1").await?;
    }
    assert!(!call.is_finished());
    daemon.signal_workers(Signal::SIGKILL).await?;
    within("the call in flight", call).await???;
    daemon.stop().await
}

/// The daemon itself is well all the while.
async fn the_watchdog_is_not_fed_while_no_worker_can_be_had() -> Outcome {
    let (_bus, _setup, manager, daemon) = watched().await?;
    // Less than a worker shares with the daemon; what it takes to feed the watchdog is there.
    limit(daemon.process.pid(), "--fsize=262144:").await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    // One that is late may be excused; once one has failed, as no worker can be had, all do.
    daemon.process.says("the watchdog is not fed: the check failed").await?;
    manager.told_by_now().await?;
    let unfed = || daemon.process.stderr().matches("the watchdog is not fed").count();
    let before = unfed();
    eventually("checks that failed, in the log", async || Ok(unfed() >= before + 2)).await?;
    let told = manager.told_by_now().await?;
    assert!(!told.iter().any(|message| message.contains("WATCHDOG=1")), "{told:?}");
    limit(daemon.process.pid(), "--fsize=unlimited:").await?;
    manager.told("WATCHDOG=1").await?;
    daemon.stop().await
}

async fn a_reload_takes_new_settings() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let setup = setup.setting("vector_level", "high");
    setup.write_config()?;
    daemon.process.signal(Signal::SIGHUP)?;
    daemon.level("high").await?;
    let setup = setup.setting("vector_level", "medium");
    setup.write_config()?;
    daemon.client().manager.reload().await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "medium");
    daemon.client().embedder.embed("x").await?;
    // Nothing is loaded anew for what no engine looks at. What is in force comes first; one before it may be there.
    let worker = daemon.workers().await?[0];
    let setup =
        setup.setting("http_listen", "unix:/run/op-dbus/http").setting("core_dumps", "true");
    setup.write_config()?;
    daemon.client().manager.reload().await?;
    assert_eq!(daemon.workers().await?[0], worker);
    daemon.stop().await
}

async fn a_reload_with_mistakes_changes_nothing() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    fs::write(setup.config_file(), "vector_level = \"hgih\"\ncpu_engien = \"sim\"\n")?;
    let refusal = daemon.client().manager.reload().await;
    let message = refused(refusal, ErrorName::InvalidArgument)?;
    assert!(message.contains("hgih") && message.contains("cpu_engien"), "{message}");
    assert_eq!(daemon.client().embedder.state().await?, "ready");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

async fn a_change_of_level_is_told_and_kept() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let properties = PropertiesProxy::builder(client.connection())
        .destination(BUS_NAME)
        .path(ROOT_PATH)
        .build()
        .await?;
    let mut changes = properties.receive_properties_changed().await?;
    client.manager.set_vector_level("none").await?;
    // Others of the start may still be on their way.
    let change = within("PropertiesChanged", async {
        loop {
            let change = changes.next().await.ok_or("the bus is gone")?;
            if change.args()?.changed_properties.contains_key("VectorLevel") {
                return Outcome::Ok(change);
            }
        }
    })
    .await??;
    let change = change.args()?;
    assert_eq!(change.interface_name.as_str(), op_dbus_api::EMBEDDER_INTERFACE);
    let changed = |name: &str| change.changed_properties.contains_key(name);
    assert!(changed("State") && changed("Dimensions"), "{change:?}");
    assert!(!changed("RequestedExecutionProvider") && !changed("Version"), "{change:?}");
    daemon.stop().await?;

    let daemon = setup.settled_as("disabled", &bus).await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "none");
    daemon.stop().await
}

/// Libraries keep properties as signals tell them: behind the reply they would have the old ones.
async fn a_change_is_told_before_its_reply() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let rule = MatchRule::builder().msg_type(Type::Signal).path(ROOT_PATH).build()?;
    let _sent = MessageStream::for_match_rule(rule, client.connection(), None).await?;
    for level in ["none", "low"].repeat(10) {
        let call = Message::method_call(ROOT_PATH, "SetVectorLevel").destination(BUS_NAME);
        let call = call.interface(MANAGER_INTERFACE).build(&level)?;
        let (mut said, mut told) = (MessageStream::from(client.connection()), false);
        client.connection().send(&call).await?;
        let serial = Some(call.primary_header().serial_num());
        while let Some(message) = within("the reply", said.next()).await?.transpose()?
            && message.header().reply_serial() != serial
        {
            let changed = message.body().deserialize::<(String, Told, Vec<String>)>();
            told |= changed.is_ok_and(|(_, changed, _)| changed.contains_key("VectorLevel"));
        }
        assert!(told, "{level}");
    }
    daemon.stop().await
}

/// As those of a device do, whose memory others wait for.
async fn the_first_workers_end_with_the_first_change() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let other = Options::from([("level", "high".into())]);
    daemon.client().packed(&["x"], other).await?;
    let first = children(daemon.process.pid())?;
    assert_eq!(first.len(), 2, "{first:?}");
    daemon.client().manager.set_devices(&["1"]).await?;
    eventually("the end of the first workers", async || {
        Ok(!children(daemon.process.pid())?.iter().any(|worker| first.contains(worker)))
    })
    .await?;
    daemon.stop().await
}

async fn a_damaged_state_file_is_moved_aside() -> Outcome {
    let (deep, huge) = ("[".repeat(100_000), "x".repeat(2 << 20));
    let other_version = "{\"version\": 9, \"settings\": {}}";
    let flipped = "{\"version\":1,\"settings\":{\"vector_level\":\"hi\"},\"check\":\"0\"}";
    for damage in ["", "{", "\u{0}\u{0}", other_version, flipped, &deep, &huge] {
        let setup = Setup::sim()?;
        fs::write(setup.state_file(), damage)?;
        let (_bus, setup, daemon) = setup.alone().await?;
        assert_eq!(daemon.client().embedder.vector_level().await?, "low");
        assert!(daemon.process.stderr().contains("state.json"), "{damage:.40} was not named");
        let aside = setup.path("state").read_dir()?.flatten();
        let aside: Vec<_> = aside.map(|entry| entry.file_name()).collect();
        assert!(
            aside.iter().any(|name| name.to_string_lossy().contains("corrupt")),
            "{damage:.40}: {aside:?}"
        );
        daemon.stop().await?;
    }
    Ok(())
}

async fn a_second_daemon_gives_way() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let second = Setup::sim()?;
    let second = finish(second.command(&bus)?, "").await?;
    assert_ne!(second.code, Some(0));
    assert!(second.stderr.contains(BUS_NAME), "{}", second.stderr);
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

async fn workers_go_first_when_memory_runs_out() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let adjusted = |pid: Pid| -> Outcome<i32> {
        Ok(fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?.trim().parse()?)
    };
    let own = adjusted(daemon.process.pid())?;
    for worker in daemon.workers().await? {
        let worker = adjusted(worker)?;
        assert!(worker > own, "the worker has {worker}, the daemon {own}");
    }
    // As where a container's is above 0.
    fs::write(format!("/proc/{}/oom_score_adj", daemon.process.pid()), "900")?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    daemon.client().embedder.embed("by a new worker").await?;
    for worker in daemon.workers().await? {
        assert_eq!(adjusted(worker)?, 1000);
    }
    daemon.stop().await
}

async fn a_bus_that_dies_ends_the_daemon() -> Outcome {
    let mut bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let mut daemon = setup.ready(&bus).await?;
    daemon.client().manager.set_vector_level("medium").await?;
    let workers = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let call = daemon.client().embed_meanwhile("in flight");
    daemon.client().counted("in_flight_calls", 1).await?;
    bus.kill().await?;
    let status = daemon.process.ended().await?;
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    let said = daemon.process.stderr();
    assert!(said.contains("the connection to the bus is lost"), "{said}");
    assert!(within("the end of the call", call).await??.is_err());
    let are_ended = async || Ok(!workers.iter().any(|worker| runs(*worker)));
    eventually("the end of the workers", are_ended).await?;

    let bus = PrivateBus::start().await?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "medium");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// Somebody listens there and never says a word.
async fn a_bus_that_hangs_does_not_keep_the_daemon() -> Outcome {
    let bus = PrivateBus::start().await?;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let setup = Setup::sim()?;
        let socket = setup.path("hung");
        let listener = UnixListener::bind(&socket)?;
        let mut command = setup.command(&bus)?;
        command.env("OP_DBUS_BUS", format!("unix:path={}", socket.display()));
        let mut daemon = Process::start("op-dbus daemon", command, &setup.path("daemon.log"))?;
        let _connection = within("the daemon's connection", listener.accept()).await??;
        daemon.signal(signal)?;
        assert!(daemon.ended().await?.success(), "{}", daemon.stderr());
    }
    Ok(())
}

/// Where standard error is the journal's, their lines tell it their priorities.
async fn workers_log_what_the_setting_says() -> Outcome {
    for (log, is_told) in [("warn", true), ("error", false)] {
        let setup = Setup::real("low")?.setting("log", log);
        let file = setup.path("not-a-folder");
        let setup = setup.setting("cache_dir", &file.join("cache").display().to_string());
        fs::write(&file, "")?;
        let stream = File::create(setup.path("daemon.log"))?.metadata()?;
        let stream = format!("{}:{}", stream.dev(), stream.ino());
        let setup = setup.env("JOURNAL_STREAM", &stream);
        let (_bus, _setup, daemon) = setup.alone().await?;
        let said = daemon.process.stderr();
        let warning = "<4>the packed weights can't be cached";
        assert_eq!(said.lines().any(|line| line.starts_with(warning)), is_told, "{log}: {said}");
        daemon.stop().await?;
    }
    Ok(())
}

async fn a_fallback_is_told() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("execution_provider", "cuda").setting("fallback", "cpu");
    let watcher = crate::harness::client::Client::on(&bus).await?;
    let mut signals = watcher.manager.receive_provider_fallback().await?;
    let daemon = setup.settled_as("degraded", &bus).await?;
    let signal = within("ProviderFallback", signals.next()).await?.ok_or("the bus is gone")?;
    let signal = signal.args()?;
    assert_eq!(*signal.requested(), "cuda");
    assert!(signal.reason().contains("cuda"), "{}", signal.reason());
    let embedder = &daemon.client().embedder;
    assert_eq!(embedder.requested_execution_provider().await?, "cuda");
    assert_eq!(embedder.execution_provider().await?, *signal.active());
    assert_eq!(embedder.fallback_reason().await?, *signal.reason());
    embedder.embed("x").await?;
    daemon.stop().await
}

async fn without_a_fallback_it_fails() -> Outcome {
    let setup = Setup::sim()?.setting("execution_provider", "cuda").setting("fallback", "none");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    assert!(message.contains("cuda"), "{message}");
    Ok(())
}

async fn more_files_than_a_shell_leaves_it() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let mut shell = clean("prlimit");
    shell.arg("--nofile=64:4000");
    let daemon = setup.start_command(started_by(shell, &setup.command(&bus)?), &bus).await?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.process.pid()))?;
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let values: Vec<&str> = files.ok_or("no such limit")?.split_whitespace().skip(3).collect();
    assert_eq!(values, ["4000", "4000", "files"]);
    daemon.stop().await
}

async fn other_dimensions_are_refused() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("expect_dimensions", "768");
    let ended = finish(setup.command(&bus)?, "").await?;
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("768") && ended.stderr.contains("384"), "{}", ended.stderr);
    // Which opens no model.
    let mut check = clean(op_dbus());
    check.args(["config", "check", "--config"]).arg(setup.config_file());
    finish(check, "").await?.success()?;
    Ok(())
}
