//! What the service does by itself about a provider that fails, one that is better, and one that was not
//! there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use op_dbus_engine::{Presence, is_same_news};
use tracing::{debug, warn};

use super::change::tell_loaded;
use super::load::LOSSES_MAX;
use super::now::{Phase, wanted};
use super::served::Served;
use super::{Error, Service, provider};

/// An engine in the place of one that has failed, or why there is none.
type Looked = Result<Arc<Served>, Arc<Error>>;

impl Service {
    /// Goes through the providers once more, as the one that serves has failed, and moves to the first that
    /// works.
    pub async fn reconsider(&self) {
        let now = self.now();
        if let Some(failed) = now.served().filter(|served| served.engine.is_failing()) {
            self.look_for_another(failed).await;
            return;
        }
        // A call may have been first, or have begun to load another and left.
        let _change = self.0.change.lock().await;
        if let Ok(now) = self.staying()
            && let Some(served) = now.served()
        {
            now.fleet.keep(served);
        }
    }

    /// [`Service::reconsider`] for `failed`, which is in force. What a call that has left began to load is
    /// waited for, or found. Where a change was faster, what was loaded is for the calls that waited for it alone,
    /// and returned.
    pub(super) async fn look_for_another(&self, failed: &Arc<Served>) -> Option<Looked> {
        let now = self.staying().ok()?;
        // As in `improve`, no change waits for that, and what has changed meanwhile stays so.
        let end = now.fleet.get_instead_of(failed).await;
        let _change = self.0.change.lock().await;
        let now = self.staying().ok()?;
        if !now.served().is_some_and(|it| Arc::ptr_eq(it, failed)) {
            return Some(end);
        }
        match end {
            Ok(served) if failed.engine.is_failing() => self.moved(Some(served), |_| {}),
            // Its own workers are there again.
            Ok(_) => now.fleet.keep(failed),
            Err(error) => {
                now.fleet.keep(failed);
                // It is looked for every few seconds for as long as none works, which may be days.
                match failed.is_last.swap(true, Ordering::Relaxed) {
                    true => debug!(%error, "still no other provider works"),
                    false => warn!("no other provider works either: {error}"),
                }
                failed.engine.keep_trying();
                // The same as before, and nobody to take over.
                self.replace(|_| {});
            }
        }
        None
    }

    /// Tries the providers again that are preferred to those that compute, for every model that is loaded,
    /// and moves each to the first that works. One that was kept, as nothing worked in its place, may be left
    /// again: that may be there by now.
    ///
    /// A change of settings does not wait for that: a device that hangs takes minutes to refuse.
    pub async fn improve(&self) {
        let Ok(now) = self.staying() else { return };
        // For one that can't be had another is looked for all the time.
        let kept = |served: &Arc<Served>| {
            !served.engine.is_failing() && served.is_last.swap(false, Ordering::Relaxed)
        };
        for served in now.fleet.served().into_iter().filter(kept) {
            if now.may_have_successor(&served) {
                served.engine.give_up_after(LOSSES_MAX);
            }
        }
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
