//! HAProxy with the configuration that is shipped as an example, on the switch of a test's network.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::command::clean;
use super::network::Machine;
use super::process::Process;
use super::{Outcome, eventually, repository};

/// Where the shipped configuration answers.
pub const PORT: u16 = 8080;

/// A running HAProxy.
pub struct Balancer {
    process: Process,
    admin: PathBuf,
}

/// What HAProxy has counted for all nodes together.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests that each node got, by its number from 1.
    pub requests: Vec<u64>,
    /// Requests sent to the same node again.
    pub retries: u64,
    /// Requests sent to another node.
    pub redispatches: u64,
    /// Replies of the nodes with a status of 500 and more.
    pub failed: u64,
    /// How often no node was left.
    pub outages: u64,
    /// What each node is, by its number from 1: `UP` or `DOWN`, or on its way there.
    states: Vec<String>,
}

impl Balancer {
    /// Starts it on `machine`; `folder` takes what a trial adds to the configuration.
    pub async fn start(machine: &Machine, folder: &Path) -> Outcome<Self> {
        Self::start_command(machine.runs(&command(&shipped(), folder)?), folder).await
    }

    /// Starts it on this machine, with one node at `address`, `HOST:PORT`.
    pub async fn of_one(address: &str, folder: &Path) -> Outcome<Self> {
        let front = format!("bind unix@{}", folder.join("front.sock").display());
        let shipped = fs::read_to_string(shipped())?.replace("bind :8080", &front);
        let lines = shipped.lines().filter(|line| !line.trim_start().starts_with("server "));
        let mut lines: Vec<&str> = lines.collect();
        let server = format!("    server node1 {address}\n");
        lines.push(&server);
        let config = folder.join("of-one.cfg");
        fs::write(&config, lines.join("\n"))?;
        Self::start_command(command(&config, folder)?, folder).await
    }

    async fn start_command(mut command: Command, folder: &Path) -> Outcome<Self> {
        let admin = socket(folder);
        let log = folder.join("haproxy.log");
        // Beside its complaints, to be told with them.
        command.stdout(File::options().create(true).append(true).open(&log)?);
        let process = Process::start("haproxy", command, &log)?;
        let balancer = Self { process, admin };
        eventually("haproxy", async || Ok(UnixStream::connect(&balancer.admin).await.is_ok()))
            .await?;
        Ok(balancer)
    }

    /// Waits until a node is `UP` or `DOWN`. What it became before and is no more doesn't count: on a busy machine
    /// nodes come and go by themselves.
    pub async fn has(&self, node: usize, state: &str) -> Outcome {
        eventually(&format!("node{node} to be {state}"), async || {
            let states = self.counts().await?.states;
            Ok(states.get(node - 1).is_some_and(|is| is == state))
        })
        .await
        .map_err(|e| format!("{e}: {}", self.process.stderr()).into())
    }

    /// What it has counted so far.
    pub async fn counts(&self) -> Outcome<Counts> {
        let mut admin = UnixStream::connect(&self.admin).await?;
        admin.write_all(b"show stat\n").await?;
        let mut table = String::new();
        admin.read_to_string(&mut table).await?;
        let mut lines = table.trim_start_matches("# ").lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let mut counts = Counts::default();
        for cells in lines.map(|line| line.split(',').collect::<Vec<_>>()) {
            let cell = |name: &str| {
                let column = names.iter().position(|known| *known == name)?;
                cells.get(column).copied()
            };
            let count = |name| cell(name).and_then(|text| text.parse().ok()).unwrap_or(0_u64);
            if cell("svname") == Some("BACKEND") {
                counts.outages += count("chkdown");
            } else if cell("svname").is_some_and(|server| server.starts_with("node")) {
                counts.retries += count("wretr");
                counts.redispatches += count("wredis");
                counts.failed += count("hrsp_5xx");
                counts.requests.push(count("stot"));
                counts.states.push(cell("status").unwrap_or_default().to_owned());
            }
        }
        Ok(counts)
    }
}

fn shipped() -> PathBuf {
    repository().join("packaging/haproxy/op-dbus.cfg")
}

/// Where it tells what it has counted.
fn socket(folder: &Path) -> PathBuf {
    folder.join("haproxy.sock")
}

fn command(config: &Path, folder: &Path) -> Outcome<Command> {
    let addition = folder.join("haproxy.cfg");
    fs::write(&addition, format!("global\n    stats socket {}\n", socket(folder).display()))?;
    let mut haproxy = clean("haproxy");
    haproxy.arg("-db").arg("-f").arg(config).arg("-f").arg(addition);
    Ok(haproxy)
}
