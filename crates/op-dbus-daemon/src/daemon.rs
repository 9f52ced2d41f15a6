//! The life of the daemon: bus, objects, name, model; reload; and an end that loses no answer.

mod watchdog;

use std::future::pending;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use op_dbus_api::{BUS_NAME, ROOT_PATH};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::{error, info, warn};
use zbus::Connection;
use zbus::fdo::RequestNameFlags;

use crate::bus::Objects;
use crate::devices::Reader;
use crate::notify;
use crate::service::{self, Means, Service, reached, start_time_max};
use crate::settings::{Bus, Loaded};
use crate::telemetry::{self, Telemetry, message_id};

pub use crate::service::WorkerProgram;

/// A bus lets us in by then, or not at all.
const CONNECT_TIME: Duration = Duration::from_secs(60);
/// Another service that is alive has answered by then, or counts as alive.
const OWNER_ANSWERS: Duration = Duration::from_secs(5);
/// Calls in flight get this long to end; the unit's `TimeoutStopSec` is longer.
const DRAIN_TIME: Duration = Duration::from_secs(20);
/// The last replies are on their way by then, also on a busy machine; anything longer is a peer that does not read.
/// Together with `DRAIN_TIME` it leaves some of the unit's `TimeoutStopSec` for the rest of the end.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// Why the daemon ends other than by being told to.
#[derive(Debug, thiserror::Error)]
enum Fatal {
    #[error("the {bus} bus can't be reached ({source}); {}", bus.remedy())]
    Bus { bus: Bus, source: zbus::Error },
    #[error("the {bus} bus has not let us in for {} s; does it hang?", CONNECT_TIME.as_secs())]
    Silent { bus: Bus },
    #[error("the name {BUS_NAME} is taken: another op-dbus serves this bus; stop it first")]
    NameTaken,
    #[error(
        "the bus does not give us the name {BUS_NAME} ({0}); is its policy file installed, and does \
         the daemon run as the user named there?"
    )]
    Name(#[source] zbus::Error),
    #[error("the bus refused a subscription or an object ({0})")]
    Objects(#[from] zbus::Error),
    #[error("the connection to the bus is lost")]
    Lost,
    #[error(
        "the bus takes no replies from the service any more, or drops its answers to it; a new start has a new \
         connection"
    )]
    Stuck,
    #[error("signals can't be received ({0})")]
    Signals(#[from] std::io::Error),
    #[error("{0}")]
    Refused(Arc<service::Error>),
}

impl Fatal {
    /// 6 tells the service manager that a restart won't help.
    fn exit_code(&self) -> ExitCode {
        if matches!(self, Self::Refused(_)) { ExitCode::from(6) } else { ExitCode::FAILURE }
    }
}

/// Serves until SIGTERM or SIGINT (exit status 0), until serving is impossible (1), or not at all
/// when the first model has other dimensions than the settings demand (6). Workers are processes of
/// `worker`.
pub async fn run(loaded: Loaded, worker: WorkerProgram) -> ExitCode {
    let telemetry = match telemetry::start(&loaded.settings.log) {
        Ok(telemetry) => Some(telemetry),
        Err(reason) => {
            eprintln!("op-dbus: logging could not be started: {reason}");
            None
        }
    };
    info!(MESSAGE_ID = message_id::START, version = env!("CARGO_PKG_VERSION"), "op-dbus starts");
    for warning in &loaded.warnings {
        warn!(MESSAGE_ID = warning.message_id, "{warning}");
    }
    match serve(loaded, worker, telemetry).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            error!("{fatal}");
            notify::stopping(&fatal.to_string());
            fatal.exit_code()
        }
    }
}

async fn serve(
    loaded: Loaded,
    worker: WorkerProgram,
    telemetry: Option<Telemetry>,
) -> Result<(), Fatal> {
    let (terminate, interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let hangup = signal(SignalKind::hangup())?;
    let bus = loaded.settings.bus.clone();
    let devices = Arc::new(Reader::new(worker.exe.clone()));
    let means = Means { spawner: worker.spawner(), devices: Some(devices.clone()) };
    let service = Service::new(loaded, means, telemetry);
    let objects = Objects::new(service.clone(), devices);
    let mut stop = pin!(told_to_stop(terminate, interrupt));
    let (connection, mut tasks, changes) = tokio::select! {
        there = appear(&bus, &objects) => there?,
        () = &mut stop => {
            info!("stopped before the bus had let us in");
            return Ok(());
        }
    };
    let (refuse, refused) = oneshot::channel();
    tasks.spawn(load_and_tell(service.clone(), refuse));
    tasks.spawn(reload_on(hangup, service.clone()));
    tasks.spawn(service.clone().look_after());
    tasks.spawn(watchdog::feed(service.clone()));
    tasks.spawn(unload_when_idle(service.clone()));
    tasks.spawn(crate::sleep::follow(connection.clone(), service.clone()));
    tasks.spawn(service.clone().tell_presence());
    tasks.spawn(service.clone().follow_memory());
    tasks.spawn(service.clone().give_spare_back());
    tokio::select! {
        () = connection.closed() => return Err(Fatal::Lost),
        () = objects.stuck(&connection, async || lets_in(&bus).await) => return Err(Fatal::Stuck),
        Ok(error) = refused => return Err(Fatal::Refused(error)),
        () = stop => {}
    }
    info!("stopping: the calls in flight are finished first");
    notify::stopping("Finishing the calls in flight");
    service.drain(Instant::now() + DRAIN_TIME).await;
    let flushed = timeout(FLUSH_TIME, async {
        // What holds the connection goes first: it closes with the last holder, replies sent.
        drop(changes.await);
        objects.end().await;
        tasks.shutdown().await;
        drop(connection.release_name(BUS_NAME).await);
        connection.graceful_shutdown().await;
    });
    if flushed.await.is_err() {
        warn!("the last replies could not all be sent");
    }
    info!("stopped");
    Ok(())
}

/// Takes our place on the bus; the tasks look after what happens there.
async fn appear(
    bus: &Bus,
    objects: &Objects,
) -> Result<(Connection, JoinSet<()>, JoinHandle<()>), Fatal> {
    let connection = connect(bus, objects).await?;
    objects.serve_jobs(&connection).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(objects.departures(&connection).await?);
    request_name(&connection).await?;
    // Signals that come before the name reach nobody who listens for it.
    objects.introduce(&connection).await;
    let changes = tokio::spawn(objects.changes(&connection));
    Ok((connection, tasks, changes))
}

async fn connect(bus: &Bus, objects: &Objects) -> Result<Connection, Fatal> {
    let connected = async { objects.connect(bus).await?.build().await };
    match timeout(CONNECT_TIME, connected).await {
        Ok(built) => built.map_err(|source| Fatal::Bus { bus: bus.clone(), source }),
        Err(_) => Err(Fatal::Silent { bus: bus.clone() }),
    }
}

/// Whether the bus lets a new connection in.
async fn lets_in(bus: &Bus) -> bool {
    matches!(timeout(CONNECT_TIME, bus.builder().build()).await, Ok(Ok(_)))
}

/// Takes the name or fails: no queueing behind another daemon, and no replacing of either.
async fn request_name(connection: &Connection) -> Result<(), Fatal> {
    let flags = RequestNameFlags::DO_NOT_QUEUE;
    let mut named = connection.request_name_with_flags(BUS_NAME, flags).await;
    if matches!(named, Err(zbus::Error::NameTaken)) && has_gone(connection).await {
        named = connection.request_name_with_flags(BUS_NAME, flags).await;
    }
    match named {
        Ok(_) => Ok(()),
        Err(zbus::Error::NameTaken) => Err(Fatal::NameTaken),
        Err(error) => Err(Fatal::Name(error)),
    }
}

/// Whether who owns the name has ended. A bus that took nothing from it any more notices that when it has something
/// for it.
async fn has_gone(connection: &Connection) -> bool {
    let peer = Some("org.freedesktop.DBus.Peer");
    let ping = connection.call_method(Some(BUS_NAME), ROOT_PATH, peer, "Ping", &());
    matches!(timeout(OWNER_ANSWERS, ping).await, Ok(Err(_)))
}

async fn told_to_stop(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Loads the first model, then says READY: from then on every call gets its true answer, also when
/// that is an error. Afterwards the status line follows every change, and workers that move. A model of other dimensions
/// than the settings demand is told to `refuse` instead: an index must not be filled with them.
async fn load_and_tell(service: Service, refuse: oneshot::Sender<Arc<service::Error>>) {
    let mut changes = service.watch();
    if let Some(error) = start(&service).await
        && matches!(*error, service::Error::Dimensions(_))
    {
        // Nobody listens only when the daemon is stopping already.
        let _ = refuse.send(error);
        return;
    }
    drop(refuse);
    let mut summary = service.now().summary();
    notify::ready(&summary);
    // Why nothing is embedded is told already, as an error.
    let told = match service.now().phase {
        service::Phase::Failed(_) => "each with why nothing is embedded",
        _ => summary.as_str(),
    };
    info!(MESSAGE_ID = message_id::READY, "calls are answered: {told}");
    loop {
        let now = changes.borrow_and_update().clone();
        let served = now.served().cloned();
        // Before the line is made: what moves in between is in the next one.
        let devices = served.as_ref().map(|served| served.engine.devices()).unwrap_or_default();
        let next = now.summary();
        drop(now);
        if next != summary {
            notify::status(&next);
            summary = next;
        }
        // Holds the engine no longer than it is waited for: it ends with its last holder.
        let moved = async move {
            match served {
                Some(served) => served.engine.devices_other_than(&devices).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = moved => {}
        }
    }
}

/// Loads the first model, while the manager is asked for the time that this may take.
async fn start(service: &Service) -> Option<Arc<service::Error>> {
    let time_max = {
        // Holds the first engines, and is not to do so for ever.
        let now = service.now();
        notify::status(&now.summary());
        start_time_max(now.settings())
    };
    let stays = || !matches!(service.now().phase, service::Phase::Draining(_));
    notify::extending(service.start(), time_max, stays).await
}

/// Signals that come during a reload ask for one more, however many they are.
async fn reload_on(mut hangup: Signal, service: Service) {
    while hangup.recv().await.is_some() {
        // Its end is logged where it happens, for the bus method as well.
        drop(service.reload().await);
    }
}

/// Unloads models that nobody has called for as long as the settings say.
async fn unload_when_idle(service: Service) {
    let mut changes = service.watch();
    loop {
        changes.mark_unchanged();
        let look = service.unload_idle().await.map(|time| Instant::now() + time);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = reached(look) => {}
        }
    }
}
