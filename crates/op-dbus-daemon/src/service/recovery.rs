//! What the service does by itself about a provider that fails, one that is better, and one that was not
//! there.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use op_dbus_engine::{Presence, is_same_news};
use tracing::{debug, warn};

use super::change::tell_serves;
use super::load::LOSSES_MAX;
use super::now::{Now, Phase, wanted};
use super::served::Served;
use super::{Error, Service, provider, reached};
use crate::settings::Provider;

/// A provider without which nothing serves is looked for this often, where `provider_retry_s` is not sooner:
/// after a start before its network or its driver.
const FAILED_RETRY_S: u64 = 30;
/// Where nothing else works either, the next look for a provider is not sooner than this.
const PAUSE: Duration = Duration::from_secs(5);

/// An engine in the place of one that has failed, or why there is none.
type Looked = Result<Arc<Served>, Arc<Error>>;

impl Service {
    /// Moves to the next provider when the workers of the one that serves can't be had any more, and tries
    /// again now and then those that are preferred, and sooner what could not be loaded at all; for as long as the
    /// service lives.
    pub async fn look_after(self) {
        let mut changes = self.watch();
        let (mut tried, mut known, mut is_owed) = (Instant::now(), Weak::new(), false);
        let mut not_before = tried;
        loop {
            let now = self.now();
            // What was moved away from just now is not what to try first.
            let serving = now.served().map(Arc::downgrade).unwrap_or_default();
            if !known.ptr_eq(&serving) {
                (tried, known, is_owed) = (Instant::now(), serving, false);
            }
            let mut retry_s = now.settings().provider_retry_s;
            if matches!(now.phase, Phase::Failed(_)) {
                retry_s = retry_s.min(FAILED_RETRY_S);
            }
            let retry = match retry_s {
                0 => None,
                // That it is loaded again is a change as well.
                _ if is_owed && self.is_loaded() => Some(tried),
                seconds => Some(tried + Duration::from_secs(seconds)),
            };
            let served = now.served().cloned();
            drop(now);
            // Holds the engine no longer than it is waited for: it ends with its last holder.
            let failing = async move {
                reached(served.as_ref().map(|_| not_before)).await;
                if let Some(served) = served {
                    served.engine.failing().await;
                }
            };
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = failing => {
                    self.reconsider().await;
                    not_before = Instant::now() + PAUSE;
                }
                () = self.0.tried.notified() => self.revive(true).await,
                () = reached(retry) => {
                    // One that is unloaded is passed over, and has its turn once a call has loaded it: it may be
                    // unloaded at each look.
                    is_owed = self.improve().await;
                    self.revive(false).await;
                    tried = Instant::now();
                }
            }
        }
    }

    /// Goes through the providers once more, as the one that serves has failed, and moves to the first that
    /// works.
    pub(super) async fn reconsider(&self) {
        let failed = self.now().served().filter(|served| served.engine.is_failing()).cloned();
        if let Some(failed) = failed {
            self.look_for_another(&failed).await;
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
        // As in `improve`, no change waits for that, what has changed meanwhile stays so, and what it lets go of ends.
        let load = self.staying().ok()?.fleet.get_instead_of(failed);
        let end = load.await;
        let _change = self.0.change.lock().await;
        let now = self.staying().ok()?;
        if !now.is_in_force(failed) {
            return Some(end);
        }
        match end {
            // Its own workers are there again.
            _ if !failed.engine.is_failing() => now.fleet.keep(failed),
            Ok(served) => self.moved(Some(served), |_| {}),
            Err(error) => {
                // Workers that lose what they compute, and are there, compute on.
                failed.engine.keep_trying();
                if error.is_of_model() && failed.engine.refusal().is_some() {
                    // No provider is at fault, and none can help: whoever calls is told, and has it looked for again.
                    self.fail(error);
                    return None;
                }
                now.fleet.keep(failed);
                // It is looked for every few seconds for as long as none works, which may be days.
                match failed.is_last.swap(true, Ordering::Relaxed) {
                    true => debug!(%error, "still no other provider works"),
                    false => warn!("no other provider works either: {error}"),
                }
                self.tell_stand_in();
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
    /// A change of settings does not wait for that: a device that hangs takes minutes to refuse. Tells whether the
    /// model in force was passed over, as it is unloaded.
    pub(super) async fn improve(&self) -> bool {
        let Ok(now) = self.staying() else { return false };
        leave_kept(&now);
        let may_do_better = |served: &Arc<Served>| provider::may_do_better(served, &now, false);
        let fallbacks = now.fleet.served().into_iter().filter(may_do_better);
        let fallbacks: Vec<Weak<Served>> = fallbacks.map(|it| Arc::downgrade(&it)).collect();
        let fleet = Arc::downgrade(&now.fleet);
        // Nothing is held meanwhile: what a change lets go of ends.
        drop(now);
        let mut is_passed_over = false;
        for fallback in fallbacks {
            // What a change loads that is under way wants the same devices.
            drop(self.0.change.lock().await);
            let stays = |now: Arc<Now>| fleet.ptr_eq(&Arc::downgrade(&now.fleet));
            if !self.staying().is_ok_and(stays) {
                break;
            }
            is_passed_over |= self.look_for_better(&fallback).await;
        }
        is_passed_over
    }

    /// Moves `fallback` to the first provider that is better and works. Tells whether it is in force and was passed
    /// over.
    async fn look_for_better(&self, fallback: &Weak<Served>) -> bool {
        let now = self.now();
        // What a change has let go of is nobody's.
        let Some(served) = fallback.upgrade().filter(|it| now.fleet.has(it)) else { return false };
        // Nobody needs a better one than an unloaded one, and looking would load it.
        if served.engine.presence() != Presence::Loaded {
            return self.now().is_in_force(&served);
        }
        let load = now.fleet.get_better(&served);
        drop((now, served));
        let end = load.await;
        let Some(served) = fallback.upgrade() else { return false };
        match end {
            // It was unloaded meanwhile, and a better one would take what was given back.
            Ok(_) if matches!(served.engine.presence(), Presence::Unloaded(_)) => {
                return self.now().is_in_force(&served);
            }
            Ok(better) => self.take(better, &served).await,
            // It is looked for every few minutes until somebody reloads.
            Err(error)
                if matches!(*error, Error::Replaced { .. })
                    && !served.replaced_is_told.swap(true, Ordering::Relaxed) =>
            {
                warn!(model = served.model, "no better provider is taken: {error}");
            }
            Err(error) => debug!(%error, model = served.model, "no better provider works"),
        }
        false
    }

    /// Has `better` serve in the place of `fallback`, if that serves still.
    pub(super) async fn take(&self, better: Arc<Served>, fallback: &Arc<Served>) {
        let _change = self.0.change.lock().await;
        let Ok(now) = self.staying() else { return };
        if !now.fleet.replace(fallback, &better) {
            return;
        }
        match now.is_in_force(fallback) {
            true => self.moved(Some(better), |_| {}),
            false => {
                tell_serves(&better);
                self.tell_fallback(&better, now.settings());
            }
        }
    }

    /// Tries once more to load the model that could not be loaded, if what failed may be there by now
    /// without anybody having told us: a provider, or a model that is missing. A damaged one is read again
    /// when a call asks for it; what came of a call that `has_tried` is taken up.
    pub(super) async fn revive(&self, has_tried: bool) {
        let Ok(now) = self.staying() else { return };
        let (Phase::Failed(cause), Some(choice)) = (now.phase.clone(), wanted(now.settings()))
        else {
            return;
        };
        let may_be_there = match cause.root() {
            // Where none can be tried the whole model would be read, and compared with its digests, for nothing.
            Error::Provider(_) => {
                let may_be_tried = |it: &Provider| provider::host(*it, &now.loaded, None).is_ok();
                provider::candidates(now.settings()).iter().any(may_be_tried)
            }
            Error::Backend(_) => true,
            _ => cause.is_of_missing_model(),
        };
        let load = match (has_tried, may_be_there) {
            (true, _) => now.fleet.get(&choice),
            (false, true) => now.fleet.get_anew(&choice),
            (false, false) => return,
        };
        // As in `improve`, no change waits for that, what has changed meanwhile stays so, and what it lets go of ends.
        drop(now);
        let end = load.await;
        let _change = self.0.change.lock().await;
        if !matches!(&self.now().phase, Phase::Failed(it) if Arc::ptr_eq(it, &cause)) {
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

/// Lets the service leave again what it kept, as nothing worked in its place: that may be there by now.
pub(super) fn leave_kept(now: &Now) {
    // For one that can't be had another is looked for all the time.
    let kept = |served: &Arc<Served>| {
        !served.engine.is_failing() && served.is_last.swap(false, Ordering::Relaxed)
    };
    for served in now.fleet.served().into_iter().filter(kept) {
        if now.may_have_successor(&served) {
            served.engine.give_up_after(LOSSES_MAX);
        }
    }
}
