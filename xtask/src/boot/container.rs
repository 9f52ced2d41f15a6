//! A Debian system with systemd as its first process, in namespaces of its own. What is changed in
//! there is gone with it: the tree below lies under an overlay.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::packages;
use crate::shell::{self, Outcome, program};

/// Beside the smallest system: systemd, both buses, polkit, and what fetches models.
const INCLUDED: &str =
    "systemd,systemd-sysv,dbus,dbus-broker,polkitd,libpam-systemd,procps,python3-pip";
/// Namespaces of its own; without the first two it asks the host's systemd and bus, which need not be
/// there. What is written is gone with it.
const ALONE: &[&str] = &[
    "--register=no",
    "--keep-unit",
    "--private-network",
    "--machine=op-dbus",
    "--volatile=overlay",
];
/// Whatever a step waits for comes within this time, or never.
const PATIENCE: Duration = Duration::from_secs(180);
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// Where the packages are found inside, the last one a revision later.
pub const PACKAGE: &str = "/mnt/op-dbus.deb";
pub const GATEWAY: &str = "/mnt/op-dbus-gateway.deb";
pub const SUCCESSOR: &str = "/mnt/op-dbus-successor.deb";
/// Where models, libraries that compute, and an index of packages are found inside.
pub const MODELS: &str = "/mnt/models";
pub const RUNTIME: &str = "/mnt/runtime";
pub const INDEX: &str = "/mnt/index";

/// Who is the system's bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// dbus-daemon, which Debian has by default.
    Daemon,
    /// dbus-broker.
    Broker,
}

/// A booted system. It ends when this is dropped.
pub struct Container {
    nspawn: Child,
    init: String,
    bound: Vec<&'static str>,
}

impl Container {
    /// Boots with this bus, and with the paths of this machine bound to places inside, to be read
    /// there.
    pub fn boot(bus: Bus, bound: &[(PathBuf, &'static str)]) -> Result<Self, String> {
        let tree = tree()?;
        choose(bus, &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
        let mut nspawn = program("systemd-nspawn", &["--boot"]);
        nspawn.args(ALONE).arg("--directory").arg(&tree);
        nspawn.args(bound.iter().map(|(from, to)| format!("--bind-ro={}:{to}", from.display())));
        let log = shell::root().join("target/boot/console.log");
        let console = fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let console_too = console.try_clone().map_err(|e| e.to_string())?;
        nspawn.stdin(Stdio::null()).stdout(console).stderr(console_too);
        let nspawn = nspawn.spawn().map_err(|e| format!("can't start systemd-nspawn: {e}"))?;
        let bound = bound.iter().map(|(_, to)| *to).collect();
        let mut container = Self { nspawn, init: String::new(), bound };
        let pid = container.nspawn.id();
        container.until("the first process", |container| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            let first = children.split_whitespace().find(|child| is_first_inside(child));
            container.init = first.unwrap_or_default().to_owned();
            Ok(first.is_some())
        })?;
        container.until("the system to run", |container| {
            let state = container.command("root", &["systemctl", "is-system-running"]).output();
            Ok(state.is_ok_and(|state| state.stdout.starts_with(b"running")))
        })?;
        println!("\nbooted with the bus {bus:?}; its console is in {}", log.display());
        Ok(container)
    }

    /// Whether something was bound to this place.
    pub fn has(&self, place: &str) -> bool {
        self.bound.contains(&place)
    }

    /// Runs a command inside as root, and shows it; it must succeed.
    pub fn run(&self, words: &[&str]) -> Result<String, String> {
        self.run_as("root", words)
    }

    /// Runs a script of the shell inside as root.
    pub fn script(&self, script: &str) -> Result<String, String> {
        self.run(&["sh", "-ec", script])
    }

    /// Runs a command inside as some user.
    pub fn run_as(&self, user: &str, words: &[&str]) -> Result<String, String> {
        let (good, said) = self.attempt(user, words)?;
        if good { Ok(said) } else { Err(format!("{} failed: {said}", words.join(" "))) }
    }

    /// Runs a command inside that must fail, and returns what it said.
    pub fn refused(&self, user: &str, words: &[&str]) -> Result<String, String> {
        let (good, said) = self.attempt(user, words)?;
        if good { Err(format!("{} was not refused: {said}", words.join(" "))) } else { Ok(said) }
    }

    /// Starts a script of the shell inside that goes on meanwhile, and whose output is a pipe.
    pub fn begin(&self, user: &str, script: &str) -> Result<Child, String> {
        println!("{user}$ {script} &");
        let mut command = self.command(user, &["sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map_err(|e| format!("can't enter the container: {e}"))
    }

    /// Tries again until a command's output is as wanted.
    pub fn until_says(&mut self, words: &[&str], wanted: &str) -> Outcome {
        let what = format!("{} to say {wanted}", words.join(" "));
        self.until(&what, |container| {
            let output = container.command("nobody", words).output();
            let output = output.map_err(|e| format!("can't enter the container: {e}"))?;
            Ok(String::from_utf8_lossy(&output.stdout).contains(wanted))
        })?;
        println!("nobody$ {}\n{wanted}", words.join(" "));
        Ok(())
    }

    /// Ends the system as its user would.
    pub fn power_off(mut self) -> Outcome {
        // Whoever asks for it may be ended with everybody else before the answer is read.
        self.attempt("root", &["systemctl", "poweroff"])?;
        self.until("the system to end", |container| {
            Ok(container.nspawn.try_wait().is_ok_and(|status| status.is_some()))
        })
    }

    fn until(
        &mut self,
        what: &str,
        mut met: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Outcome {
        let start = Instant::now();
        while !met(self)? {
            if start.elapsed() > PATIENCE {
                return Err(format!("waited {} s in vain for {what}", PATIENCE.as_secs()));
            }
            sleep(BETWEEN_TRIES);
        }
        Ok(())
    }

    fn attempt(&self, user: &str, words: &[&str]) -> Result<(bool, String), String> {
        println!("{user}$ {}", words.join(" "));
        let output = self.command(user, words).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("can't enter the container: {e}"))?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        for line in said.lines() {
            // A vector is hundreds of numbers.
            println!("{}", line.chars().take(160).collect::<String>());
        }
        Ok((output.status.success(), said))
    }

    /// A command in the namespaces of the system.
    fn command(&self, user: &str, words: &[&str]) -> Command {
        let mut command = program("nsenter", &["--target", &self.init]);
        command.args(["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", "env", "-i"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER="]);
        if user != "root" {
            command.args(["setpriv", "--reuid", user, "--init-groups"]);
            command.args(["--regid", if user == "nobody" { "nogroup" } else { user }]);
        }
        command.args(words);
        command
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Only while nspawn runs is the number that of the system's first process, and with that
        // process all others in there end.
        if let Ok(None) = self.nspawn.try_wait()
            && let Ok(init) = self.init.parse()
        {
            let _ = kill(Pid::from_raw(init), Signal::SIGKILL);
        }
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
    }
}

/// Whether a process is the first of a system of its own. nspawn's own one, which makes the namespaces and is gone a
/// moment later, is a child as well, and for that moment the only one.
fn is_first_inside(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    // Its number here, and in each namespace below.
    let mut numbers = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
    numbers.any(|numbers| numbers.split_whitespace().skip(1).last() == Some("1"))
}

/// Why this machine has no containers, if so: one program runs in one, without a system.
pub fn possible() -> Outcome {
    let mut probe = program("systemd-nspawn", &["--quiet"]);
    probe.args(ALONE).arg("--directory").arg(tree()?).arg("/bin/true").stderr(Stdio::null());
    shell::run(&mut probe)
}

/// The system's files, made once for a release: half a minute.
fn tree() -> Result<PathBuf, String> {
    let release = packages::release()?;
    let folder = shell::root().join("target/boot");
    let (tree, unfinished) = (folder.join("tree"), folder.join("unfinished"));
    let included = folder.join("included");
    let wanted = format!("{release} {INCLUDED}");
    let same = fs::read_to_string(&included).is_ok_and(|found| found == wanted);
    if same && tree.is_dir() {
        return Ok(tree);
    }
    fs::create_dir_all(&folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
    for old in [&tree, &unfinished] {
        if old.is_dir() {
            fs::remove_dir_all(old).map_err(|e| format!("{}: {e}", old.display()))?;
        }
    }
    let include = format!("--include={INCLUDED}");
    let mut debootstrap = program("debootstrap", &["--variant=minbase", &include, &release]);
    shell::run(debootstrap.arg(&unfinished).stdout(Stdio::null()))?;
    fs::rename(&unfinished, &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    fs::write(&included, wanted).map_err(|e| format!("{}: {e}", included.display()))?;
    Ok(tree)
}

/// As `systemctl enable dbus-broker` leaves it, or `disable`.
fn choose(bus: Bus, tree: &Path) -> std::io::Result<()> {
    let alias = tree.join("etc/systemd/system/dbus.service");
    if alias.is_symlink() {
        fs::remove_file(&alias)?;
    }
    if bus == Bus::Broker {
        symlink("/lib/systemd/system/dbus-broker.service", alias)?;
    }
    Ok(())
}
