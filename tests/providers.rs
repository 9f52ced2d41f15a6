//! Execution providers beside the CPU: one runs only if it really does, and whoever asked is told.
//! ggml is the one that runs on any machine.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;

use crate::harness::client::{Told, refused, value};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::files::copy_folder;
use crate::harness::golden::{self, assert_near, cosine};
use crate::harness::load::Load;
use crate::harness::process::{mapped, peak};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, needs, within};
use crate::native::{with_graph, without_library};

tests! {
    a_plugin_serves_with_the_models_vectors: [Bus, Low, Ggml],
    the_first_that_works_serves_and_says_why: [Bus, Low, Ggml],
    each_fallback_is_told_and_counted_once: [Bus],
    another_fallback_for_the_same_reason_is_told_as_well: [Bus, Low, Ggml],
    a_provider_that_leaves_the_work_to_the_cpu_is_refused: [Bus, Ggml],
    a_provider_that_cannot_begin_is_refused_in_its_own_words: [Bus, Low, Ggml],
    a_library_that_is_none_is_refused: [Bus, Low, Runtime],
    a_library_of_another_provider_is_refused: [Bus, Low, Ggml],
    what_is_named_f32_is_computed_in_it: [Bus, Low, Ggml],
    a_damaged_library_is_not_loaded: [Bus, Low, Ggml],
    a_library_that_is_another_file_by_now_is_not_loaded: [Bus, Low, Ggml],
    a_worker_lost_on_the_device_is_replaced_there: [Bus, Low, Ggml] => replaced_there("ggml"),
    the_provider_changes_under_load_without_a_failed_call: [Bus, Low, Ggml] =>
        changes_under_load(["ggml", "cpu", "ggml"]),
    a_change_to_what_does_not_work_changes_nothing: [Bus, Low, Runtime],
    devices_take_no_more_than_their_message: [Bus],
    every_device_has_a_worker: [Bus, Low, Ggml],
    a_device_that_stays_bad_is_left_and_comes_back: [Bus, Low, Ggml],
    the_best_that_works_is_no_fallback: [Bus, Low],
}

/// ggml, or nothing.
pub fn ggml() -> Outcome<Setup> {
    Ok(Setup::real("low")?.setting("execution_provider", "ggml").setting("fallback", "none"))
}

/// Provider and reason as the properties tell them.
pub async fn provider(daemon: &Daemon) -> Outcome<(String, String)> {
    let embedder = &daemon.client().embedder;
    Ok((embedder.execution_provider().await?, embedder.fallback_reason().await?))
}

/// Why no provider serves with these settings.
pub async fn refusal(setup: &Setup) -> Outcome<String> {
    setup.refusal(ErrorName::ProviderUnavailable).await
}

async fn a_plugin_serves_with_the_models_vectors() -> Outcome {
    let (_bus, _setup, daemon) = ggml()?.alone().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let texts = golden::plain_texts()?;
    let reply = daemon.client().packed(&texts, HashMap::new()).await?;
    assert_eq!(reply.info::<String>("provider")?, "ggml");
    assert_eq!(reply.info::<String>("device")?, "ggml:0");
    let found = daemon.client().vectors(&texts).await?;
    assert_near(&found, golden::vectors("low")?, 0.9999);
    // The library is in the worker and nowhere else.
    if let Some(mapped) = mapped(daemon.workers().await?[0])? {
        assert!(mapped.contains("onnxruntime_ggml"));
    }
    daemon.stop().await
}

async fn the_first_that_works_serves_and_says_why() -> Outcome {
    let setup = Setup::real("low")?
        .setting("execution_provider", "coreml")
        .env("OP_DBUS_FALLBACK", "tensorrt,ggml,cpu");
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "ggml");
    for part in ["coreml needs macOS", "tensorrt needs", "op-dbus runtime pull --provider tensorrt"]
    {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let said = daemon.process.stderr();
    assert!(said.contains("WARN") && said.contains("coreml needs macOS"), "{said}");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// What `ListProviders` tells of one.
pub async fn told_of(daemon: &Daemon, name: &str) -> Outcome<Told> {
    for told in daemon.client().manager.list_providers().await? {
        if value::<String>(&told, "name")? == name {
            return Ok(told);
        }
    }
    Err(format!("no provider {name}").into())
}

/// How often another provider came to run than was asked for: as it is counted, and in the log.
pub async fn fallbacks(daemon: &Daemon) -> Outcome<(u64, usize)> {
    let counted = daemon.client().status("provider_fallbacks").await?;
    Ok((counted, daemon.process.stderr().matches("another provider runs").count()))
}

/// Has another level loaded beside the one in force.
pub async fn beside(daemon: &Daemon, level: &str) -> Outcome {
    let other = HashMap::from([("level", level.into())]);
    Ok(daemon.client().packed(&["x"], other).await.map(drop)?)
}

/// The simulator in place of what was asked for, for the model in force and for one that a call names.
async fn each_fallback_is_told_and_counted_once() -> Outcome {
    let setup = Setup::sim()?.setting("execution_provider", "coreml");
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    assert_eq!(fallbacks(&daemon).await?, (1, 1));
    for _ in 0..3 {
        beside(&daemon, "high").await?;
        assert_eq!(fallbacks(&daemon).await?, (2, 2));
    }
    daemon.stop().await
}

/// What was asked for lacks what it lacked before, and its first fallback is not named any more.
async fn another_fallback_for_the_same_reason_is_told_as_well() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "coreml");
    let (_bus, setup, daemon) = setup.setting("fallback", "ggml, cpu").alone_as("degraded").await?;
    let (active, reason) = provider(&daemon).await?;
    assert_eq!((&*active, fallbacks(&daemon).await?), ("ggml", (1, 1)));
    let manager = &daemon.client().manager;
    let mut signals = manager.receive_provider_fallback().await?;
    let setup = setup.setting("fallback", "cpu");
    setup.write_config()?;
    manager.reload().await?;
    let signal = within("ProviderFallback", signals.next()).await?.ok_or("the bus is gone")?;
    let signal = signal.args()?;
    assert_eq!((*signal.active(), *signal.reason()), ("cpu", &*reason));
    assert_eq!(provider(&daemon).await?, ("cpu".to_owned(), reason));
    assert_eq!(fallbacks(&daemon).await?, (2, 2));
    daemon.stop().await
}

/// ggml takes nothing of a graph with an operator that it lacks; ONNX Runtime would compute it all on
/// the CPU and not say so.
async fn a_provider_that_leaves_the_work_to_the_cpu_is_refused() -> Outcome {
    let graph = fs::read(fixture("golden/tiny-bert/onnx/model.onnx"))?;
    let (has, lacks) = (b"Softmax", b"Hardmax");
    let mut edited = graph.clone();
    for at in 0..edited.len() - has.len() {
        if edited[at..].starts_with(has) {
            edited[at..at + has.len()].copy_from_slice(lacks);
        }
    }
    assert_ne!(edited, graph);
    let setup = with_graph(&edited).await?.setting("execution_provider", "ggml");
    let setup = setup.setting("cpu_engine", "ort").setting("fallback", "none");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    for part in ["ggml does not work here", "MatMul", "fallback is none"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    Ok(())
}

async fn a_provider_that_cannot_begin_is_refused_in_its_own_words() -> Outcome {
    let setup = ggml()?.setting("providers.ggml.options.device", "gpu");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    assert!(
        message.starts_with("ggml does not work here: ggml: device=gpu requested"),
        "{message}"
    );
    Ok(())
}

async fn a_library_that_is_none_is_refused() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "webgpu");
    let library = setup.path("provider.so");
    fs::write(&library, "no library")?;
    let shown = library.display().to_string();
    let setup = setup.setting("providers.webgpu.library", &shown);
    let (_bus, _setup, daemon) = setup.alone_as("degraded").await?;
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    let told = format!("webgpu does not work here: its library {shown} is not a shared library");
    assert_eq!(reason, told);
    assert_eq!(value::<String>(&told_of(&daemon, "webgpu").await?, "reason")?, reason);
    daemon.stop().await
}

/// Its vectors, and what is known of its device, would be told as the other's.
async fn a_library_of_another_provider_is_refused() -> Outcome {
    let library =
        find(&needs::store().join("runtime"), "libonnxruntime_ggml.so").ok_or("no plugin")?;
    let shown = library.canonicalize()?.display().to_string();
    for (name, why) in [("webgpu", "not WebGpuExecutionProvider"), ("coreml", "coreml needs macOS")]
    {
        let setup = Setup::real("low")?.setting("execution_provider", name);
        let setup = setup.setting("fallback", "none");
        let message = refusal(&setup.setting(&format!("providers.{name}.library"), &shown)).await?;
        assert!(message.contains(why), "{message}");
    }
    Ok(())
}

/// ggml keeps the weights of any graph in 16 bits where it is not told otherwise, which is 1e-4 from this.
async fn what_is_named_f32_is_computed_in_it() -> Outcome {
    let texts = golden::plain_texts()?;
    let (_bus, _setup, daemon) = ggml()?.setting("precision", "f32").alone().await?;
    let reply = daemon.client().packed(&texts, HashMap::new()).await?;
    assert_eq!(reply.info::<String>("precision")?, "f32");
    let found = daemon.client().vectors(&texts).await?;
    for (found, expected) in found.iter().zip(golden::vectors("low")?) {
        let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= 1e-5, "{apart}");
    }
    daemon.stop().await
}

/// ggml with a store of libraries that is a copy, and where its plugin is.
fn copied(setup: Setup) -> Outcome<(Setup, PathBuf)> {
    let setup = without_library(setup)?;
    copy_folder(&needs::store().join("runtime"), &setup.path("runtime"))?;
    let library = find(&setup.path("runtime"), "libonnxruntime_ggml.so").ok_or("no plugin")?;
    Ok((setup, library))
}

/// One byte of it is changed.
async fn a_damaged_library_is_not_loaded() -> Outcome {
    let (setup, library) = copied(ggml()?)?;
    let mut bytes = fs::read(&library)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&library, bytes)?;
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    assert!(message.contains("libonnxruntime_ggml.so"), "{message}");
    assert!(message.contains("runtime pull --provider ggml"), "{message}");
    Ok(())
}

/// Once it serves; the other file could be loaded as well.
async fn a_library_that_is_another_file_by_now_is_not_loaded() -> Outcome {
    let (setup, library) = copied(Setup::real("low")?.setting("execution_provider", "ggml"))?;
    let (_bus, setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    let other = setup.path("other.so");
    fs::write(&other, [&fs::read(&library)?[..], b"more"].concat())?;
    fs::rename(&other, &library)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    drop(daemon.client().embedder.embed("lost").await);
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.contains("libonnxruntime_ggml.so is damaged"), "{reason}");
    daemon.stop().await
}

/// The first file whose name ends so, however deep.
pub fn find(folder: &Path, ending: &str) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            find(&path, ending)
        } else {
            path.to_str()?.ends_with(ending).then_some(path)
        }
    })
}

/// A worker of this provider that is killed is replaced on it.
pub async fn replaced_there(name: &str) -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", name).setting("fallback", "none");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let expected = daemon.client().vectors(&["before and after"]).await?;
    let lost = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    let found = daemon.client().vectors(&["before and after"]).await?;
    assert!(cosine(&found[0], &expected[0]) >= 0.9999);
    assert_ne!(daemon.workers().await?, lost);
    assert_eq!(provider(&daemon).await?.0, name);
    daemon.stop().await
}

/// ggml by a library that can be moved away, and where to.
pub fn movable() -> Outcome<(Setup, PathBuf, PathBuf)> {
    let setup = Setup::real("low")?.setting("execution_provider", "ggml");
    let pulled =
        find(&needs::store().join("runtime"), "libonnxruntime_ggml.so").ok_or("no plugin")?;
    let (library, away) = (setup.path("ggml.so"), setup.path("away.so"));
    std::os::unix::fs::symlink(pulled.canonicalize()?, &library)?;
    let shown = library.display().to_string();
    Ok((setup.setting("providers.ggml.library", &shown), library, away))
}

/// The library is gone when the worker is to be replaced; later it is there again.
async fn a_device_that_stays_bad_is_left_and_comes_back() -> Outcome {
    let (setup, library, away) = movable()?;
    let shown = library.display().to_string();
    let (_bus, _setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));

    fs::rename(&library, &away)?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    // A lost worker is missed when it is needed; whoever needs it may be told that there is none.
    drop(daemon.client().embedder.embed("lost").await);
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.contains("ggml does not work here") && reason.contains(&shown), "{reason}");
    daemon.client().embedder.embed("meanwhile").await?;

    fs::rename(&away, &library)?;
    daemon.client().manager.reload().await?;
    assert_eq!(provider(&daemon).await?, ("ggml".to_owned(), String::new()));
    daemon.client().embedder.embed("as before").await?;
    daemon.stop().await
}

/// To each of these in turn, from the CPU.
pub async fn changes_under_load(all: [&str; 3]) -> Outcome {
    let (bus, setup, daemon) = Setup::real("low")?.alone().await?;
    let load = Load::start(&bus, &["one text", "and another"]).await?;
    let manager = &daemon.client().manager;
    for wanted in all {
        manager.set_execution_provider(wanted).await?;
        assert_eq!(provider(&daemon).await?, (wanted.to_owned(), String::new()));
        // Somebody has been served by it before it goes on.
        let reply = daemon.client().packed(&["here"], HashMap::new()).await?;
        assert_eq!(reply.info::<String>("provider")?, wanted);
    }
    let seen = load.stop().await?;
    let served = |by: &str| seen.iter().any(|device| device.split(':').next() == Some(by));
    assert!(all.into_iter().all(served), "{seen:?}");
    daemon.stop().await?;
    // It is what it was after a restart.
    let daemon = setup.ready(&bus).await?;
    assert_eq!(provider(&daemon).await?.0, all[2]);
    daemon.stop().await
}

async fn a_change_to_what_does_not_work_changes_nothing() -> Outcome {
    let (_bus, setup, daemon) = Setup::real("low")?.alone().await?;
    let manager = &daemon.client().manager;
    let refusal = manager.set_execution_provider("cuda").await;
    let message = refused(refusal, ErrorName::ProviderUnavailable)?;
    assert!(message.contains("cuda needs"), "{message}");
    let refusal = manager.set_execution_provider("gpuu").await;
    let message = refused(refusal, ErrorName::InvalidArgument)?;
    assert!(message.contains("gpuu"), "{message}");
    let refusal = manager.set_devices(&["zero"]).await;
    refused(refusal, ErrorName::InvalidArgument)?;
    let refusal = manager.set_devices(&["0"; 4096]).await;
    let message = refused(refusal, ErrorName::InvalidArgument)?;
    assert_eq!(message, "gpu_device would have 8191 bytes; it may have 4096");
    assert_eq!(provider(&daemon).await?, ("cpu".to_owned(), String::new()));
    assert!(!setup.state_file().exists(), "a refused change was written");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// Anybody may send them, whoever may change them.
async fn devices_take_no_more_than_their_message() -> Outcome {
    const COUNT: usize = 2_000_000;
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let before = peak(daemon.process.pid())?;
    let devices = vec![""; COUNT];
    let refusal = daemon.client().manager.set_devices(&devices).await;
    let message = refused(refusal, ErrorName::InvalidArgument)?;
    assert_eq!(message, format!("gpu_device would have {COUNT} bytes; it may have 4096"));
    // An empty one takes eight bytes of the message.
    let (grown, sent) = (peak(daemon.process.pid())? - before, 8 * COUNT as u64);
    assert!(grown < 3 * sent, "it grew by {grown} bytes for {sent}");
    daemon.stop().await
}

async fn every_device_has_a_worker() -> Outcome {
    let setup = ggml()?.setting("gpu_device", "all").setting("workers_per_device", "2");
    let (_bus, setup, daemon) = setup.alone().await?;
    // It has one device, the CPU.
    assert_eq!(daemon.workers().await?.len(), 2);
    daemon.stop().await?;
    let setup = setup.setting("gpu_device", "7");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    let why = "ggml has one device here, 0, and gpu_device names 7 (gpu_device comes from: ";
    assert!(message.contains(why), "{message}");
    Ok(())
}

/// `auto` on a machine without the libraries of a GPU.
async fn the_best_that_works_is_no_fallback() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "auto");
    let (_bus, _setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?, ("cpu".to_owned(), String::new()));
    assert_eq!(daemon.client().embedder.requested_execution_provider().await?, "auto");
    daemon.stop().await
}
