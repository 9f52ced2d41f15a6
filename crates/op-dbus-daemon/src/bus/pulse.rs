//! Whether the bus still takes what we send, and answers. What a client does not read lies in the bus, on our account;
//! when that is full dbus-daemon takes nothing more from us, for whomever it is, and no reply leaves any more.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::warn;
use zbus::Connection;

use super::question;

/// It is felt as often, and asked again where no answer has come: one may have been dropped.
const BEAT: Duration = Duration::from_secs(1);
/// A bus under load answers within so many.
const FEW: u32 = 5;
/// As many more are waited for, until it is seen whether the bus lets others in.
const MANY: u32 = 20;

/// The pulse of the connection to the bus, which is felt with calls, and now and then without.
#[derive(Debug)]
pub struct Pulse {
    called: Notify,
    stands: AtomicBool,
    beat: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { called: Notify::new(), stands: AtomicBool::new(false), beat: BEAT }
    }
}

impl Pulse {
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
    /// no reply would ever leave, where a new connection has an account of its own.
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
    use futures_util::StreamExt;
    use zbus::MessageStream;

    use super::super::tests::peers;
    use super::*;

    fn hasty() -> Pulse {
        Pulse { beat: Duration::from_millis(10), ..Pulse::default() }
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
