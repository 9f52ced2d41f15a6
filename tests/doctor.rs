//! What is missing on a machine, and what its administrator is told to do about it.

mod cards;
mod fit;
mod folders;

use std::fs;

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use serde_json::Value;
use tokio::process::Command;

use crate::faults::limit_descriptors;
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::client::refused;
use crate::harness::command::{Finished, clean, finish, in_own_mounts, path_with};
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::gateway::Gateway;
use crate::harness::needs::{intruder, op_dbus, store};
use crate::harness::registry::{Test, tests};
use crate::native::without_library;
use crate::providers::find;
use crate::remote::fleet;

/// The tests of this module, and of those below.
pub fn all() -> Vec<Test> {
    [tests(), cards::tests(), fit::tests(), folders::tests()].into_iter().flatten().collect()
}

tests! {
    a_provider_that_works_is_proved: [Bus, Low, Ggml],
    the_cpu_is_proved_for_auto: [Bus, Low],
    a_proof_measures_nothing_for_the_service: [Bus, Low],
    cuda_says_what_is_missing_and_what_to_do_next: [Bus, Low, NoNvidia],
    webgpu_finds_no_device: [Bus, Low, NoGraphics],
    a_provider_of_another_system_says_so: [Bus, Low],
    a_library_that_is_none_is_wrong: [Bus, Low, Runtime],
    a_library_where_nothing_may_be_run_is_told: [Bus, Low, Runtime, Root],
    a_damaged_library_is_named: [Bus, Low, Ggml],
    a_model_that_is_not_there_is_asked_for: [Bus],
    a_look_starts_no_worker: [Bus, Low],
    the_running_service_is_told_beside: [Bus],
    a_bus_that_does_not_answer_is_wrong_where_it_was_asked_for: [],
    the_installed_unit_is_looked_at: [Low],
    a_credential_of_the_unit_is_shown_to_the_fleet: [Bus, Low],
    wrong_arguments_and_settings_have_their_exit_codes: [Bus],
}

/// Runs the doctor under the settings of `setup`, on a bus without a service.
async fn doctor(setup: &Setup, arguments: &[&str]) -> Outcome<Finished> {
    let bus = PrivateBus::start().await?;
    on(setup, bus.address(), arguments).await
}

async fn on(setup: &Setup, bus: &str, arguments: &[&str]) -> Outcome<Finished> {
    finish(command(setup, bus, arguments)?, "").await
}

/// The doctor as a command, under the settings of `setup` and on this bus.
pub fn command(setup: &Setup, bus: &str, arguments: &[&str]) -> Outcome<Command> {
    setup.write_config()?;
    let mut command = clean(op_dbus());
    command.arg("doctor").args(arguments).arg("--config").arg(setup.config_file());
    command.arg("--state-file").arg(setup.state_file()).env("OP_DBUS_BUS", bus);
    Ok(command)
}

/// The JSON object of a run that ended with `code`.
async fn findings(setup: &Setup, code: i32, arguments: &[&str]) -> Outcome<Value> {
    let arguments = [arguments, &["--json"]].concat();
    let run = doctor(setup, &arguments).await?;
    assert_eq!(run.code, Some(code), "{}{}", run.stdout, run.stderr);
    Ok(serde_json::from_str(&run.stdout)?)
}

/// The check of that name and state.
fn check<'a>(checks: &'a Value, name: &str, state: &str) -> Outcome<&'a Value> {
    let found = checks.as_array().into_iter().flatten();
    let mut found = found.filter(|check| check["check"] == name && check["state"] == state);
    found.next().ok_or_else(|| format!("no {name} that is {state} in {checks:#}").into())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

async fn a_provider_that_works_is_proved() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "ggml");
    let found = findings(&setup, 0, &[]).await?;
    assert_eq!((&found["works"], &found["next"]), (&Value::from(true), &Value::Null));
    let providers = found["providers"].as_array().ok_or("no providers")?;
    let ggml = providers.iter().find(|one| one["provider"] == "ggml").ok_or("no ggml")?;
    assert_eq!((&ggml["asked"], &ggml["works"]), (&Value::from(true), &Value::from(true)));
    let proof = text(&check(&ggml["checks"], "proof", "ok")?["found"]);
    assert!(proof.contains("paraphrase-MiniLM-L3-v2") && proof.contains("ggml:0"), "{proof}");
    assert!(text(&check(&ggml["checks"], "library", "ok")?["found"]).contains("onnxruntime_ggml"));
    check(&found["general"], "model", "ok")?;
    // Every other one is looked at, and none of them proved.
    let cuda = providers.iter().find(|one| one["provider"] == "cuda").ok_or("no cuda")?;
    assert_eq!(cuda["asked"], false);
    assert!(check(&cuda["checks"], "proof", "ok").is_err());
    // What was compiled for the proof is not left behind.
    assert!(!setup.path("cache").exists());
    Ok(())
}

async fn the_cpu_is_proved_for_auto() -> Outcome {
    let run = doctor(&Setup::real("low")?.setting("execution_provider", "auto"), &[]).await?;
    let page = run.success()?;
    for part in ["cpu: works", "All is well", "computed paraphrase-MiniLM-L3-v2"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains('\u{1b}'), "{page:?}");
    Ok(())
}

async fn a_proof_measures_nothing_for_the_service() -> Outcome {
    let setup = Setup::real("low")?.setting("batch_tokens_max", "auto");
    // Its user's own, in which what is packed may stay.
    fs::create_dir(setup.path("cache"))?;
    findings(&setup, 0, &[]).await?;
    assert!(setup.cached()?.join("weights").exists());
    assert!(!setup.cached()?.join("tuning").exists());
    Ok(())
}

/// A runtime of its own keeps this the same on a machine with the library and without.
async fn cuda_says_what_is_missing_and_what_to_do_next() -> Outcome {
    let setup = Setup::real("low")?.setting("execution_provider", "cuda");
    let setup = setup.setting("fallback", "cpu");
    let found = findings(&setup, 1, &[]).await?;
    let cuda = found["providers"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["provider"] == "cuda"));
    let cuda = cuda.ok_or("no cuda")?;
    check(&cuda["checks"], "device", "missing")?;
    let driver = check(&cuda["checks"], "driver", "missing")?;
    assert!(text(&driver["found"]).contains("/proc/driver/nvidia/version"), "{driver}");
    assert!(text(&driver["next"]).contains("580"), "{driver}");
    let needs = check(&cuda["checks"], "needs", "missing")?;
    assert!(text(&needs["found"]).contains("libcuda.so.1"), "{needs}");
    let library = check(&cuda["checks"], "library", "missing")?;
    assert!(text(&library["next"]).contains("runtime pull --provider cuda"), "{library}");
    assert_eq!(found["next"], cuda["next"]);
    assert!(!text(&found["next"]).is_empty(), "{found:#}");
    // The page ends in the same advice, and the fallback is not what was asked for.
    let run = doctor(&setup, &[]).await?;
    let last = format!("What to do next: {}\n", text(&found["next"]));
    assert!(run.stdout.ends_with(&last) && run.stdout.contains("cpu: works"), "{}", run.stdout);
    Ok(())
}

async fn webgpu_finds_no_device() -> Outcome {
    let found = findings(&Setup::real("low")?, 1, &["wgpu"]).await?;
    let section = &found["providers"][0];
    assert_eq!(found["providers"].as_array().map(Vec::len), Some(1));
    assert_eq!(section["provider"], "webgpu");
    let device = check(&section["checks"], "device", "missing")?;
    assert!(text(&device["found"]).contains("/sys/class/drm"), "{device}");
    assert_eq!(found["next"], device["next"]);
    Ok(())
}

async fn a_provider_of_another_system_says_so() -> Outcome {
    let found = findings(&Setup::real("low")?, 1, &["directml", "coreml"]).await?;
    let said = |position: usize| -> Outcome<&str> {
        let checks = &found["providers"][position]["checks"];
        Ok(text(&check(checks, "library", "missing")?["found"]))
    };
    assert!(said(0)?.contains("needs Windows"), "{}", said(0)?);
    assert!(said(1)?.contains("needs macOS"), "{}", said(1)?);
    Ok(())
}

async fn a_library_that_is_none_is_wrong() -> Outcome {
    let setup = Setup::real("low")?;
    let library = setup.path("provider.so");
    fs::write(&library, "no library")?;
    let setup = setup.setting("providers.ggml.library", &library.display().to_string());
    let found = findings(&setup, 1, &["ggml"]).await?;
    let needs = check(&found["providers"][0]["checks"], "needs", "wrong")?;
    assert!(text(&needs["found"]).contains("provider.so"), "{needs}");
    let proof = check(&found["providers"][0]["checks"], "proof", "wrong")?;
    assert!(text(&proof["found"]).starts_with("ggml does not work here"), "{proof}");
    // The advice of the daemon about its setting is not the doctor's.
    assert!(!text(&proof["found"]).contains("fallback"), "{proof}");
    Ok(())
}

/// Another file in its place would not do either.
async fn a_library_where_nothing_may_be_run_is_told() -> Outcome {
    let (setup, bus) = (Setup::real("low")?, PrivateBus::start().await?);
    let folder = setup.path("provider");
    fs::create_dir(&folder)?;
    let library = folder.join("provider.so");
    fs::copy(intruder()?, &library)?;
    let setup = setup.setting("providers.ggml.library", &library.display().to_string());
    let doctor = command(&setup, bus.address(), &["ggml", "--quick", "--json"])?;
    let folder = folder.display();
    let needs = async |mounts: &str| -> Outcome<Value> {
        let run = finish(in_own_mounts(&format!("{mounts} exec \"$@\""), &doctor), "").await?;
        let found: Value = serde_json::from_str(&run.stdout)?;
        Ok(check(&found["providers"][0]["checks"], "needs", "wrong").cloned().unwrap_or_default())
    };
    let closed = format!("mount --bind {folder} {folder}; mount -o remount,bind,noexec {folder};");
    let next = format!("have the file system of {folder} mounted without noexec, or ");
    let told = needs(&closed).await?;
    assert!(text(&told["next"]).starts_with(&next), "{told}");
    assert_eq!(needs("").await?, Value::Null);
    Ok(())
}

async fn a_damaged_library_is_named() -> Outcome {
    let setup = without_library(Setup::real("low")?)?;
    copy_folder(&store().join("runtime"), &setup.path("runtime"))?;
    let library = find(&setup.path("runtime"), "libonnxruntime_ggml.so").ok_or("no plugin")?;
    fs::write(library, "cut short")?;
    let found = findings(&setup, 1, &["ggml"]).await?;
    let library = check(&found["providers"][0]["checks"], "library", "wrong")?;
    assert!(text(&library["found"]).contains("libonnxruntime_ggml.so is damaged"), "{library}");
    assert!(text(&found["next"]).contains("op-dbus runtime pull --provider ggml"), "{found:#}");
    Ok(())
}

async fn a_model_that_is_not_there_is_asked_for() -> Outcome {
    let setup = Setup::sim()?.setting("cpu_engine", "native");
    fs::create_dir(setup.path("models"))?;
    let found = findings(&setup, 1, &[]).await?;
    check(&found["general"], "model", "missing")?;
    assert!(text(&found["next"]).contains("op-dbus models pull"), "{found:#}");
    // Without a model there is nothing to prove.
    check(&found["providers"][0]["checks"], "proof", "unchecked")?;
    // None can be fetched to where a file is.
    fs::remove_dir(setup.path("models"))?;
    fs::write(setup.path("models"), "")?;
    let found = findings(&setup, 1, &[]).await?;
    check(&found["general"], "model", "missing")?;
    assert_eq!(found["next"], "set `model_dir` to another place");
    Ok(())
}

async fn a_look_starts_no_worker() -> Outcome {
    let setup = Setup::real("low")?;
    let found = findings(&setup, 0, &["--quick", "cpu"]).await?;
    let proof = check(&found["providers"][0]["checks"], "proof", "unchecked")?;
    assert!(text(&proof["found"]).contains("--quick"), "{proof}");
    check(&found["general"], "cpu", "ok")?;
    // What was not proved is not said to work.
    assert_eq!((&found["works"], &found["providers"][0]["works"]), (&Value::Null, &Value::Null));
    Ok(())
}

async fn the_running_service_is_told_beside() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let absent = on(&setup, bus.address(), &["--quick", "--json"]).await?;
    let found: Value = serde_json::from_str(&absent.stdout)?;
    let service = check(&found["general"], "service", "unchecked")?;
    assert!(text(&service["found"]).contains("does not run"), "{service}");
    let daemon = setup.ready(&bus).await?;
    let beside = on(&setup, bus.address(), &["--json", "cpu"]).await?;
    assert_eq!(beside.code, Some(0), "{}{}", beside.stdout, beside.stderr);
    let found: Value = serde_json::from_str(&beside.stdout)?;
    let service = check(&found["general"], "service", "ok")?;
    assert!(text(&service["found"]).contains("answers, ready"), "{service}");
    check(&found["providers"][0]["checks"], "proof", "ok")?;
    // One that has failed is not well, though it would work if it were started now.
    limit_descriptors(&daemon, "3:").await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    // Idle workers are looked at after a minute, or when somebody calls.
    refused(daemon.client().embedder.embed("x").await, ErrorName::WorkerFailed)?;
    assert_eq!(daemon.state(|state| state != "ready").await?, "failed");
    let page = on(&setup, bus.address(), &["cpu"]).await?.success()?;
    let next = page.lines().last().unwrap_or_default();
    assert!(next.contains("What to do next") && next.contains("then end the service"), "{page}");
    limit_descriptors(&daemon, "1024:").await?;
    daemon.stop().await
}

async fn a_bus_that_does_not_answer_is_wrong_where_it_was_asked_for() -> Outcome {
    let setup = Setup::sim()?;
    let nowhere = "unix:path=/nonexistent/bus";
    for (arguments, origin) in [
        (&["--quick", "--json", "--bus", nowhere][..], "flag --bus"),
        (&["--quick", "--json"], "environment variable OP_DBUS_BUS"),
    ] {
        let run = on(&setup, nowhere, arguments).await?;
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        let found: Value = serde_json::from_str(&run.stdout)?;
        let bus = check(&found["general"], "bus", "wrong")?;
        assert!(text(&bus["found"]).contains("/nonexistent/bus"), "{bus}");
        assert_eq!(found["next"], bus["next"]);
        assert!(text(&bus["next"]).ends_with(origin), "{bus}");
        check(&found["general"], "service", "unchecked")?;
    }
    // A machine that has no system bus yet lacks nothing for that.
    let mut command = command(&setup, nowhere, &["--quick", "--json"])?;
    command.env_remove("OP_DBUS_BUS").env("DBUS_SYSTEM_BUS_ADDRESS", nowhere);
    let found: Value = serde_json::from_str(&finish(command, "").await?.stdout)?;
    check(&found["general"], "service", "unchecked")?;
    assert!(check(&found["general"], "bus", "wrong").is_err(), "{found:#}");
    Ok(())
}

/// One with a profile and a sandbox.
async fn the_installed_unit_is_looked_at() -> Outcome {
    let setup = Setup::real("low")?;
    let shown = "LoadState=loaded\nUser=root\nProtectSystem=strict\nProtectHome=yes\n\
                 Environment=OP_DBUS_VECTOR_LEVEL=low OP_DBUS_CACHE_DIR=/run/user/0/cache\n";
    let path = path_with(&setup.path(""), "systemctl", &format!("cat <<'END'\n{shown}END"))?;
    let doctor = async |variables: &[(&str, &str)]| -> Outcome<Value> {
        let mut command = clean(op_dbus());
        command.args(["doctor", "--quick", "--json"]).arg("--state-file").arg(setup.state_file());
        command.env("PATH", &path).env("OP_DBUS_MODEL_DIR", store().join("models"));
        command.envs(variables.iter().copied());
        Ok(serde_json::from_str(&finish(command, "").await?.stdout)?)
    };
    let found = doctor(&[]).await?;
    assert_eq!(found["vector_level"], "low");
    let environment = check(&found["general"], "environment", "ok")?;
    assert!(text(&environment["found"]).contains("OP_DBUS_VECTOR_LEVEL"), "{environment}");
    let cache = check(&found["general"], "cache_dir", "wrong")?;
    assert!(text(&cache["found"]).contains("ProtectHome=yes"), "{cache}");
    // A value of one's own goes before the unit's, and of another service the unit says nothing.
    let own = doctor(&[("OP_DBUS_VECTOR_LEVEL", "none")]).await?;
    assert_eq!(own["vector_level"], "none");
    let other = doctor(&[("OP_DBUS_BUS", "session")]).await?;
    assert!(check(&other["general"], "environment", "ok").is_err(), "{other:#}");
    for no_other in [("OP_DBUS_BUS", ""), ("OP_DBUS_CONFIG", ""), ("OP_DBUS_BUS", "system")] {
        let found = doctor(&[no_other]).await?;
        check(&found["general"], "environment", "ok")?;
    }
    Ok(())
}

/// Nothing else names the token, which systemd hands to the service.
async fn a_credential_of_the_unit_is_shown_to_the_fleet() -> Outcome {
    let (bus, far) = (PrivateBus::start().await?, Setup::real("low")?);
    let daemon = far.ready(&bus).await?;
    fs::write(far.path("api-key"), "open-sesame")?;
    let gateway = Gateway::with_key(&bus, &far, &far.path("")).await?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    setup.write_config()?;
    let remote = async |credential: &str| -> Outcome<Value> {
        let unit = format!(
            "LoadState=loaded\nPrivateNetwork=no\nEnvironment=OP_DBUS_CONFIG={}\n{credential}",
            setup.config_file().display()
        );
        let mut command = clean(op_dbus());
        command.args(["doctor", "remote", "--json"]).arg("--state-file").arg(setup.state_file());
        let script = format!("cat <<'END'\n{unit}\nEND");
        command.env("PATH", path_with(&setup.path(""), "systemctl", &script)?);
        let found: Value = serde_json::from_str(&finish(command, "").await?.stdout)?;
        Ok(found["providers"][0]["checks"].clone())
    };
    let refused = remote("").await?;
    assert!(text(&check(&refused, "proof", "wrong")?["found"]).contains("401"), "{refused:#}");
    let token = far.path("api-key").display().to_string();
    check(&remote(&format!("LoadCredential=remote-token:{token}")).await?, "proof", "ok")?;
    // Only root may read it.
    let closed = remote("LoadCredential=remote-token:/nonexistent/token").await?;
    let proof = text(&check(&closed, "proof", "unchecked")?["found"]);
    assert!(proof.contains("/nonexistent/token"), "{proof}");
    gateway.stop().await?;
    daemon.stop().await
}

async fn wrong_arguments_and_settings_have_their_exit_codes() -> Outcome {
    let wrong = doctor(&Setup::sim()?, &["gpuu"]).await?;
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("webgpu"), "{}", wrong.stderr);
    let wrong = doctor(&Setup::sim()?.setting("vector_level", "tiny"), &[]).await?;
    assert_eq!(wrong.code, Some(6), "{}", wrong.stderr);
    Ok(())
}
