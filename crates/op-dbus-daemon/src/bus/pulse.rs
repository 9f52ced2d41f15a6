//! Whether the bus still takes what we send, and answers. What a client does not read lies in the bus, on our account;
//! when that is full dbus-daemon takes nothing more from us, for whomever it is, and no reply leaves any more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::warn;
use zbus::message::Header;
use zbus::names::ErrorName as WireName;
use zbus::{Connection, DBusError, Message};

use super::question;

/// It is felt as often, and asked again where no answer has come: one may have been dropped.
const BEAT: Duration = Duration::from_secs(1);
/// A bus under load answers within so many.
const FEW: u32 = 5;
/// As many more are waited for, until it is seen whether the bus lets others in.
const MANY: u32 = 20;
/// Bytes of calls whose refusals have not left: an eighth of its memory where the service has less than eight times as
/// much.
const REFUSED_BYTES_MAX: u64 = 256 << 20;

/// The pulse of the connection to the bus, which is felt with calls, and now and then without.
#[derive(Debug)]
pub struct Pulse {
    called: Notify,
    stands: AtomicBool,
    beat: Duration,
    /// Bytes of calls whose refusals have not left.
    refused: AtomicU64,
    refused_max: u64,
    full: Notify,
}

/// Why a call is refused, on its way to the caller: until it has left, the message of the call is there.
#[derive(Debug)]
pub struct Refusal {
    /// What the caller is told.
    pub error: Error,
    pulse: Arc<Pulse>,
    bytes: u64,
}

impl DBusError for Refusal {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        self.error.create_reply(call)
    }

    fn name(&self) -> WireName<'_> {
        DBusError::name(&self.error)
    }

    fn description(&self) -> Option<&str> {
        self.error.description()
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        self.pulse.refused.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Pulse {
    /// That of a service that may have `memory` bytes.
    pub fn of(memory: Option<u64>) -> Self {
        Self {
            called: Notify::new(),
            stands: AtomicBool::new(false),
            beat: BEAT,
            refused: AtomicU64::new(0),
            refused_max: REFUSED_BYTES_MAX.min(memory.unwrap_or(u64::MAX) / 8),
            full: Notify::new(),
        }
    }

    /// A call of so many bytes is refused. They are counted as long as the refusal is there.
    pub fn refuse(self: &Arc<Self>, error: Error, bytes: u64) -> Refusal {
        self.refused.fetch_add(bytes, Ordering::Relaxed);
        if self.is_full() {
            self.full.notify_one();
        }
        Refusal { error, pulse: self.clone(), bytes }
    }

    fn is_full(&self) -> bool {
        self.refused.load(Ordering::Relaxed) > self.refused_max
    }

    /// A call has come.
    ///
    /// # Errors
    /// `Overloaded` while nothing leaves: what is made for callers meanwhile would be held here, and has no bound.
    pub fn feel(&self) -> Result<(), Error> {
        if self.stands.load(Ordering::Relaxed) {
            let message = "the bus takes no replies from the service at present, or drops its answers to it, as \
                           when clients do not read theirs or send much at once; try again in 30 s";
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        self.called.notify_one();
        Ok(())
    }

    /// Returns once the bus answers nothing on this connection, however often it is asked, while it lets others in:
    /// no reply would ever leave, where a new connection has an account of its own. Or sooner, while too much waits
    /// here to be refused: nothing else bounds it.
    pub async fn lost<F: Future<Output = bool>>(
        &self,
        connection: &Connection,
        missed: &Notify,
        lets_in: impl Fn() -> F,
    ) {
        // Refused or not: it came, and we were answered.
        let answers = async |beats| {
            question::ask(connection, missed, ("GetId", &()), (beats, self.beat)).await.is_some()
        };
        tokio::select! {
            () = self.overflows(&answers) => {}
            () = self.stands_still(&answers, lets_in) => {}
        }
    }

    async fn overflows(&self, answers: &impl AsyncFn(u32) -> bool) {
        loop {
            self.full.notified().await;
            // Where the bus only drops its answers refusals leave, and are not there any more after a beat.
            if self.is_full() && !answers(1).await && self.is_full() {
                let bytes = self.refused.load(Ordering::Relaxed);
                warn!("{bytes} bytes of calls wait here for their refusals to leave");
                return;
            }
        }
    }

    async fn stands_still<F: Future<Output = bool>>(
        &self,
        answers: &impl AsyncFn(u32) -> bool,
        lets_in: impl Fn() -> F,
    ) {
        loop {
            // What nobody here answers, as zbus does for objects that are not there, may have it stand still before
            // a call comes through.
            let _ = timeout(self.beat * MANY, self.called.notified()).await;
            if !answers(FEW).await {
                warn!(
                    "the bus takes no replies from the service, or drops its answers to it: clients may not read \
                     theirs, or send much at once"
                );
                self.stands.store(true, Ordering::Relaxed);
                while !answers(MANY).await {
                    if lets_in().await && !answers(FEW).await {
                        return;
                    }
                }
                self.stands.store(false, Ordering::Relaxed);
            }
            sleep(self.beat).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt, StreamExt};
    use zbus::MessageStream;

    use super::super::tests::{fill, peers, slow_peer};
    use super::*;

    fn hasty() -> Arc<Pulse> {
        Arc::new(Pulse { beat: Duration::from_millis(10), ..Pulse::of(Some(8000)) })
    }

    fn error() -> Error {
        Error::new(ErrorName::Failed, "for a test")
    }

    #[tokio::test]
    async fn what_waits_to_be_refused_has_a_bound() {
        let (server, _silent) = peers().await;
        let pulse = hasty();
        drop(pulse.refuse(error(), 1000));
        let _waits = pulse.refuse(error(), 1000);
        assert!(pulse.full.notified().now_or_never().is_none());
        let _too_much = pulse.refuse(error(), 1);
        pulse.lost(&server, &Notify::new(), async || false).await;
        assert!(pulse.feel().is_ok(), "it is no matter of time");
    }

    #[tokio::test]
    async fn a_refusal_counts_until_it_is_sent() {
        let (server, mut unread) = slow_peer().await;
        let call = Message::method_call("/", "Embed").build(&()).unwrap();
        fill(&server).await;
        let pulse = hasty();
        let header = call.header();
        let mut refusal = pin!(server.reply_dbus_error(&header, pulse.refuse(error(), 7)));
        assert!(refusal.as_mut().now_or_never().is_none());
        assert_eq!(pulse.refused.load(Ordering::Relaxed), 7);
        let reads = async { while unread.next().await.is_some() {} };
        tokio::select! {
            sent = refusal => sent.unwrap(),
            () = reads => panic!("the end"),
        }
        assert_eq!(pulse.refused.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_that_alone_stands_still_is_lost() {
        let (server, _silent) = peers().await;
        let pulse = hasty();
        pulse.feel().unwrap();
        pulse.lost(&server, &Notify::new(), async || true).await;
        assert_eq!(pulse.feel().unwrap_err().name(), ErrorName::Overloaded);
    }

    /// It may go on, and a new connection would be no better.
    #[tokio::test]
    async fn a_bus_that_lets_nobody_in_is_waited_for() {
        let (server, bus) = peers().await;
        let mut asked = MessageStream::from(&bus);
        let (pulse, missed, looked) = (hasty(), Notify::new(), Notify::new());
        pulse.feel().unwrap();
        let look = async || {
            looked.notify_one();
            false
        };
        let goes_on = async {
            looked.notified().await;
            assert!(pulse.feel().is_err());
            while pulse.feel().is_err() {
                answer(&bus, &mut asked).await;
            }
        };
        tokio::select! {
            () = pulse.lost(&server, &missed, look) => panic!("lost"),
            () = goes_on => {}
        }
    }

    /// The bus takes all that we send; it was only an answer of its own that it had no room for.
    #[tokio::test]
    async fn an_answer_that_was_dropped_is_no_end() {
        let (server, bus) = peers().await;
        let mut asked = MessageStream::from(&bus);
        let (pulse, missed) = (hasty(), Notify::new());
        pulse.feel().unwrap();
        let drops_one = async {
            let _dropped = asked.next().await;
            for _ in 0..3 {
                answer(&bus, &mut asked).await;
                let _ = pulse.feel();
            }
        };
        tokio::select! {
            () = pulse.lost(&server, &missed, async || true) => panic!("lost"),
            () = drops_one => {}
        }
        missed.notified().await;
    }

    async fn answer(bus: &Connection, asked: &mut MessageStream) {
        let question = asked.next().await.unwrap().unwrap();
        bus.reply(&question.header(), &"id").await.unwrap();
    }
}
