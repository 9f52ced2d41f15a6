//! Calls that outlive their provider: made once more on the one that takes its place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use op_dbus_engine::{CancellationToken, Error as EngineError, Reply};
use tokio::sync::{SemaphorePermit, TryAcquireError};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::served::{Request, Served};
use super::{Error, Service, until};

/// KiB of inputs that wait for another provider, of all calls together: no queue counts them
/// meanwhile. A call beyond is told at once that its provider has failed.
pub(super) const HELD_KIB_MAX: usize = 64 << 10;

/// A provider is taken back for a call that others lose as well no more often than this.
const ACQUITTED_AGAIN: Duration = Duration::from_secs(60);

impl Service {
    /// Embeds on `served`. If its provider fails for good meanwhile, and another one takes its place, the
    /// call is made once more there; tells who has answered.
    ///
    /// # Errors
    /// As [`Served::embed`].
    pub async fn embed(
        &self,
        served: Arc<Served>,
        request: Request,
    ) -> Result<(Reply, Arc<Served>), Error> {
        let (may_have_successor, is_in_force) = {
            let now = self.0.now.borrow();
            (now.may_have_successor(&served), now.is_in_force(&served))
        };
        let again = may_have_successor.then(|| request.clone());
        let error = match served.embed(request).await {
            Ok(reply) => {
                if !is_in_force {
                    self.tell_stand_in_beside(&served);
                }
                return Ok((reply, served));
            }
            Err(error) => error,
        };
        let failed = is_worker_failed(&error);
        let Some(request) = again.filter(|_| failed && served.engine.is_failing()) else {
            return Err(error);
        };
        let (bytes, cancel) = (Some(request.inputs.bytes()), request.cancel.clone());
        let next = self.successor(&served, bytes, cancel, request.options.deadline).await?;
        let Some(next) = next else { return Err(error) };
        // Let go as soon as nothing can acquit it.
        let suspect = served.engine.losses().is_some().then_some(served);
        // What serves under other settings by now is not left for what served under those before.
        let suspect = suspect.filter(|it| Arc::ptr_eq(&it.loaded, &next.loaded));
        match next.embed(request).await {
            Ok(reply) => Ok((reply, next)),
            Err(error) => {
                if let Some(suspect) = suspect.filter(|_| is_lost_with(&error, &next)) {
                    self.acquit(suspect, next);
                }
                Err(error)
            }
        }
    }

    /// Has `suspect` serve again, whose workers were lost with a call that those of `next` are lost with as
    /// well: what that call has is to blame, and everybody else is better off where they were.
    ///
    /// Where another provider comes behind these, not so soon after the last time: then both lose calls that have
    /// nothing, and that one is to be tried.
    fn acquit(&self, suspect: Arc<Served>, next: Arc<Served>) {
        let before = suspect.acquitted.lock().replace(Instant::now());
        let is_soon = before.is_some_and(|at| at.elapsed() < ACQUITTED_AGAIN);
        if is_soon && self.now().may_have_successor(&next) {
            return;
        }
        info!(
            model = suspect.model,
            "{} is taken back: a call that its workers were lost with loses those of {}, too",
            suspect.provider,
            next.provider
        );
        let service = self.clone();
        self.0.engines.runtime.spawn(async move {
            suspect.engine.acquit();
            if suspect.engine.load().await.is_ok() && !suspect.engine.is_failing() {
                // It may be a fallback itself, and what ran in its place was told since.
                suspect.fallback_is_told.store(false, Ordering::Relaxed);
                service.take(suspect, &next).await;
            }
        });
    }

    /// What a call that began on `served` goes on with: what serves the same model now, if it makes the same
    /// vectors, so that long calls leave a provider as everybody else does. Nothing is loaded for that.
    pub fn instead_of(&self, served: &Arc<Served>) -> Arc<Served> {
        let now = self.now();
        let same = |other: &Arc<Served>| other.makes_the_same(served);
        let in_force = now.served().filter(|in_force| same(in_force)).cloned();
        let there = || now.fleet.served().into_iter().find(same);
        in_force.or_else(there).unwrap_or_else(|| served.clone())
    }

    /// Room for the inputs of a call that waits, if there is some.
    fn hold(&self, bytes: usize) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        self.0.held.try_acquire_many(kib.saturating_add(1))
    }

    /// What serves instead of `failed`, once that is decided; nothing where the inputs that wait for it have so many
    /// `bytes` that there is no room for them.
    pub(super) async fn successor(
        &self,
        failed: &Arc<Served>,
        bytes: Option<usize>,
        cancel: CancellationToken,
        deadline: Option<Instant>,
    ) -> Result<Option<Arc<Served>>, Error> {
        let (service, of) = (self.clone(), failed.clone());
        let looks = async move {
            let _held = bytes.map(|bytes| service.hold(bytes)).transpose().ok()?;
            service.replace_failed(&of).await
        };
        // Not by who asks, which may be on a direct connection: where the thread of that hangs, it would keep for good
        // what others wait for as well, and the lock of a change is given to it whether or not it asks again.
        let looks = AbortOnDropHandle::new(self.0.engines.runtime.spawn(looks));
        // One that has panicked has found nothing.
        let next = until(&cancel, deadline, looks).await?.ok().flatten();
        // Its own workers may be there again by then.
        let computes =
            |next: &Arc<Served>| !Arc::ptr_eq(next, failed) || !failed.engine.is_failing();
        Ok(next.filter(|next| computes(next) && next.makes_the_same(failed)))
    }

    /// Looks for another provider of the same model, unless somebody else has done so since `failed` had
    /// failed.
    pub(super) async fn replace_failed(&self, failed: &Arc<Served>) -> Option<Arc<Served>> {
        let is_in_force = self.now().is_in_force(failed);
        let is_given_up = || failed.engine.is_failing() && !failed.is_last.load(Ordering::Relaxed);
        let overtaken = match is_in_force && is_given_up() {
            true => self.look_for_another(failed).await,
            false => None,
        };
        let now = self.now();
        if let Some(in_force) = now.served().filter(|it| it.choice == failed.choice) {
            return Some(in_force.clone());
        }
        if let Some(end) = overtaken {
            return end.ok();
        }
        // It serves those who ask for its level, beside the one in force; or did so until now.
        let (load, loaded) = (now.fleet.get_instead_of(failed), now.loaded.clone());
        // As in `serving`, what a change lets go of ends.
        drop(now);
        let next = load.await.ok()?;
        self.tell_named(&next, &loaded.settings);
        Some(next)
    }
}

fn is_worker_failed(error: &Error) -> bool {
    matches!(error, Error::Engine(EngineError::WorkerFailed(_)))
}

/// Whether a call has failed on `next` because its workers were lost with it, and not because there are none.
fn is_lost_with(error: &Error, next: &Served) -> bool {
    is_worker_failed(error) && (!next.engine.is_failing() || next.engine.losses().is_some())
}
