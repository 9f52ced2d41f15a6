//! `cargo xtask demo`: from a bare checkout to vectors on a D-Bus, with the time of each step.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bus::PrivateBus;
use crate::shell::{self, Outcome, program};
use crate::{dist, packages};

const BUS_NAME: &str = "org.opdbus.Embedding1";
const TEXT: &str = "The disk is full and the database refuses to write.";
const QUESTION: &str = "which machine is running out of disk space?";
const LOG_LINES: &[&str] = &[
    "sshd[811]: Accepted publickey for deploy from 10.0.3.7 port 50122",
    "kernel: EXT4-fs warning (device sdb1): ext4_dx_add_entry: Directory index full",
    "postgres[2231]: PANIC: could not write to file \"pg_wal/xlogtemp\": No space left on device",
    "systemd[1]: Started Daily apt download activities.",
    "kernel: CPU3: Core temperature above threshold, cpu clock throttled",
    "df: /var/lib/docker is at 98% of 200G",
    "dhclient[612]: bound to 192.168.1.40 -- renewal in 40211 seconds.",
];
/// Loading the model of this level takes seconds; this much is a machine in trouble.
const READY_S_MAX: u64 = 300;

/// Builds, fetches, serves, embeds, ranks, stops.
pub fn run() -> Outcome {
    packages::ensure(&[packages::BUS, packages::PIP])?;
    let mut times = Times::default();
    let data = shell::root().join("target/demo");
    fs::create_dir_all(&data).map_err(|e| format!("can't make {}: {e}", data.display()))?;

    let demo = Demo { exe: times.step("build", || dist::build("release"))?, data };
    times.step("fetch the model (level medium)", || {
        shell::run(&mut demo.op_dbus(&["models", "pull", "medium"]))
    })?;

    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    let bus = Bus::choose(folder.path())?;
    println!("\nbus: {}", bus.description());
    let daemon = times
        .step("start the daemon, load the model", || demo.start_daemon(&bus, folder.path()))?;

    let call = ["call", BUS_NAME, "/org/opdbus/Embedding1", "org.opdbus.Embedding1.Embedder"];
    println!("\n$ busctl {} Embed s {TEXT:?}", call.join(" "));
    let reply = times.step("embed one text with busctl", || {
        shell::read(bus.busctl(&call).args(["Embed", "s", TEXT]))
    })?;
    println!("{}", shorten(&reply));

    println!("\n$ op-dbus rank {QUESTION:?} < lines");
    let ranked = times.step("rank seven log lines", || demo.rank(&bus))?;
    print!("{ranked}");

    println!("\n$ op-dbus status");
    shell::run(&mut demo.client(&bus, &["status"]))?;
    times.step("stop", || daemon.stop())?;
    times.print();
    Ok(())
}

/// The binary and where its models live for the demonstration.
struct Demo {
    exe: PathBuf,
    data: PathBuf,
}

impl Demo {
    fn op_dbus(&self, words: &[&str]) -> Command {
        let mut command = program(&self.exe, words);
        command.arg("--model-dir").arg(self.data.join("models"));
        command
    }

    fn client(&self, bus: &Bus, words: &[&str]) -> Command {
        let mut command = program(&self.exe, words);
        command.args(["--bus", bus.address()]);
        command
    }

    fn start_daemon(&self, bus: &Bus, folder: &Path) -> Result<Daemon, String> {
        let mut command = self.op_dbus(&["daemon", "--vector-level", "medium"]);
        command.args(["--bus", bus.address()]).arg("--cache-dir").arg(self.data.join("cache"));
        command.arg("--state-file").arg(folder.join("state.json")).stdin(Stdio::null());
        let mut daemon = Daemon(started(&mut command)?);
        let wait = format!("--wait={READY_S_MAX}");
        // What the status is comes at the end.
        let mut ready = self.client(bus, &["status", &wait]);
        let mut ready = started(ready.stdout(Stdio::null()))?;
        loop {
            if let Some(exit) = ready.try_wait().map_err(|e| e.to_string())? {
                let late = || format!("the daemon was not ready within {READY_S_MAX} s ({exit})");
                return if exit.success() { Ok(daemon) } else { Err(late()) };
            }
            if let Some(exit) = daemon.0.try_wait().map_err(|e| e.to_string())? {
                // It waits for nobody now.
                let _ = ready.kill();
                return Err(format!("the daemon ended ({exit})"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn rank(&self, bus: &Bus) -> Result<String, String> {
        let mut rank = self.client(bus, &["rank", QUESTION]);
        let mut child = rank
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("can't run op-dbus rank: {e}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(LOG_LINES.join("\n").as_bytes()).map_err(|e| e.to_string())?;
        }
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("op-dbus rank failed ({})", output.status));
        }
        String::from_utf8(output.stdout).map_err(|e| e.to_string())
    }
}

fn started(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|e| format!("can't start op-dbus: {e}"))
}

/// The running service; killed when dropped, stopped in order by `stop`.
struct Daemon(Child);

impl Daemon {
    fn stop(mut self) -> Outcome {
        let pid = i32::try_from(self.0.id()).map_err(|e| e.to_string())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).map_err(|e| format!("can't stop: {e}"))?;
        let exit = self.0.wait().map_err(|e| e.to_string())?;
        if exit.success() { Ok(()) } else { Err(format!("the daemon ended with {exit}")) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The bus of the demonstration.
enum Bus {
    /// The machine's own.
    System,
    /// One of ours, and why it is not the machine's.
    Private(PrivateBus, &'static str),
}

impl Bus {
    fn choose(folder: &Path) -> Result<Self, String> {
        let policy = ["/usr/share/dbus-1/system.d", "/etc/dbus-1/system.d"]
            .iter()
            .any(|folder| Path::new(folder).join(format!("{BUS_NAME}.conf")).exists());
        let mut list = program("busctl", &["--system", "list", "--no-legend"]);
        let list = list.stderr(Stdio::null()).output().map_err(|e| e.to_string())?;
        let names = list.status.success().then(|| String::from_utf8_lossy(&list.stdout));
        match why_private(names.as_deref(), policy, nix::unistd::geteuid().is_root()) {
            Some(why) => Ok(Self::Private(PrivateBus::start(folder)?, why)),
            None => Ok(Self::System),
        }
    }

    fn address(&self) -> &str {
        match self {
            Self::System => "system",
            Self::Private(bus, _) => &bus.address,
        }
    }

    fn description(&self) -> String {
        match self {
            Self::System => "the system bus".to_owned(),
            Self::Private(bus, why) => format!("a private one at {} ({why})", bus.address),
        }
    }

    fn busctl(&self, words: &[&str]) -> Command {
        let mut command = program("busctl", &[]);
        match self {
            Self::System => command.arg("--system"),
            Self::Private(bus, _) => command.args(["--address", &bus.address]),
        };
        command.args(words);
        command
    }
}

/// What keeps the demonstration from the system bus, of which `names` are those that it lists, if it answers.
fn why_private(names: Option<&str>, policy: bool, root: bool) -> Option<&'static str> {
    match names {
        None => Some("the system bus does not answer"),
        // Also one that a call would start.
        Some(names) if names.contains(BUS_NAME) => Some("the system bus has an op-dbus already"),
        Some(_) if !policy => Some("the system bus has no policy for us yet"),
        Some(_) if !root => Some("on the system bus only root may take our name"),
        Some(_) => None,
    }
}

/// `ad 384 0.1 0.2 …`, cut to what fits a line.
fn shorten(reply: &str) -> String {
    let words: Vec<&str> = reply.split_whitespace().collect();
    let shown = words.len().min(8);
    format!("{} …", words[..shown].join(" "))
}

/// Where the time went.
#[derive(Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    fn step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let start = Instant::now();
        let result = work()?;
        self.0.push((name, start.elapsed()));
        Ok(result)
    }

    fn print(&self) {
        println!("\nwhere the time went");
        for (name, time) in &self.0 {
            println!("  {name:<34} {:>9.3} s", time.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_bus_is_told_with_its_reason() {
        let others = Some("org.freedesktop.DBus 1 systemd");
        for (names, policy, root, words) in [
            (None, true, true, "does not answer"),
            (Some("org.opdbus.Embedding1 - - (activatable)"), true, true, "already"),
            (others, false, true, "no policy"),
            (others, true, false, "only root"),
        ] {
            let why = why_private(names, policy, root);
            assert!(why.is_some_and(|why| why.contains(words)), "{words}: {why:?}");
        }
        assert_eq!(why_private(others, true, true), None);
    }
}
