//! WebGPU, the way of a GPU with memory of its own, on a device that the CPU plays: SwiftShader, which
//! Chromium brings. ONNX Runtime looks for graphics cards in `/sys/class/drm` alone, so each daemon is
//! shown one or two, in a mount namespace of its own.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish, in_own_mounts};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::golden::{self, assert_near};
use crate::harness::load::Load;
use crate::harness::needs::{VULKAN_DEVICE, op_dbus};
use crate::harness::process::{mapped, send};
use crate::harness::random::Random;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};
use crate::offload::workers;
use crate::plateau::{resident, tiny, told};
use crate::providers::provider;

tests! {
    webgpu_serves_with_the_models_vectors: [Bus, Root, WebGpu],
    webgpu_without_a_device_leaves_it_to_the_chain: [Bus, Root, WebGpu],
    webgpu_and_the_cpu_share_the_work: [Bus, Root, WebGpu],
    two_devices_and_the_cpu_change_under_load: [Bus, Root, WebGpu],
    one_of_two_devices_is_killed_under_load: [Bus, Root, WebGpu],
    webgpu_comes_goes_and_is_killed_under_load: [Bus, Root, WebGpu],
    webgpu_memory_is_at_its_plateau_when_it_is_ready: [Bus, Root, WebGpu],
    webgpu_replays_what_it_recorded: [Bus, Root, WebGpu],
    several_sessions_of_webgpu_live_in_one_program: [Root, WebGpu],
}

/// So many cards of AMD's, and `device` as the driver of all.
fn with_cards(count: usize, device: &Path) -> String {
    let driver = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": device, "api_version": "1.0.5" },
    });
    format!(
        "mount -t tmpfs none /sys/class
         for number in $(seq 0 $(({count} - 1))); do
             card=/sys/class/drm/card$number/device
             mkdir -p $card
             echo 0x1002 > $card/vendor; echo 0x15bf > $card/device; echo 0x030000 > $card/class
         done
         mount -t tmpfs none /etc/vulkan
         mkdir /etc/vulkan/icd.d
         echo '{driver}' > /etc/vulkan/icd.d/card.json
         exec \"$@\""
    )
}

/// A daemon that sees so many cards with this driver.
async fn start(setup: &Setup, (cards, device): (usize, &str), bus: &PrivateBus) -> Outcome<Daemon> {
    let command = in_own_mounts(&with_cards(cards, Path::new(device)), &setup.command(bus)?);
    setup.start_command(command, bus).await
}

/// A daemon that sees one card, with SwiftShader, once it is ready.
async fn ready(setup: &Setup, bus: &PrivateBus) -> Outcome<Daemon> {
    ready_with(1, setup, bus).await
}

/// The same, with so many cards.
async fn ready_with(cards: usize, setup: &Setup, bus: &PrivateBus) -> Outcome<Daemon> {
    let daemon = start(setup, (cards, VULKAN_DEVICE), bus).await?;
    assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
    Ok(daemon)
}

/// A tiny model on WebGPU, or nothing.
async fn strict() -> Outcome<Setup> {
    Ok(tiny().await?.setting("execution_provider", "webgpu").setting("fallback", "none"))
}

fn is_webgpu(told: &(String, String)) {
    assert_eq!(told, &("webgpu".to_owned(), String::new()));
}

/// Enough for several batches.
fn much() -> Vec<String> {
    (0..60).map(|n| format!("disk {n} is full and the database refuses to write")).collect()
}

async fn webgpu_serves_with_the_models_vectors() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = strict().await?;
    let daemon = ready(&setup, &bus).await?;
    let (client, texts) = (daemon.client(), golden::plain_texts()?);
    is_webgpu(&provider(&daemon).await?);
    let reply = client.packed(&texts, HashMap::new()).await?;
    assert_eq!(reply.info::<String>("provider")?, "webgpu");
    assert_eq!(reply.info::<String>("device")?, "webgpu:0");
    // The library is in the worker, with the driver.
    if let Some(mapped) = mapped(daemon.workers().await?[0])? {
        for library in ["onnxruntime_providers_webgpu", "libvk_swiftshader"] {
            assert!(mapped.contains(library), "{library}");
        }
    }
    let given_back = client.manager.trim_memory().await?;
    let found = client.vectors(&texts).await?;
    client.manager.set_execution_provider("cpu").await?;
    assert_near(&found, client.vectors(&texts).await?, 0.9999);
    println!("{given_back} bytes given back");
    daemon.stop().await
}

async fn webgpu_without_a_device_leaves_it_to_the_chain() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = tiny().await?.setting("execution_provider", "webgpu");
    let setup = setup.env("OP_DBUS_FALLBACK", "cuda,cpu");
    let daemon = start(&setup, (1, "/nonexistent/driver.so"), &bus).await?;
    assert_eq!(daemon.settled().await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    for part in ["webgpu does not work here", "cuda needs"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// The device of each worker.
async fn devices(daemon: &Daemon) -> Outcome<Vec<String>> {
    Ok(workers(daemon).await?.into_iter().map(|(device, ..)| device).collect())
}

async fn webgpu_and_the_cpu_share_the_work() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = tiny().await?.setting("execution_provider", "webgpu").setting("offload", "auto");
    let daemon = ready(&setup, &bus).await?;
    is_webgpu(&provider(&daemon).await?);
    assert_eq!(devices(&daemon).await?, ["webgpu:0", "cpu:0"]);
    let (client, texts) = (daemon.client(), golden::plain_texts()?);
    let expected = client.vectors(&texts).await?;
    // Who has a batch done first is a matter of the machine; here it is not the CPU.
    let [(_, _, before), (_, cpu, _)] = workers(&daemon).await?[..] else {
        return Err("not two workers".into());
    };
    send(Signal::SIGSTOP, cpu).await?;
    let has_computed = async || Ok(workers(&daemon).await?[0].2 > before);
    let goes_on = async {
        eventually("a batch on the device", has_computed).await?;
        send(Signal::SIGCONT, cpu).await
    };
    let texts = [&texts[..], &much()].concat();
    let (reply, goes_on) = tokio::join!(client.packed(&texts, HashMap::new()), goes_on);
    goes_on?;
    let reply = reply?;
    let computed = reply.info::<String>("provider")?;
    assert!(["webgpu,cpu", "cpu,webgpu", "webgpu"].contains(&computed.as_str()), "{computed}");
    assert_near(&reply.vectors[..expected.len()], &expected, 0.9999);
    daemon.stop().await
}

async fn two_devices_and_the_cpu_change_under_load() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = strict().await?.setting("gpu_device", "0,1").setting("offload", "auto");
    let daemon = ready_with(2, &setup, &bus).await?;
    assert_eq!(devices(&daemon).await?, ["webgpu:0", "webgpu:1", "cpu:0"]);
    let load = Load::start(&bus, &much()).await?;
    for wanted in [&["1"][..], &["0", "1"]] {
        daemon.client().manager.set_devices(wanted).await?;
        let mut expected: Vec<String> = wanted.iter().map(|one| format!("webgpu:{one}")).collect();
        expected.push("cpu:0".to_owned());
        // Those from before are listed until their last batch is done.
        let are_alone = async || Ok(devices(&daemon).await? == expected);
        eventually("the workers of these devices alone", are_alone).await?;
    }
    load.stop().await?;
    is_webgpu(&provider(&daemon).await?);
    daemon.stop().await
}

async fn one_of_two_devices_is_killed_under_load() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = strict().await?.setting("gpu_device", "0,1");
    let daemon = ready_with(2, &setup, &bus).await?;
    assert_eq!(devices(&daemon).await?, ["webgpu:0", "webgpu:1"]);
    let load = Load::start(&bus, &much()).await?;
    let [(_, lost, _), (_, other, before)] = workers(&daemon).await?[..] else {
        return Err("not two workers".into());
    };
    send(Signal::SIGKILL, lost).await?;
    let has_computed = async || Ok(workers(&daemon).await?[1].2 > before);
    eventually("a batch on the other device", has_computed).await?;
    // Whoever takes its place counts its batches on.
    let (.., of_lost) = workers(&daemon).await?[0];
    eventually("another worker that computes", async || {
        let (_, pid, batches) = workers(&daemon).await?[0];
        Ok(pid != lost && batches > of_lost)
    })
    .await?;
    assert_eq!(workers(&daemon).await?[1].1, other);
    load.stop().await?;
    daemon.stop().await
}

async fn webgpu_comes_goes_and_is_killed_under_load() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = tiny().await?;
    let daemon = ready(&setup, &bus).await?;
    let load = Load::start(&bus, &much()).await?;
    let manager = &daemon.client().manager;
    for wanted in ["webgpu", "cpu", "webgpu"] {
        manager.set_execution_provider(wanted).await?;
        let reply = daemon.client().packed(&["here"], HashMap::new()).await?;
        assert_eq!(reply.info::<String>("provider")?, wanted);
    }
    let lost = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    eventually("another worker", async || {
        daemon.client().packed(&["after"], HashMap::new()).await?;
        Ok(!daemon.workers().await?.iter().any(|pid| lost.contains(pid)))
    })
    .await?;
    is_webgpu(&provider(&daemon).await?);
    load.stop().await?;
    daemon.stop().await
}

/// Buffers of all shapes are there when it is ready.
async fn webgpu_memory_is_at_its_plateau_when_it_is_ready() -> Outcome {
    const CALLS: usize = 40;
    const GROWTH_MAX: u64 = 32 << 20;
    let bus = PrivateBus::start().await?;
    let setup = strict().await?;
    let daemon = ready(&setup, &bus).await?;
    let mut random = Random::new(20_817);
    let mut after = Vec::new();
    for _ in 0..2 {
        for call in 0..CALLS {
            let text = |_| "word ".repeat(1 + random.below(40));
            daemon.client().vectors(&(0..=call % 5).map(text).collect::<Vec<_>>()).await?;
        }
        after.push(resident(&daemon).await?);
    }
    println!("{after:?} bytes after {CALLS} calls and twice as many");
    assert!(after[1] <= after[0] + GROWTH_MAX, "{after:?}");
    daemon.stop().await
}

/// Batches of one short text, which are of the smallest shape: that is recorded before all others. Vectors are
/// those of runs that were not recorded, and of longer batches among them.
async fn webgpu_replays_what_it_recorded() -> Outcome {
    let texts: Vec<String> = (0..30).map(|n| format!("disk {n}")).collect();
    let mut vectors = Vec::new();
    for record in ["false", "true"] {
        let bus = PrivateBus::start().await?;
        let setup = strict().await?.setting("providers.webgpu.enableGraphCapture", record);
        let daemon = ready(&setup, &bus).await?;
        is_webgpu(&provider(&daemon).await?);
        let client = daemon.client();
        let before = told::<u64>(client, "graph_replays").await?;
        let (mut found, mut began) = (Vec::new(), Instant::now());
        for (number, text) in texts.iter().enumerate() {
            found.extend(client.vectors(&[text]).await?);
            if number == texts.len() / 2 {
                println!("record = {record}: {} us a call", began.elapsed().as_micros() / 16);
                found.extend(client.vectors(&much()).await?);
                client.manager.trim_memory().await?;
                began = Instant::now();
            }
        }
        let after = told::<u64>(client, "graph_replays").await?;
        println!("record = {record}: {before:?} batches were replayed, then {after:?}");
        match record {
            "false" => assert_eq!(after, None),
            _ => assert!(after >= before.map(|before| before + texts.len() as u64), "{after:?}"),
        }
        vectors.push(found);
        daemon.stop().await?;
    }
    for (expected, found) in vectors[0].iter().zip(&vectors[1]) {
        assert!(expected.iter().zip(found).all(|(a, b)| (a - b).abs() <= 1e-6), "{found:?}");
    }
    Ok(())
}

/// ONNX Runtime's own fault ends the process where two of them run at once.
async fn several_sessions_of_webgpu_live_in_one_program() -> Outcome {
    let setup = strict().await?;
    let mut bench = clean(op_dbus());
    bench.args(["bench", "--json", "--at", "engine", "--only", "calls", "--rounds", "1"]);
    bench.args(["--seconds", "0.1", "--provider", "webgpu"]);
    bench.env("OP_DBUS_MODEL_DIR", setup.path("models")).env("OP_DBUS_MODEL", "tiny");
    bench.env("OP_DBUS_CACHE_DIR", setup.path("cache")).env("OP_DBUS_FALLBACK", "none");
    bench.env("OP_DBUS_WORKERS_PER_DEVICE", "2").env("OP_DBUS_BATCH_TOKENS_MAX", "256");
    let command = in_own_mounts(&with_cards(1, Path::new(VULKAN_DEVICE)), &bench);
    let report: serde_json::Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
    assert!(report.to_string().contains("webgpu"), "{report}");
    Ok(())
}
