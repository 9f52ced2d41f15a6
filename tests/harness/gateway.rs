//! The HTTP gateway as a process, and curl as a client of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::bus::PrivateBus;
use super::command::{clean, finish};
use super::daemon::Setup;
use super::needs::op_dbus;
use super::process::Process;
use super::{Outcome, eventually};

/// A running gateway.
pub struct Gateway {
    pub process: Process,
    address: String,
    // After the process, whose log lies in it.
    _folder: TempDir,
}

/// What a request was answered with.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// By their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Outcome<Value> {
        serde_json::from_str(&self.text).map_err(|e| format!("{e}: {self:?}").into())
    }

    /// The body of a request that must have been answered with 200.
    pub fn ok(&self) -> Outcome<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }
}

/// The command that starts a gateway for `setup`'s daemon on `bus`.
pub fn command(bus: &PrivateBus, setup: &Setup, listen: &str) -> Outcome<Command> {
    setup.write_config()?;
    let mut command = clean(op_dbus());
    command.arg("gateway").arg("--bus").arg(bus.address());
    command.arg("--config").arg(setup.config_file());
    if !listen.is_empty() {
        command.arg("--http-listen").arg(listen);
    }
    Ok(command)
}

impl Gateway {
    /// Starts a gateway on a port of the kernel's choice and waits until it answers.
    pub async fn start(bus: &PrivateBus, setup: &Setup) -> Outcome<Self> {
        Self::start_command(command(bus, setup, "127.0.0.1:0")?).await
    }

    /// The same with the key in `credentials`.
    pub async fn with_key(bus: &PrivateBus, setup: &Setup, credentials: &Path) -> Outcome<Self> {
        let mut command = command(bus, setup, "127.0.0.1:0")?;
        command.env("CREDENTIALS_DIRECTORY", credentials);
        Self::start_command(command).await
    }

    /// Starts a gateway and waits until it says where it answers.
    pub async fn start_command(command: Command) -> Outcome<Self> {
        const TOLD: &str = "answered at ";
        let folder = tempfile::Builder::new().prefix("gateway-").tempdir()?;
        let log = folder.path().join("log");
        let mut process = Process::start("op-dbus gateway", command, &log)?;
        let line = process.started(TOLD).await?;
        let (_, address) = line.trim_end().rsplit_once(TOLD).ok_or("no address")?;
        Ok(Self { process, address: address.to_owned(), _folder: folder })
    }

    /// Where it answers, with a path behind it.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// Runs curl for a path; a body, if there is one, is sent as JSON.
    pub async fn curl(&self, path: &str, words: &[&str], body: &str) -> Outcome<Answer> {
        let mut command = curl();
        let url = match self.address.strip_prefix("unix:") {
            Some(socket) => {
                command.arg("--unix-socket").arg(socket);
                format!("http://localhost{path}")
            }
            None => self.url(path),
        };
        command.args(words).arg(url);
        if !body.is_empty() {
            command.args(["-H", "Content-Type: application/json", "--data-binary", "@-"]);
        }
        answer(&finish(command, body).await?.success()?)
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Outcome<Answer> {
        self.curl(path, &[], "").await
    }

    /// `POST` with a body in JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Outcome<Answer> {
        self.curl(path, &[], &body.to_string()).await
    }

    /// Ends the gateway as systemd would; it must end well. Returns what it wrote. It is told until it has ended: once
    /// alone, it would first let whoever has asked `/ready` know for 8 s. Requests in flight are finished all the same.
    pub async fn stop(mut self) -> Outcome<String> {
        let mut ended = None;
        eventually("the end of the gateway", async || {
            ended = self.process.child().try_wait()?;
            if ended.is_none() {
                self.process.signal(Signal::SIGTERM)?;
            }
            Ok(ended.is_some())
        })
        .await?;
        let status = ended.ok_or("it did not end")?;
        let log = self.process.stderr();
        assert!(status.success(), "the gateway ended with {status}: {log}");
        Ok(log)
    }
}

/// curl that prints headers and body.
pub fn curl() -> Command {
    let mut command = clean("curl");
    // Without the question whether a large body is welcome.
    command.args(["--silent", "--show-error", "--include", "--noproxy", "*", "-H", "Expect:"]);
    command.stdout(Stdio::piped());
    command
}

/// Takes what curl printed apart.
pub fn answer(said: &str) -> Outcome<Answer> {
    let (head, text) = said.split_once("\r\n\r\n").ok_or_else(|| format!("no head: {said}"))?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("no status")?;
    let header = |line: &str| {
        line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()))
    };
    let headers = lines.filter_map(header).collect();
    Ok(Answer { status: status.parse()?, headers, text: text.to_owned() })
}
