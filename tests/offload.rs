//! The CPU beside an accelerator: each batch goes to the one that has it done first, and calls outlive
//! the device.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{PipeWriter, Write};
use std::path::PathBuf;

use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use op_dbus_api::JobProxy;
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Told, pid, value};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::files::{content, numbers};
use crate::harness::golden::{self, assert_near, cosine};
use crate::harness::load::Load;
use crate::harness::process::children;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};
use crate::providers::{fallbacks, movable, provider, told_of};

tests! {
    the_cpu_helps_a_device_with_the_models_vectors: [Bus, Low, Ggml],
    calls_outlive_a_device_that_is_killed_and_lost: [Bus, Low, Ggml],
    the_cpu_that_is_left_is_told_as_a_fallback: [Bus, Low, Ggml],
    calls_in_flight_move_to_the_fallback: [Bus, Low, Ggml],
    a_job_goes_where_the_provider_goes: [Bus, Low, Ggml],
    a_job_of_another_level_goes_there_too: [Bus, Low, Medium, Ggml],
    another_level_moves_to_the_fallback_by_itself: [Bus, Low, Medium, Ggml],
    what_fell_back_comes_back_by_itself: [Bus, Low, Medium, Ggml],
    what_batches_cost_is_measured_once: [Bus, Low, Ggml],
}

/// Device, process and batches of each worker.
pub async fn workers(daemon: &Daemon) -> Outcome<Vec<(String, Pid, u64)>> {
    let about = |worker: &Told| -> Outcome<(String, Pid, u64)> {
        Ok((value(worker, "device")?, pid(worker)?, value(worker, "batches")?))
    };
    daemon.client().workers().await?.iter().map(about).collect()
}

/// More than either has done in a moment.
pub fn much() -> Vec<String> {
    (0..400).map(|n| format!("disk {n} is full and the database refuses to write")).collect()
}

async fn the_cpu_helps_a_device_with_the_models_vectors() -> Outcome {
    let (setup, ..) = movable()?;
    let setup = setup.setting("offload", "auto");
    let (_bus, _setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let texts = golden::plain_texts()?;
    let found = daemon.client().vectors(&texts).await?;
    assert_near(&found, golden::vectors("low")?, 0.9999);
    // One that was measured at a bad moment may have nothing to do at first.
    eventually("a call that both compute", async || {
        let reply = daemon.client().packed(&much(), HashMap::new()).await?;
        let named = |key| -> Outcome<BTreeSet<String>> {
            Ok(reply.info::<String>(key)?.split(',').map(ToOwned::to_owned).collect())
        };
        let (providers, devices) = (named("provider")?, named("device")?);
        assert!(providers.iter().map(|name| format!("{name}:0")).eq(devices), "{providers:?}");
        Ok(providers.iter().eq(["cpu", "ggml"]))
    })
    .await?;
    let workers = workers(&daemon).await?;
    let devices: Vec<_> = workers.iter().map(|(device, ..)| device.as_str()).collect();
    assert_eq!(devices, ["ggml:0", "cpu:0"]);
    assert!(workers.iter().all(|(.., batches)| *batches > 0), "{workers:?}");
    for (provider, device) in [("ggml", "ggml:0"), ("cpu", "cpu:0")] {
        let told = told_of(&daemon, provider).await?;
        assert_eq!(value::<Vec<String>>(&told, "devices")?, [device]);
    }
    daemon.stop().await
}

async fn calls_outlive_a_device_that_is_killed_and_lost() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (setup, library, away) = movable()?;
    let setup = setup.setting("offload", "auto");
    let daemon = setup.ready(&bus).await?;
    let load = Load::start(&bus, &much()).await?;
    // Killed, it is replaced.
    let device = |workers: Vec<(String, Pid, u64)>| {
        workers
            .into_iter()
            .find(|(device, ..)| device == "ggml:0")
            .map(|(_, pid, batches)| (pid, batches))
    };
    let (mut killed, mut first_seen) = (HashSet::new(), HashMap::new());
    let busy_again = async {
        while killed.len() < 3 {
            let Some((pid, batches)) = device(workers(&daemon).await?) else { continue };
            // One that computes nothing between two losses would be left.
            if batches > *first_seen.entry(pid).or_insert(batches) && killed.insert(pid) {
                if killed.len() == 3 {
                    // Lost for good, the CPU serves alone.
                    fs::rename(&library, &away)?;
                }
                kill(pid, Signal::SIGKILL)?;
            }
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    within("the device to be replaced twice", busy_again).await??;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    assert_eq!(provider(&daemon).await?.0, "cpu");
    load.stop().await?;
    daemon.stop().await
}

/// No other provider is named: the CPU beside the device goes on alone, until that is back.
async fn the_cpu_that_is_left_is_told_as_a_fallback() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (setup, library, away) = movable()?;
    let setup = setup.setting("offload", "auto").setting("fallback", "none");
    let daemon = setup.ready(&bus).await?;
    let client = daemon.client();
    let mut signals = client.manager.receive_provider_fallback().await?;
    let load = Load::start(&bus, &much()).await?;
    fs::rename(&library, &away)?;
    let [(_, device, _), _] = workers(&daemon).await?[..] else {
        return Err("not two workers".into());
    };
    kill(device, Signal::SIGKILL)?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.starts_with("ggml could not be loaded again"), "{reason}");
    let signal = within("ProviderFallback", signals.next()).await?.ok_or("the bus is gone")?;
    assert_eq!(*signal.args()?.active(), "cpu");
    eventually("a warning", async || Ok(fallbacks(&daemon).await? == (1, 1))).await?;
    assert_eq!(client.status::<String>("device").await?, "cpu:0");
    let told = told_of(&daemon, "ggml").await?;
    assert!(value::<Vec<String>>(&told, "devices")?.is_empty(), "{told:?}");
    load.stop().await?;
    // Until it has proved itself it is not told as what computes, also where nothing is loaded meanwhile.
    client.manager.unload().await?;
    assert_eq!(provider(&daemon).await?, ("cpu".to_owned(), reason.clone()));
    client.vectors(&["loaded again"]).await?;
    assert_eq!(provider(&daemon).await?, ("cpu".to_owned(), reason));
    fs::rename(&away, &library)?;
    assert_eq!(daemon.state(|state| state == "ready").await?, "ready");
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    assert_eq!(fallbacks(&daemon).await?, (1, 1));
    daemon.stop().await
}

async fn calls_in_flight_move_to_the_fallback() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (setup, library, away) = movable()?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let load = Load::start(&bus, &much()).await?;
    // None of the calls has ended before all are counted.
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let embedder = daemon.client().embedder.clone();
    let into_a_file = tokio::spawn(async move {
        let texts = much();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        embedder.embed_to_fd(&texts, HashMap::new()).await
    });
    daemon.client().counted("in_flight_calls", 5).await?;
    fs::rename(&library, &away)?;
    let [(_, pid, _)] = workers(&daemon).await?[..] else { return Err("not one worker".into()) };
    kill(pid, Signal::SIGKILL)?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    assert_eq!(provider(&daemon).await?.0, "cpu");
    // Those that were in flight are answered.
    load.stop().await?;
    let (file, rows, dimensions, _) = into_a_file.await??;
    let bytes = content(file)?;
    assert_eq!(
        (rows as usize, bytes.len()),
        (much().len(), much().len() * dimensions as usize * 4)
    );
    let vectors = daemon.client().vectors(&much()).await?;
    assert_near(numbers(&bytes).chunks(dimensions as usize), vectors, 0.999);
    daemon.stop().await
}

/// A job that embeds at `level` what is written.
async fn job(client: &Client, level: &str) -> Outcome<(JobProxy<'static>, PipeWriter)> {
    let (source, writer) = std::io::pipe()?;
    let options = HashMap::from([("level", Variant::from(level))]);
    Ok((client.start_job(source, options).await?, writer))
}

async fn embedded(job: &JobProxy<'_>, rows: u64) -> Outcome {
    within("the text of a job", async {
        while job.rows().await? < rows {
            assert_eq!(job.state().await?, "running", "{}", job.error_message().await?);
        }
        Outcome::Ok(())
    })
    .await?
}

/// A job outlives the providers that it begins on: one that is changed and one that is lost.
async fn a_job_goes_where_the_provider_goes() -> Outcome {
    let (setup, library, away) = movable()?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let expected = client.vectors(&["before", "meanwhile", "after"]).await?;
    let (job, mut writer) = job(client, "low").await?;

    writer.write_all(b"before\n")?;
    embedded(&job, 1).await?;
    client.manager.set_execution_provider("cpu").await?;
    writer.write_all(b"meanwhile\n")?;
    embedded(&job, 2).await?;
    client.manager.set_execution_provider("ggml").await?;
    fs::rename(&library, &away)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    writer.write_all(b"after\n")?;
    drop(writer);
    let (file, rows, dimensions, info) = within("the job", job.fetch()).await??;
    assert_eq!((rows, provider(&daemon).await?.0.as_str()), (3, "cpu"));
    assert_eq!((&*info.provider, &*info.device), ("ggml,cpu", "ggml:0,cpu:0"));
    // Its vectors have the fingerprint in common, and the precision of each.
    let in_force = client.embedder.vector_space().await?;
    let fingerprint = in_force.split('-').next().unwrap_or_default();
    assert_eq!(info.space, format!("{fingerprint}-{}", info.precision));
    let bytes = content(file)?;
    assert_near(numbers(&bytes).chunks(dimensions as usize), &expected, 0.999);
    daemon.stop().await
}

/// A job at a level that is not in force follows a change of the provider as soon as its model is there.
async fn a_job_of_another_level_goes_there_too() -> Outcome {
    let (setup, ..) = movable()?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let (job, mut writer) = job(client, "medium").await?;
    writer.write_all(b"before\n")?;
    embedded(&job, 1).await?;
    client.manager.set_execution_provider("cpu").await?;
    let is_it = |line: &str| line.contains("model loaded: all-MiniLM-L6-v2 on cpu");
    let is_loaded = async || Outcome::Ok(daemon.process.stderr().lines().any(is_it));
    eventually("the model on the other provider", is_loaded).await?;
    writer.write_all(b"after\n")?;
    drop(writer);
    let (_, rows, _, info) = within("the job", job.fetch()).await??;
    assert_eq!((rows, &*info.provider), (2, "ggml,cpu"));
    daemon.stop().await
}

/// A level that is not in force loses its device, and the one in force keeps its own.
async fn another_level_moves_to_the_fallback_by_itself() -> Outcome {
    let (setup, library, away) = movable()?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    let in_force = workers(&daemon).await?;
    let embed = async || {
        let options = HashMap::from([("level", Variant::from("medium"))]);
        let reply = daemon.client().packed(&["a text"], options).await?;
        Outcome::Ok((reply.vectors[0].clone(), reply.info::<String>("provider")?))
    };
    let (expected, computed_by) = embed().await?;
    assert_eq!(computed_by, "ggml");
    fs::rename(&library, &away)?;
    for worker in children(daemon.process.pid())? {
        if in_force.iter().all(|(_, known, _)| *known != worker) {
            kill(worker, Signal::SIGKILL)?;
        }
    }
    let (found, computed_by) = embed().await?;
    assert_eq!(computed_by, "cpu");
    assert!(cosine(&found, &expected) >= 0.999);
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let all = workers(&daemon).await?;
    assert!(all.starts_with(&in_force), "what is in force is as it was: {all:?}");
    for level in daemon.client().manager.list_levels().await? {
        let runs = value::<String>(&level, "provider")?;
        let why = value::<String>(&level, "fallback_reason")?;
        match value::<String>(&level, "name")?.as_str() {
            "low" => assert_eq!((&*runs, &*why), ("ggml", "")),
            "medium" => assert!(runs == "cpu" && why.contains("ggml"), "{runs}: {why}"),
            _ => assert_eq!((&*runs, &*why), ("", ""), "it is not loaded"),
        }
    }
    daemon.stop().await
}

/// The level in force and another one lose their device, and compute there again once it is back; nobody
/// has to ask for it, and no call fails on the way.
async fn what_fell_back_comes_back_by_itself() -> Outcome {
    let (setup, library, away) = movable()?;
    let setup = setup.setting("provider_retry_s", "1").setting("log", "debug");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let both = async || {
        let mut computed_by = Vec::new();
        for level in ["low", "medium"] {
            let options = HashMap::from([("level", Variant::from(level))]);
            let reply = daemon.client().packed(&["a text"], options).await?;
            computed_by.push(reply.info::<String>("provider")?);
        }
        Outcome::Ok(computed_by)
    };
    assert_eq!(both().await?, ["ggml", "ggml"]);
    fs::rename(&library, &away)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    assert_eq!(both().await?, ["cpu", "cpu"]);
    let in_vain = || daemon.process.stderr().matches("no better provider works").count();
    // Twice for each of the two levels.
    eventually("tries of what is away", async || Ok(in_vain() >= 4)).await?;
    assert_eq!(both().await?, ["cpu", "cpu"], "while it is away");
    fs::rename(&away, &library)?;
    let is_back = async || Outcome::Ok(both().await? == ["ggml", "ggml"]);
    eventually("what is back computes", is_back).await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.stop().await
}

/// Files below `cache_dir` with what batches cost.
pub fn records(setup: &Setup) -> Outcome<Vec<(PathBuf, String)>> {
    let folder = setup.path("cache/costs");
    let mut records = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        records.push((path, text));
    }
    records.sort();
    Ok(records)
}

async fn what_batches_cost_is_measured_once() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (setup, ..) = movable()?;
    let setup = setup.setting("offload", "auto");
    let daemon = setup.ready(&bus).await?;
    let first = records(&setup)?;
    assert_eq!(first.len(), 2, "one for the device and one for the CPU: {first:?}");
    daemon.client().vectors(&much()).await?;
    daemon.stop().await?;
    let learned = records(&setup)?;
    assert_eq!(learned.len(), 2);
    assert_ne!(learned, first, "what was seen since is kept");

    // Nothing is measured where it is known: the batches that a worker begins with are its proof.
    let daemon = setup.ready(&bus).await?;
    assert_eq!(records(&setup)?, learned);
    daemon.stop().await?;

    // A damaged file is made again.
    for (path, text) in &learned {
        fs::write(path, &text[..text.len() / 2])?;
    }
    let daemon = setup.ready(&bus).await?;
    let said = daemon.process.stderr();
    assert!(said.contains("measuring anew what batches cost"), "{said}");
    for (path, text) in records(&setup)? {
        let json: serde_json::Value = serde_json::from_str(&text)?;
        // On a busy machine the smallest batch may be the only one that there is time for.
        let costs = json["costs"].as_array();
        assert!(costs.is_some_and(|costs| !costs.is_empty()), "{path:?}: {text}");
    }
    daemon.stop().await?;
    let setup = setup.setting("batch_tokens_max", "256");
    let daemon = setup.ready(&bus).await?;
    assert_eq!(records(&setup)?.len(), 4, "batches of another size cost something else");
    daemon.stop().await
}
