//! A job's life: its object comes, the work is done, the result waits, the object goes.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use op_dbus_api::{Error, ErrorName, JOB_INTERFACE, JOB_RESULT_KEPT_S};
use op_dbus_engine::DropGuard;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::debug;
use zbus::OwnedVariant;
use zbus::object_server::Interface;

use super::super::bulk::{Made, Place, Source, Stream};
use super::super::caller::Caller;
use super::super::calls::{Calls, fault};
use super::super::options::Wanted;
use super::job::{Handle, gone};
use super::seen::{Introspectable, Properties};
use super::tree::Values;
use super::{Listed, tree};

/// How often the owner is told how far a job is, if it has got any further.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// One job with all that it holds.
pub struct Life {
    listed: Listed,
    calls: Calls,
    /// Who started it: it ends when they leave the bus.
    caller: Caller,
    _place: Place,
    /// Dropped behind all else.
    _vanished: DropGuard,
}

impl Life {
    /// A life that has not begun.
    pub fn new(listed: Listed, calls: Calls, caller: Caller, place: Place) -> Self {
        let vanished = listed.job.vanished.clone().drop_guard();
        Self { listed, calls, caller, _place: place, _vanished: vanished }
    }

    fn handle(&self) -> Handle {
        Handle::new(self.listed.job.clone(), self.calls.clone())
    }

    /// Puts the object on the bus and tells its owner; returns what its properties were told as.
    ///
    /// # Errors
    /// When there is one at its path already, or the owner can't be told.
    pub async fn appear(&self) -> zbus::Result<Values> {
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
    /// the object off the bus. Of the properties the owner knows what was `told`.
    pub async fn live(self, source: Source, wanted: Wanted, mut told: Values) {
        let job = self.listed.job.clone();
        tokio::select! {
            biased;
            () = job.over() => {}
            () = self.caller.cancel.cancelled() => {}
            result = self.work(source, wanted, &mut told) => {
                let error = result.as_ref().err().map(Error::name);
                debug!(uid = self.caller.uid, error = error.map(ErrorName::as_str), "a job has ended");
                if let Err(error) = &result {
                    self.calls.failed(self.caller.uid, error);
                }
                job.ended(result);
                let kept = async {
                    self.tell(&mut told).await;
                    sleep(Duration::from_secs(JOB_RESULT_KEPT_S)).await;
                };
                tokio::select! {
                    biased;
                    () = kept => {}
                    () = job.over() => {}
                    () = self.caller.cancel.cancelled() => {}
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

    /// Embeds everything, and tells how far that is. Where nothing leaves over the bus the work goes on, and what waits
    /// there when it ends is dropped: the kernel takes a message so small as a whole or not at all.
    async fn work(&self, source: Source, wanted: Wanted, told: &mut Values) -> Result<Made, Error> {
        let mut ticks = interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once.
        ticks.tick().await;
        let mut work = pin!(AssertUnwindSafe(self.embed(source, wanted)).catch_unwind());
        loop {
            let tells = async {
                ticks.tick().await;
                self.tell(told).await;
            };
            tokio::select! {
                biased;
                result = &mut work => return result.unwrap_or_else(|_panic| Err(fault("the job"))),
                () = tells => {}
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

    /// Tells the owner, and nobody else, which properties are not as they were `told`. What an owner that does not read
    /// leaves of that in the bus is counted nowhere.
    async fn tell(&self, told: &mut Values) {
        let (job, connection) = (&self.listed.job, &self.caller.connection);
        let tells = async {
            let now = tree::properties(&self.handle(), connection).await?;
            let changed = changed(told, &now);
            // It may be over by now, which is no state.
            if !changed.is_empty() && job.is_of(self.caller.uid) {
                let emitter = tree::to_owner(job, connection, &job.path)?;
                Properties::properties_changed(&emitter, JOB_INTERFACE, changed, &[]).await?;
                *told = now;
            }
            zbus::Result::Ok(())
        };
        if let Err(error) = tells.await {
            debug!(%error, "the progress of a job could not be told");
        }
    }
}

/// What of `now` is not as it was told.
fn changed<'a>(told: &Values, now: &'a Values) -> HashMap<&'a str, &'a OwnedVariant> {
    let is_new = |(name, value): &(&String, &OwnedVariant)| told.get(*name) != Some(*value);
    now.iter().filter(is_new).map(|(name, value)| (name.as_str(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use zbus::Message;

    use super::super::super::bulk::Work;
    use super::super::super::caller::Callers;
    use super::super::super::tests::{fill, ready, slow_peer};
    use super::super::job::Job;
    use super::*;

    /// As where somebody does not read what the bus has for them.
    #[tokio::test]
    async fn work_goes_on_while_nothing_leaves_over_the_bus() {
        let (pair, (server, _unread)) = (ready(&[]).await, slow_peer().await);
        let callers = Arc::<Callers>::default();
        let calls = Calls::new(pair.service.clone(), callers.clone());
        let call = Message::method_call("/", "StartEmbedFromFd").sender(":1.7");
        let call = call.build(&()).unwrap();
        let caller = callers.enter(&server, &call.header()).await.unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let source = calls.source(&caller, reader.into(), &Wanted::default()).await.unwrap();
        let place = calls.budget.place(caller.uid, Work::Job).unwrap();
        let job = Job::new("name".to_owned(), &caller, 0).unwrap();
        let listed = Listed::new(calls.jobs.clone().unwrap(), job);
        let life = Life::new(listed, calls, caller, place);
        fill(&server).await;
        // It hears of what is about to be sent.
        let (tells, mut told) = (server.monitor_activity(), Values::new());
        let goes_on = async move {
            tells.await;
            writer.write_all(b"one\ntwo").unwrap();
            drop(writer);
        };
        let (made, ()) = tokio::join!(life.work(source, Wanted::default(), &mut told), goes_on);
        assert_eq!(made.unwrap().bulk.1, 2);
        assert!(told.is_empty(), "it was told");
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let values = |rows: u64| {
            let all = [("Rows", rows), ("BytesTotal", 7)];
            Values::from(all.map(|(name, value)| (name.to_owned(), value.into())))
        };
        assert_eq!(changed(&values(1), &values(2)), HashMap::from([("Rows", &2_u64.into())]));
        assert!(changed(&values(1), &values(1)).is_empty());
    }
}
