//! Who calls for vectors: by file descriptors or in replies, in smaller calls where one is too large, and
//! with the wait while the service is full, or ends and comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use op_dbus_api::{EmbedderProxy, Error, ErrorName, is_about_text, retry_after};
use tokio::sync::Mutex;
use zbus::DynamicTuple;
use zbus::proxy::MethodFlags;

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

/// What each call needs.
pub struct Caller {
    service: Service,
    embedder: EmbedderProxy<'static>,
    options: Options,
    /// Texts whose vectors fit a reply.
    inline_texts_max: usize,
    /// Whether the service is known to have no calls by file descriptors, or no way for these.
    inline_alone: AtomicBool,
    /// Whether a call had to wait for room, or for a service that ends.
    is_full: AtomicBool,
    /// Whose turn it is then, in the order of the calls: else later ones would take the room that earlier ones come back
    /// for.
    turn: Mutex<()>,
}

impl Caller {
    /// A caller that has not called yet; the vectors of so many texts fit a reply.
    ///
    /// # Errors
    /// Exit code 3 when the service is not there.
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
        if texts.len() > self.inline_texts_max && !in_replies {
            match bulk::embed(&self.embedder, &texts, self.options.to_dict()).await {
                Ok((bytes, shape, info)) => {
                    let vectors = (bytes, self.options.encoding);
                    return Ok(vec![Reply::new((first, texts), vectors, shape, info)?]);
                }
                // It is not to be started by what is asked again.
                Err(bulk::Error::Call(error)) if is(&error, ErrorName::ShuttingDown) => {
                    self.is_full.store(true, Ordering::Relaxed);
                }
                // Others of this user may have all streams: there is still the queue. And a provider
                // that has failed is replaced in the midst of these calls alone.
                Err(bulk::Error::Call(error))
                    if pause_of(&error).is_some() || is(&error, ErrorName::WorkerFailed) => {}
                Err(bulk::Error::Call(error)) if is_unknown(&error) => {
                    self.inline_alone.store(true, Ordering::Relaxed);
                }
                Err(bulk::Error::Call(error)) => {
                    return Err(self.service.failure(&error).about_texts(first, name));
                }
                Err(bulk::Error::Memfd(error)) => {
                    return Err(Failure::refused(format!("a memfd can't be used ({error})")));
                }
            }
        }
        self.parts(first, texts, name).await
    }

    /// The vectors of texts that are few, in one reply. What is refused of one of them says what `name` has it
    /// called by its number in `texts`.
    pub async fn call_packed(
        &self,
        first: u64,
        texts: Vec<String>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Result<Reply, Failure> {
        let mut parts = self.parts(first, texts, name).await?.into_iter();
        let Some(mut whole) = parts.next() else {
            return Err(Failure::refused("the service was asked for nothing"));
        };
        for part in parts {
            whole.add(part)?;
        }
        Ok(whole)
    }

    /// The same in the replies that they came in: of as many texts as these have room for, and of fewer where
    /// the service finds them too large together.
    async fn parts(
        &self,
        first: u64,
        mut texts: Vec<String>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Result<Vec<Reply>, Failure> {
        let (mut parts, mut done, mut texts_max) = (Vec::new(), 0, self.inline_texts_max);
        while !texts.is_empty() || parts.is_empty() {
            let count = texts_max.min(texts.len());
            let number = first + done;
            match self.packed(number, &texts[..count]).await? {
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
        first: u64,
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
            let answer = self.answer(self.embed(&texts, turn.is_none())).await?;
            let error = answer.as_ref().err();
            let is_away = turn.is_some() && error.is_some_and(|error| absence(error).is_some());
            let pause = if is_away { Some(PAUSE) } else { error.and_then(pause_of) };
            let Some(pause) = pause else {
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

    /// One try. What waits does not start a service that is away: who restarts it does, and who has stopped it does not
    /// want that.
    async fn embed(&self, texts: &[&str], may_start: bool) -> Result<bulk::Reply, zbus::Error> {
        let options = self.options.to_dict();
        let (bytes, rows, dimensions, info) = match may_start {
            true => self.embedder.embed_packed(texts, options).await?,
            false => {
                let arguments = DynamicTuple((texts, options));
                let flags = MethodFlags::NO_AUTO_START;
                let call = self.embedder.inner().call_with_flags("EmbedPacked", flags, &arguments);
                call.await?.ok_or(zbus::Error::InvalidReply)?
            }
        };
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

/// How long until a service that takes no call for now is to be asked again, by its own sentence where it is full;
/// nothing where that is not why. One that is restarted ends first, and loads its model then.
fn pause_of(error: &zbus::Error) -> Option<Duration> {
    use ErrorName::{NotReady, Overloaded, QuotaExceeded, ShuttingDown};
    let refusal = Error::from_reply(error)?;
    let passes = matches!(refusal.name(), Overloaded | QuotaExceeded | ShuttingDown | NotReady);
    passes.then(|| retry_after(refusal.message()).unwrap_or(PAUSE).max(PAUSE_MIN))
}

/// The service is older than the method, or the bus carries no file descriptors.
fn is_unknown(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::FDO(error) => matches!(**error, zbus::fdo::Error::UnknownMethod(_)),
        zbus::Error::Unsupported => true,
        _ => false,
    }
}
