//! Who calls for vectors: by file descriptors or in replies, in smaller calls where one is too large, and
//! with the wait while the service is full, or ends and comes back.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use op_dbus_api::{EmbedderProxy, Error, ErrorName, Info, is_about_text, retry_after};
use serde_bytes::ByteBuf;
use tokio::sync::Mutex;
use zbus::{DynamicTuple, fdo};

use super::bulk;
use super::client::absence;
use super::packed::{Options, Reply};
use super::places::Places;
use super::{Failure, Service};

/// How long room in a full queue, or a service that comes back, is waited for by the first call, before which nothing
/// was computed.
const FIRST_ROOM: Duration = Duration::from_secs(6);
/// The same by a later call, which would lose what came before it.
const ROOM: Duration = Duration::from_secs(120);
/// The wait before the next try where the service tells none, and the least.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// What each call needs. The service has answered before there is a caller: when it is away later, it is waited for.
pub struct Caller {
    service: Service,
    embedder: EmbedderProxy<'static>,
    options: Options,
    /// Texts whose vectors fit a reply.
    inline_texts_max: usize,
    /// Whether the service is known to have no calls by file descriptors, or no way for these.
    inline_alone: AtomicBool,
    /// Whether a call had to wait for room, or for a service that ends or is away.
    is_full: AtomicBool,
    /// Whose turn it is then, in the order of the calls: else later ones would take the room that earlier ones come back
    /// for.
    turn: Mutex<()>,
}

impl Caller {
    /// A caller of a service that has answered something; the vectors of so many texts fit a reply.
    ///
    /// # Errors
    /// Exit code 3 when the bus goes away.
    pub async fn new(
        service: Service,
        options: Options,
        inline_texts_max: usize,
    ) -> Result<Self, Failure> {
        let embedder = service.embedder().await?;
        let (inline_alone, is_full) = (AtomicBool::new(false), AtomicBool::new(false));
        let turn = Mutex::new(());
        Ok(Self { service, embedder, options, inline_texts_max, inline_alone, is_full, turn })
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
        // None goes before a call that waits.
        let in_replies =
            self.inline_alone.load(Ordering::Relaxed) || self.is_full.load(Ordering::Relaxed);
        let mut is_again = false;
        if texts.len() > self.inline_texts_max && !in_replies {
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
                    is_again = is_lost(&error);
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
        self.parts((first, is_again), texts, name).await
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
    /// the service finds them too large together. `is_again` is whether the service has crashed at them before.
    async fn parts(
        &self,
        (first, is_again): (u64, bool),
        mut texts: Vec<String>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Result<Vec<Reply>, Failure> {
        let (mut parts, mut done, mut texts_max) = (Vec::new(), 0, self.inline_texts_max);
        while !texts.is_empty() || parts.is_empty() {
            let count = texts_max.min(texts.len());
            let number = first + done;
            match self.packed((number, is_again), &texts[..count]).await? {
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
        (first, mut is_again): (u64, bool),
        texts: &[String],
    ) -> Result<Result<bulk::Reply, zbus::Error>, Failure> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let deadline = self.options.deadline().filter(|_| first == 0);
        let mut room = match (first, deadline) {
            (0, deadline) => deadline.unwrap_or(FIRST_ROOM).min(FIRST_ROOM),
            _ => self.options.limit().unwrap_or(ROOM),
        };
        let (mut turn, mut waited) = (None, false);
        loop {
            if turn.is_none() && self.is_full.load(Ordering::Relaxed) {
                turn = Some(self.turn.lock().await);
            }
            let answer = self.answer(self.embed(&texts)).await?;
            let error = answer.as_ref().err();
            // What takes the service down with it each time would do so until nobody restarts it any more.
            let is_lost = error.is_some_and(is_lost);
            let is_in_vain = is_lost && is_again;
            is_again |= is_lost;
            let Some(pause) = error.and_then(pause_of).filter(|_| !is_in_vain) else {
                if turn.is_some() && !waited {
                    // There is room for more again.
                    self.is_full.store(false, Ordering::Relaxed);
                }
                return Ok(answer);
            };
            self.is_full.store(true, Ordering::Relaxed);
            // What comes after its deadline is of no use, and nothing is lost without it.
            let is_late = deadline.is_some_and(|deadline| deadline < FIRST_ROOM) && pause > room;
            if room.is_zero() || is_late {
                return Ok(answer);
            }
            if turn.is_none() {
                // Its own earlier calls are what it waits for, however long they take.
                continue;
            }
            let pause = pause.min(room);
            waited = true;
            room -= pause;
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
fn is_lost(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::FDO(error) if matches!(**error, fdo::Error::NoReply(_)))
}

/// How long until a service that takes no call for now is to be asked again, by its own sentence where it is full;
/// nothing where that is not why. One that is restarted ends first, is away then, and loads its model.
fn pause_of(error: &zbus::Error) -> Option<Duration> {
    use ErrorName::{NotReady, Overloaded, QuotaExceeded, ShuttingDown};
    if is_lost(error) || absence(error).is_some() {
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
