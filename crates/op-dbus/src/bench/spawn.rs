//! A private bus with a service of our own on it, gone when the measurement is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use op_dbus_daemon::settings::Bus;
use op_dbus_models::end_with_us;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::cli::{Failure, wait};

/// How long the service may take to load its model, and to end.
const START_TIMEOUT: Duration = Duration::from_secs(180);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A private bus and the service on it. Both are killed when this is dropped, and end with the thread that starts
/// them: the first one, which commands run on.
pub struct PrivateService {
    address: String,
    daemon: Child,
    bus: Child,
    _folder: TempDir,
}

impl Drop for PrivateService {
    fn drop(&mut self) {
        for child in [&mut self.daemon, &mut self.bus] {
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            child.start_kill().ok();
            // The folder goes next, and would stay if they still wrote in it.
            if let Some(pid) = pid {
                let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
                waitid(Id::Pid(Pid::from_raw(pid)), ended).ok();
            }
        }
    }
}

impl PrivateService {
    /// Starts both and waits until the service has loaded its model. `flags` are settings for the
    /// service; those that keep it to itself are added. What `state_file` says counts as well, but is not
    /// written to: the engine beside it has read that.
    pub async fn start(
        flags: &mut BTreeMap<String, String>,
        state_file: &Path,
    ) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("op-dbus-bench-").tempdir();
        let folder = folder.map_err(|error| cannot("make a folder for a private bus", &error))?;
        let (bus, address) = start_bus(folder.path()).await?;
        flags.insert("bus".to_owned(), address.clone());
        let state = folder.path().join("state.json");
        // One that can't be read says nothing to the engine either.
        if state_file.is_file() {
            std::fs::copy(state_file, &state).ok();
        }
        flags.insert("state_file".to_owned(), state.to_string_lossy().into_owned());
        let exe = std::env::current_exe().map_err(|error| cannot("find this program", &error))?;
        let mut command = Command::new(exe);
        command.arg("daemon").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        for (key, value) in &*flags {
            command.arg(format!("--{}={value}", key.replace('_', "-")));
        }
        if std::env::var_os("OP_DBUS_LOG").is_none() {
            command.arg("--log=error");
        }
        end_with_us(command.as_std_mut());
        let daemon = command.spawn().map_err(|error| cannot("start the service", &error))?;
        let mut started = Self { address, daemon, bus, _folder: folder };
        started.wait().await?;
        Ok(started)
    }

    /// The bus that both are on.
    pub fn bus(&self) -> Bus {
        Bus::Address(self.address.clone())
    }

    async fn wait(&mut self) -> Result<(), Failure> {
        let bus = self.bus();
        tokio::select! {
            ready = wait(&bus, START_TIMEOUT) => {
                ready.map(drop).map_err(Failure::into_not_configured)
            }
            end = self.daemon.wait() => {
                let end = end.map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Failure::refused(format!("the private service ended at once ({end})")))
            }
        }
    }

    /// Lets the service end in order.
    pub async fn stop(mut self) {
        if let Some(pid) = self.daemon.id().and_then(|pid| i32::try_from(pid).ok()) {
            // Already gone is as good.
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
        tokio::time::timeout(STOP_TIMEOUT, self.daemon.wait()).await.ok();
    }
}

async fn start_bus(folder: &Path) -> Result<(Child, String), Failure> {
    let config = folder.join("bus.conf");
    std::fs::write(&config, bus_config(folder)).map_err(|error| cannot("set up a bus", &error))?;
    let mut command = Command::new("dbus-daemon");
    command.arg("--nofork").arg("--nopidfile").arg("--print-address=1");
    command.arg(format!("--config-file={}", config.display()));
    let log = folder.join("bus.log");
    let log_file = File::create(&log).map_err(|error| cannot("set up a bus", &error))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file).kill_on_drop(true);
    end_with_us(command.as_std_mut());
    let mut bus = command.spawn().map_err(|error| {
        Failure::refused(format!(
            "can't start `dbus-daemon` for a private bus ({error}): install it, or name a bus \
             with --bus"
        ))
    })?;
    let mut address = String::new();
    if let Some(stdout) = bus.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut address).await;
        read.map_err(|error| cannot("read the address of the private bus", &error))?;
    }
    match address.trim() {
        "" => {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let said = said.trim();
            Err(Failure::refused(format!("`dbus-daemon` did not start a private bus: {said}")))
        }
        address => Ok((bus, address.to_owned())),
    }
}

/// A bus with the limits of a system bus. Its socket is in a folder that only we can enter.
fn bus_config(folder: &Path) -> String {
    format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:dir={}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"#,
        folder.display()
    )
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::refused(format!("can't {what}: {error}"))
}
