//! Every refusal by its name, with a sentence that helps.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use op_dbus_api::ErrorName::{self, *};
use tokio::io::{AsyncBufReadExt, BufReader};
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::clean;
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::needs::op_dbus;
use crate::harness::process::{children, send};
use crate::harness::registry::tests;
use crate::harness::users::{MEMBER, OTHER, Users};
use crate::harness::{Outcome, soon, within};

tests! {
    wrong_options: [Bus],
    too_large: [Bus],
    inline_replies_have_a_cap: [Bus],
    too_long: [Bus],
    deadlines: [Bus],
    level_none_is_disabled: [Bus],
    loading_is_not_ready: [Bus, Low],
    a_command_waits_for_the_model: [Bus, Low],
    models_that_are_not_there: [Bus],
    runtimes_that_are_not_there: [Bus, Low],
    another_vector_space: [Bus],
    pinned_settings: [Bus],
    full_queue: [Bus] => refuses_when_full("queue_tokens_max", Overloaded),
    used_up_quota: [Bus] => refuses_when_full("quota_tokens", QuotaExceeded),
    users_who_take_all_that_they_get_leave_room: [Bus, Root],
    shutting_down: [Bus],
    what_ends_a_terminal_leaves_workers_to_the_daemon: [Bus],
}

/// The outcome of `EmbedPacked` with one option.
async fn with(daemon: &Daemon, key: &str, value: impl Into<Variant<'_>>) -> zbus::Result<()> {
    let options = Options::from([(key, value.into())]);
    daemon.client().packed(&["one", "two"], options).await.map(drop)
}

async fn wrong_options() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let message = refused(with(&daemon, "truncat", "end").await, InvalidArgument)?;
    assert!(message.contains("truncat") && message.contains("truncate"), "{message}");
    let message = refused(with(&daemon, "prompt", "nosuch").await, InvalidArgument)?;
    assert!(message.contains("nosuch"), "{message}");
    for (key, wrong) in [
        ("truncate", "middle"),
        ("priority", "urgent"),
        ("encoding", "f64"),
        ("level", "highest"),
        ("device", "cuda:7"),
    ] {
        let message = refused(with(&daemon, key, wrong).await, InvalidArgument)?;
        assert!(message.contains(key) && message.contains(wrong), "{message}");
    }
    // A value of another type than the contract's.
    refused(with(&daemon, "deadline_ms", "soon").await, InvalidArgument)?;
    refused(with(&daemon, "normalize", 1_u32).await, InvalidArgument)?;
    // The model was not trained to be cut.
    refused(with(&daemon, "dimensions", 100_u32).await, InvalidArgument)?;
    refused(with(&daemon, "dimensions", 0_u32).await, InvalidArgument)?;
    // Nor to be made longer, which would be too large as well.
    let longer = Options::from([("dimensions", u32::MAX.into())]);
    refused(with(&daemon, "dimensions", u32::MAX).await, InvalidArgument)?;
    refused(daemon.client().embedder.embed_to_fd(&["one"], longer).await, InvalidArgument)?;
    with(&daemon, "device", "sim:0").await?;
    daemon.stop().await
}

async fn too_large() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let text = "x".repeat(client.embedder.text_bytes_max().await? as usize + 1);
    let message = refused(client.embedder.embed(&text).await, TooLarge)?;
    assert!(message.contains(&text.len().to_string()), "{message}");
    let many = vec!["x"; client.embedder.texts_per_call_max().await? as usize + 1];
    let message = refused(client.packed(&many, Options::new()).await, TooLarge)?;
    assert!(message.contains(&many.len().to_string()), "{message}");
    // The largest that is accepted.
    client.embedder.embed(&text[1..]).await?;
    daemon.stop().await
}

async fn inline_replies_have_a_cap() -> Outcome {
    // One token each, so that the queue has room for all of them.
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let vector_bytes = 8 * client.embedder.dimensions().await? as usize;
    let rows = client.embedder.inline_reply_bytes_max().await? as usize / vector_bytes + 1;
    let texts = vec!["x"; rows];
    let message = refused(client.embedder.embed_batch(&texts).await, TooLarge)?;
    assert!(message.contains("EmbedPacked") || message.contains("EmbedToFd"), "{message}");
    // The service is still on the bus: a reply that is too large would have cost it its place.
    client.embedder.embed("still there").await?;
    daemon.stop().await
}

async fn too_long() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let limit = client.embedder.max_input_tokens().await?;
    let long = "x".repeat(2 * limit as usize);
    let options = Options::from([("truncate", "error".into())]);
    let message = refused(client.packed(&["short", &long], options).await, TooLong)?;
    let reads = format!(" tokens, the model reads {limit}; ");
    assert!(message.starts_with("text 1 has ") && message.contains(&reads), "{message}");
    // Every other policy serves the text and says that it was cut.
    for policy in ["end", "start", "mean"] {
        let options = Options::from([("truncate", policy.into())]);
        let reply = client.packed(&["short", &long], options).await?;
        assert_eq!(reply.info::<Vec<u32>>("truncated")?, [1], "{policy}");
    }
    daemon.stop().await
}

async fn deadlines() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    refused(with(&daemon, "deadline_ms", 0_u32).await, DeadlineExceeded)?;
    // With its worker stopped, the service must answer by itself.
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let late = within("the deadline", with(&daemon, "deadline_ms", 1_u32)).await?;
    refused(late, DeadlineExceeded)?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    with(&daemon, "deadline_ms", 600_000_u32).await?;
    daemon.stop().await
}

async fn level_none_is_disabled() -> Outcome {
    let setup = Setup::sim()?.setting("vector_level", "none");
    let (_bus, _setup, daemon) = setup.alone_as("disabled").await?;
    let client = daemon.client();
    refused(client.embedder.embed("x").await, Disabled)?;
    refused(client.embedder.similarity("x", "y").await, Disabled)?;
    refused(client.embedder.count_tokens(&["x"]).await, Disabled)?;
    assert_eq!(client.failures("disabled").await?, 3);
    // Everything but embedding answers.
    assert_eq!(client.embedder.vector_level().await?, "none");
    client.manager.get_status().await?;
    client.manager.set_vector_level("low").await?;
    assert_eq!(daemon.state(|state| state == "ready").await?, "ready");
    client.embedder.embed("x").await?;
    daemon.stop().await
}

/// A daemon whose worker gets no further with its load until it is sent on.
async fn loading(setup: &Setup, bus: &PrivateBus) -> Outcome<(Daemon, Pid)> {
    loop {
        let daemon = setup.start(bus).await?;
        let pid = daemon.process.pid();
        soon("a worker", async || Ok(!children(pid)?.is_empty())).await?;
        let worker = children(pid)?[0];
        send(Signal::SIGSTOP, worker).await?;
        if daemon.client().embedder.state().await? == "loading" {
            return Ok((daemon, worker));
        }
        // It was faster than we are.
        kill(worker, Signal::SIGCONT)?;
        daemon.stop().await?;
        std::fs::remove_dir_all(setup.path("cache"))?;
    }
}

async fn loading_is_not_ready() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::real("low")?);
    let (daemon, _worker) = loading(&setup, &bus).await?;
    refused(daemon.client().embedder.embed("x").await, NotReady)?;
    daemon.client().manager.get_status().await?;
    // Whoever is loading can be told to stop.
    daemon.stop().await
}

async fn a_command_waits_for_the_model() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::real("low")?);
    let (daemon, worker) = loading(&setup, &bus).await?;
    let mut command = clean(op_dbus());
    command.args(["similarity", "a", "a", "--bus", bus.address()]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut command = command.spawn()?;
    let mut told = BufReader::new(command.stderr.take().ok_or("no stderr")?).lines();
    let waits = within("a word of the wait", told.next_line()).await??;
    assert_eq!(waits.as_deref(), Some("op-dbus: the service is loading its model: waiting for it"));
    kill(worker, Signal::SIGCONT)?;
    let out = within("the command's end", command.wait_with_output()).await??;
    let same: f32 = String::from_utf8(out.stdout)?.trim().parse()?;
    assert!(out.status.success() && same > 0.999, "{same}, {}", out.status);
    daemon.stop().await
}

async fn models_that_are_not_there() -> Outcome {
    let setup = Setup::sim()?.setting("cpu_engine", "native");
    let (_bus, _setup, daemon) = setup.alone_as("failed").await?;
    let message = refused(daemon.client().embedder.embed("x").await, ModelNotInstalled)?;
    assert!(message.contains("op-dbus models pull"), "{message}");
    // Another level is no better, and says so of itself.
    let message = refused(with(&daemon, "level", "high").await, ModelNotInstalled)?;
    assert!(message.contains("mpnet"), "{message}");
    let levels = daemon.client().manager.list_levels().await?;
    assert_eq!(bool::try_from(&levels[2]["installed"]), Ok(false));
    daemon.stop().await
}

async fn runtimes_that_are_not_there() -> Outcome {
    for (library, text) in [("missing.so", None), ("text.so", Some("not a library"))] {
        let setup = Setup::real("low")?;
        let path = setup.path(library);
        if let Some(text) = text {
            std::fs::write(&path, text)?;
        }
        let setup = setup.setting("cpu_engine", "ort");
        let setup = setup.setting("runtime", &path.display().to_string());
        let message = setup.refusal(ProviderUnavailable).await?;
        assert!(message.contains(library), "{message}");
        assert!(message.contains("op-dbus runtime pull"), "{message}");
    }
    Ok(())
}

async fn another_vector_space() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let space = daemon.client().embedder.vector_space().await?;
    with(&daemon, "expect_space", space.as_str()).await?;
    // The suffix after the fingerprint tells the precision, and precisions may be compared.
    let fingerprint = space.split('-').next().unwrap_or_default();
    with(&daemon, "expect_space", fingerprint).await?;
    with(&daemon, "expect_space", format!("{fingerprint}-f16")).await?;
    let other = "0".repeat(64);
    let message = refused(with(&daemon, "expect_space", other.as_str()).await, WrongSpace)?;
    assert!(message.contains(fingerprint), "{message}");
    daemon.stop().await
}

async fn pinned_settings() -> Outcome {
    let by_environment = Setup::sim()?.env("OP_DBUS_VECTOR_LEVEL", "low");
    let by_flag = Setup::sim()?.flag("--vector-level=low");
    for (setup, name) in [(by_environment, "OP_DBUS_VECTOR_LEVEL"), (by_flag, "--vector-level")] {
        let (_bus, _setup, daemon) = setup.alone().await?;
        let message = refused(daemon.client().manager.set_vector_level("medium").await, Pinned)?;
        assert!(message.contains(name), "{message}");
        refused(daemon.client().manager.set_vector_level("hgih").await, InvalidArgument)?;
        assert_eq!(daemon.client().embedder.vector_level().await?, "low");
        daemon.stop().await?;
    }
    Ok(())
}

/// With the worker stopped, one call fills the limit and the next is refused, not queued.
async fn refuses_when_full(limit: &str, expected: ErrorName) -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.setting(limit, "300").alone().await?;
    let medium = Options::from([("level", "medium".into())]);
    daemon.client().packed(&["x"], medium).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let first = Client::on(&bus).await?;
    let text = "x".repeat(200);
    let waiting = first.embed_meanwhile(&text);
    daemon.client().counted("in_flight_calls", 1).await?;
    let message = refused(daemon.client().embedder.embed(&text).await, expected)?;
    assert!(message.contains("300") && message.contains("ms"), "{message}");
    // Another level is no more room, whether its model is loaded or has to be.
    for level in ["medium", "high"] {
        let options = Options::from([("level", level.into())]);
        refused(daemon.client().packed(&[&text], options).await, expected)?;
    }
    daemon.signal_workers(Signal::SIGCONT).await?;
    waiting.await??;
    daemon.client().embedder.embed(&text).await?;
    // The journal has who it was, where it was one user.
    let told = format!("user {} has too much in flight", nix::unistd::geteuid());
    assert_eq!(daemon.process.stderr().contains(&told), expected == QuotaExceeded);
    daemon.stop().await
}

/// Two who may have half of the queue each.
async fn users_who_take_all_that_they_get_leave_room() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.setting("queue_tokens_max", "1700").setting("quota_tokens", "850");
    let daemon = setup.ready(&bus).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let text = "x".repeat(200);
    let mut calls = Vec::new();
    for (user, most) in [(MEMBER, 4), (OTHER, 2)] {
        let client = Client::new(bus.connect_as(user.id).await?).await?;
        let admitted = calls.len() as u64 + most;
        calls.extend((0..most).map(|_| client.embed_meanwhile(&text)));
        daemon.client().counted("in_flight_calls", admitted).await?;
        let message = refused(client.embedder.embed(&text).await, QuotaExceeded)?;
        assert!(message.contains(&user.id.to_string()), "{message}");
        // The journal has each of them, whoever was refused before.
        let told = format!("user {} has too much in flight", user.id);
        assert!(daemon.process.stderr().contains(&told), "{told}");
    }
    calls.push(daemon.client().embed_meanwhile(&text));
    daemon.client().counted("in_flight_calls", 7).await?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    for call in calls {
        call.await??;
    }
    daemon.stop().await
}

async fn shutting_down() -> Outcome {
    let (bus, _setup, mut daemon) = Setup::sim()?.alone().await?;
    let client = Client::on(&bus).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let workers = daemon.workers().await?;
    let waiting = client.embed_meanwhile("in flight");
    client.counted("in_flight_calls", 1).await?;
    daemon.process.signal(Signal::SIGTERM)?;
    daemon.state(|state| state == "draining").await?;
    refused(client.embedder.embed("too late").await, ShuttingDown)?;
    for worker in workers {
        kill(worker, Signal::SIGCONT)?;
    }
    // What was in flight is finished, and the daemon ends well.
    assert!(!waiting.await??.is_empty());
    let status = daemon.process.ended().await?;
    assert!(status.success(), "{status}");
    Ok(())
}

/// As Ctrl-C does, in a shell.
async fn what_ends_a_terminal_leaves_workers_to_the_daemon() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::sim()?);
    let mut command = setup.command(&bus)?;
    command.process_group(0);
    let mut daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let client = Client::on(&bus).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let workers = daemon.workers().await?;
    let waiting = client.embed_meanwhile("in flight");
    client.counted("in_flight_calls", 1).await?;
    killpg(daemon.process.pid(), Signal::SIGINT)?;
    daemon.state(|state| state == "draining").await?;
    for worker in workers {
        kill(worker, Signal::SIGCONT)?;
    }
    assert!(!waiting.await??.is_empty());
    assert!(daemon.process.ended().await?.success());
    let told = daemon.process.stderr();
    assert!(!told.contains("worker lost"), "{told}");
    Ok(())
}
