//! What is asked over the bus, and asked again. While it keeps more for a connection than it may, dbus-daemon drops
//! what else it has for it, its own answers and signals included, and tells nobody.

use std::iter::repeat_n;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::timeout;
use zbus::{Connection, DynamicType, Message};

use super::caller::BUS;

/// Asks the bus itself, as [`again`] does; any answer will do, also a refusal. `missed` is told of what did not come in
/// time.
pub async fn ask<B: Serialize + DynamicType>(
    connection: &Connection,
    missed: &Notify,
    (method, argument): (&'static str, &B),
    (times, patience): (u32, Duration),
) -> Option<zbus::Result<Message>> {
    let path = "/org/freedesktop/DBus";
    let question = || connection.call_method(Some(BUS), path, Some(BUS), method, argument);
    again(question, || missed.notify_one(), repeat_n(patience, times as usize)).await
}

/// Asks as often as there is `patience`, each time for so long, or until one of the questions is answered. `None` where
/// none was; `missed` is called for each time.
pub(crate) async fn again<F: Future>(
    question: impl Fn() -> F,
    missed: impl Fn(),
    patience: impl IntoIterator<Item = Duration>,
) -> Option<F::Output> {
    // The earlier ones may only be late.
    let mut asked = FuturesUnordered::new();
    for patience in patience {
        asked.push(question());
        if let Ok(answer) = timeout(patience, asked.next()).await {
            return answer;
        }
        missed();
    }
    None
}

#[cfg(test)]
mod tests {
    use zbus::MessageStream;

    use super::super::tests::peers;
    use super::*;

    const HASTY: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn an_answer_that_was_dropped_is_asked_for_again() {
        let (server, bus) = peers().await;
        let mut asked = MessageStream::from(&bus);
        let missed = Notify::new();
        let answers = async {
            let _dropped = asked.next().await;
            let question = asked.next().await.unwrap().unwrap();
            bus.reply(&question.header(), &"id").await.unwrap();
        };
        let answer = ask(&server, &missed, ("GetId", &()), (u32::MAX, HASTY));
        let (answer, ()) = tokio::join!(answer, answers);
        assert_eq!(answer.unwrap().unwrap().body().deserialize::<&str>().unwrap(), "id");
        missed.notified().await;
    }

    #[tokio::test]
    async fn a_bus_that_never_answers_is_not_waited_for() {
        let (server, _silent) = peers().await;
        assert!(ask(&server, &Notify::new(), ("GetId", &()), (3, HASTY)).await.is_none());
    }
}
