//! A client that sends calls without waiting for replies, on a connection of any user.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream, Variant};

use crate::harness::client::call;
use crate::harness::files::numbers;
use crate::harness::{Outcome, within};

/// A connection, and the calls on it that wait for a reply.
pub struct Pipeline {
    connection: Connection,
    messages: MessageStream,
    waiting: HashMap<NonZeroU32, (usize, Instant)>,
}

/// What became of one call.
pub struct Answer {
    /// The number that the call was sent with.
    pub number: usize,
    pub took: Duration,
    pub reply: Reply,
}

/// The reply itself.
pub enum Reply {
    /// The bytes of the vectors.
    Vectors(Vec<u8>),
    /// Name and sentence.
    Refused(String, String),
}

/// A call of `EmbedPacked` without options but this one, if there is one.
pub fn embed_packed(texts: &[&str], option: Option<(&str, &str)>) -> zbus::Result<Message> {
    let options: HashMap<&str, Variant<'_>> =
        option.into_iter().map(|(key, value)| (key, value.into())).collect();
    call("EmbedPacked").build(&(texts, options))
}

impl Pipeline {
    /// A pipeline on a connection.
    pub fn new(connection: Connection) -> Self {
        let messages = MessageStream::from(&connection);
        Self { connection, messages, waiting: HashMap::new() }
    }

    /// Calls that wait for a reply.
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a call; `number` comes back with its answer.
    pub async fn send(&mut self, number: usize, message: &Message) -> Outcome {
        let serial = message.primary_header().serial_num();
        self.connection.send(message).await?;
        self.waiting.insert(serial, (number, Instant::now()));
        Ok(())
    }

    /// Waits for the next answer; `None` for a reply that nothing asked for. A vector with a value that is no
    /// finite number is an error.
    pub async fn answer(&mut self) -> Outcome<Option<Answer>> {
        loop {
            let message = within("a reply", self.messages.next()).await?;
            let message = message.ok_or("the connection has ended")??;
            let kind = message.message_type();
            if !matches!(kind, Type::MethodReturn | Type::Error) {
                continue;
            }
            let header = message.header();
            let asked = header.reply_serial().and_then(|serial| self.waiting.remove(&serial));
            let Some((number, sent)) = asked else { return Ok(None) };
            let reply = if kind == Type::MethodReturn {
                let body = message.body();
                let (bytes, _, _, _): (Vec<u8>, u32, u32, HashMap<String, Variant<'_>>) =
                    body.deserialize()?;
                if !numbers(&bytes).iter().all(|value| value.is_finite()) {
                    return Err(format!("call {number} has a value that is not finite").into());
                }
                Reply::Vectors(bytes)
            } else {
                let name = header.error_name().map(ToString::to_string).unwrap_or_default();
                Reply::Refused(name, message.body().deserialize().unwrap_or_default())
            };
            return Ok(Some(Answer { number, took: sent.elapsed(), reply }));
        }
    }

    /// Leaves the bus.
    pub async fn close(self) -> Outcome {
        Ok(self.connection.close().await?)
    }
}
