//! HAProxy with the configuration that is shipped as an example, on the switch of a test's network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::command::clean;
use super::network::Machine;
use super::process::Process;
use super::{Outcome, eventually, repository, within};

/// Where the shipped configuration answers.
pub const PORT: u16 = 8080;

/// A running HAProxy.
pub struct Balancer {
    process: Process,
    said: UnboundedReceiver<String>,
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
        command.stdout(Stdio::piped());
        let mut process = Process::start("haproxy", command, &folder.join("haproxy.log"))?;
        let stdout = process.child().stdout.take().ok_or("haproxy has no output")?;
        let (sender, said) = unbounded_channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // Nobody listens at the end of a test.
                let _ = sender.send(line);
            }
        });
        let balancer = Self { process, said, admin };
        eventually("haproxy", async || Ok(UnixStream::connect(&balancer.admin).await.is_ok()))
            .await?;
        Ok(balancer)
    }

    /// Waits until it says that a node is `UP` or `DOWN`.
    pub async fn says(&mut self, node: usize, state: &str) -> Outcome {
        let wanted = format!("/node{node} is {state}");
        within(&wanted, async {
            while let Some(line) = self.said.recv().await {
                if line.contains(&wanted) {
                    return Ok(());
                }
            }
            Err(format!("haproxy ended: {}", self.process.stderr()).into())
        })
        .await?
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
            if cell("svname").is_some_and(|server| server.starts_with("node")) {
                let count = |name| cell(name).and_then(|text| text.parse().ok()).unwrap_or(0_u64);
                counts.retries += count("wretr");
                counts.redispatches += count("wredis");
                counts.failed += count("hrsp_5xx");
                counts.requests.push(count("stot"));
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
