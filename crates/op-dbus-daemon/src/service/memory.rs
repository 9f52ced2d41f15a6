//! Memory that is given back: models unloaded when nobody calls or somebody asks, devices let go while
//! the machine sleeps, and what can be spared in between.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use op_dbus_engine::{Absence, CancellationToken, Footprint, Presence, memory};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{error, info};

use super::now::{Now, Phase, wanted};
use super::served::Served;
use super::{Error, Service, blocking};
use crate::settings::Settings;
use crate::telemetry::message_id;

/// Calls in flight get this long to end before an unload tells that their model stays.
const CALLS_END: Duration = Duration::from_secs(20);
/// A batch that runs has ended by then; who computes longer is left out of a trim.
const TRIM_TIME: Duration = Duration::from_secs(10);

/// What has something in flight is looked at again so soon: it may be the text that the watchdog is fed with, which is over
/// at once and no call.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How often it is looked at what large calls have left behind.
const SPARE_PERIOD: Duration = Duration::from_secs(10);
/// What may be left: it is used again by the next calls.
const SPARE_BYTES: u64 = 64 << 20;

/// What was given back since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// How often memory was given back.
    pub trims: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Service {
    /// Loads the model in force if it is unloaded, and returns once its workers have proved themselves, or
    /// those of the provider that takes the place of its own.
    ///
    /// # Errors
    /// Why none can serve.
    pub async fn warm_up(&self) -> Result<(), Error> {
        let served = loop {
            self.settled().await;
            match self.serving(None, None).await {
                // A change has just begun.
                Err(Error::NotReady { .. }) => {}
                end => break end?,
            }
        };
        // What could not be loaded before comes into force before anybody is told.
        self.revive(true).await;
        let Err(error) = served.engine.load().await else { return Ok(()) };
        let next = match self.now().may_have_successor(&served) {
            true => self.successor(&served, None, CancellationToken::default(), None).await?,
            false => None,
        };
        match next {
            Some(next) => Ok(next.engine.load().await?),
            None => Err(error.into()),
        }
    }

    /// Returns once no change is under way, nor the first load, before which callers are let in already.
    async fn settled(&self) {
        drop(self.0.change.lock().await);
        // The sender is ours, so it does not end before.
        let _ = self.watch().wait_for(|now| !matches!(now.phase, Phase::Loading(_))).await;
    }

    /// Ends the workers of every engine that is there, once the calls in flight in it are answered. The next
    /// call loads the model again.
    ///
    /// # Errors
    /// `Busy` when the calls in one, or its workers, do not end; the others are unloaded even so. `ShuttingDown`.
    pub async fn unload(&self) -> Result<(), Error> {
        // No change waits for calls in flight to end.
        self.settled().await;
        let until = Instant::now() + CALLS_END;
        let mut gone: Vec<Arc<Served>> = Vec::new();
        loop {
            self.staying()?;
            let mut engines = self.engines();
            // Others may have come meanwhile.
            engines.retain(|one| !gone.iter().any(|it| Arc::ptr_eq(it, one)));
            if engines.is_empty() {
                break;
            }
            let ends = join_all(engines.iter().map(|served| unloaded(served, until))).await;
            self.staying()?;
            ends.into_iter().collect::<Result<(), Error>>()?;
            gone.append(&mut engines);
        }
        let now = self.now();
        let idle = now.fleet.take_idle(wanted(now.settings()).as_ref(), Duration::ZERO);
        // Their tokenizers are memory of this process.
        give_back((gone, idle)).await;
        Ok(())
    }

    /// Gives back what memory can be spared without ending the service, and tells how many bytes that
    /// was: of this process with the vectors that it kept, of the workers, and all of the models that
    /// serve no call and are not in force; none of these while a change is under way.
    pub async fn trim(&self) -> u64 {
        let _one = self.0.trimming.lock().await;
        let before = memory::resident();
        let kept = self.0.engines.cache.clear();
        // What a change has loaded, and is not in force yet, looks like what nobody uses, or a change has left.
        let change = self.0.change.try_lock().ok();
        let (now, engines) = (self.now(), self.engines());
        let mut spare = Vec::new();
        if change.is_some() {
            spare = now.fleet.take_idle(wanted(now.settings()).as_ref(), Duration::ZERO);
            let found = [now.fleet.served(), now.served().cloned().into_iter().collect()].concat();
            let is_left = |served: &&Arc<Served>| {
                let is_idle = served.engine.idle_for().is_some();
                is_idle && !found.iter().any(|it| Arc::ptr_eq(it, served))
            };
            spare.extend(engines.iter().filter(is_left).cloned());
        }
        drop(change);
        let of_workers = join_all(engines.iter().map(|served| async {
            match spare.iter().any(|it| Arc::ptr_eq(it, served)) {
                true => end(served).await,
                false => trimmed(served).await.given_back,
            }
        }));
        let of_workers: u64 = of_workers.await.into_iter().sum();
        // Their tokenizers are memory of this process, which is trimmed and measured below.
        give_back((engines, spare)).await;
        let own = before.saturating_sub(memory::resident());
        let bytes = of_workers + own;
        let mut given = self.0.given.lock();
        given.trims += 1;
        given.bytes += bytes;
        drop(given);
        info!(
            MESSAGE_ID = message_id::MEMORY_TRIMMED,
            bytes,
            vectors_forgotten = kept.vectors,
            "memory given back: {bytes} bytes"
        );
        bytes
    }

    /// Gives back what calls have left with the C library, once none is in flight: it keeps what is freed in
    /// small pieces, which was 700 MB after 64 calls of 8 MB each. What is used stays, unlike with
    /// [`trim`](Self::trim). Never ends.
    pub async fn give_spare_back(self) {
        let mut least = memory::resident();
        loop {
            sleep(SPARE_PERIOD).await;
            let now = memory::resident();
            least = least.min(now);
            if now < least + SPARE_BYTES || self.statistics().in_flight_calls > 0 {
                continue;
            }
            // It may take a while; one that has no thread is tried again.
            if blocking("memory", memory::trim).await.is_ok() {
                least = memory::resident();
            }
        }
    }

    /// What was given back since the start.
    pub fn given_back(&self) -> GivenBack {
        *self.0.given.lock()
    }

    /// Unloads what nobody has called for as long as the settings say, and tells when to look again;
    /// `None` where models stay.
    pub async fn unload_idle(&self) -> Option<Duration> {
        let service = self.clone();
        // With an engine the vectors go that were kept of it, all of which are freed.
        match blocking("memory", move || service.unload_idle_now()).await {
            Ok(next) => next,
            Err(_) => self.unload_idle_now(),
        }
    }

    fn unload_idle_now(&self) -> Option<Duration> {
        let now = self.now();
        let limit = idle_limit(now.settings())?;
        for served in now.fleet.take_idle(wanted(now.settings()).as_ref(), limit) {
            tell_unloaded(&served.model, Absence::Idle, now.settings());
        }
        // Those among them that a slow source holds, which loads them again when it goes on.
        let engines = self.engines();
        for served in engines.iter().filter(|it| it.engine.presence() == Presence::Loaded) {
            served.engine.unload_idle(limit);
        }
        let left = engines.iter().map(|served| match served.engine.idle_for() {
            Some(idle) if idle < limit => limit - idle,
            Some(_) => limit,
            None => limit.min(LOOK_AGAIN),
        });
        Some(left.min().unwrap_or(limit))
    }

    /// Has the cache have so much room from now on. What does not fit any more may be a million vectors.
    pub(super) async fn resize_cache(&self, bytes_max: u64) {
        let cache = self.0.engines.cache.clone();
        if blocking("memory", move || cache.resize(bytes_max)).await.is_err() {
            self.0.engines.cache.resize(bytes_max);
        }
    }

    /// Lets all devices beside the CPU go; calls that need them wait until [`wake`](Self::wake).
    pub async fn sleep(&self) {
        self.0.engines.sleep().await;
    }

    /// Loads the devices again, and has every worker prove itself before its next batch.
    pub fn wake(&self) {
        self.0.engines.wake();
    }

    /// Whether the workers of the model in force are there.
    pub fn is_loaded(&self) -> bool {
        let now = self.now();
        now.served().is_some_and(|served| served.engine.presence() == Presence::Loaded)
    }

    /// Tells the journal, and whoever watches [`Service::now`], when the model in force is unloaded and
    /// loaded again, and when the CPU beside its provider stands in for that; for as long as the service lives.
    pub async fn tell_presence(self) {
        let mut changes = self.watch();
        let (mut last, mut known, mut stands_in) = (Weak::new(), Presence::Loaded, false);
        loop {
            let served = changes.borrow_and_update().served().cloned();
            let serving = served.as_ref().map(Arc::downgrade).unwrap_or_default();
            if !last.ptr_eq(&serving) {
                (last, known, stands_in) = (serving, Presence::Loaded, false);
                // What its callers were told of while it was beside another may be over.
                self.tell_stand_in();
            }
            let Some(served) = served else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let presence = tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                presence = served.engine.presence_other_than(known) => presence,
                () = served.engine.stand_in_other_than(stands_in) => {
                    stands_in = !stands_in;
                    self.tell_stand_in();
                    // The same, on another provider.
                    self.replace(|_| {});
                    continue;
                }
            };
            match presence {
                Presence::Unloaded(why) => {
                    tell_unloaded(&served.model, why, self.now().settings());
                }
                Presence::Loading => info!("model is loaded again: {}", served.model),
                Presence::Lost => {
                    error!("no worker of {} can be had now; each is tried again", served.model);
                }
                Presence::Loaded => {
                    let (model, device) = (&served.model, served.device());
                    info!(
                        MESSAGE_ID = message_id::MODEL_LOADED,
                        model = %model,
                        device = %device,
                        "model loaded again: {model} on {device}"
                    );
                }
            }
            known = presence;
            // The same as before, and another line for people.
            self.replace(|_| {});
        }
    }
}

/// Lets go of engines, and then of all memory that this process has no use for: on a thread of its own, as either
/// may take a while.
async fn give_back(engines: impl Send + 'static) {
    let work = move || {
        drop(engines);
        memory::trim();
    };
    // What kept it from being done was said.
    let _ = blocking("memory", work).await;
}

/// How long a model stays without a call.
fn idle_limit(settings: &Settings) -> Option<Duration> {
    (settings.idle_unload_s > 0).then(|| Duration::from_secs(settings.idle_unload_s))
}

fn tell_unloaded(model: &str, why: Absence, settings: &Settings) {
    let (reason, told) = (absence_name(why), told(why, settings));
    info!(MESSAGE_ID = message_id::MODEL_UNLOADED, model, reason, "model {model} {told}");
}

/// Why a model has no workers, for programs.
pub fn absence_name(why: Absence) -> &'static str {
    match why {
        Absence::Idle => "idle",
        Absence::Asked => "asked",
        Absence::Sleep => "sleep",
    }
}

/// Why a model has no workers, for people.
pub(super) fn told(why: Absence, settings: &Settings) -> String {
    match why {
        // As of one from before the setting was changed.
        Absence::Idle if settings.idle_unload_s == 0 => {
            "unloaded, as nobody called; the next call loads it".to_owned()
        }
        Absence::Idle => format!(
            "unloaded after {} s without a call; the next call loads it",
            settings.idle_unload_s
        ),
        Absence::Asked => "unloaded, as it was asked for; the next call loads it".to_owned(),
        Absence::Sleep => {
            "off its device, as the machine is about to sleep; calls wait until it wakes".to_owned()
        }
    }
}

/// What the workers of a model gave back.
async fn trimmed(served: &Served) -> Footprint {
    timeout(TRIM_TIME, served.engine.trim()).await.unwrap_or_default()
}

/// Returns once the workers of a model are gone.
pub(super) async fn unloaded(served: &Served, until: Instant) -> Result<(), Error> {
    let busy = |why| {
        let (model, waited_s) = (served.model.clone(), CALLS_END.as_secs());
        Error::Busy { model, waited_s, why }
    };
    let begun = timeout_at(until, served.engine.begin_unload()).await;
    begun.map_err(|_| busy("calls are still in flight"))?;
    let ended = timeout_at(until, served.engine.unloaded()).await;
    ended.map_err(|_| busy("a worker still loads or computes, and goes when it is done"))
}

/// Ends the workers of a model; tells the bytes of their own memory.
async fn end(served: &Served) -> u64 {
    let Footprint { given_back, resident } = trimmed(served).await;
    // A call may just have come: then it loads again, and ends with that call.
    match timeout(TRIM_TIME, served.engine.unload()).await {
        Ok(()) => given_back + resident,
        Err(_) => given_back,
    }
}

impl Now {
    /// Why the model in force has no workers; `None` while it has them, or loads.
    pub fn absence(&self) -> Option<Absence> {
        match self.served()?.engine.presence() {
            Presence::Unloaded(why) => Some(why),
            Presence::Loaded | Presence::Loading | Presence::Lost => None,
        }
    }
}
