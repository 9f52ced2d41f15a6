//! What every method does around its own few lines: find out who calls, end with the caller, answer
//! even when our own code panics, and leave a trace without any text.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use nix::sys::resource::{Resource, getrlimit};
use op_dbus_api::{EMBEDDER_INTERFACE, Error, ErrorName};
use op_dbus_engine::{CancellationToken, Inputs};
use op_dbus_models::Level;
use tracing::{Instrument, debug, debug_span, error, info};
use zbus::Connection;
use zbus::message::{Flags, Header};

use super::bulk::{Budget, in_time, while_wanted};
use super::caller::{Caller, Callers};
use super::descriptors::Descriptors;
use super::direct::Direct;
use super::jobs::Jobs;
use super::pulse::{Pulse, Refusal};
use super::reply::{Embedded, Form};
use super::unread::Reply;
use crate::memory_limit;
use crate::service::{Error as ServiceError, Options, Request, Served, Service};
use crate::settings::Bus;
use crate::telemetry::{OncePerUserAndMinute, message_id};

/// What a deadline passes before where nothing is in the way but replies that nobody has read.
const ROOM: &str =
    "there was room for the reply; read those that were sent before, or allow more time";

/// What the interfaces have in common. Cheap to clone.
#[derive(Clone)]
pub struct Calls {
    /// What they delegate to.
    pub service: Service,
    /// What users have in the making beside it.
    pub budget: Arc<Budget>,
    /// Connections that callers may open beside this one; none beside a direct one.
    pub direct: Option<Arc<Direct>>,
    /// The jobs of callers; none on a direct connection.
    pub jobs: Option<Arc<Jobs>>,
    /// Whether replies leave over the bus.
    pub pulse: Arc<Pulse>,
    /// What came with their messages over the bus; a direct connection has threads that may hang.
    pub descriptors: Arc<Descriptors>,
    /// Who calls.
    pub callers: Arc<Callers>,
    /// Texts that were cut where no reply says so.
    cut_told: OncePerUserAndMinute,
    /// Whether the bus is a session's, which stays so.
    is_of_session: bool,
}

/// What is to be embedded, and how.
pub struct Asked {
    /// The texts, or their token ids.
    pub inputs: Inputs,
    /// The caller's options.
    pub options: Options,
    /// How the method answers.
    pub form: Form,
}

impl Calls {
    /// Calls to `service` from `callers`, who may open direct connections and start jobs.
    pub fn new(service: Service, callers: Arc<Callers>) -> Self {
        let (direct, jobs) = (Some(Arc::default()), Some(Arc::default()));
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(most, _)| most);
        let memory = memory_limit::for_us();
        let budget = Arc::new(Budget::of(memory, descriptors));
        let (pulse, cut_told) = (Arc::new(Pulse::of(memory)), OncePerUserAndMinute::default());
        let is_of_session = service.now().settings().bus == Bus::Session;
        let descriptors = Arc::new(Descriptors::of(descriptors));
        Self { service, budget, direct, jobs, pulse, descriptors, callers, cut_told, is_of_session }
    }

    /// The same service and budget for `callers` on a direct connection.
    pub fn on_direct(&self, callers: Arc<Callers>) -> Self {
        Self { direct: None, jobs: None, callers, ..self.clone() }
    }

    /// Runs a method's work for its caller: a panic in there becomes an error reply, where zbus
    /// alone would leave the caller without any. So would the end of the service.
    ///
    /// # Errors
    /// Those of the work; `InvalidArgument` for a call that nobody wants an answer to, and for descriptors that
    /// nothing takes; `Overloaded` while the bus takes no replies; `AccessDenied` for a caller without a user;
    /// `Failed` after a panic; `ShuttingDown`.
    pub async fn run<T, F>(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        work: impl FnOnce(Self, Caller) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Error>>,
    {
        // A direct connection bounds what it reads.
        let bytes = if connection.is_bus() { header.primary().body_len() } else { 0 };
        let answer = self.answer(connection, header, work).await;
        answer.map_err(|error| self.pulse.refuse(error, bytes.into()))
    }

    async fn answer<T, F>(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        work: impl FnOnce(Self, Caller) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let taken = check_message(header).and_then(|()| match connection.is_bus() {
            true => self.pulse.feel(),
            false => Ok(()),
        });
        let count = |error: &Error| self.service.call_failed(error.name());
        taken.inspect_err(count)?;
        let caller = self.callers.enter(connection, header).await.inspect_err(count)?;
        let method = header.member().map_or("", |member| member.as_str());
        let uid = caller.uid;
        let span = debug_span!("call", method, uid, sender = caller.sender());
        // It is large, and each of the futures around it has what it was given twice, up to the one that zbus copies.
        let work = Box::pin(work(self.clone(), caller));
        let work = async {
            tokio::select! {
                biased;
                result = work => result,
                () = self.service.ended() => Err(ServiceError::ShuttingDown.into()),
            }
        };
        // Not in a task of its own: zbus has made one for the message.
        let work = AssertUnwindSafe(work).catch_unwind();
        let result = work.instrument(span.clone()).await;
        let result = result.unwrap_or_else(|_panic| Err(fault(method)));
        if let Err(error) = &result {
            let _entered = span.enter();
            debug!(error = error.name().as_str(), "refused: {}", without_quotes(error));
            self.failed(uid, error);
        }
        result
    }

    /// Counts that a call or a job of a user has ended with an error, and tells the log of a quota that is used up.
    pub fn failed(&self, uid: u32, error: &Error) {
        self.service.call_failed(error.name());
        if error.name() == ErrorName::QuotaExceeded && self.callers.quota_told.is_due(uid) {
            info!(
                MESSAGE_ID = message_id::QUOTA,
                uid, "user {uid} has too much in flight: {error}"
            );
        }
    }

    /// Embeds texts with the model that the options name, and makes the reply of the vectors, which waits for room
    /// in the bus.
    ///
    /// # Errors
    /// `TooLarge` and `QuotaExceeded` before anything is computed; `Overloaded` then, or of a caller that does not
    /// read; else what the service answers.
    pub async fn embed<T>(
        &self,
        caller: &Caller,
        asked: Asked,
        make: impl FnOnce(Embedded) -> T,
    ) -> Result<T, Error> {
        let Asked { inputs, options, form } = asked;
        let size = (inputs.len(), inputs.bytes());
        let served = self.serving(caller, size, options.level, options.deadline).await?;
        let (count, length) = (inputs.len(), served.length(&options));
        // It may tell of each that it was cut.
        let bytes = form.check(count, length)? + count * size_of::<u32>();
        self.room_on_line(caller, bytes, options.deadline).await?;
        // The engine makes place for all of them when it takes the call, however little the reply has of them.
        let vectors = (count * length * size_of::<f32>()) as u64;
        let vectors = self.budget.vectors(caller.uid, vectors)?;
        let (cancel, deadline): (CancellationToken, _) = (caller.cancel.clone(), options.deadline);
        let request = Request { uid: caller.uid, cancel, inputs, options, wait: false, sink: None };
        let (reply, served) = self.service.embed(served, request).await?;
        let _replying = self.service.replying();
        let (tokens, queue_us, compute_us) = (reply.tokens, reply.queue_us, reply.compute_us);
        let (cut, model) = (reply.truncated.len(), &served.model);
        debug!(texts = count, cut, tokens, queue_us, compute_us, model = %model, "embedded");
        if cut > 0 && !form.has_info() && self.cut_told.is_due(caller.uid) {
            info!(
                "{cut} of {count} texts of a call of user {} were longer than {model} reads and were cut; \
                 EmbedPacked tells which",
                caller.uid
            );
        }
        let reply = make(Embedded { reply, served });
        // Those that are left are counted with the replies that wait.
        drop(vectors);
        self.room(caller, Reply::Inline(bytes), deadline).await?;
        Ok(reply)
    }

    /// Waits for room on a direct connection for a reply of so many bytes, as long as its caller does: before it is
    /// made where its size is known, since those that wait to be read are held here.
    ///
    /// # Errors
    /// `Cancelled`, `DeadlineExceeded`.
    pub async fn room_on_line(
        &self,
        caller: &Caller,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let Some(room) = caller.room_on_line(bytes) else { return Ok(()) };
        in_time(caller, deadline, ROOM, room.map(Ok)).await
    }

    /// Waits for room in the bus for a reply, as long as its caller does.
    ///
    /// # Errors
    /// As [`Unread::room`](super::unread::Unread::room); `Cancelled`, `DeadlineExceeded`.
    pub async fn room(
        &self,
        caller: &Caller,
        reply: Reply,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        // There all are one user's, and what is kept is eight times as much.
        if self.is_of_session {
            return Ok(());
        }
        let mut room = pin!(caller.unread().room(caller, reply));
        // Almost always there is, and nothing has to be waited for.
        if let Some(end) = room.as_mut().now_or_never() {
            return end;
        }
        // A stop waits for it, as for what is computed.
        let _replying = self.service.replying();
        in_time(caller, deadline, ROOM, room).await
    }

    /// The model that answers a call of so many texts and bytes, which waits for it as long as its caller does.
    ///
    /// # Errors
    /// As [`Service::serving_to`]; `Cancelled`.
    pub async fn serving(
        &self,
        caller: &Caller,
        size: (usize, usize),
        level: Option<Level>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Served>, Error> {
        let mut serving = pin!(self.service.serving_to(caller.uid, size, level, deadline));
        // Almost always it is there at once, and no caller can leave meanwhile.
        if let Some(end) = serving.as_mut().now_or_never() {
            return Ok(end?);
        }
        while_wanted(caller, None, async { Ok(serving.await?) }).await
    }
}

/// What the log has of a refusal. All but these may quote what a caller wrote, such as the name of a prompt, where some
/// clients put a text.
fn without_quotes(error: &Error) -> &str {
    match error.name() {
        ErrorName::AccessDenied | ErrorName::InteractiveAuthorizationRequired => error.message(),
        _ => "the caller was told why",
    }
}

/// What a call may not have, as it would be held for as long as the call waits and nobody counts it.
fn check_message(header: &Header<'_>) -> Result<(), Error> {
    let wants_none = header.primary().flags().contains(Flags::NO_REPLY_EXPECTED);
    if wants_none && is_for_its_reply(header) {
        // A bus bounds the calls that wait for a reply; these would be any number.
        let message =
            "the call wants no reply, and nothing else would come of it; ask for the reply";
        return Err(Error::new(ErrorName::InvalidArgument, message));
    }
    // They are there as long as the message that they came with. No method takes more than one, which is its first
    // argument.
    let sent = header.unix_fds().unwrap_or_default();
    let taken = || header.signature().to_string_no_parens().starts_with('h');
    if sent == 0 || (sent == 1 && taken()) {
        return Ok(());
    }
    let message = format!(
        "the call has {sent} file descriptors and an argument for one at most; send none beside"
    );
    Err(Error::new(ErrorName::InvalidArgument, message))
}

/// Whether a call changes nothing, or takes away a result that would be nobody's then.
fn is_for_its_reply(header: &Header<'_>) -> bool {
    let member = header.member().map_or("", |member| member.as_str());
    header.interface().is_some_and(|of| of.as_str() == EMBEDDER_INTERFACE)
        || ["Fetch", "Get", "List"].iter().any(|start| member.starts_with(start))
}

/// The panic's own message may quote what it worked on, so it is not passed on.
pub fn fault(work: &str) -> Error {
    error!("{work} ended without a result");
    let message = format!("an internal fault ended {work}; the service's log has more");
    Error::new(ErrorName::Failed, message)
}
