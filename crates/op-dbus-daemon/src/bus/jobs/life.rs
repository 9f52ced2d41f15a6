//! A job's life: its object comes, the work is done, the result waits, the object goes.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use op_dbus_api::{Error, ErrorName, JOB_INTERFACE, JOB_RESULT_KEPT_S};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error};
use zbus::object_server::Interface;

use super::super::bulk::{Made, Place, Source, Stream};
use super::super::caller::Caller;
use super::super::calls::Calls;
use super::super::options::Wanted;
use super::job::{Handle, gone};
use super::seen::{Introspectable, Properties};
use super::{Listed, tree};

/// How often the owner is told how far a job is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// One job with all that it holds.
pub struct Life {
    listed: Listed,
    calls: Calls,
    /// Who started it: it ends when they leave the bus.
    caller: Caller,
    _place: Place,
}

impl Life {
    /// A life that has not begun.
    pub fn new(listed: Listed, calls: Calls, caller: Caller, place: Place) -> Self {
        Self { listed, calls, caller, _place: place }
    }

    fn handle(&self) -> Handle {
        Handle::new(self.listed.job.clone(), self.calls.clone())
    }

    /// Puts the object on the bus and tells its owner.
    ///
    /// # Errors
    /// When there is one at its path already, or the owner can't be told.
    pub async fn appear(&self) -> zbus::Result<()> {
        let (handle, connection) = (self.handle(), &self.caller.connection);
        let (server, path) = (connection.object_server(), &*self.listed.job.path);
        // Nobody knows the path yet who could ask the interfaces that are replaced here.
        server.at(path, handle.clone()).await?;
        server.remove_named(path, Properties::name()).await?;
        server.at(path, Properties(handle.clone())).await?;
        server.remove_named(path, Introspectable::name()).await?;
        server.at(path, Introspectable(handle.clone())).await?;
        tree::added(&handle, connection).await
    }

    /// Does the work, keeps the result until it is fetched, the owner leaves or time is up, and takes
    /// the object off the bus.
    pub async fn live(self, source: Source, wanted: Wanted) {
        let job = self.listed.job.clone();
        tokio::select! {
            biased;
            () = job.over() => {}
            () = self.caller.cancel.cancelled() => {}
            result = self.work(source, wanted) => {
                let error = result.as_ref().err().map(Error::name);
                debug!(uid = self.caller.uid, error = error.map(ErrorName::as_str), "a job has ended");
                error.into_iter().for_each(|error| self.calls.service.call_failed(error));
                job.ended(result);
                self.tell().await;
                tokio::select! {
                    () = job.over() => {}
                    () = self.caller.cancel.cancelled() => {}
                    () = sleep(Duration::from_secs(JOB_RESULT_KEPT_S)) => {}
                }
            }
        }
        job.end(gone());
        let connection = &self.caller.connection;
        let gone = connection.object_server().remove::<Handle, _>(&*job.path).await;
        let told = tree::removed(&job, connection).await;
        if let Err(error) = gone.map(drop).and(told) {
            debug!(%error, "the end of a job could not be told");
        }
    }

    /// Embeds everything, and tells how far that is.
    async fn work(&self, source: Source, wanted: Wanted) -> Result<Made, Error> {
        let mut ticks = interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once.
        ticks.tick().await;
        let mut work = pin!(AssertUnwindSafe(self.embed(source, wanted)).catch_unwind());
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result.unwrap_or_else(|_panic| Err(fault())),
                _ = ticks.tick() => self.tell().await,
            }
        }
    }

    async fn embed(&self, source: Source, wanted: Wanted) -> Result<Made, Error> {
        let service = &self.calls.service;
        let grant = self.calls.budget.grant(self.caller.uid);
        let progress = self.listed.job.progress.clone();
        let stream = Stream::new(&self.caller, service, grant, wanted, progress).await?;
        stream.run(source, self.calls.silence_max()).await
    }

    /// Tells the owner, and nobody else, what the properties are.
    async fn tell(&self) {
        let (job, connection) = (&self.listed.job, &self.caller.connection);
        let told = async {
            let emitter = tree::to_owner(job, connection, &job.path)?;
            let properties = tree::properties(&self.handle(), connection).await?;
            let changed: HashMap<&str, _> =
                properties.iter().map(|(name, value)| (name.as_str(), value)).collect();
            Properties::properties_changed(&emitter, JOB_INTERFACE, changed, &[]).await
        };
        if let Err(error) = told.await {
            debug!(%error, "the progress of a job could not be told");
        }
    }
}

/// The panic's own message may quote what it worked on, so it is not passed on.
fn fault() -> Error {
    error!("a job ended without a result");
    let message = "an internal fault ended the job; the service's log has more";
    Error::new(ErrorName::Failed, message)
}
