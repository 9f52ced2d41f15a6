//! What runs: models, their engines, the level in force, and every change of it.

mod change;
mod compiled;
mod costs;
mod engines;
mod error;
mod failover;
mod fallback;
mod fleet;
mod ignored;
mod load;
mod memory;
mod now;
mod proofs;
mod provider;
mod recovery;
mod room;
mod served;
mod worker;

use std::future::pending;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::join_all;
use op_dbus_engine::{CancellationToken, Error as EngineError, Kept};
use op_dbus_models::Level;
use tokio::sync::{Mutex, Notify, Semaphore, oneshot, watch};
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::devices::Reader;
use crate::settings::Loaded;
use crate::telemetry::Telemetry;
use engines::Engines;
use fleet::Fleet;

pub use error::Error;
pub(crate) use error::shown;
pub use memory::{GivenBack, absence_name};
pub use now::{Now, Phase, wanted};
pub use provider::{CREDENTIALS, Host, candidates, host, lacking, unavailable, verify};
pub use served::{Choice, MakeSink, Options, Request, Served};
pub use worker::{Blueprint, Crew, Spawner, WorkerConfig, WorkerProgram};

pub(crate) use load::start_time_max;

/// A disk that takes longer than this for what batches were seen to cost is not waited for: replies are yet to leave.
const KEEP_TIME: Duration = Duration::from_secs(3);

/// The service. Cheap to clone.
///
/// A trait object says of itself that threads may share it. Of a structure the compiler finds that out by going through
/// all that it holds, anew for each method of each D-Bus interface: most of the time that checking this crate took.
/// `Deref`, as a `Box` has it, spares a trait of its own.
#[derive(Clone)]
pub struct Service(Arc<dyn Deref<Target = Inner> + Send + Sync>);

struct Inner {
    now: watch::Sender<Arc<Now>>,
    /// Held during a change of level or settings: one at a time.
    change: Mutex<()>,
    means: Means,
    engines: Arc<Engines>,
    telemetry: Option<Telemetry>,
    /// Held while memory is given back: what one trim gives back another must not count.
    trimming: Mutex<()>,
    given: parking_lot::Mutex<GivenBack>,
    /// How often another provider came to run than was asked for.
    fallbacks: AtomicU64,
    /// Permits for the inputs that wait for another provider.
    held: Semaphore,
    /// A call tries to load what could not be loaded before: that comes into force, or why it can't.
    tried: Notify,
    /// Replies that wait for room on their way.
    replies: TaskTracker,
    /// Nothing that calls wait for comes any more.
    ended: CancellationToken,
}

/// What engines are made with.
#[derive(Clone)]
pub struct Means {
    /// Starts workers.
    pub spawner: Spawner,
    /// Reads the machine's devices; without it what batches cost is measured at every load, and kept
    /// nowhere.
    pub devices: Option<Arc<Reader>>,
}

impl Service {
    /// A service under these settings; nothing is loaded before [`Service::start`]. A change of the
    /// log filter goes to `telemetry`. Has to be called within the Tokio runtime that the service lives on.
    pub fn new(loaded: Loaded, means: Means, telemetry: Option<Telemetry>) -> Self {
        let loaded = Arc::new(loaded);
        let engines = Arc::new(Engines::new(loaded.settings.cache_bytes));
        let fleet = Fleet::new(loaded.clone(), means.clone(), engines.clone());
        let phase = match wanted(&loaded.settings) {
            Some(choice) => now::loading(&choice, &loaded.settings),
            None => Phase::Disabled,
        };
        let now = Now { phase, since: SystemTime::now(), loaded, fleet, stood: (false, false) };
        let now = watch::Sender::new(Arc::new(now));
        let (change, trimming, given, fallbacks, tried, replies, ended) = Default::default();
        Self(Arc::new(Box::new(Inner {
            now,
            change,
            means,
            engines,
            telemetry,
            trimming,
            given,
            fallbacks,
            held: Semaphore::new(failover::HELD_KIB_MAX),
            tried,
            replies,
            ended,
        })))
    }

    /// What the service is now.
    pub fn now(&self) -> Arc<Now> {
        self.0.now.borrow().clone()
    }

    /// Tells of every change of [`Service::now`].
    pub fn watch(&self) -> watch::Receiver<Arc<Now>> {
        self.0.now.subscribe()
    }

    /// The vectors that are kept for texts that come again.
    pub fn kept(&self) -> Kept {
        self.0.engines.cache.kept()
    }

    /// The model that answers a call: the one in force, or that of `level`, which is loaded if it
    /// is not yet.
    ///
    /// # Errors
    /// Why none answers; `DeadlineExceeded` when a load takes longer than the caller waits.
    pub async fn serving(
        &self,
        level: Option<Level>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Served>, Error> {
        let now = self.now();
        let in_force = level.is_none() || level == now.level();
        match &now.phase {
            Phase::Draining(_) => return Err(Error::ShuttingDown),
            Phase::Disabled => return Err(Error::Disabled),
            Phase::Loading(model) if in_force || !level.is_some_and(|level| now.has(level)) => {
                return Err(Error::NotReady { model: model.clone() });
            }
            Phase::Serving(served) if in_force => return Ok(served.clone()),
            // A model that was missing or damaged may have been fetched meanwhile.
            Phase::Failed(error) if in_force && !error.is_of_model() => {
                return Err(Error::InForce(error.clone()));
            }
            Phase::Serving(_) | Phase::Failed(_) | Phase::Loading(_) => {}
        }
        let choice = match level {
            _ if in_force => wanted(now.settings()),
            None | Some(Level::None) => None,
            Some(level) => Some(Choice::Level(level)),
        };
        let Some(choice) = choice else { return Err(Error::Disabled) };
        let load = now.fleet.get(&choice);
        if in_force {
            // Before it is waited for: what comes of it is taken up as well where this caller leaves meanwhile.
            self.0.tried.notify_one();
        }
        let loaded = now.loaded.clone();
        // Nothing else is held meanwhile: what a change lets go of ends.
        drop(now);
        let served = match deadline {
            None => load.await,
            Some(deadline) => {
                let late = |_| Error::DeadlineExceeded { model: choice.model().to_owned() };
                timeout_at(deadline.into(), load).await.map_err(late)?
            }
        };
        if in_force {
            return served.map_err(Error::InForce);
        }
        served.inspect(|served| self.tell_named(served, &loaded.settings)).map_err(Error::Load)
    }

    /// As [`Service::serving`] for so many texts of a user. While they wait for a load they count against that
    /// user's quota, and against what all may have in the queue: no engine counts them yet.
    ///
    /// # Errors
    /// As [`Service::serving`]; `QuotaExceeded`, `Overloaded`, `TooLarge`.
    pub async fn serving_to(
        &self,
        uid: u32,
        (texts, bytes): (usize, usize),
        level: Option<Level>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Served>, Error> {
        let mut serving = pin!(self.serving(level, deadline));
        if let Some(end) = serving.as_mut().now_or_never() {
            return end;
        }
        let _permit = self.now().fleet.load_admission.admit(uid, texts, bytes)?;
        serving.await
    }

    /// Refuses new calls, finishes those in flight until `deadline`, then stops the workers. Replies that wait for room
    /// on their way have until then, too.
    pub async fn drain(&self, deadline: Instant) {
        let before = self.now();
        self.enter(Phase::Draining(before.served().cloned()));
        let engines = self.engines();
        join_all(engines.iter().map(|served| served.engine.drain(deadline))).await;
        // What is computed by now may wait until its caller has read what was sent before.
        self.0.replies.close();
        let _ = timeout_at(deadline.into(), self.0.replies.wait()).await;
        // Before the disk is waited for, with which no caller has to do.
        self.0.ended.cancel();
        let _ = timeout(KEEP_TIME, before.fleet.close()).await;
    }

    /// Has a [`Service::drain`] wait for a reply, as for what is computed, until this is dropped.
    pub(crate) fn replying(&self) -> TaskTrackerToken {
        self.0.replies.token()
    }

    /// Returns once [`Service::drain`] has had the engines end. What has no answer then, as it waits for a model or for a
    /// slow source, will have none.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// A fleet under other settings; nothing is loaded yet.
    fn fleet(&self, loaded: Arc<Loaded>) -> Arc<Fleet> {
        Fleet::new(loaded, self.0.means.clone(), self.0.engines.clone())
    }

    /// Moves on to another phase. Nothing leads back from draining.
    fn enter(&self, phase: Phase) {
        self.replace(|now| now.phase = phase);
    }

    fn replace(&self, change: impl FnOnce(&mut Now)) {
        self.0.now.send_if_modified(|now| {
            if matches!(now.phase, Phase::Draining(_)) {
                return false;
            }
            let mut next = Now::clone(now);
            change(&mut next);
            if !Arc::ptr_eq(&next.fleet, &now.fleet) {
                now.fleet.leave();
            }
            next.stood = next.stands();
            if !next.phase.is(&now.phase) || next.stood != now.stood {
                next.since = SystemTime::now();
            }
            *now = Arc::new(next);
            true
        });
    }
}

/// Returns at that moment; where there is none, never.
pub(crate) async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => pending().await,
    }
}

/// What `work` gives, unless its caller leaves or its deadline comes before.
///
/// # Errors
/// `Cancelled`, `DeadlineExceeded`.
pub(crate) async fn until<T>(
    cancel: &CancellationToken,
    deadline: Option<Instant>,
    work: impl Future<Output = T>,
) -> Result<T, EngineError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(EngineError::Cancelled),
        result = work => Ok(result),
        () = reached(deadline) => Err(EngineError::DeadlineExceeded),
    }
}

/// Runs work that waits, on a thread of its own, for which neither the runtime nor the end of the process
/// waits. The runtime's own would panic where the system has no thread left, and so end the task that asked.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, end) = oneshot::channel();
    // Where nobody waits for it any more it ends here.
    let work = move || drop(sender.send(work()));
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
        tracing::error!("a thread could not be started ({error}); raise the limit of tasks");
        return Err(Error::Fault("no thread can be started"));
    }
    end.await.map_err(|_| Error::Fault("a thread ended early"))
}

#[cfg(test)]
mod tests;
