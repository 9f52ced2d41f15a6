//! Who calls for vectors: by file descriptors or in replies, in smaller calls where one is too large, and
//! with the wait while the service is full, or ends and comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, mem};

use op_dbus_api::{EmbedderProxy, Error, ErrorName, Info, is_about_text, retry_after};
use op_dbus_daemon::settings::Bus;
use serde_bytes::ByteBuf;
use tokio::sync::Mutex;
use zbus::{DynamicTuple, fdo};

use super::bulk;
use super::client::absence;
use super::packed::{Options, Reply};
use super::places::Places;
use super::texts::CallLimits;
use super::{Failure, Service, connect};

/// Calls under way at once: enough that the service always has the next batch at hand.
pub const CALLS_IN_FLIGHT: usize = 3;
/// How long room in a full queue, or a service that comes back, is waited for by the first call, before which nothing
/// was computed.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(6);
/// The same by a later call, which would lose what came before it.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// The wait before the next try where the service tells none, and the least.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// What each call needs. The service has answered before there is a caller: when it is away later, it is waited for.
pub struct Caller {
    pub options: Options,
    /// The limits of a call whose vectors come in its reply.
    pub inline: CallLimits,
    service: Service,
    embedder: EmbedderProxy<'static>,
    /// Whether the service is known to have no calls by file descriptors, or no way for these.
    inline_alone: AtomicBool,
    /// Whose turn it is of the calls that were refused for now, in their order. Those that come later wait for it with
    /// their first try, as they would else take the room that earlier ones come back for.
    turn: Mutex<()>,
}

impl Caller {
    /// A caller of the service on `bus`, once its model is loaded or could not be.
    ///
    /// # Errors
    /// Exit code 3 when it is not there.
    pub async fn connect(bus: &Bus, options: Options) -> Result<Self, Failure> {
        // The first question has no deadline that the service would keep.
        let service = connect(bus).await?.patient_for(options.limit());
        let inline = CallLimits::of(&service.settled().await?);
        let embedder = service.embedder().await?;
        let (inline_alone, turn) = Default::default();
        Ok(Self { options, inline, service, embedder, inline_alone, turn })
    }

    /// The vectors of `texts`, of which the first is number `first` over all calls, in one part or in
    /// several. What is refused of one of them says where it stands.
    pub async fn call(
        &self,
        places: &Places,
        first: u64,
        texts: Vec<String>,
    ) -> Result<Vec<Reply>, Failure> {
        let name = |number: u64| Some(places.name(first.checked_add(number)?));
        let mut has_crashed = false;
        if texts.len() > self.inline.texts_max && !self.inline_alone.load(Ordering::Relaxed) {
            drop(self.turn.lock().await);
            match bulk::embed(&self.embedder, &texts, self.options.to_dict()).await {
                Ok((bytes, shape, info)) => {
                    let vectors = (bytes, self.options.encoding);
                    return Ok(vec![Reply::new((first, texts), vectors, shape, info)?]);
                }
                // What is waited for is waited for there, and others of this user may have all streams, but not the
                // queue. A provider that has failed is replaced in the midst of these calls alone.
                Err(bulk::Error::Call(error))
                    if pause_of(&error).is_some() || is(&error, ErrorName::WorkerFailed) =>
                {
                    has_crashed = is_crash(&error);
                }
                Err(bulk::Error::Call(error)) if is_unknown(&error) => {
                    self.inline_alone.store(true, Ordering::Relaxed);
                }
                Err(bulk::Error::Call(error)) => {
                    return Err(self.service.failure(&error).about_texts(first, name));
                }
                Err(bulk::Error::Memfd(error)) => return Err(unshared(&error)),
            }
        }
        self.parts((first, has_crashed), texts, name).await
    }

    /// The vectors of texts that are few, in one reply. What is refused of one of them says what `name` has it
    /// called by its number in `texts`.
    pub async fn call_packed(
        &self,
        first: u64,
        texts: Vec<String>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Result<Reply, Failure> {
        let mut parts = self.parts((first, false), texts, name).await?.into_iter();
        let Some(mut whole) = parts.next() else {
            return Err(Failure::refused("the service was asked for nothing"));
        };
        for part in parts {
            whole.add(part)?;
        }
        Ok(whole)
    }

    /// The same in the replies that they came in: of as many texts as these have room for, and of fewer where
    /// the service finds them too large together. `has_crashed` is whether the service has crashed at them before.
    async fn parts(
        &self,
        (first, has_crashed): (u64, bool),
        mut texts: Vec<String>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Result<Vec<Reply>, Failure> {
        let (mut parts, mut done, mut texts_max) = (Vec::new(), 0, self.inline.texts_max);
        while !texts.is_empty() || parts.is_empty() {
            let count = texts_max.min(texts.len());
            let number = first + done;
            match self.packed((number, has_crashed), &texts[..count]).await? {
                Ok((bytes, shape, info)) => {
                    let texts = texts.drain(..count).collect();
                    let vectors = (bytes, self.options.encoding);
                    parts.push(Reply::new((number, texts), vectors, shape, info)?);
                    done += count as u64;
                }
                // What a call counts as is the service's to say, by its model and options.
                Err(error) if count > 1 && is_of_all(&error) => texts_max = count / 2,
                Err(error) => {
                    let name = |number| name(done.checked_add(number)?);
                    return Err(self.service.failure(&error).about_texts(number, name));
                }
            }
        }
        Ok(parts)
    }

    /// One call, for which room in the queue, or a service that comes back, is waited for. Its first text is number
    /// `first` over all calls.
    async fn packed(
        &self,
        (first, has_crashed): (u64, bool),
        texts: &[String],
    ) -> Result<Result<bulk::Reply, zbus::Error>, Failure> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let deadline = self.options.deadline().filter(|_| first == 0);
        let to_deadline = deadline.is_some_and(|deadline| deadline < FIRST_WAIT_MAX);
        let left = match first {
            0 => deadline.unwrap_or(FIRST_WAIT_MAX).min(FIRST_WAIT_MAX),
            _ => self.options.limit().unwrap_or(WAIT_MAX),
        };
        let mut retries = Retries { left, to_deadline, has_crashed };
        drop(self.turn.lock().await);
        let answer = self.answer(self.embed(&texts)).await?;
        if retries.pause(&answer).is_none() {
            return Ok(answer);
        }
        // Its own earlier calls are what it waits for first, however long they take.
        let _turn = self.turn.lock().await;
        loop {
            let answer = self.answer(self.embed(&texts)).await?;
            let Some(pause) = retries.pause(&answer) else { return Ok(answer) };
            retries.left -= pause;
            tokio::time::sleep(pause).await;
        }
    }

    /// One try.
    async fn embed(&self, texts: &[&str]) -> Result<bulk::Reply, zbus::Error> {
        let arguments = DynamicTuple((texts, self.options.to_dict()));
        let call = self.embedder.inner().call_with_flags("EmbedPacked", bulk::FLAGS, &arguments);
        let (bytes, rows, dimensions, info): (ByteBuf, u32, u32, Info) =
            call.await?.ok_or(zbus::Error::InvalidReply)?;
        Ok((bytes.into_vec().into(), (rows, dimensions), info))
    }

    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, zbus::Error>>,
    ) -> Result<Result<T, zbus::Error>, Failure> {
        let Some(limit) = self.options.limit() else { return Ok(call.await) };
        let answer = tokio::time::timeout(limit, call).await;
        answer.map_err(|_| self.service.silent(limit))
    }
}

/// How often a call is made again that was refused for now.
struct Retries {
    /// What is left of the time for that.
    left: Duration,
    /// Whether that time ends with the call's deadline.
    to_deadline: bool,
    /// Whether the service has crashed at the call before.
    has_crashed: bool,
}

impl Retries {
    /// How long until the call is to be made again; nothing where it has its answer, for good or as it is given up.
    fn pause(&mut self, answer: &Result<bulk::Reply, zbus::Error>) -> Option<Duration> {
        let error = answer.as_ref().err()?;
        // What takes the service down with it each time would do so until nobody restarts it any more.
        if is_crash(error) && mem::replace(&mut self.has_crashed, true) {
            return None;
        }
        let pause = pause_of(error)?;
        // What comes after its deadline is of no use, and nothing is lost without it.
        let is_late = self.to_deadline && pause > self.left;
        (!self.left.is_zero() && !is_late).then(|| pause.min(self.left))
    }
}

fn is(error: &zbus::Error, name: ErrorName) -> bool {
    Error::from_reply(error).is_some_and(|error| error.name() == name)
}

/// Whether a call was too large for what its texts are together, and not for one of them.
fn is_of_all(error: &zbus::Error) -> bool {
    let is_of_all =
        |error: Error| error.name() == ErrorName::TooLarge && !is_about_text(error.message());
    Error::from_reply(error).is_some_and(is_of_all)
}

/// Whether the service was gone before it answered, as after a crash. The call may be made again: a text has the vector
/// that it has.
fn is_crash(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::FDO(error) if matches!(**error, fdo::Error::NoReply(_)))
}

/// How long until a service that takes no call for now is to be asked again, by its own sentence where it is full;
/// nothing where that is not why. One that is restarted ends first, is away then, and loads its model.
fn pause_of(error: &zbus::Error) -> Option<Duration> {
    use ErrorName::{NotReady, Overloaded, QuotaExceeded, ShuttingDown};
    if is_crash(error) || absence(error).is_some() {
        return Some(PAUSE);
    }
    let refusal = Error::from_reply(error)?;
    let passes = matches!(refusal.name(), Overloaded | QuotaExceeded | ShuttingDown | NotReady);
    passes.then(|| retry_after(refusal.message()).unwrap_or(PAUSE).max(PAUSE_MIN))
}

/// The service is older than the method, or the bus carries no file descriptors.
fn is_unknown(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::FDO(error) => matches!(**error, fdo::Error::UnknownMethod(_)),
        zbus::Error::Unsupported => true,
        _ => false,
    }
}

/// Texts or vectors can't go past the bus, in memory that both ends see.
fn unshared(error: &io::Error) -> Failure {
    let remedy = match error.kind() == io::ErrorKind::FileTooLarge {
        true => ": it counts as a file; raise the limit of file sizes (`ulimit -f`, LimitFSIZE=)",
        false => "",
    };
    Failure::refused(format!("a memfd can't be used ({error}){remedy}"))
}
