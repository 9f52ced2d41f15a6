//! What a worker can't do, tried by a library that it loads, and what it can do all the same.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::process::Command;
use zbus::Fd;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, value};
use crate::harness::command::{clean, cli, finish, in_own_mounts, started_by};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::gateway::Gateway;
use crate::harness::golden::{self, assert_near};
use crate::harness::needs::{intruder, op_dbus};
use crate::harness::registry::tests;
use crate::harness::users::{SERVICE, Users};
use crate::harness::{Outcome, eventually, fixture};
use crate::native::with_graph;

tests! {
    whoever_takes_a_worker_over_finds_nothing: [Bus, Landlock],
    a_worker_has_nothing_open_of_a_client: [Bus, Root],
    what_computes_in_process_is_not_confined: [],
    every_engine_computes_confined: [Bus, Low, Runtime, Ggml, Landlock],
    a_worker_ends_before_its_container_is_full: [Bus, Root],
    a_daemon_leaves_a_core_dump_only_where_it_is_asked_for: [Bus],
    nobody_is_dumped_where_dumps_are_piped: [Bus, Root],
    no_socket_leads_off_the_machine: [Bus, Low, Strace] => sockets_are_local("native"),
    no_socket_of_onnx_runtime_leads_off_the_machine: [Bus, Low, Runtime, Strace] =>
        sockets_are_local("ort"),
    a_kernel_without_landlock_is_told: [Bus, Strace],
}

/// Attempts that must succeed, the last three as it is said.
const ALLOWED: [&str; 10] = [
    "write to the cache",
    "touch what is in the cache",
    "open /dev/null",
    "read the own process",
    "a signal to itself",
    "a thread",
    "the end",
    "open a secret to all",
    "open the store to all",
    "open the own cache to all",
];
/// Attempts that Landlock refuses, as files are refused; all others seccomp refuses.
const NOT_THERE: [&str; 15] = [
    "read /etc/passwd",
    "read a secret",
    "list a folder",
    "read another process",
    "read another model",
    "write beside the cache",
    "write to the store",
    "move out of the cache",
    "read another model's cache",
    "write to another model's cache",
    "add to another model's cache",
    "remove from another model's cache",
    "replace in another model's cache",
    "write beside the models' caches",
    "link in the cache",
];
/// What a worker may have in its environment: some of the daemon's, and what the daemon sets.
const ENVIRONMENT: [&str; 7] =
    ["PATH", "HOME", "LANG", "TZ", "JOURNAL_STREAM", "TMPDIR", "ORT_DISABLE_TELEMETRY"];
/// What was made of another model.
const OF_ANOTHER: &str = "cache/by-model/other/packed";

/// A daemon's files with a model whose runtime library is the intruder, and what it is after.
async fn with_intruder() -> Outcome<Setup> {
    let setup = with_graph(&fs::read(fixture("golden/tiny-bert/onnx/model.onnx"))?).await?;
    for folder in ["models/other", "cache/by-model/other"] {
        fs::create_dir_all(setup.path(folder))?;
    }
    for file in ["secret", "models/other/weights", OF_ANOTHER] {
        fs::write(setup.path(file), "of no concern to a worker")?;
    }
    Ok(setup)
}

/// How each attempt ended, by its name.
fn attempts(said: &str) -> BTreeMap<&str, &str> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("intruder: "));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

/// The names of the variables that the library found.
fn environment(said: &str) -> Outcome<Vec<&str>> {
    let names = said.lines().find_map(|line| line.strip_prefix("intruder's environment: "));
    Ok(names.ok_or_else(|| format!("no environment was told: {said}"))?.split(' ').collect())
}

async fn whoever_takes_a_worker_over_finds_nothing() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_intruder().await?;
    let home = setup.path("").display().to_string();
    let setup = setup.env("HOME", &home).env("OP_DBUS_CPU_ENGINE", "ort");
    let setup = setup.env("LD_LIBRARY_PATH", &home).env("A_TOKEN", "of no concern to a worker");
    let setup = setup.env("OP_DBUS_RUNTIME", &intruder()?.display().to_string());
    let setup = setup.setting("worker_memory_max", "1GiB");
    let socket = bus.address().split_once("path=").ok_or("the bus has no socket")?.1;
    symlink(socket.split(',').next().unwrap_or(socket), setup.path("bus"))?;
    let daemon = setup.settled_as("failed", &bus).await?;
    let said = daemon.process.stderr();
    let mut foreign = environment(&said)?;
    foreign.retain(|name| !ENVIRONMENT.contains(name));
    assert!(foreign.is_empty(), "a worker has {foreign:?}");
    let attempts = attempts(&said);
    assert!(attempts.len() > ALLOWED.len() + NOT_THERE.len(), "{said}");
    for (name, outcome) in &attempts {
        let expected: &[&str] = match *name {
            name if ALLOWED.contains(&name) => &["done"],
            // Between two folders a file is not moved, but copied.
            "move out of the cache" | "replace in another model's cache" => &["EACCES", "EXDEV"],
            name if NOT_THERE.contains(&name) => &["EACCES"],
            "a process by the newer call" => &["ENOSYS"],
            "more memory than it may have" => &["ENOMEM"],
            _ => &["EPERM"],
        };
        assert!(expected.contains(outcome), "{name}: {outcome}");
    }
    for name in ALLOWED.iter().chain(&NOT_THERE) {
        assert!(attempts.contains_key(name), "{name}: {said}");
    }
    for name in ["beside", "moved", "models/own/more", "cache/by-model/other/more"] {
        assert!(!setup.path(name).exists(), "{name}");
    }
    for file in ["secret", OF_ANOTHER] {
        assert_eq!(fs::read_to_string(setup.path(file))?, "of no concern to a worker");
    }
    for path in ["secret", OF_ANOTHER, "models"] {
        assert_eq!(fs::metadata(setup.path(path))?.mode() & 0o022, 0, "{path}");
    }
    daemon.stop().await
}

/// Landlock looks at what is opened, and not at what is open.
async fn a_worker_has_nothing_open_of_a_client() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (source, writer) = std::io::pipe()?;
    let pipe = fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd()))?;
    let has_pipe = |process: Pid| -> Outcome<bool> {
        let open = fs::read_dir(format!("/proc/{process}/fd"))?.flatten();
        Ok(open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file == pipe))
    };
    let client = Client::on(&bus).await?;
    let call = tokio::spawn(async move {
        let source = Fd::from(OwnedFd::from(source));
        client.embedder.embed_from_fd(source, Options::new()).await.map(drop)
    });
    let service = daemon.process.pid();
    eventually("the pipe in the daemon", async || has_pipe(service)).await?;
    let before = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    daemon.client().embedder.embed("by a new worker").await?;
    let workers = daemon.workers().await?;
    assert!(!workers.is_empty() && workers != before, "{workers:?}");
    for worker in workers {
        assert!(!has_pipe(worker)?, "the worker {worker} has a client's pipe");
    }
    drop(writer);
    call.await??;
    daemon.stop().await
}

async fn what_computes_in_process_is_not_confined() -> Outcome {
    let setup = with_intruder().await?;
    let mut bench = clean(op_dbus());
    bench.args(["bench", "--at", "engine", "--only", "calls"]);
    bench.env("HOME", setup.path("")).env("TMPDIR", setup.path("state"));
    for (name, value) in [
        ("CPU_ENGINE", "ort".into()),
        ("MODEL", "own".into()),
        ("MODEL_DIR", setup.path("models")),
        ("CACHE_DIR", setup.path("cache")),
        ("RUNTIME", intruder()?),
    ] {
        bench.env(format!("OP_DBUS_{name}"), value);
    }
    let finished = finish(bench, "").await?;
    assert!(environment(&finished.stderr)?.contains(&"OP_DBUS_RUNTIME"));
    let attempts = attempts(&finished.stderr);
    let done = ["read /etc/passwd", "write beside the cache", "a unix socket", "a program"];
    for name in done.into_iter().chain(["more memory than it may have"]) {
        assert_eq!(attempts.get(name), Some(&"done"), "{name}: {}", finished.stderr);
    }
    Ok(())
}

/// What the status tells of the confinement of the only worker.
async fn told(daemon: &Daemon) -> Outcome<String> {
    value(&daemon.client().workers().await?[0], "sandbox")
}

async fn every_engine_computes_confined() -> Outcome {
    let bus = PrivateBus::start().await?;
    let texts = golden::plain_texts()?;
    let references = golden::vectors("low")?;
    for (provider, engine) in [("cpu", "native"), ("cpu", "ort"), ("ggml", "ort")] {
        let setup = Setup::real("low")?.setting("fallback", "none");
        let setup = setup.setting("execution_provider", provider).setting("cpu_engine", engine);
        let setup = setup.setting("workers_per_device", "1");
        let daemon = setup.ready(&bus).await?;
        assert_near(daemon.client().vectors(&texts).await?, &references, 0.999);
        let told = told(&daemon).await?;
        let version = told.strip_prefix("landlock ").and_then(|t| t.strip_suffix(", seccomp"));
        assert!(version.is_some_and(|v| v.parse::<u32>().is_ok()), "{provider}: {told}");
        let worker = daemon.workers().await?[0];
        let status = fs::read_to_string(format!("/proc/{worker}/status"))?;
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.lines().any(|found| found == line), "{provider}: {status}");
        }
        assert_eq!(dumps(worker)?, "0", "{provider}");
        let said = daemon.process.stderr();
        assert!(!said.contains("more than it needs"), "{provider}, {engine}: {said}");
        let shown = cli(&bus, &["status"]).await?.success()?;
        assert!(shown.contains(&format!("confined by {told}")), "{shown}");
        daemon.stop().await?;
        // ONNX Runtime was told to tell nobody.
        assert!(!setup.cached()?.join(".ses").exists(), "{provider}, {engine}");
    }
    Ok(())
}

/// How large a core dump of a process may get at most.
fn dumps(process: Pid) -> Outcome<String> {
    limit(process, "Max core file size")
}

/// What a process can't raise a limit of its own beyond.
fn limit(process: Pid, name: &str) -> Outcome<String> {
    let limits = fs::read_to_string(format!("/proc/{process}/limits"))?;
    let limit = limits.lines().find_map(|line| line.strip_prefix(name));
    Ok(limit.and_then(|limit| limit.split_whitespace().nth(1)).ok_or("no such limit")?.to_owned())
}

/// A container whose limit is reached may lose the whole service, and not only what is too large.
async fn a_worker_ends_before_its_container_is_full() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("workers_per_device", "1");
    let groups = "mount -t tmpfs none /sys/fs/cgroup; echo 536870912 > /sys/fs/cgroup/memory.max; \
                  exec \"$@\"";
    let command = in_own_mounts(groups, &setup.command(&bus)?);
    let daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let worker = daemon.workers().await?[0];
    assert_eq!(limit(worker, "Max data size")?, (384 << 20).to_string());
    daemon.stop().await
}

async fn a_daemon_leaves_a_core_dump_only_where_it_is_asked_for() -> Outcome {
    let own = dumps(Pid::this())?;
    for (asked, expected) in [("false", "0"), ("true", own.as_str())] {
        let setup = Setup::sim()?.setting("core_dumps", asked);
        let (_bus, _setup, daemon) = setup.alone().await?;
        assert_eq!(dumps(daemon.process.pid())?, expected, "core_dumps = {asked}");
        daemon.stop().await?;
    }
    Ok(())
}

/// Whose a process is: the kernel gives to root what it shows of one that is not to be dumped.
fn owner(process: Pid) -> Outcome<u32> {
    Ok(fs::metadata(format!("/proc/{process}/environ"))?.uid())
}

/// There the limit says nothing. As another user than root, who has the files of its own processes anyway.
async fn nobody_is_dumped_where_dumps_are_piped() -> Outcome {
    for (asked, expected) in [("false", 0), ("true", SERVICE.id)] {
        let (users, bus) = Users::on_a_bus(&[]).await?;
        let setup = Setup::sim()?.setting("core_dumps", asked).of_the_service()?;
        let daemon = users.serve(&setup, &bus, "").await?;
        assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
        let mut gateway = clean(setup.path("op-dbus"));
        gateway.args(["gateway", "--http-listen", "127.0.0.1:0", "--bus", bus.address()]);
        gateway.arg("--config").arg(setup.config_file());
        let gateway = Gateway::start_command(SERVICE.runs(&gateway)).await?;
        assert_eq!(owner(daemon.process.pid())?, expected, "the daemon, core_dumps = {asked}");
        assert_eq!(owner(gateway.process.pid())?, expected, "the gateway, core_dumps = {asked}");
        let workers = daemon.workers().await?;
        assert_eq!(workers.len(), 1);
        assert_eq!(owner(workers[0])?, 0, "the worker, core_dumps = {asked}");
        gateway.stop().await?;
        daemon.stop().await?;
    }
    Ok(())
}

/// A command with all of its processes under `strace`, which is told so much and writes to `log`.
fn traced(command: &Command, log: &Path, told: &[&str]) -> Command {
    // The tracer is beside the daemon, so that it is the daemon which is stopped.
    let mut traced = clean("strace");
    traced.args(["-D", "-f", "-qq", "-o"]).arg(log);
    traced.args(told.iter().flat_map(|words| ["-e", words]));
    started_by(traced, command)
}

/// Those of the daemon and its workers, from their start to their end.
async fn sockets_are_local(engine: &str) -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?.setting("cpu_engine", engine);
    let setup = setup.setting("workers_per_device", "1");
    let log = setup.path("strace");
    let calls = ["trace=execve,socket,socketpair,connect,bind,sendto,sendmsg"];
    let daemon = setup.start_command(traced(&setup.command(&bus)?, &log, &calls), &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    daemon.client().vectors(&golden::plain_texts()?).await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    daemon.client().embedder.embed("by a new worker").await?;
    daemon.stop().await?;
    let log = fs::read_to_string(log)?;
    let workers = log.lines().filter(|line| line.contains("execve(") && line.contains("worker"));
    assert!(workers.count() > 1, "no worker was looked at: {log}");
    let (mut sockets, mut elsewhere) = (0, Vec::new());
    for line in log.lines() {
        // A socket that is made, and an address that one is led to.
        let mut family = ["socket(", "socketpair(", "sa_family="].iter();
        let family = family.find_map(|start| Some(line.split_once(start)?.1));
        match family {
            Some(family) if family.starts_with("AF_UNIX,") => sockets += 1,
            Some(_) => elsewhere.push(line),
            None => {}
        }
    }
    assert!(sockets > 0 && elsewhere.is_empty(), "{sockets} local, {elsewhere:#?}");
    println!("figure: {sockets} uses of sockets with {engine}, all of them local");
    Ok(())
}

/// The kernel's answer is changed on the way: it is the one of a kernel without Landlock.
async fn a_kernel_without_landlock_is_told() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let lacking = ["trace=landlock_create_ruleset", "inject=landlock_create_ruleset:error=ENOSYS"];
    let traced = traced(&setup.command(&bus)?, Path::new("/dev/null"), &lacking);
    let daemon = setup.start_command(traced, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    assert_eq!(told(&daemon).await?, "seccomp; the kernel has no Landlock");
    let said = daemon.process.stderr();
    let warnings = said.lines().filter(|line| line.contains("the kernel has no Landlock"));
    assert_eq!(warnings.count(), 1, "{said}");
    daemon.client().embedder.embed("all the same").await?;
    daemon.stop().await
}
