//! What the service does by itself about a provider that fails, one that is better, and one that was not
//! there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use op_dbus_engine::{Presence, is_same_news};
use tokio::sync::MutexGuard;
use tracing::{debug, warn};

use super::change::tell_loaded;
use super::now::{Phase, wanted};
use super::served::Served;
use super::{Error, Service, provider};

impl Service {
    /// Goes through the providers once more, as the one that serves has failed, and moves to the first that
    /// works.
    pub async fn reconsider(&self) {
        let change = self.0.change.lock().await;
        // A call may have been first, and what serves by now is not to be left.
        if self.now().served().is_some_and(|served| served.engine.is_failing()) {
            self.look_for_another(&change).await;
        }
    }

    /// [`Service::reconsider`] during a change.
    pub(super) async fn look_for_another(&self, _change: &MutexGuard<'_, ()>) {
        let Ok(now) = self.staying() else { return };
        let Some(choice) = wanted(now.settings()) else { return };
        let fleet = self.fleet(now.loaded.clone());
        // The same provider again is as good as its workers that are there.
        let is_better =
            |new: &Served, old: &Served| old.provider != new.provider || old.engine.is_failing();
        let load = match now.served() {
            Some(failed) => fleet.get_instead_of(failed).await,
            None => fleet.get_anew(&choice).await,
        };
        match load {
            Ok(served) if now.served().is_none_or(|old| is_better(&served, old)) => {
                self.moved(Some(served), |next| next.fleet = fleet);
            }
            Ok(_) => {}
            Err(error) => {
                // It is looked for every few seconds for as long as none works, which may be days.
                match now.served().map(|served| served.is_last.swap(true, Ordering::Relaxed)) {
                    Some(true) => debug!(%error, "still no other provider works"),
                    _ => warn!("no other provider works either: {error}"),
                }
                if let Some(served) = now.served() {
                    served.engine.keep_trying();
                    // The same as before, and nobody to take over.
                    self.replace(|_| {});
                }
            }
        }
    }

    /// Tries the providers again that are preferred to those that compute, for every model that is loaded,
    /// and moves each to the first that works.
    ///
    /// A change of settings does not wait for that: a device that hangs takes minutes to refuse.
    pub async fn improve(&self) {
        let Ok(now) = self.staying() else { return };
        // Nobody needs a better one than an unloaded one, and looking would load it.
        let is_worth_it = |served: &Arc<Served>| {
            served.engine.presence() == Presence::Loaded
                && provider::may_do_better(served, &now.loaded)
        };
        for fallback in now.fleet.served().into_iter().filter(is_worth_it) {
            match now.fleet.get_better(&fallback).await {
                Ok(better) => self.take(better, &fallback).await,
                Err(error) => debug!(%error, model = fallback.model, "no better provider works"),
            }
        }
    }

    /// Has `better` serve in the place of `fallback`, if that serves still.
    pub(super) async fn take(&self, better: Arc<Served>, fallback: &Arc<Served>) {
        let _change = self.0.change.lock().await;
        let Ok(now) = self.staying() else { return };
        if !now.fleet.replace(fallback, &better) {
            return;
        }
        match now.served().is_some_and(|it| Arc::ptr_eq(it, fallback)) {
            true => self.moved(Some(better), |_| {}),
            false => {
                tell_loaded(&better);
                self.tell_fallback(&better, now.settings());
            }
        }
    }

    /// Tries once more to load the model that could not be loaded, if what failed may be there by now
    /// without anybody having told us: a provider. A model that is missing or damaged is waited for until
    /// the next reload.
    pub async fn revive(&self) {
        let Ok(now) = self.staying() else { return };
        let (Phase::Failed(cause), Some(choice)) = (&now.phase, wanted(now.settings())) else {
            return;
        };
        if !matches!(cause.root(), Error::Provider(_) | Error::Backend(_)) {
            return;
        }
        // As in `improve`, no change waits for that, and what has changed meanwhile stays so.
        let end = now.fleet.get_anew(&choice).await;
        let _change = self.0.change.lock().await;
        if !matches!(&self.now().phase, Phase::Failed(it) if Arc::ptr_eq(it, cause)) {
            return;
        }
        match end {
            Ok(served) => self.moved(Some(served), |_| {}),
            Err(error) if is_same_news(&error.to_string(), &cause.to_string()) => {
                debug!(%error, "still no model can be loaded");
            }
            Err(error) => self.fail(error),
        }
    }
}
