//! Changes while the service runs: the first load, another level, settings read again. What is new
//! is loaded first; only then does the traffic move, and the old engine ends with its last call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use op_dbus_engine::is_same_news;
use op_dbus_models::Level;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, error, info, warn};

use super::fleet::Fleet;
use super::now::{Now, Phase, wanted};
use super::recovery::leave_kept;
use super::served::{Choice, Served};
use super::{Error, Service, blocking, provider, start_time_max};
use crate::notify;
use crate::settings::{ChangeError, Loaded, Provider, Settings};
use crate::telemetry::message_id;

impl Service {
    /// Loads the model that the settings ask for. A failure is kept in the phase, and returned. Nothing is done where a
    /// change was first, as callers may ask for one before: it has loaded what is wanted by now, or told why not.
    pub async fn start(&self) -> Option<Arc<Error>> {
        let _change = self.0.change.lock().await;
        let now = self.now();
        let (Phase::Loading(_), Some(choice)) = (&now.phase, wanted(now.settings())) else {
            return None;
        };
        match now.fleet.get_anew(&choice).await {
            Ok(served) => {
                self.moved(Some(served), |_| {});
                None
            }
            Err(error) => {
                self.fail(error.clone());
                Some(error)
            }
        }
    }

    /// Whether another level may be served, as far as the settings say.
    ///
    /// # Errors
    /// `Pinned`.
    pub fn may_set_level(&self, level: Level) -> Result<(), Error> {
        self.now().loaded.with("vector_level", level.as_str())?;
        refuse_overruled(&self.now().loaded, level)
    }

    /// Serves another level from now on, and after a restart.
    ///
    /// # Errors
    /// `Pinned`, why the model can't be loaded, `State` when the change can't be kept, or `ShuttingDown`; the old
    /// level stays.
    pub async fn set_level(&self, level: Level) -> Result<(), Error> {
        let _change = self.0.change.lock().await;
        let now = self.staying()?;
        let loaded = now.loaded.with("vector_level", level.as_str())?;
        refuse_overruled(&now.loaded, level)?;
        let choice = wanted(&loaded.settings);
        let get = |it: &Choice| now.fleet.get_anew(it);
        let end = self.load(&now, &now.fleet, choice.as_ref(), get).await;
        if let Err(Error::Load(error)) = &end
            && now.served().is_none()
            && choice == wanted(now.settings())
        {
            // It is the newest failure to load that.
            self.enter(Phase::Failed(error.clone()));
        }
        let served = end?;
        let _kept = self.before_a_stop()?;
        match saved(loaded).await {
            Ok(loaded) => {
                self.moved(served, |next| next.loaded = Arc::new(loaded));
                now.fleet.retain(choice.as_ref());
                Ok(())
            }
            Err(error) => {
                self.restore(&now);
                now.fleet.retain(wanted(now.settings()).as_ref());
                Err(error)
            }
        }
    }

    /// Computes in another way from now on, and after a restart: `key` is a setting that may change
    /// while the service runs.
    ///
    /// # Errors
    /// `Pinned`, a wrong value, why what was asked for does not work, `State` when the change
    /// can't be kept, or `ShuttingDown`; what served before goes on.
    pub async fn change(&self, key: &'static str, value: String) -> Result<(), Error> {
        let _change = self.0.change.lock().await;
        let now = self.staying()?;
        let loaded = Arc::new(now.loaded.with(key, &value)?);
        // Before anything is loaded: what is known needs no proof.
        provider::needs(&loaded).map_err(Error::Provider)?;
        let fleet = self.fleet(loaded.clone());
        let choice = wanted(&loaded.settings);
        // Who names a provider wants no other; nor does who names other devices of it, whatever `auto` has behind it.
        let serves = now.served().filter(|_| key == "gpu_device");
        let get = |it: &Choice| fleet.get_as_asked(it, serves);
        let end = self.load(&now, &fleet, choice.as_ref(), get).await;
        // A worker that was only tried is none that was lost.
        let served = end.inspect_err(|error| info!("{key} is not changed to {value}: {error}"))?;
        let _kept = self.before_a_stop()?;
        match saved(Loaded::clone(&loaded)).await {
            Ok(loaded) => {
                self.moved(served, |next| {
                    next.loaded = Arc::new(loaded);
                    next.fleet = fleet.clone();
                });
                let others = now.fleet.served().into_iter().map(|other| other.choice.clone());
                let others = others.filter(|other| Some(other) != choice.as_ref()).collect();
                // What they have now is to end before they are loaded anew.
                drop(now);
                self.bring_along(others, fleet);
                Ok(())
            }
            Err(error) => {
                self.restore(&now);
                Err(error)
            }
        }
    }

    /// Reads the settings again and applies what can be changed while the service runs.
    ///
    /// # Errors
    /// All mistakes in the settings, or why the model that they ask for can't be loaded. What
    /// served before goes on.
    pub async fn reload(&self) -> Result<(), Error> {
        let _change = self.0.change.lock().await;
        // A stop was told of by then, behind which nothing else is to come.
        self.staying()?;
        notify::reloading();
        let result = self.apply().await;
        match &result {
            Ok(()) => info!(MESSAGE_ID = message_id::CONFIG_RELOADED, "settings read again"),
            // They were, and the journal has what they led to.
            Err(Error::Load(_)) if self.now().served().is_none() => {}
            Err(error) => error!("the settings could not be applied: {error}"),
        }
        let now = self.now();
        // Before the end of the first load nothing is ready; it is told then. Nor is it in a stop.
        if !matches!(now.phase, Phase::Loading(_) | Phase::Draining(_)) {
            notify::ready(&now.summary());
        }
        result
    }

    async fn apply(&self) -> Result<(), Error> {
        let now = self.staying()?;
        let old = now.loaded.clone();
        let loaded = blocking("disk", move || old.reload()).await?.map_err(Error::Settings)?;
        for warning in &loaded.warnings {
            warn!(MESSAGE_ID = warning.message_id, "{warning}");
        }
        let loaded = Arc::new(loaded);
        // A provider that did not work is tried again, as a model is that could not be loaded.
        // A fleet has to prove itself anew: its token and its certificates may be others, in files that
        // the settings only name.
        let by_others = now.served().is_some_and(|served| served.is_on(Provider::Remote));
        let may_do_better = |served: &Arc<Served>| provider::may_do_better(served, &now, true);
        let same = same_engines(now.settings(), &loaded.settings)
            && !now.served().is_some_and(may_do_better)
            && !by_others
            && !is_replaced(&now, &loaded).await?;
        let fleet = match same {
            true => {
                leave_kept(&now);
                now.fleet.clone()
            }
            false => self.fleet(loaded.clone()),
        };
        let (choice, cache_bytes) = (wanted(&loaded.settings), loaded.settings.cache_bytes);
        let time_max = start_time_max(&loaded.settings);
        self.log_as(&loaded);
        let adopt = |next: &mut Now| {
            next.loaded = loaded;
            next.fleet = fleet.clone();
        };
        let load = self.load(&now, &fleet, choice.as_ref(), |it| fleet.get_anew(it));
        match notify::extending(load, time_max, || self.staying().is_ok()).await {
            Ok(served) => {
                self.moved(served, adopt);
                fleet.retain(choice.as_ref());
                self.resize_cache(cache_bytes).await;
                Ok(())
            }
            // Nothing serves that could go on, so the new settings count even so.
            Err(Error::Load(error)) if now.served().is_none() => {
                self.replace(adopt);
                self.fail(error.clone());
                self.resize_cache(cache_bytes).await;
                Err(Error::Load(error))
            }
            Err(error) => {
                self.log_as(&now.loaded);
                Err(error)
            }
        }
    }

    /// Gets what is to serve next out of this fleet. When that fails, the phase is what it was before.
    async fn load<F: Future<Output = Result<Arc<Served>, Arc<Error>>>>(
        &self,
        now: &Now,
        fleet: &Fleet,
        choice: Option<&Choice>,
        get: impl FnOnce(&Choice) -> F,
    ) -> Result<Option<Arc<Served>>, Error> {
        let Some(choice) = choice else { return Ok(None) };
        if now.served().is_none() {
            self.enter(fleet.loading(choice));
        }
        let end = get(choice).await;
        end.map(Some).inspect_err(|_| self.restore(now)).map_err(Error::Load)
    }

    /// Moves the traffic to `served`, or switches embedding off.
    pub(super) fn moved(&self, served: Option<Arc<Served>>, change: impl FnOnce(&mut Now)) {
        let before = self.now();
        let (ran_on, why) = before.served().map(|it| before.runs_on(it)).unwrap_or_default();
        if let Some(served) = served.as_ref().filter(|served| !before.is_in_force(served)) {
            tell_serves(served);
        }
        self.replace(|next| {
            change(next);
            // Before anybody sees the state that it explains; of what is news on the bus as well.
            if let Some(served) = served.as_ref()
                && (served.provider != ran_on || !is_same_news(&served.fallback_reason, &why))
            {
                self.tell_fallback(served, next.settings());
            }
            if let Some(served) = &served {
                next.fleet.keep(served);
            }
            next.phase = served.map_or(Phase::Disabled, Phase::Serving);
        });
    }

    /// Tells the journal of a model that a call has named: once that it is loaded, and where it computes if
    /// that is elsewhere than was asked for.
    pub(super) fn tell_named(&self, served: &Served, settings: &Settings) {
        // Many calls may have waited for it.
        if !served.load_is_told.swap(true, Ordering::Relaxed) {
            tell_loaded(served);
        }
        self.tell_fallback(served, settings);
    }

    pub(super) fn fail(&self, cause: Arc<Error>) {
        error!("no model could be loaded: {cause}");
        self.enter(Phase::Failed(cause));
    }

    /// What is now, unless the service is on its way out: then nothing changes any more.
    pub(super) fn staying(&self) -> Result<Arc<Now>, Error> {
        let now = self.now();
        if matches!(now.phase, Phase::Draining(_)) { Err(Error::ShuttingDown) } else { Ok(now) }
    }

    /// Has a stop wait for a change that is about to be kept, until this is dropped. One that a stop came before is not
    /// kept: it is answered as one that was not made.
    ///
    /// # Errors
    /// `ShuttingDown`.
    fn before_a_stop(&self) -> Result<TaskTrackerToken, Error> {
        let replying = self.replying();
        self.staying().map(|_| replying)
    }

    /// Loads these in `new`, too, for the calls and jobs that name another level: one after the other, as a device
    /// has memory for few at once.
    pub(super) fn bring_along(&self, others: Vec<Choice>, new: Arc<Fleet>) {
        let (service, loaded) = (self.clone(), self.now().loaded.clone());
        // Another change may let go of it meanwhile, and needs the memory of what it has.
        let new = Arc::downgrade(&new);
        tokio::spawn(async move {
            for choice in others {
                let Some(load) = new.upgrade().map(|new| new.get(&choice)) else { return };
                let end = load.await;
                // Another change was faster, which may have let go of them in the same fleet.
                let still = |now: &Arc<Now>| {
                    new.ptr_eq(&Arc::downgrade(&now.fleet)) && Arc::ptr_eq(&now.loaded, &loaded)
                };
                let Some(now) = service.staying().ok().filter(still) else { return };
                match end {
                    Ok(served) => service.tell_named(&served, now.settings()),
                    // The next call that names it tries again, and is told.
                    Err(error) => debug!(%error, model = choice.model(), "not loaded anew"),
                }
            }
        });
    }

    fn restore(&self, before: &Now) {
        // Its place may be that of the one which could not be loaded. One that has failed leaves it to what is loaded
        // instead.
        if let Some(served) = before.served().filter(|served| !served.engine.is_failing()) {
            before.fleet.keep(served);
        }
        self.enter(before.phase.clone());
    }

    fn log_as(&self, loaded: &Loaded) {
        if let Some(telemetry) = &self.0.telemetry
            && let Err(reason) = telemetry.set_filter(&loaded.settings.log)
        {
            warn!("the log filter stays as it was: {reason}");
        }
    }
}

/// Tells the journal of a model that serves from now on: of one that was there already, as a call had named it, not
/// as of one that was loaded.
pub(super) fn tell_serves(served: &Served) {
    match served.load_is_told.swap(true, Ordering::Relaxed) {
        false => tell_loaded(served),
        true => info!("model serves now: {} on {}", served.model, served.device()),
    }
}

fn tell_loaded(served: &Served) {
    let device = served.device();
    info!(
        MESSAGE_ID = message_id::MODEL_LOADED,
        model = %served.model,
        device = %device,
        engine = %served.engine_name,
        isa = %served.isa,
        precision = %served.precision,
        dimensions = served.dimensions,
        "model loaded: {} on {device}",
        served.model
    );
}

/// The settings, once the disk has what was changed in them.
async fn saved(mut loaded: Loaded) -> Result<Loaded, Error> {
    Ok(blocking("disk", move || loaded.save().map(|()| loaded)).await??)
}

/// Refuses a change of level where it would have no effect. The setting `model` is served in place of every
/// level but none.
fn refuse_overruled(loaded: &Loaded, level: Level) -> Result<(), Error> {
    let Some(model) = &loaded.settings.model else { return Ok(()) };
    if level == Level::None || loaded.settings.vector_level == Level::None {
        return Ok(());
    }
    let origin = loaded.origin("model");
    Err(Error::Pinned(format!(
        "`model` is {model} ({origin}) and is served in place of a level's; unset it there first"
    )))
}

/// Whether the model that serves is another in the store by now.
async fn is_replaced(now: &Now, loaded: &Arc<Loaded>) -> Result<bool, Error> {
    let Some(served) = now.served().cloned() else { return Ok(false) };
    let loaded = loaded.clone();
    blocking("disk", move || served.is_replaced(&loaded.settings.model_dir)).await
}

/// Whether engines made under `old` do for `new` as well.
fn same_engines(old: &Settings, new: &Settings) -> bool {
    let mut like_new = old.clone();
    like_new.vector_level = new.vector_level;
    like_new.log.clone_from(&new.log);
    like_new.idle_unload_s = new.idle_unload_s;
    like_new.provider_retry_s = new.provider_retry_s;
    like_new.source_silence_s = new.source_silence_s;
    like_new.cache_bytes = new.cache_bytes;
    like_new.http_listen.clone_from(&new.http_listen);
    like_new == *new
}

impl From<ChangeError> for Error {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Pinned { .. } => Self::Pinned(error.to_string()),
            ChangeError::Invalid(message) => Self::InvalidArgument(message),
            ChangeError::State(source) => Self::State(source),
        }
    }
}
