//! Whether the bus still takes what we send. What a client does not read lies in the bus, on our account; when
//! that is full dbus-daemon takes nothing more from us, for whomever it is, and no reply leaves any more.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::warn;
use zbus::Connection;

use super::caller::BUS;

/// A bus under load answers by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// As often is it waited for so long, until it is seen whether the bus lets others in.
const ROUNDS: u32 = 4;

/// The pulse of the connection to the bus, which is felt with calls, and now and then without.
#[derive(Debug)]
pub struct Pulse {
    called: Notify,
    stands: AtomicBool,
    patience: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { called: Notify::new(), stands: AtomicBool::new(false), patience: PATIENCE }
    }
}

impl Pulse {
    /// A call has come.
    ///
    /// # Errors
    /// `Overloaded` while nothing leaves: what is made for callers meanwhile would be held here, and has no bound.
    pub fn feel(&self) -> Result<(), Error> {
        if self.stands.load(Ordering::Relaxed) {
            let message = "the bus takes no replies from the service at present, as a client does not read its \
                           own; try again in 30 s";
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        self.called.notify_one();
        Ok(())
    }

    /// Returns once the bus takes nothing from this connection while it lets others in: no reply would ever
    /// leave, where a new connection has an account of its own.
    pub async fn lost<F: Future<Output = bool>>(
        &self,
        connection: &Connection,
        lets_in: impl Fn() -> F,
    ) {
        loop {
            // What nobody here answers, as zbus does for objects that are not there, may have it stand still before
            // a call comes through.
            let _ = timeout(self.patience * ROUNDS, self.called.notified()).await;
            // Refused or not: it came, and we were answered.
            let mut answer = pin!(connection.call_method(Some(BUS), "/", Some(BUS), "GetId", &()));
            if timeout(self.patience, &mut answer).await.is_err() {
                warn!("the bus takes no replies from the service: does a client not read its own?");
                self.stands.store(true, Ordering::Relaxed);
                while timeout(self.patience * ROUNDS, &mut answer).await.is_err() {
                    if !lets_in().await {
                        continue;
                    }
                    match timeout(self.patience, &mut answer).await {
                        Ok(_) => break,
                        Err(_) => return,
                    }
                }
                self.stands.store(false, Ordering::Relaxed);
            }
            sleep(self.patience / 5).await;
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
        Pulse { patience: Duration::from_millis(10), ..Pulse::default() }
    }

    #[tokio::test]
    async fn a_connection_that_alone_stands_still_is_lost() {
        let (server, _silent) = peers().await;
        let pulse = hasty();
        pulse.feel().unwrap();
        pulse.lost(&server, async || true).await;
        assert_eq!(pulse.feel().unwrap_err().name(), ErrorName::Overloaded);
    }

    /// It may go on, and a new connection would be no better.
    #[tokio::test]
    async fn a_bus_that_lets_nobody_in_is_waited_for() {
        let (server, bus) = peers().await;
        let mut asked = MessageStream::from(&bus);
        let pulse = hasty();
        pulse.feel().unwrap();
        let looked = Notify::new();
        let look = async || {
            looked.notify_one();
            false
        };
        let answers = async {
            looked.notified().await;
            assert!(pulse.feel().is_err());
            let question = asked.next().await.unwrap().unwrap();
            bus.reply(&question.header(), &"id").await.unwrap();
            while pulse.feel().is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = pulse.lost(&server, look) => panic!("lost"),
            () = answers => {}
        }
    }
}
