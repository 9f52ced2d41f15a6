//! `org.opdbus.Embedding1.Job`: one job, as its user sees it. Its documentation for callers is in
//! `dbus-policy/interfaces/`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use op_dbus_api::{Error, ErrorName, Info, JOBS_PATH};
use op_dbus_engine::CancellationToken;
use tokio::sync::watch;
use zbus::message::Header;
use zbus::{Connection, OwnedObjectPath, interface};

use super::super::bulk::{Bulk, Made, Memory, Progress};
use super::super::caller::Caller;
use super::super::calls::Calls;
use super::super::pulse::Refusal;
use super::super::unread::Reply;

/// One job.
pub struct Job {
    /// The last part of its path.
    pub name: String,
    /// Where its object is.
    pub path: OwnedObjectPath,
    /// The connection that started it, by its unique name.
    pub owner: String,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// Cancelled once nothing is left of it: its object is gone, and its place among the jobs is free.
    pub vanished: CancellationToken,
    uid: u32,
    bytes_total: u64,
    cancel: CancellationToken,
    phase: watch::Sender<Phase>,
}

/// Where a job is in its life.
enum Phase {
    Running,
    /// Its result waits to be fetched.
    Done(Box<Made>),
    Failed(Error),
    /// For callers it is not there any more, and this is why.
    Over(Error),
}

impl Job {
    /// A job of `caller` that has done nothing yet, of a source of so many bytes; 0 where that is not
    /// known.
    ///
    /// # Errors
    /// For a name that no path may have.
    pub fn new(name: String, caller: &Caller, bytes_total: u64) -> zbus::Result<Self> {
        Ok(Self {
            path: format!("{JOBS_PATH}/{name}").try_into()?,
            name,
            owner: caller.sender().to_owned(),
            progress: Arc::default(),
            vanished: CancellationToken::default(),
            uid: caller.uid,
            bytes_total,
            cancel: caller.cancel.clone(),
            phase: watch::Sender::new(Phase::Running),
        })
    }

    /// Whether the job is there for a user.
    pub fn is_of(&self, uid: u32) -> bool {
        self.uid == uid && !matches!(*self.phase.borrow(), Phase::Over(_))
    }

    /// What a user is told about a job that is not there for them: the same as about any path.
    pub fn unknown(&self) -> String {
        format!("Unknown object '{}'", self.path)
    }

    /// Ends the job, whatever it does; who waits for its result is told `why`.
    pub fn end(&self, why: Error) {
        self.leave(why);
        // Only now, so that it is not the work that tells why it has ended.
        self.cancel.cancel();
    }

    /// Takes the job away from callers, and returns where it was. The first reason is the one that stays.
    fn leave(&self, why: Error) -> Phase {
        let mut before = Phase::Over(why);
        self.phase.send_if_modified(|phase| {
            if let Phase::Over(first) = phase {
                before = Phase::Over(first.clone());
                return false;
            }
            std::mem::swap(phase, &mut before);
            true
        });
        before
    }

    /// The work has ended.
    pub fn ended(&self, result: Result<Made, Error>) {
        self.phase.send_if_modified(|phase| {
            let runs = matches!(phase, Phase::Running);
            if runs {
                *phase = result.map_or_else(Phase::Failed, |made| Phase::Done(made.into()));
            }
            runs
        });
    }

    /// Returns once the job is not there for callers any more.
    pub async fn over(&self) {
        // The sender is ours, so it does not end before.
        let _ = self.phase.subscribe().wait_for(|phase| matches!(phase, Phase::Over(_))).await;
    }

    /// The result, once it is there and there is `room` for it in the bus, or the error of the work, for whoever asks
    /// first.
    ///
    /// # Errors
    /// `NoSpace` when it can't be sent now; why the job is not there any more.
    async fn fetch(
        &self,
        room: impl Future<Output = Result<(), Error>>,
    ) -> Result<Result<Bulk, Error>, Error> {
        let mut phase = self.phase.subscribe();
        let ended = phase.wait_for(|phase| !matches!(phase, Phase::Running)).await;
        if ended.is_ok_and(|phase| matches!(*phase, Phase::Done(_))) {
            // Before it is taken: what has no room stays for another call.
            room.await?;
        }
        if let Phase::Done(made) = &*self.phase.borrow() {
            // The reply has a descriptor of its own. One that can't be made would take the result with it.
            drop(made.bulk.0.file().try_clone().map_err(|error| unsendable(&error))?);
        }
        match self.leave(gone()) {
            Phase::Done(made) => Ok(Ok(made.bulk)),
            Phase::Failed(error) => Ok(Err(error)),
            Phase::Over(error) => Err(error),
            Phase::Running => Err(gone()),
        }
    }

    fn error(&self) -> (&'static str, String) {
        match &*self.phase.borrow() {
            Phase::Failed(error) => (error.name().as_str(), error.message().to_owned()),
            _ => ("", String::new()),
        }
    }
}

fn unsendable(error: &io::Error) -> Error {
    let message = format!("the result can't be sent now ({error}); it stays, fetch it later");
    Error::new(ErrorName::NoSpace, message)
}

/// Why the result of a job is not there, where it is not the service that ends.
pub fn gone() -> Error {
    let message = "the job was cancelled, its owner has left the bus, or another call has fetched its \
                   result";
    Error::new(ErrorName::Cancelled, message)
}

/// The bus object of a job.
#[derive(Clone)]
pub struct Handle {
    pub(super) job: Arc<Job>,
    pub(super) calls: Calls,
}

impl Handle {
    /// The object of `job`.
    pub fn new(job: Arc<Job>, calls: Calls) -> Self {
        Self { job, calls }
    }

    /// The job, for whom it is there.
    fn seen_by(&self, caller: &Caller) -> Result<Arc<Job>, Error> {
        match self.job.is_of(caller.uid) {
            true => Ok(self.job.clone()),
            false => Err(Error::new(ErrorName::UnknownObject, self.job.unknown())),
        }
    }
}

#[interface(name = "org.opdbus.Embedding1.Job", introspection_docs = false)]
impl Handle {
    async fn cancel(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let work = async |_calls, caller| {
            self.seen_by(&caller)?.end(gone());
            Ok(())
        };
        self.calls.run(connection, &header, work).await?;
        // Who is answered may start another one in its place. Not within the work, which a stop cuts off.
        self.job.vanished.cancelled().await;
        Ok(())
    }

    #[zbus(out_args("vectors", "rows", "dimensions", "info"))]
    async fn fetch(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Memory, u32, u32, Info), Refusal> {
        let work = async |calls: Calls, caller: Caller| {
            let job = self.seen_by(&caller)?;
            let room = calls.room(&caller, Reply::Descriptor, None);
            tokio::select! {
                biased;
                // Who has left can't have the result: it stays for another connection of the user.
                () = caller.cancel.cancelled() => {
                    Err(Error::new(ErrorName::Cancelled, "the caller has left the bus"))
                }
                result = job.fetch(room) => result,
            }
        };
        let end = self.calls.run(connection, &header, work).await?;
        // As in `cancel`.
        self.job.vanished.cancelled().await;
        // What the work has ended with was counted then.
        let bytes = u64::from(header.primary().body_len());
        end.map_err(|error| self.calls.pulse.refuse(error, bytes))
    }

    #[zbus(property)]
    fn state(&self) -> String {
        let state = match *self.job.phase.borrow() {
            Phase::Running => "running",
            Phase::Done(_) => "done",
            Phase::Failed(_) => "failed",
            // Told to nobody.
            Phase::Over(_) => "over",
        };
        state.to_owned()
    }

    #[zbus(property)]
    fn rows(&self) -> u64 {
        self.job.progress.rows.load(Ordering::Relaxed)
    }

    #[zbus(property)]
    fn bytes_read(&self) -> u64 {
        self.job.progress.bytes_read.load(Ordering::Relaxed)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn bytes_total(&self) -> u64 {
        self.job.bytes_total
    }

    #[zbus(property)]
    fn error_name(&self) -> String {
        self.job.error().0.to_owned()
    }

    #[zbus(property)]
    fn error_message(&self) -> String {
        self.job.error().1
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::time::Duration;

    use op_dbus_api::{BUS_NAME, JOB_INTERFACE};
    use zbus::connection::Builder;
    use zbus::{Guid, Message};

    use super::super::super::caller::Callers;
    use super::super::super::tests::{idle, peers};
    use super::*;

    /// Who starts a job.
    async fn caller() -> Caller {
        let (server, _client) = peers().await;
        let call = Message::method_call("/", "StartEmbedFromFd").build(&()).unwrap();
        Arc::<Callers>::default().enter(&server, &call.header()).await.unwrap()
    }

    /// They may start another one in its place.
    #[tokio::test]
    async fn who_ends_a_job_is_answered_once_nothing_is_left_of_it() {
        for method in ["Cancel", "Fetch"] {
            let caller = caller().await;
            let job = Arc::new(Job::new("name".to_owned(), &caller, 0).unwrap());
            let life = job.vanished.clone().drop_guard();
            job.ended(Err(Error::new(ErrorName::Failed, "the work has failed")));
            let (near, far) = UnixStream::pair().unwrap();
            let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
            let calls = Calls::new(idle(), Arc::default());
            let far = far.serve_at(job.path.as_str(), Handle::new(job.clone(), calls));
            let near = Builder::unix_stream(near).p2p();
            let (_server, client) = tokio::try_join!(far.build(), near.build()).unwrap();
            let (to, of) = (Some(BUS_NAME), Some(JOB_INTERFACE));
            let mut answer = pin!(client.call_method(to, job.path.as_str(), of, method, &()));
            tokio::select! {
                answer = answer.as_mut() => panic!("{method}: {answer:?}"),
                () = job.over() => {}
            }
            // Whoever does not wait has its chance.
            let early = tokio::time::timeout(Duration::from_millis(200), answer.as_mut()).await;
            assert!(early.is_err(), "{method}: {early:?}");
            drop(life);
            assert_eq!(answer.await.is_ok(), method == "Cancel");
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_result_is_told_the_first_reason_for_its_end() {
        let caller = caller().await;
        let job = Job::new("name".to_owned(), &caller, 0).unwrap();
        let stops = || Error::new(ErrorName::ShuttingDown, "the service stops");
        let end = async {
            job.end(stops());
            job.ended(Err(Error::new(ErrorName::Cancelled, "the work was cancelled")));
            job.end(gone());
        };
        let room = || std::future::ready(Ok(()));
        let (one, other, ()) = tokio::join!(job.fetch(room()), job.fetch(room()), end);
        assert_eq!((one.unwrap_err(), other.unwrap_err()), (stops(), stops()));
        assert!(caller.cancel.is_cancelled() && !job.is_of(caller.uid));
    }
}
