//! The devices of the machine, with a library that stands in for NVIDIA's.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use futures_util::future::join_all;
use serde_json::{Value, json};
use zbus::{OwnedVariant, Variant};

use crate::harness::bus::PrivateBus;
use crate::harness::client::value;
use crate::harness::command::{clean, cli, finish, in_own_mounts};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::needs::{fake_nvml, fake_tensorrt, op_dbus, runtime, store};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};
use crate::providers::find;

tests! {
    the_cpu_is_listed_and_in_use_only_while_it_computes: [Bus],
    what_drivers_tell_is_read_by_a_process_that_lives_for_it: [],
    the_service_lists_what_the_driver_tells: [Bus, Root],
    a_damaged_library_of_the_driver_takes_nobody_along: [Bus, Root],
    a_device_without_free_memory_is_passed_over: [Bus, Root, Low, Ggml],
}

const LIBRARY: &str = "libnvidia-ml.so.1";

/// What the stand-in tells.
fn told() -> Value {
    let gib = 1_u64 << 30;
    json!([
        {
            "name": "cuda:0", "provider": "cuda", "driver": "580.1.2", "description": "A whole GPU",
            "memory_total": 80 * gib, "memory_used": 12 * gib, "memory_free": 68 * gib,
            "utilisation_percent": 45.0, "temperature_celsius": 61.0, "power_watts": 310.5,
            "energy_joules": 1234.5,
        },
        {
            "name": "cuda:1", "provider": "cuda", "driver": "580.1.2", "description": "An old GPU",
            "memory_total": 16 * gib, "memory_used": gib, "memory_free": 15 * gib,
            "temperature_celsius": 40.0,
        },
        { "name": "cuda:2", "provider": "cuda", "driver": "580.1.2" },
    ])
}

/// Compares what a reading says of NVIDIA's devices, in JSON, with what the stand-in tells.
fn check(found: &[Value]) {
    assert_eq!(found.len(), 3, "{found:?}");
    for (found, told) in found.iter().zip(told().as_array().into_iter().flatten()) {
        let mut found: serde_json::Map<_, _> = found.as_object().cloned().unwrap_or_default();
        found.retain(|key, value| key != "in_use" && !value.is_null());
        let problem = found.remove("problem");
        assert_eq!(&Value::Object(found), told);
        match told["name"] == "cuda:2" {
            true => assert!(problem.is_some_and(|p| p.as_str().unwrap_or("").contains("fell off"))),
            false => assert_eq!(problem, None),
        }
    }
}

async fn what_drivers_tell_is_read_by_a_process_that_lives_for_it() -> Outcome {
    let folder = tempfile::tempdir()?;
    fs::copy(fake_nvml()?, folder.path().join(LIBRARY))?;
    let mut command = clean(op_dbus());
    command.arg("devices").env("LD_LIBRARY_PATH", folder.path());
    let found: Vec<Value> = serde_json::from_str(&finish(command, "").await?.success()?)?;
    check(&found.into_iter().filter(|one| one["provider"] == "cuda").collect::<Vec<_>>());
    Ok(())
}

fn text<'a>(device: &'a HashMap<String, OwnedVariant>, key: &str) -> &'a str {
    device.get(key).and_then(|value| <&str>::try_from(value).ok()).unwrap_or_default()
}

async fn the_cpu_is_listed_and_in_use_only_while_it_computes() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let devices = daemon.client().manager.list_devices().await?;
    let cpu = devices.iter().find(|one| text(one, "name") == "cpu:0").ok_or("no CPU")?;
    assert_eq!(*cpu["in_use"], Variant::from(false), "the simulator is no CPU");
    let total = u64::try_from(&*cpu["memory_total"])?;
    assert!(total > 0 && !cpu.contains_key("memory_used"), "{cpu:?}");
    let sim = devices.iter().find(|one| text(one, "provider") == "sim").ok_or("no simulator")?;
    assert_eq!(*sim["in_use"], Variant::from(true));
    assert!(!sim.contains_key("memory_total"), "what is not known is left out: {sim:?}");
    let status = cli(&bus, &["status", "--json"]).await?.success()?;
    let status: Value = serde_json::from_str(&status)?;
    assert_eq!(status["devices"][0]["name"], "cpu:0");
    daemon.client().manager.unload().await?;
    let devices = daemon.client().manager.list_devices().await?;
    assert!(devices.iter().all(|one| text(one, "provider") != "sim"), "unloaded: {devices:?}");
    daemon.stop().await
}

/// A daemon in whose mounts the stand-in is an installed library, by the loader's cache.
const INSTALLED: &str = "\
    ldconfig -C \"$CACHE\" -f \"$CONF\" -X; mount --bind \"$CACHE\" /etc/ld.so.cache; exec \"$@\"";

async fn daemon_with(library: &Path, setup: &Setup, bus: &PrivateBus) -> Outcome<Daemon> {
    let folder = setup.path("driver");
    fs::create_dir(&folder)?;
    fs::copy(library, folder.join(LIBRARY))?;
    let conf = setup.path("ld.so.conf");
    fs::write(&conf, format!("{}\ninclude /etc/ld.so.conf\n", folder.display()))?;
    let mut command = in_own_mounts(INSTALLED, &setup.command(bus)?);
    command.env("CONF", conf).env("CACHE", setup.path("ld.so.cache"));
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    setup.start_command(command, bus).await
}

async fn the_service_lists_what_the_driver_tells() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let daemon = daemon_with(&fake_nvml()?, &setup, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let mut devices = Vec::new();
    // A driver that was too late is asked again after a minute.
    eventually("what the driver tells", async || {
        let status = cli(&bus, &["status", "--json"]).await?.success()?;
        let status: Value = serde_json::from_str(&status)?;
        devices = status["devices"].as_array().cloned().ok_or("no devices")?;
        Ok(devices.iter().any(|one| one["provider"] == "cuda"))
    })
    .await?;
    check(&devices.iter().filter(|one| one["provider"] == "cuda").cloned().collect::<Vec<_>>());
    assert!(devices.iter().all(|one| one["in_use"] == (one["provider"] == "sim")), "{devices:?}");
    let said = daemon.process.stderr();
    assert!(said.contains("cuda:2: NVIDIA's management library"), "{said}");
    assert_eq!(said.matches("cuda:2").count(), 1, "{said}");
    daemon.stop().await
}

/// Whether the loader refuses it or the process that loads it ends, that is told, and no more.
async fn a_damaged_library_of_the_driver_takes_nobody_along() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let daemon = daemon_with(&fake_nvml()?, &setup, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    // The loader knows of it by now, and nobody has asked for it.
    fs::write(setup.path("driver").join(LIBRARY), "no library")?;
    let devices = daemon.client().manager.list_devices().await?;
    let untold = devices.iter().find(|one| text(one, "name").is_empty()).ok_or("nothing told")?;
    assert!(!text(untold, "problem").is_empty(), "{untold:?}");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// A number or truth of each worker of `GetStatus`.
async fn of_workers<T>(daemon: &Daemon, key: &str) -> Outcome<Vec<T>>
where
    T: TryFrom<OwnedVariant, Error: std::error::Error + 'static>,
{
    daemon.client().workers().await?.iter().map(|worker| value(worker, key)).collect()
}

/// ggml's library under TensorRT's name: a device of NVIDIA's that any machine has.
async fn a_device_without_free_memory_is_passed_over() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let pulled = find(&store().join("runtime"), "libonnxruntime_ggml.so").ok_or("no plugin")?;
    symlink(pulled.canonicalize()?, setup.path("libonnxruntime_ggml.so"))?;
    let library = setup.path("tensorrt.so");
    fs::copy(fake_tensorrt()?, &library)?;
    // Its own runtime is not there; any loads a plugin.
    let runtime = runtime().ok_or("no runtime")?;
    let setup = setup.setting("execution_provider", "tensorrt").setting("fallback", "none");
    let setup = setup.setting("providers.tensorrt.library", &library.display().to_string());
    let setup = setup.setting("runtime", &runtime.display().to_string());
    let setup = setup.setting("offload", "auto");
    let daemon = daemon_with(&fake_nvml()?, &setup, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
    let texts: Vec<String> = (0..400).map(|n| format!("disk {n} is full")).collect();
    let many_calls = async || {
        let calls = (0..8).map(|_| daemon.client().vectors(&texts));
        join_all(calls).await.into_iter().collect::<Outcome<Vec<_>>>()
    };
    // Where there is a choice, the device gets something once the CPU has more to do than it likes.
    let device_computes = async || {
        let before = of_workers::<u64>(&daemon, "batches").await?[0];
        eventually("a batch on the device", async || {
            many_calls().await?;
            Ok(of_workers::<u64>(&daemon, "batches").await?[0] != before)
        })
        .await
    };
    // The driver is asked while calls come.
    let told = async |short: bool| {
        eventually("a new reading of the driver", async || {
            daemon.client().embedder.embed("x").await?;
            Ok(of_workers::<bool>(&daemon, "short_of_memory").await?[0] == short)
        })
        .await
    };
    device_computes().await?;
    fs::write(setup.path("driver").join("used"), "80")?;
    told(true).await?;
    // The CPU is waited for, but not where a batch takes it more than a second, as on a machine that stands still.
    eventually("many calls without the device", async || {
        let before = of_workers::<u64>(&daemon, "batches").await?;
        many_calls().await?;
        let after = of_workers::<u64>(&daemon, "batches").await?;
        Ok(after[0] == before[0] && after[1] > before[1])
    })
    .await?;
    let said = daemon.process.stderr();
    assert!(said.contains("too little free memory"), "{said}");
    fs::write(setup.path("driver").join("used"), "12")?;
    told(false).await?;
    device_computes().await?;
    daemon.stop().await
}
