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
    // The machine's own has a service already, or no policy that would let us have the name.
    let bus = PrivateBus::start(folder.path())?;
    println!("\nbus: a private one at {}", bus.address);
    let daemon = times
        .step("start the daemon, load the model", || demo.start_daemon(&bus, folder.path()))?;

    let call = ["call", BUS_NAME, "/org/opdbus/Embedding1", "org.opdbus.Embedding1.Embedder"];
    println!("\n$ busctl {} Embed s {TEXT:?}", call.join(" "));
    let reply = times.step("embed one text with busctl", || {
        let mut busctl = program("busctl", &["--address", &bus.address]);
        shell::read(busctl.args(call).args(["Embed", "s", TEXT]))
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

    fn client(&self, bus: &PrivateBus, words: &[&str]) -> Command {
        let mut command = program(&self.exe, words);
        command.args(["--bus", &bus.address]);
        command
    }

    fn start_daemon(&self, bus: &PrivateBus, folder: &Path) -> Result<Daemon, String> {
        let mut command = self.op_dbus(&["daemon", "--vector-level", "medium"]);
        command.args(["--bus", &bus.address]).arg("--cache-dir").arg(self.data.join("cache"));
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

    fn rank(&self, bus: &PrivateBus) -> Result<String, String> {
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
