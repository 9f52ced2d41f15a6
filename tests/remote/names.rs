//! Endpoints that are named, and a name that moves.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use super::{Far, TEXTS, fleet, serves, some_more};
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::command::in_own_mounts;
use crate::harness::daemon::Setup;
use crate::harness::gateway::{Gateway, command};
use crate::harness::load::Load;
use crate::harness::registry::tests;

tests! {
    a_name_that_moves_is_followed_without_a_lost_call: [Bus, Low, Root, Landlock],
}

/// The name of all endpoints here.
const NAME: &str = "fleet.test";

/// An `/etc` of a daemon's own, in which files may be replaced.
struct Etc(TempDir);

impl Etc {
    /// With these addresses of the name.
    fn new(addresses: &[&str]) -> Outcome<Self> {
        let etc = Self(tempfile::Builder::new().prefix("etc-").tempdir()?);
        for file in ["group", "ld.so.cache", "machine-id", "passwd", "resolv.conf"] {
            if let Ok(content) = fs::read(Path::new("/etc").join(file)) {
                fs::write(etc.0.path().join(file), content)?;
            }
        }
        fs::write(
            etc.0.path().join("nsswitch.conf"),
            "passwd: files\ngroup: files\nhosts: files\n",
        )?;
        etc.set(addresses)?;
        Ok(etc)
    }

    /// Puts a new file in the place of the one with the addresses, as programs do that write it.
    fn set(&self, addresses: &[&str]) -> Outcome {
        let lines = addresses.iter().map(|address| format!("{address} {NAME}\n"));
        let new = self.0.path().join("hosts.new");
        fs::write(&new, lines.collect::<String>())?;
        Ok(fs::rename(new, self.0.path().join("hosts"))?)
    }

    fn known_to(&self, command: &Command) -> Command {
        let script = format!("mount --bind {} /etc; exec \"$@\"", self.0.path().display());
        in_own_mounts(&script, command)
    }
}

/// A gateway that accepts other names than this machine's, from whoever has its key.
struct Keyed {
    far: Far,
    credentials: TempDir,
}

impl Keyed {
    async fn new() -> Outcome<Self> {
        let credentials = tempfile::tempdir()?;
        fs::write(credentials.path().join("api-key"), "open-sesame")?;
        Ok(Self { far: Far::start("low").await?, credentials })
    }

    /// A gateway at an address, whose port may be 0.
    async fn gateway(&self, address: &str) -> Outcome<Gateway> {
        let mut command = command(&self.far.bus, &self.far.setup, address)?;
        command.env("CREDENTIALS_DIRECTORY", self.credentials.path());
        Gateway::start_command(command).await
    }

    /// A daemon whose endpoint is this port under the name.
    fn setup(&self, port: &str) -> Outcome<Setup> {
        let setup = fleet("low", "openai", &[&format!("http://{NAME}:{port}")])?;
        let token = self.credentials.path().join("api-key").display().to_string();
        let setup = setup.setting("providers.remote.token_file", &token);
        Ok(setup.setting("providers.remote.allow_http", "true"))
    }
}

fn port(gateway: &Gateway) -> String {
    gateway.url("").rsplit(':').next().unwrap_or_default().to_owned()
}

async fn a_name_that_moves_is_followed_without_a_lost_call() -> Outcome {
    let keyed = Keyed::new().await?;
    let gateway = keyed.gateway("127.0.0.1:0").await?;
    let port = port(&gateway);
    // It is the file that makes it fail, and no time.
    let setup = keyed.setup(&port)?.setting("providers.remote.batch_timeout_s", "50");
    let etc = Etc::new(&["127.0.0.1"])?;
    let bus = PrivateBus::start().await?;
    let daemon = setup.start_command(etc.known_to(&setup.command(&bus)?), &bus).await?;
    assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
    let load = Load::start(&bus, &TEXTS).await?;
    some_more(&daemon).await?;
    let _elsewhere = keyed.gateway(&format!("127.0.0.2:{port}")).await?;
    etc.set(&["127.0.0.2"])?;
    drop(gateway);
    some_more(&daemon).await?;
    load.stop().await?;
    serves(&daemon, "low").await?;
    let said = daemon.process.stderr();
    let expected = "/etc/hosts is another file than when the worker was started";
    assert!(said.contains(expected), "{said}");
    daemon.stop().await?;
    keyed.far.daemon.stop().await
}
