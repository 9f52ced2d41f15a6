//! Machines of a test's own: network namespaces that a switch joins. A namespace is gone with the last
//! process in it, so nothing is left of a test that is killed.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::command::{clean, finish, started_by};
use super::process::Process;
use super::{Outcome, within};

/// The network of the documentation (RFC 5737): nobody else's.
const NETWORK: &str = "192.0.2";
/// What every machine calls its interface.
const INTERFACE: &str = "lan";

/// A network namespace.
pub struct Machine {
    /// A process that does nothing else than to be in it.
    holder: Process,
    address: String,
}

impl Machine {
    /// A machine with this last number in its address, and no network yet.
    async fn new(number: u8) -> Outcome<Self> {
        let mut holder = clean("unshare");
        // It ends when we do: then its standard input does.
        holder.args(["--net", "sh", "-c", "echo; exec cat >/dev/null"]);
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Process::start_piped("a machine", holder)?;
        let said = holder.child().stdout.take().ok_or("no standard output")?;
        within("a network namespace", BufReader::new(said).read_line(&mut String::new())).await??;
        let machine = Self { holder, address: format!("{NETWORK}.{number}") };
        machine.ip(&["link", "set", "lo", "up"]).await?;
        Ok(machine)
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The command as it is run on this machine.
    pub fn runs(&self, command: &Command) -> Command {
        let mut there = clean("nsenter");
        there.arg(format!("--net=/proc/{}/ns/net", self.holder.pid()));
        started_by(there, command)
    }

    async fn ip(&self, words: &[&str]) -> Outcome {
        let mut ip = clean("ip");
        ip.args(words);
        finish(self.runs(&ip), "").await?.success().map(drop)
    }
}

/// A machine that is the switch for all others.
pub struct Lan {
    pub switch: Machine,
}

impl Lan {
    /// A network with nobody but the switch on it.
    pub async fn new() -> Outcome<Self> {
        let switch = Machine::new(1).await?;
        switch.ip(&["link", "add", INTERFACE, "type", "bridge"]).await?;
        up(&switch).await?;
        Ok(Self { switch })
    }

    /// One more machine; `number` is the last of its address.
    pub async fn join(&self, number: u8) -> Outcome<Machine> {
        let machine = Machine::new(number).await?;
        let (port, there) = (port(&machine), machine.holder.pid().to_string());
        let link = ["link", "add", &port, "type", "veth", "peer", "name", INTERFACE, "netns"];
        self.switch.ip(&[&link[..], &[&there]].concat()).await?;
        self.switch.ip(&["link", "set", &port, "master", INTERFACE, "up"]).await?;
        up(&machine).await?;
        Ok(machine)
    }

    /// Takes a machine's cable out of the switch: nothing that is sent arrives, and nobody is told.
    pub async fn unplug(&self, machine: &Machine) -> Outcome {
        self.switch.ip(&["link", "set", &port(machine), "nomaster"]).await
    }

    /// Puts it back.
    pub async fn plug_in(&self, machine: &Machine) -> Outcome {
        self.switch.ip(&["link", "set", &port(machine), "master", INTERFACE]).await
    }
}

/// The switch's end of a machine's cable.
fn port(machine: &Machine) -> String {
    format!("p{}", machine.address.rsplit('.').next().unwrap_or_default())
}

async fn up(machine: &Machine) -> Outcome {
    machine.ip(&["address", "add", &format!("{}/24", machine.address), "dev", INTERFACE]).await?;
    machine.ip(&["link", "set", INTERFACE, "up"]).await
}
