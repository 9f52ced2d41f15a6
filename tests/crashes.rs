//! The daemon killed at each system call of a state write: the old state or the new, never neither. And an
//! import, a pull or a removal: a whole model or none.

pub mod cached;
mod damaged;
pub mod pulled;
mod tracer;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::command::{Finished, clean, finish};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::files::copy_folder;
use crate::harness::needs::op_dbus;
use crate::harness::process::Process;
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, fixture, within};
use tracer::{FAULTS, KILL, points, traced};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    [tests(), cached::tests(), damaged::tests(), pulled::tests()].into_iter().flatten().collect()
}

tests! {
    the_state_survives_a_kill_at_every_system_call: [Bus, Strace] => killed_in_a_write(false),
    the_first_state_survives_a_kill_at_every_system_call: [Bus, Strace] => killed_in_a_write(true),
    the_state_survives_an_error_at_every_system_call: [Bus, Strace] => refused_a_write(false),
    the_first_state_survives_an_error_at_every_system_call: [Bus, Strace] => refused_a_write(true),
    an_import_survives_an_error_at_every_system_call: [Strace],
    an_import_survives_a_kill_at_every_system_call: [Strace],
    a_removal_survives_a_fault_at_every_system_call: [Strace],
}

/// What a write consists of; each name is killed at its first call, its second, and so on.
const SYSTEM_CALLS: [&str; 5] = ["openat", "write", "fchmod", "fsync", "/^rename"];
/// What the first write begins with, where there is no folder.
const FIRST_CALL: &str = "/^mkdir";
/// Far more tries than a write makes calls of one name.
const CALLS_MAX: usize = 40;
/// The level where there is no state: that of the settings.
const SET: &str = "low";

/// The daemon is killed in a write of its state: over the one before it or, if it `is_first`, where there is not even a
/// folder.
async fn killed_in_a_write(is_first: bool) -> Outcome {
    let (bus, setup, mut daemon) = Setup::sim()?.alone().await?;
    let folder = setup.path("state");
    let mut hit = BTreeSet::new();
    for name in SYSTEM_CALLS.into_iter().chain(is_first.then_some(FIRST_CALL)) {
        let call = name.trim_start_matches("/^");
        let mut number = 1;
        for _ in 0..CALLS_MAX {
            let old = with_state(&daemon, &setup, is_first).await?;
            let log = setup.path(&format!("strace-{call}-{number}"));
            let mut tracer = attach(&daemon, name, "signal=KILL", number, &log).await?;
            let done = daemon.client().manager.set_vector_level("none").await;
            let killed = done.is_err();
            if killed {
                let status = daemon.process.ended().await?;
                assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
                tracer.ended().await?;
                hit.extend(step(&fs::read_to_string(&log)?, &folder));
            } else {
                // The tracer lets go of the daemon before it ends.
                tracer.signal(Signal::SIGTERM)?;
                tracer.ended().await?;
                daemon.process.signal(Signal::SIGKILL)?;
                daemon.process.ended().await?;
            }
            let kept = kept(&setup)?;
            assert!(kept == "none" || killed && kept == old, "{name} {number}: {kept:?}");

            let written = setup.state_file().exists();
            daemon = setup.start(&bus).await?;
            daemon.settled().await?;
            assert_eq!(daemon.client().embedder.vector_level().await?, kept, "{name} {number}");
            only_the_state(&folder, written, &format!("{name} {number}"));
            // Each thread's calls are counted for themselves. Where another's first one came before the state's, which
            // is the only one of its thread, there is no second one.
            match killed {
                true => number += 1,
                false if hit.iter().any(|step| step.starts_with(call)) => break,
                false => number = 1,
            }
        }
    }
    println!("killed at: {hit:#?}");
    let expected = ["openat", "write", "fsync", "rename"].into_iter();
    for call in expected.chain(is_first.then_some("mkdir")) {
        assert!(hit.iter().any(|step| step.starts_with(call)), "no kill hit {call}: {hit:#?}");
    }
    daemon.stop().await
}

/// Has the daemon keep the level `medium`, and forget it where the next write is to be the first. The level that is
/// found after a start.
async fn with_state(daemon: &Daemon, setup: &Setup, is_first: bool) -> Outcome<&'static str> {
    daemon.client().manager.set_vector_level("medium").await?;
    assert_eq!(level_in(&setup.state_file())?, "medium");
    if !is_first {
        return Ok("medium");
    }
    fs::remove_dir_all(setup.path("state"))?;
    Ok(SET)
}

/// The level that is found after a start.
fn kept(setup: &Setup) -> Outcome<String> {
    let state = setup.state_file();
    if state.exists() { level_in(&state) } else { Ok(SET.to_owned()) }
}

/// Nothing is left over beside a state that was `written`.
fn only_the_state(folder: &Path, written: bool, what: &str) {
    let files = folder.read_dir().into_iter().flatten().flatten();
    let files: Vec<_> = files.map(|file| file.file_name()).collect();
    let expected: &[&str] = if written { &["state.json"] } else { &[] };
    assert_eq!(files, expected, "left over after {what}");
}

/// What a file system answers that is full, broken or read-only.
const ERRORS: [&str; 3] = ["ENOSPC", "EIO", "EROFS"];

/// A call of a write of the state has an error.
async fn refused_a_write(is_first: bool) -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let folder = setup.path("state");
    let mut points = 0;
    // An error of any other `write` would be one of a socket, which is not what this is about.
    let names = ["openat", "fchmod", "fsync", "/^rename"];
    for error in ERRORS {
        for name in names.into_iter().chain(is_first.then_some(FIRST_CALL)) {
            for number in 1..=CALLS_MAX {
                let old = with_state(&daemon, &setup, is_first).await?;
                let log = setup.path("strace");
                let fault = format!("error={error}");
                let mut tracer = attach(&daemon, name, &fault, number, &log).await?;
                let done = daemon.client().manager.set_vector_level("none").await;
                tracer.signal(Signal::SIGTERM)?;
                tracer.ended().await?;
                let what = format!("{error} at {name} {number}");
                let log = fs::read_to_string(&log)?;
                let injected = log.lines().filter(|line| line.contains("(INJECTED)"));
                let here = injected.clone().any(|line| line.contains(&*folder.to_string_lossy()));
                let kept = kept(&setup)?;
                match done {
                    Ok(()) => assert_eq!(kept, "none", "{what}"),
                    Err(refusal) => {
                        let refusal = op_dbus_api::Error::from_reply(&refusal);
                        let refusal =
                            refusal.ok_or_else(|| format!("{what}: not in the contract"))?;
                        // What is refused is not in force, nor found by the next start.
                        assert_eq!(kept, old, "{what}");
                        let level = daemon.client().embedder.vector_level().await?;
                        assert_eq!(level, "medium", "{what}");
                        if here {
                            assert_eq!(refusal.name(), ErrorName::NoSpace, "{what}");
                            assert!(refusal.message().contains("state.json"), "{what}");
                            points += 1;
                        }
                    }
                }
                only_the_state(&folder, setup.state_file().exists(), &what);
                if injected.count() == 0 {
                    break;
                }
            }
        }
    }
    let writes = if is_first { "first writes" } else { "writes" };
    println!("figure: {points} {writes} of the state refused");
    assert!(points >= 4 * ERRORS.len(), "only {points} errors hit the state");
    daemon.client().manager.set_vector_level("low").await?;
    daemon.state(|state| state == "ready").await?;
    daemon.client().embedder.embed("still there").await?;
    daemon.stop().await
}

/// What an import or a pull into a store consists of, and a removal from it.
const STORE_CALLS: &str =
    "/^(openat|write|copy_file_range|f?truncate|fsync|f?chmod|f?chown|mkdir|rename|unlink|rmdir)";

/// An import as `own` into a store that is empty and has been written to before.
struct Import {
    setup: Setup,
    tiny: PathBuf,
}

impl Import {
    fn new() -> Outcome<Self> {
        Ok(Self { setup: Setup::sim()?, tiny: fixture("golden/tiny-bert") })
    }

    fn store(&self) -> PathBuf {
        self.setup.path("models")
    }

    /// What there is in the store, beside the file that is locked.
    fn installed(&self) -> Outcome<Vec<String>> {
        let names = self.store().read_dir()?.flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name != ".lock").collect())
    }

    /// `op-dbus models` for this store.
    fn models(&self, arguments: &[&str]) -> Command {
        let mut models = clean(op_dbus());
        models.arg("models").arg("--model-dir").arg(self.store()).args(arguments);
        models
    }

    /// The store is empty and the import traced, with what else the tracer is told; its log as well.
    async fn traced(&self, told: &[&str]) -> Outcome<(Finished, String)> {
        let store = self.store();
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        fs::create_dir(&store)?;
        fs::write(store.join(".lock"), "")?;
        let mut import = self.models(&["import", "--name", "own"]);
        traced(import.arg(&self.tiny), STORE_CALLS, told).await
    }

    /// The store is as `whole`, which has `own`, and the removal of that is traced.
    async fn removed(&self, whole: &Path, told: &[&str]) -> Outcome<(Finished, String)> {
        fs::remove_dir_all(self.store())?;
        copy_folder(whole, &self.store())?;
        traced(&self.models(&["remove", "own"]), STORE_CALLS, told).await
    }

    /// Whether `own` is whole.
    async fn verified(&self) -> Outcome<Finished> {
        finish(self.models(&["verify", "own"]), "").await
    }

    /// Each call that has to do with the store.
    async fn points(&self) -> Outcome<BTreeSet<(String, usize)>> {
        let (finished, log) = self.traced(&[]).await?;
        finished.success()?;
        let expected = ["openat", "write", "fsync", "fchmod", "mkdir", "rename", "rmdir"];
        Ok(points(&log, &self.store(), &expected))
    }
}

async fn an_import_survives_an_error_at_every_system_call() -> Outcome {
    let import = Import::new()?;
    let store = import.store();
    // Of a file that there is no room for, the folder is told.
    let around = store.parent().ok_or("a store in no folder")?.display().to_string();
    let mut refused = 0;
    for (name, number) in import.points().await? {
        for error in ERRORS {
            let fault = format!("--inject={name}:error={error}:when={number}");
            let (finished, log) = import.traced(&[&fault]).await?;
            let what = format!("{error} at {name} {number}: {}", finished.stderr);
            assert!(log.contains("(INJECTED)"), "{what}");
            let installed = import.installed()?.contains(&"own".to_owned());
            assert_eq!(finished.code, Some(i32::from(!installed)), "{what}");
            if installed {
                import.verified().await?.success().map_err(|error| format!("{what}: {error}"))?;
            } else {
                refused += 1;
                let said = finished.stderr.lines().last().unwrap_or_default();
                assert!(said.contains(&around), "{what}");
            }
        }
    }
    println!("figure: {refused} imports refused");
    assert!(refused > 150, "only {refused} errors hit the import");
    Ok(())
}

async fn an_import_survives_a_kill_at_every_system_call() -> Outcome {
    let import = Import::new()?;
    let points = import.points().await?;
    for (name, number) in &points {
        let fault = format!("--inject={name}:signal=KILL:when={number}");
        let (finished, _) = import.traced(&[&fault]).await?;
        let what = format!("killed at {name} {number}");
        assert_eq!(finished.code, None, "{what}: {}", finished.stderr);
        let mut expected = vec!["next"];
        if import.store().join("own").exists() {
            expected.push("own");
            import.verified().await?.success().map_err(|error| format!("{what}: {error}"))?;
        }
        let next = import.setup.import(&import.tiny, &["--name", "next"]).await?;
        next.success().map_err(|error| format!("{what}: {error}"))?;
        let mut left = import.installed()?;
        left.sort_unstable();
        assert_eq!(left, expected, "left over, {what}");
    }
    println!("figure: an import killed at {} system calls", points.len());
    Ok(())
}

async fn a_removal_survives_a_fault_at_every_system_call() -> Outcome {
    let import = Import::new()?;
    let (store, whole) = (import.store(), import.setup.path("whole"));
    let around = store.parent().ok_or("a store in no folder")?.display().to_string();
    import.traced(&[]).await?.0.success()?;
    copy_folder(&store, &whole)?;
    let (finished, log) = import.removed(&whole, &[]).await?;
    finished.success()?;
    let (mut faults, mut gone) = (0, 0);
    for (name, number) in points(&log, &store, &["openat", "fsync", "mkdir", "rename", "unlink"]) {
        for fault in FAULTS {
            let inject = format!("--inject={name}:{fault}:when={number}");
            let (finished, log) = import.removed(&whole, &[&inject]).await?;
            let what = format!("{fault} at {name} {number}: {}", finished.stderr);
            let left = import.installed()?.contains(&"own".to_owned());
            match finished.code {
                None => (),
                Some(0) => assert!(!left, "{what}"),
                code => assert!(code == Some(1) && finished.stderr.contains(&around), "{what}"),
            }
            assert_eq!(finished.code.is_none(), fault == KILL, "{what}");
            assert!(fault == KILL || log.contains("(INJECTED)"), "{what}");
            faults += 1;
            let (next, expected) = if left {
                import.verified().await?.success().map_err(|error| format!("{what}: {error}"))?;
                (finish(import.models(&["remove", "own"]), "").await?, vec![])
            } else {
                gone += 1;
                (import.setup.import(&import.tiny, &["--name", "own"]).await?, vec!["own"])
            };
            next.success().map_err(|error| format!("{what}: {error}"))?;
            assert_eq!(import.installed()?, expected, "left over, {what}");
        }
    }
    println!("figure: {faults} faults of a removal, {gone} with the model gone");
    assert!(gone > 20 && faults - gone > 20, "{gone} of {faults} with the model gone");
    Ok(())
}

/// Attaches a tracer that lets `fault` happen at call `number` of `name` in any thread of the daemon.
async fn attach(
    daemon: &Daemon,
    name: &str,
    fault: &str,
    number: usize,
    log: &Path,
) -> Outcome<Process> {
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-p", &daemon.process.pid().to_string(), "-o"]).arg(log);
    command.arg(format!("--trace={name}"));
    command.arg(format!("--inject={name}:{fault}:when={number}"));
    let mut process = Process::start_piped("strace", command)?;
    // Left open: it also says which threads are new, and would end with nobody to read that.
    let stderr = process.child().stderr.as_mut().ok_or("strace has no standard error")?;
    let mut line = String::new();
    within("strace to attach", BufReader::new(stderr).read_line(&mut line)).await??;
    assert!(line.contains("attached"), "strace said: {line}");
    Ok(process)
}

/// The call in the log that the kill interrupted, if it was part of a state write: its name and the
/// place.
fn step(log: &str, folder: &Path) -> Option<String> {
    let folder = folder.display().to_string();
    let cut = |line: &&str| line.contains("= ?") || line.contains("<unfinished");
    let line = log.lines().filter(cut).rfind(|line| line.contains(&folder))?;
    let (_pid, call) = line.trim().split_once(' ')?;
    let name = call.trim().split('(').next()?;
    let place = if line.contains(".tmp") { "temporary file" } else { "folder" };
    Some(format!("{name} {place}"))
}

fn level_in(state: &Path) -> Outcome<String> {
    let text = fs::read_to_string(state)?;
    let state: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text:?}"))?;
    Ok(state["settings"]["vector_level"].as_str().ok_or("a state without the level")?.to_owned())
}
