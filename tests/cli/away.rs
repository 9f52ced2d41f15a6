//! `op-dbus embed` with a service that is restarted, crashes, or is stopped, while the command runs.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use futures_util::TryStreamExt;
use nix::sys::signal::Signal;
use op_dbus_api::{BUS_NAME, Error, ErrorName, Info};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use zbus::fdo::MonitoringProxy;
use zbus::message::{Flags, Header};
use zbus::{Connection, MessageStream, OwnedFd, OwnedVariant};

use super::full::{full, lengths, nameless, serve};
use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, cli, cli_with_input};
use crate::harness::daemon::Setup;
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    a_service_that_ends_and_comes_back_is_waited_for: [Bus],
    a_service_that_is_gone_when_it_is_called_again_is_waited_for: [Bus],
    what_a_service_crashed_at_is_asked_again: [Bus],
    a_text_that_a_service_crashes_at_each_time_is_given_up: [Bus],
    a_list_that_a_service_crashes_at_each_time_is_given_up: [Bus],
    the_service_itself_may_crash_and_be_restarted: [Bus],
    a_service_that_is_stopped_is_not_started: [Bus],
    who_was_refused_by_descriptor_starts_no_service_either: [Bus],
}

/// What a bus says of a call to nobody for which it is to start nobody.
const UNOWNED: &str = "org.freedesktop.DBus.Error.NameHasNoOwner";

/// A bus that would start the service, and a file that has a line for each time that it has tried. What it starts fails,
/// which it tells at once; for one that ends well and never comes it would wait 25 s.
pub async fn starting(folder: &Path) -> Outcome<(PrivateBus, PathBuf)> {
    let (started, config) = (folder.join("started"), folder.join("services.conf"));
    let exec = format!("/bin/sh -c 'echo >>{}; exit 1'", started.display());
    let service = format!("[D-BUS Service]\nName={BUS_NAME}\nExec={exec}\n");
    fs::write(folder.join(format!("{BUS_NAME}.service")), service)?;
    let services = format!("<servicedir>{}</servicedir>", folder.display());
    fs::write(&config, format!("<busconfig>{services}</busconfig>"))?;
    Ok((PrivateBus::start_with(&[&config], |command| command).await?, started))
}

/// Has each of these on the bus as the service, once somebody was told that nobody has its name.
async fn come_back(bus: &PrivateBus, services: Vec<Connection>) -> Outcome {
    let connection = bus.connect().await?;
    MonitoringProxy::new(&connection).await?.become_monitor(&[], 0).await?;
    let mut said = MessageStream::from(connection);
    tokio::spawn(async move {
        for service in services {
            while let Some(message) = said.try_next().await? {
                let is_missed =
                    message.header().error_name().is_some_and(|it| it.as_str() == UNOWNED);
                if is_missed {
                    service.request_name(BUS_NAME).await?;
                    break;
                }
            }
        }
        zbus::Result::Ok(())
    });
    Ok(())
}

async fn a_service_that_ends_and_comes_back_is_waited_for() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (bus, started) = starting(folder.path()).await?;
    let (service, tries) = full(&bus).await?;
    come_back(&bus, vec![service.clone()]).await?;
    assert_eq!(cli(&bus, &["embed", "--csv", "back"]).await?.success()?, "4\n");
    assert_eq!(*tries.lock().unwrap_or_else(PoisonError::into_inner), ["back"; 3]);
    assert!(!started.exists());
    Ok(())
}

/// A command that is given lines one by one, and gives vectors one by one.
struct Streaming {
    child: Child,
    texts: ChildStdin,
    vectors: Lines<BufReader<ChildStdout>>,
}

impl Streaming {
    fn start(bus: &PrivateBus) -> Outcome<Self> {
        let mut command = clean(op_dbus());
        command.args(["embed", "--csv", "--bus", bus.address()]).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let texts = child.stdin.take().ok_or("no standard input")?;
        let vectors = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
        Ok(Self { child, texts, vectors })
    }

    async fn write(&mut self, line: &str) -> Outcome {
        Ok(self.texts.write_all(line.as_bytes()).await?)
    }

    async fn vector(&mut self) -> Outcome<String> {
        Ok(within("a vector", self.vectors.next_line()).await??.unwrap_or_default())
    }

    /// Ends the texts, and with them the command; it must end well.
    async fn end(self) -> Outcome {
        drop(self.texts);
        let ended = within("the end of the command", self.child.wait_with_output()).await??;
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    }
}

async fn a_service_that_is_gone_when_it_is_called_again_is_waited_for() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (bus, started) = starting(folder.path()).await?;
    let (service, tries) = full(&bus).await?;
    come_back(&bus, vec![service.clone()]).await?;
    let mut command = Streaming::start(&bus)?;
    command.write("last\n").await?;
    assert_eq!(command.vector().await?, "4");
    command.write("more\n").await?;
    assert_eq!(command.vector().await?, "4");
    command.end().await?;
    assert_eq!(*tries.lock().unwrap_or_else(PoisonError::into_inner), ["last", "more"]);
    assert!(!started.exists());
    Ok(())
}

/// Leaves the bus in the midst of each call by descriptor, and of each other one that has this text.
#[derive(Default)]
struct Crashing {
    text: &'static str,
    by_descriptor: Arc<AtomicUsize>,
}

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Crashing {
    async fn embed_from_fd(
        &self,
        _source: OwnedFd,
        _options: HashMap<String, OwnedVariant>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(OwnedFd, u32, u32, Info), Error> {
        self.by_descriptor.fetch_add(1, Ordering::Relaxed);
        Err(crash(connection).await)
    }

    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        if texts.iter().any(|text| text == self.text) {
            return Err(crash(connection).await);
        }
        Ok(lengths(&texts))
    }
}

/// One that does so at `x`.
fn crashing() -> Crashing {
    Crashing { text: "x", ..Crashing::default() }
}

/// What is never sent any more.
async fn crash(connection: &Connection) -> Error {
    connection.clone().close().await.ok();
    Error::new(ErrorName::Cancelled, "this service has crashed")
}

async fn what_a_service_crashed_at_is_asked_again() -> Outcome {
    let bus = PrivateBus::start().await?;
    let _crashing = serve(&bus, crashing()).await?;
    let next = nameless(&bus, Ending::default()).await?;
    come_back(&bus, vec![next.clone()]).await?;
    // By descriptor as well: one that tells no limits gets no more than one text in a message.
    let lines = "x\n".repeat(200);
    let out = cli_with_input(&bus, &["embed", "--csv"], &lines).await?.success()?;
    assert_eq!(out, "1\n".repeat(200));
    Ok(())
}

async fn a_text_that_a_service_crashes_at_each_time_is_given_up() -> Outcome {
    let bus = PrivateBus::start().await?;
    let _first = serve(&bus, crashing()).await?;
    let second = nameless(&bus, crashing()).await?;
    let third = nameless(&bus, Ending::default()).await?;
    come_back(&bus, vec![second.clone(), third.clone()]).await?;
    let refused = cli(&bus, &["embed", "--csv", "x"]).await?;
    assert_eq!(refused.code, Some(3), "{}", refused.stdout);
    assert!(refused.stderr.contains("went away during the call"), "{}", refused.stderr);
    Ok(())
}

/// Also where it went by descriptor first.
async fn a_list_that_a_service_crashes_at_each_time_is_given_up() -> Outcome {
    let bus = PrivateBus::start().await?;
    let service = Crashing::default();
    let by_descriptor = Arc::clone(&service.by_descriptor);
    let _first = serve(&bus, service).await?;
    // Several calls are under way, each of which may be the first at one of them.
    let mut next = Vec::new();
    for _ in 0..20 {
        next.push(nameless(&bus, crashing()).await?);
    }
    come_back(&bus, next.clone()).await?;
    // The first line may be a call of its own; what comes while that is under way is one by descriptor.
    let lines = format!("first\n{}", "x\n".repeat(50));
    let refused = cli_with_input(&bus, &["embed", "--csv"], &lines).await?;
    assert!(by_descriptor.load(Ordering::Relaxed) > 0, "{}", refused.stderr);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("went away during the call"), "{}", refused.stderr);
    Ok(())
}

async fn the_service_itself_may_crash_and_be_restarted() -> Outcome {
    let (bus, setup, mut daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().vectors(&["first", "second"]).await?;
    let mut command = Streaming::start(&bus)?;
    let read = |line: String| -> Vec<f32> { line.split(',').flat_map(str::parse::<f32>).collect() };
    command.write("first\n").await?;
    assert_eq!(read(command.vector().await?), expected[0]);
    daemon.process.signal(Signal::SIGKILL)?;
    daemon.process.ended().await?;
    command.write("second\n").await?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(read(command.vector().await?), expected[1]);
    command.end().await?;
    daemon.stop().await
}

async fn a_service_that_is_stopped_is_not_started() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (bus, started) = starting(folder.path()).await?;
    let (_service, tries) = full(&bus).await?;
    let refused = cli(&bus, &["embed", "--deadline-ms", "1000", "gone"]).await?;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("start it with `op-dbus daemon"), "{}", refused.stderr);
    assert_eq!(*tries.lock().unwrap_or_else(PoisonError::into_inner), ["gone"]);
    assert!(!started.exists());
    // A bus that is asked for the service would have started it.
    cli(&bus, &["embed", "x"]).await?;
    assert!(started.exists());
    Ok(())
}

/// Tells who comes with a descriptor that it ends, and takes what comes after that.
#[derive(Default)]
struct Ending {
    /// Calls for which no service is to be started.
    starting_none: Arc<AtomicUsize>,
}

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Ending {
    async fn embed_from_fd(
        &self,
        _source: OwnedFd,
        _options: HashMap<String, OwnedVariant>,
    ) -> Result<(OwnedFd, u32, u32, Info), Error> {
        Err(Error::new(ErrorName::ShuttingDown, "it is shutting down"))
    }

    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        if header.primary().flags().contains(Flags::NO_AUTO_START) {
            self.starting_none.fetch_add(1, Ordering::Relaxed);
        }
        Ok(lengths(&texts))
    }
}

async fn who_was_refused_by_descriptor_starts_no_service_either() -> Outcome {
    let bus = PrivateBus::start().await?;
    let service = Ending::default();
    let starting_none = Arc::clone(&service.starting_none);
    let _service = serve(&bus, service).await?;
    // It tells no limits, so that one text is a call of its own and more go by descriptor.
    let lines = "x\n".repeat(200);
    let out = cli_with_input(&bus, &["embed", "--csv"], &lines).await?.success()?;
    assert_eq!(out, "1\n".repeat(200));
    assert!(starting_none.load(Ordering::Relaxed) > 0);
    Ok(())
}
