//! The daemon as a process, with files and settings of a test's own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use op_dbus_api::{BUS_NAME, ErrorName, ROOT_PATH};
use tempfile::TempDir;
use tokio::process::Command;
use zbus::fdo::DBusProxy;
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream};

use super::bus::PrivateBus;
use super::client::{Client, pid, refused};
use super::command::{Finished, clean, finish};
use super::manager::ServiceManager;
use super::needs;
use super::process::{self, Process};
use super::users::SERVICE;
use super::{Outcome, within};

/// A log filter by which all is told that anybody has to tell, libraries as well.
pub const LOG_ALL: &str =
    "trace,h2=trace,hyper_util=trace,ort=trace,tonic=trace,tower=trace,zbus=trace";

/// How the daemon is started: a folder with its files, and its settings. It outlives the daemon,
/// so that a test can start another one with the same files.
pub struct Setup {
    folder: TempDir,
    program: PathBuf,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Setup {
    /// A daemon that computes simulated vectors: it starts at once, without model or library.
    pub fn sim() -> Outcome<Self> {
        let setup = Self::empty()?;
        let models = setup.folder.path().join("models").display().to_string();
        Ok(setup
            .setting("cpu_engine", "sim")
            .setting("vector_level", "low")
            .setting("workers_per_device", "1")
            .setting("model_dir", &models))
    }

    /// A daemon with the real model of `level` from the test store, computed as it is out of the
    /// box, but for the calibration, which would take longer than most tests.
    pub fn real(level: &str) -> Outcome<Self> {
        let models = needs::store().join("models").display().to_string();
        let setup = Self::empty()?.setting("vector_level", level).setting("model_dir", &models);
        Ok(setup.setting("batch_tokens_max", "512"))
    }

    /// The same with level `low` and a store of a test's own, which has the library beside it.
    pub fn with_store() -> Outcome<Self> {
        let setup = Self::real("low")?;
        let models = setup.path("models");
        fs::create_dir(&models)?;
        symlink(needs::store().join("runtime"), setup.path("runtime"))?;
        Ok(setup.setting("model_dir", &models.display().to_string()))
    }

    /// `op-dbus models import` into the folder `models` of this setup.
    pub async fn import(&self, source: impl AsRef<Path>, arguments: &[&str]) -> Outcome<Finished> {
        let mut command = clean(needs::op_dbus());
        command.arg("models").arg("--model-dir").arg(self.path("models"));
        command.arg("import").arg(source.as_ref()).args(arguments);
        finish(command, "").await
    }

    /// The folder of the only model that the cache has anything of.
    pub fn cached(&self) -> Outcome<PathBuf> {
        let folder = self.path("cache/by-model");
        Ok(fs::read_dir(folder)?.next().ok_or("nothing of a model in the cache")??.path())
    }

    /// What a daemon refuses to embed with that does not become ready.
    pub async fn refusal(&self, name: ErrorName) -> Outcome<String> {
        let bus = PrivateBus::start().await?;
        let daemon = self.settled_as("failed", &bus).await?;
        let message = refused(daemon.client().embedder.embed("x").await, name)?;
        daemon.stop().await?;
        Ok(message)
    }

    fn empty() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("daemon-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(folder.path().join("state"))?;
        let cache = folder.path().join("cache").display().to_string();
        let program = needs::op_dbus();
        let setup = Self { folder, program, settings: vec![], environment: vec![], flags: vec![] };
        let setup = setup.setting("cache_dir", &cache);
        // What a process that leaves no dump has open is shown to nobody but who may look into all, nor may others
        // trace it: not even the same user, who the tests are where they are not root.
        Ok(match needs::looks_into_all() {
            true => setup,
            false => setup.setting("core_dumps", "true"),
        })
    }

    /// Sets a key of the configuration file.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Runs another copy of the program.
    pub fn program(mut self, path: PathBuf) -> Self {
        self.program = path;
        self
    }

    /// As the service's user can start it, with a state that is theirs.
    pub fn of_the_service(self) -> Outcome<Self> {
        chown(self.path("state"), Some(SERVICE.id), Some(SERVICE.id))?;
        // The build may lie where only its owner can look.
        let program = self.path("op-dbus");
        fs::copy(needs::op_dbus(), &program)?;
        Ok(self.program(program))
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a service manager that is told how the daemon is.
    pub fn managed(self) -> Outcome<(Self, ServiceManager)> {
        let path = self.path("notify");
        let manager = ServiceManager::listen(&path)?;
        Ok((self.env("NOTIFY_SOCKET", &path.display().to_string()), manager))
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// A path in the folder of this setup.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the daemon keeps its state.
    pub fn state_file(&self) -> PathBuf {
        self.path("state/state.json")
    }

    /// Where the daemon's configuration is.
    pub fn config_file(&self) -> PathBuf {
        self.path("config.toml")
    }

    /// Writes the configuration file as the settings are now.
    pub fn write_config(&self) -> Outcome {
        let lines = self.settings.iter().map(|(key, value)| format!("{key} = {value:?}\n"));
        Ok(fs::write(self.config_file(), lines.collect::<String>())?)
    }

    /// The command that starts the daemon on `bus`.
    pub fn command(&self, bus: &PrivateBus) -> Outcome<Command> {
        self.write_config()?;
        let mut command = clean(&self.program);
        command.arg("daemon").arg("--state-file").arg(self.state_file());
        command.arg("--config").arg(self.config_file()).args(&self.flags);
        command.env("OP_DBUS_BUS", bus.address());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Starts the daemon and waits until it owns its name.
    pub async fn start(&self, bus: &PrivateBus) -> Outcome<Daemon> {
        self.start_command(self.command(bus)?, bus).await
    }

    /// The same, with a command that wraps or changes [`Setup::command`].
    pub async fn start_command(&self, command: Command, bus: &PrivateBus) -> Outcome<Daemon> {
        let client = Client::new(bus.connect().await?).await?;
        let mut process = Process::start("op-dbus daemon", command, &self.path("daemon.log"))?;
        tokio::select! {
            owned = within("the daemon's name on the bus", owner(client.connection(), true)) => {
                owned??;
            }
            status = process.child().wait() => {
                let said = process.stderr();
                return Err(format!("the daemon ended at once ({}): {said}", status?).into());
            }
        }
        Ok(Daemon { process, client })
    }

    /// Starts the daemon and waits until it has left the state `loading`; it must be `ready`.
    pub async fn ready(&self, bus: &PrivateBus) -> Outcome<Daemon> {
        self.settled_as("ready", bus).await
    }

    /// The same where it must be in another `state` then.
    pub async fn settled_as(&self, state: &str, bus: &PrivateBus) -> Outcome<Daemon> {
        let daemon = self.start(bus).await?;
        let settled = daemon.settled().await?;
        assert_eq!(settled, state, "the daemon wrote:\n{}", daemon.process.stderr());
        Ok(daemon)
    }

    /// As [`Setup::ready`], on a bus of its own.
    pub async fn alone(self) -> Outcome<(PrivateBus, Self, Daemon)> {
        self.alone_as("ready").await
    }

    /// As [`Setup::settled_as`], on a bus of its own.
    pub async fn alone_as(self, state: &str) -> Outcome<(PrivateBus, Self, Daemon)> {
        let bus = PrivateBus::start().await?;
        let daemon = self.settled_as(state, &bus).await?;
        Ok((bus, self, daemon))
    }
}

/// A running daemon and a client of it.
pub struct Daemon {
    pub process: Process,
    client: Client,
}

impl Daemon {
    /// A client on a connection that was there before the daemon.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until `State` is something else than `loading`, and returns it.
    pub async fn settled(&self) -> Outcome<String> {
        self.state(|state| state != "loading").await
    }

    /// Waits until `State` is what `wanted` accepts.
    pub async fn state(&self, wanted: impl Fn(&str) -> bool) -> Outcome<String> {
        let state = || self.client.embedder.state();
        self.property("State", state, |state| wanted(state)).await
    }

    /// Waits until `VectorLevel` is `wanted`.
    pub async fn level(&self, wanted: &str) -> Outcome {
        let level = || self.client.embedder.vector_level();
        self.property("VectorLevel", level, |level| level == wanted).await.map(drop)
    }

    /// Waits until what `read` tells is what `wanted` accepts, told by the property's signal.
    async fn property<T, F: Future<Output = zbus::Result<T>>>(
        &self,
        name: &str,
        read: impl Fn() -> F,
        wanted: impl Fn(&T) -> bool,
    ) -> Outcome<T> {
        within(&format!("a change of the property {name}"), async {
            // The signal itself, whoever sends it: a proxy's own stream passes over signals while it
            // finds out who owns the name, which here has just changed hands.
            let rule = MatchRule::builder()
                .msg_type(Type::Signal)
                .interface("org.freedesktop.DBus.Properties")
                .member("PropertiesChanged")
                .path(ROOT_PATH)
                .build()?;
            let mut changes =
                MessageStream::for_match_rule(rule, self.client.connection(), None).await?;
            loop {
                let value = read().await?;
                if wanted(&value) {
                    return Ok(value);
                }
                if changes.next().await.is_none() {
                    return Err("the bus is gone".into());
                }
            }
        })
        .await?
    }

    /// Process ids of the workers.
    pub async fn workers(&self) -> Outcome<Vec<nix::unistd::Pid>> {
        self.client.workers().await?.iter().map(pid).collect()
    }

    /// Sends a signal to each worker.
    pub async fn signal_workers(&self, signal: Signal) -> Outcome {
        for pid in self.workers().await? {
            match process::send(signal, pid).await {
                // It has ended meanwhile.
                Err(error) if error.downcast_ref::<Errno>() == Some(&Errno::ESRCH) => {}
                end => end?,
            }
        }
        Ok(())
    }

    /// Ends the daemon as systemd would, and waits until it's gone; it must end well.
    pub async fn stop(mut self) -> Outcome {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.ended().await?;
        assert!(status.success(), "the daemon ended with {status}: {}", self.process.stderr());
        Ok(())
    }
}

/// Waits until somebody owns the service's name, or until nobody does.
pub async fn owner(connection: &Connection, wanted: bool) -> Outcome {
    owner_of(BUS_NAME, connection, wanted).await
}

/// The same for any name.
pub async fn owner_of(name: &str, connection: &Connection, wanted: bool) -> Outcome {
    let bus = DBusProxy::new(connection).await?;
    let mut changes = bus.receive_name_owner_changed_with_args(&[(0, name)]).await?;
    while bus.name_has_owner(name.try_into()?).await? != wanted {
        changes.next().await.ok_or("the bus is gone")?;
    }
    Ok(())
}
