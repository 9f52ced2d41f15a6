//! Killed workers and daemons, callers that leave: nobody else may notice.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::{Signal, kill};
use op_dbus_api::ErrorName;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, finish, in_own_mounts};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::golden::{self, distance};
use crate::harness::process::{children, runs};
use crate::harness::registry::tests;
use crate::harness::users::{SERVICE, Users};
use crate::harness::{Outcome, eventually, needs, within};
use crate::providers::movable;

tests! {
    a_worker_killed_in_a_batch: [Bus] => stopped_and_killed_in_a_batch(Setup::sim()?),
    a_real_worker_killed_in_a_batch: [Bus, Low] => killed_in_a_batch("native", 0.0),
    an_onnx_runtime_worker_killed_in_a_batch: [Bus, Low, Runtime] => killed_in_a_batch("ort", 1e-5),
    a_stopped_real_worker_killed_in_a_batch: [Bus, Low] =>
        stopped_and_killed_in_a_batch(Setup::real("low")?.setting("workers_per_device", "1")),
    an_idle_worker_killed: [Bus] => idle_workers_killed(1),
    all_idle_workers_killed: [Bus] => idle_workers_killed(2),
    workers_end_with_their_daemon: [Bus],
    a_caller_that_leaves: [Bus],
    a_caller_that_leaves_while_its_level_loads: [Bus, Low, Medium, Ggml],
    a_message_that_the_bus_refuses: [Bus],
    no_worker_can_be_had: [Bus],
    files_that_may_not_be_large: [Bus],
    a_model_larger_than_a_worker_may_be: [Bus, Low],
    a_batch_larger_than_a_worker_may_be: [Bus, Low, Runtime],
    a_program_that_was_replaced: [Bus],
    a_state_without_a_folder: [Bus],
    a_state_that_cannot_be_kept: [Bus, Root],
    too_few_threads: [Bus, Root],
}

async fn stopped_and_killed_in_a_batch(setup: Setup) -> Outcome {
    let (_bus, _setup, daemon) = setup.alone().await?;
    let expected = daemon.client().embedder.embed("in flight").await?;
    // A stopped worker can't finish the batch before it's killed.
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = daemon.client().embed_meanwhile("in flight");
    daemon.client().counted("in_flight_calls", 1).await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    assert_eq!(within("the retried call", waiting).await???, expected);
    daemon.client().counted("worker_restarts", 1).await?;
    assert_eq!(daemon.client().counter("worker_restarts").await?, 1);
    assert_eq!(daemon.client().embedder.state().await?, "ready");
    let said = daemon.process.stderr();
    assert!(said.contains("(SIGKILL), as the kernel has it where memory runs out"), "{said}");
    daemon.stop().await
}

async fn killed_in_a_batch(engine: &str, distance_max: f32) -> Outcome {
    let setup = Setup::real("low")?.setting("cpu_engine", engine);
    // Several are killed one after the other, and then a batch may meet two of them: it is tried again once.
    let (bus, _setup, daemon) = setup.setting("workers_per_device", "1").alone().await?;
    let texts = golden::plain_texts()?;
    let expected = daemon.client().vectors(&texts).await?;
    // Many batches, so that the worker is in the middle of one when it dies.
    let many: Vec<&String> = texts.iter().cycle().take(100 * texts.len()).collect();
    let client = Client::on(&bus).await?;
    // On a busy machine the call may have ended before the worker does.
    for _ in 0..5 {
        let before = daemon.client().counter("batches").await?;
        let call = client.packed(&many, Options::new());
        let killing = async {
            daemon.client().counted("batches", before + 2).await?;
            daemon.signal_workers(Signal::SIGKILL).await
        };
        let (reply, killed) = tokio::join!(call, killing);
        killed?;
        for (found, expected) in reply?.vectors.iter().zip(expected.iter().cycle()) {
            assert!(distance(found, expected) <= distance_max);
        }
        if daemon.client().counter("retries").await? > 0 {
            daemon.client().counted("worker_restarts", 1).await?;
            return daemon.stop().await;
        }
    }
    Err("no worker was killed in a batch".into())
}

async fn idle_workers_killed(count: usize) -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.setting("workers_per_device", "2").alone().await?;
    let expected = daemon.client().embedder.embed("x").await?;
    let before = daemon.workers().await?;
    assert_eq!(before.len(), 2);
    for pid in &before[..count] {
        kill(*pid, Signal::SIGKILL)?;
        // The daemon looks at it when there is a batch, or after a minute.
        eventually("the end of a worker", async || Ok(!runs(*pid))).await?;
    }
    for _ in 0..10 {
        assert_eq!(daemon.client().embedder.embed("x").await?, expected);
    }
    assert_eq!(daemon.client().counter("retries").await?, 0);
    daemon.stop().await
}

async fn workers_end_with_their_daemon() -> Outcome {
    let setup = Setup::sim()?.setting("workers_per_device", "2");
    let (_bus, _setup, mut daemon) = setup.alone().await?;
    let workers = daemon.workers().await?;
    daemon.process.signal(Signal::SIGKILL)?;
    daemon.process.ended().await?;
    within("the end of the workers", async {
        for worker in workers {
            while runs(worker) {
                tokio::task::yield_now().await;
            }
        }
    })
    .await
}

/// Waits until a call has ended since its caller has left.
async fn cancelled(daemon: &Daemon) -> Outcome {
    eventually(
        "the end of the call",
        async || Ok(daemon.client().failures("cancelled").await? != 0),
    )
    .await
}

async fn a_caller_that_leaves() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let client = Client::on(&bus).await?;
    let texts = vec!["never to be embedded"; 1000];
    let call = client.packed(&texts, Options::new());
    tokio::select! {
        reply = call => panic!("a stopped worker answered: {}", reply.is_ok()),
        queued = daemon.client().counted("in_flight_calls", 1) => queued?,
    }
    drop(client);
    cancelled(&daemon).await?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    daemon.client().embedder.embed("somebody else").await?;
    assert_eq!(daemon.client().counter("texts").await?, 1);
    // Of the 1,000 texts only the batch that the worker had been given already was computed.
    let tokens = daemon.client().counter("tokens").await?;
    assert!(tokens < 1000, "{tokens} tokens were computed for a caller that had left");
    daemon.stop().await
}

/// On a device that hangs meanwhile.
async fn a_caller_that_leaves_while_its_level_loads() -> Outcome {
    let (setup, library, _) = movable()?;
    let (bus, _setup, daemon) = setup.setting("load_timeout_s", "3600").alone().await?;
    needs::hang_in_its_load(&library)?;
    let client = Client::on(&bus).await?;
    let call = client.packed(&["x"], Options::from([("level", "medium".into())]));
    let loads = async || Outcome::Ok(children(daemon.process.pid())?.len() >= 2);
    tokio::select! {
        reply = call => panic!("a level that is not there answered: {}", reply.is_ok()),
        loads = eventually("a worker of the level", loads) => loads?,
    }
    drop(client);
    cancelled(&daemon).await?;
    daemon.client().embedder.embed("somebody else").await?;
    daemon.stop().await
}

/// A message beyond the bus's own limit costs its sender the connection, and nobody else anything.
async fn a_message_that_the_bus_refuses() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let greedy = Client::on(&bus).await?;
    let texts = vec!["x".repeat(1 << 20); 40];
    let sent = within("the end of the call", greedy.packed(&texts, Options::new())).await?;
    assert!(sent.is_err(), "a message of 40 MiB went through");
    daemon.client().embedder.embed("somebody else").await?;
    daemon.stop().await
}

async fn no_worker_can_be_had() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().embedder.embed("in flight").await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = daemon.client().embed_meanwhile("in flight");
    daemon.client().counted("in_flight_calls", 1).await?;
    // Without descriptors to speak to it, a worker that dies can't be replaced.
    limit_descriptors(&daemon, "3:").await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    refused(within("the failed call", waiting).await??, ErrorName::WorkerFailed)?;
    assert_eq!(daemon.state(|state| state != "ready").await?, "failed");
    let told: String = daemon.client().status("status").await?;
    assert!(told.starts_with("Not embedding: "), "{told}");
    // Once it can, the service recovers by itself.
    limit_descriptors(&daemon, "1024:").await?;
    assert_eq!(embedded_again(&daemon).await?, expected);
    assert_eq!(daemon.state(|state| state != "failed").await?, "ready");
    daemon.stop().await
}

async fn a_program_that_was_replaced() -> Outcome {
    let setup = Setup::sim()?;
    let program = setup.path("op-dbus");
    std::fs::copy(needs::op_dbus(), &program)?;
    let setup = setup.program(program.clone());
    let (_bus, _setup, daemon) = setup.alone().await?;
    let expected = daemon.client().embedder.embed("in flight").await?;
    // As an upgrade does it: the daemon runs on, and so must the workers that it starts.
    std::fs::remove_file(&program)?;
    std::fs::write(&program, "another version")?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    assert_eq!(embedded_again(&daemon).await?, expected);
    daemon.stop().await
}

async fn a_model_larger_than_a_worker_may_be() -> Outcome {
    let setup = Setup::real("low")?.setting("worker_memory_max", "16MiB");
    let (_bus, _setup, daemon) = setup.alone_as("failed").await?;
    let message = refused(daemon.client().embedder.embed("x").await, ErrorName::WorkerFailed)?;
    assert!(message.contains("worker_memory_max"), "{message}");
    let said = daemon.process.stderr();
    assert!(said.contains("worker_memory_max"), "{said}");
    daemon.stop().await
}

async fn a_batch_larger_than_a_worker_may_be() -> Outcome {
    let setup = Setup::real("low")?.setting("cpu_engine", "ort");
    let setup = setup.setting("workers_per_device", "1").setting("batch_tokens_max", "16384");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let expected = daemon.client().embedder.embed("x").await?;
    // Not a byte more than it has taken for texts of a few tokens.
    let worker = daemon.workers().await?[0];
    let status = std::fs::read_to_string(format!("/proc/{worker}/status"))?;
    let taken = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let taken = taken.and_then(|line| line.trim().split(' ').next()).ok_or(status.clone())?;
    limit(worker.as_raw(), &format!("--data={}", taken.parse::<u64>()? * 1024)).await?;
    let long = "a text of some more words than the one by which a worker proves itself ".repeat(9);
    let texts: Vec<String> = (0..128).map(|row| format!("{row} {long}")).collect();
    let result = daemon.client().packed(&texts, Options::new()).await;
    // The library's words are the only ones for what it had no memory for.
    let said = daemon.process.stderr();
    assert!(said.contains("bad_alloc"), "{said}");
    assert_eq!(daemon.workers().await?[0], worker, "the worker was lost");
    assert_eq!(daemon.client().embedder.state().await?, "ready");
    // What fits as single texts depends on what the library holds already: right, or refused by its name.
    match result {
        Ok(computed) => {
            daemon.signal_workers(Signal::SIGKILL).await?;
            let whole = daemon.client().vectors(&texts).await?;
            let apart = computed.vectors.iter().zip(&whole).map(|(a, b)| distance(a, b));
            assert!(apart.fold(0.0, f32::max) <= 1e-5);
        }
        refusal => println!("{}", refused(refusal, ErrorName::OutOfMemory)?),
    }
    assert_eq!(daemon.client().embedder.embed("x").await?, expected);
    daemon.stop().await
}

/// What the kernel ends a process for by itself: here it is an error of who writes too much, shared memory
/// included.
async fn files_that_may_not_be_large() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().embedder.embed("in flight").await?;
    limit(daemon.process.pid(), "--fsize=4096:").await?;
    let result = daemon.client().embedder.embed_to_fd(&["x"; 16], Options::new()).await;
    refused(result, ErrorName::NoSpace)?;
    assert_eq!(daemon.client().embedder.embed("in flight").await?, expected);
    daemon.signal_workers(Signal::SIGKILL).await?;
    refused(daemon.client().embedder.embed("in flight").await, ErrorName::WorkerFailed)?;
    limit(daemon.process.pid(), "--fsize=unlimited:").await?;
    assert_eq!(embedded_again(&daemon).await?, expected);
    daemon.stop().await
}

/// Changes the limit of open files of a running daemon.
pub async fn limit_descriptors(daemon: &Daemon, files: &str) -> Outcome {
    limit(daemon.process.pid(), &format!("--nofile={files}")).await
}

/// Changes a limit of a running process, as `prlimit` names it.
pub async fn limit(process: impl std::fmt::Display, limit: &str) -> Outcome {
    let mut command = clean("prlimit");
    command.arg(format!("--pid={process}")).arg(limit);
    finish(command, "").await?.success()?;
    Ok(())
}

/// A vector, as soon as there is a worker again.
async fn embedded_again(daemon: &Daemon) -> Outcome<Vec<f64>> {
    within("a new worker", async {
        loop {
            match daemon.client().embedder.embed("in flight").await {
                Ok(vector) => return vector,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

async fn a_state_without_a_folder() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    std::fs::remove_dir(setup.path("state"))?;
    let daemon = setup.ready(&bus).await?;
    daemon.client().manager.set_vector_level("high").await?;
    let mode = std::fs::metadata(setup.path("state"))?.permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "{mode:o}");
    daemon.stop().await?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "high");
    daemon.stop().await
}

async fn a_state_that_cannot_be_kept() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    // File systems with room for one page, which the state takes, and for no file at all: a new one can be
    // opened and not written, or not be opened.
    for (room, kept) in [("size=4k", "medium"), ("nr_inodes=1", "low")] {
        let folder = setup.path("state").display().to_string();
        let script = format!("mount -t tmpfs -o {room} tmpfs {folder}; exec \"$@\"");
        let command = in_own_mounts(&script, &setup.command(&bus)?);
        let daemon = setup.start_command(command, &bus).await?;
        assert_eq!(daemon.settled().await?, "ready");
        let client = daemon.client();
        if kept == "medium" {
            client.manager.set_vector_level(kept).await?;
        }
        let message = refused(client.manager.set_vector_level("high").await, ErrorName::NoSpace)?;
        assert!(message.contains("state.json"), "{message}");
        // What could not be kept was not changed.
        assert_eq!(client.embedder.vector_level().await?, kept);
        assert_eq!(client.embedder.state().await?, "ready");
        client.embedder.embed("x").await?;
        let seen = format!("/proc/{}/root{folder}", daemon.process.pid());
        for file in std::fs::read_dir(&seen)? {
            assert_eq!(file?.file_name(), "state.json", "left over with {room}");
        }
        if kept == "medium" {
            let state = std::fs::read_to_string(format!("{seen}/state.json"))?;
            assert!(state.contains(r#""vector_level": "medium""#), "{state}");
        }
        daemon.stop().await?;
    }
    Ok(())
}

/// However few threads there may be, the daemon says that it is there, or ends; and it has not forgotten how to
/// reload when there may be more.
async fn too_few_threads() -> Outcome {
    let (users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.setting("vector_level", "none").of_the_service()?;
    let (setup, manager) = setup.managed()?;
    std::fs::set_permissions(setup.path("notify"), std::fs::Permissions::from_mode(0o777))?;
    let mut few = 0;
    let daemon = loop {
        few += 1;
        let limit = format!("prlimit --pid=$$ --nproc={few}:;");
        match users.serve(&setup, &bus, &limit).await {
            Ok(daemon) => break daemon,
            Err(error) => assert!(error.to_string().contains("ended at once"), "{error}"),
        }
    };
    manager.told("READY=1").await?;
    let process = format!("--pid={}", daemon.process.pid());
    for (threads, told) in
        [("1:", "a thread could not be started"), ("500:", "settings read again")]
    {
        let mut limit = clean("prlimit");
        limit.arg(&process).arg(format!("--nproc={threads}"));
        finish(SERVICE.runs(&limit), "").await?.success()?;
        let before = daemon.process.stderr().matches(told).count();
        daemon.process.signal(Signal::SIGHUP)?;
        manager.told("RELOADING=1").await?;
        manager.told("READY=1").await?;
        assert!(daemon.process.stderr().matches(told).count() > before, "not told: {told}");
    }
    daemon.stop().await
}
