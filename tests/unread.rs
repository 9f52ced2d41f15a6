//! Clients that leave their replies in the bus.

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroUsize};

use futures_util::StreamExt;
use op_dbus_api::{BUS_NAME, EMBEDDER_INTERFACE, ROOT_PATH};
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

use crate::harness::bus::PrivateBus;
use crate::harness::client::Options;
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    who_reads_no_large_replies_waits_alone: [Bus],
    a_bus_that_does_not_tell_is_no_hindrance: [Bus],
}

/// As many as the bus lets wait on one connection, but a few.
const CALLS: usize = 120;
/// Texts of a call, whose reply has 1.5 MB.
const TEXTS: usize = 1000;

/// A client that reads when it is told to.
struct Sleeper {
    connection: Connection,
    replies: MessageStream,
    waiting: HashSet<NonZeroU32>,
}

impl Sleeper {
    async fn on(bus: &PrivateBus) -> Outcome<Self> {
        let one = NonZeroUsize::MIN;
        let connection = Builder::address(bus.address()).max_queued(one).build().await?;
        // What it holds and does not read holds all up that follows.
        let replies = MessageStream::from(&connection);
        Ok(Self { connection, replies, waiting: HashSet::new() })
    }

    /// Sends a call of `EmbedPacked`.
    async fn send(&mut self, texts: usize) -> Outcome {
        let call = Message::method_call(ROOT_PATH, "EmbedPacked").destination(BUS_NAME);
        let call = call.interface(EMBEDDER_INTERFACE);
        let call = call.build(&(vec!["x"; texts], Options::new()))?;
        self.waiting.insert(call.primary_header().serial_num());
        Ok(self.connection.send(&call).await?)
    }

    /// Reads until each call has its reply.
    async fn wake(&mut self) -> Outcome {
        while !self.waiting.is_empty() {
            let message = within("a reply", self.replies.next()).await?.ok_or("the end")??;
            let header = message.header();
            if header.reply_serial().is_some_and(|serial| self.waiting.remove(&serial)) {
                assert_eq!(message.message_type(), Type::MethodReturn, "{message}");
            }
        }
        Ok(())
    }
}

/// Replies of 180 MB together, where dbus-daemon keeps 127 MiB for the service.
async fn who_reads_no_large_replies_waits_alone() -> Outcome {
    let setup = Setup::sim()?.setting("quota_tokens", "1000000");
    let setup = setup.setting("queue_tokens_max", "2000000");
    let (bus, _setup, daemon) = setup.alone().await?;
    let mut sleeper = Sleeper::on(&bus).await?;
    for _ in 0..CALLS {
        sleeper.send(TEXTS).await?;
    }
    daemon.process.says("does not read").await?;
    beside(&daemon).await?;
    // Another connection of the same user has room of its own.
    let mut other = Sleeper::on(&bus).await?;
    other.send(TEXTS).await?;
    other.wake().await?;
    sleeper.wake().await?;
    beside(&daemon).await?;
    assert!(!daemon.process.stderr().contains("takes no replies"), "{}", daemon.process.stderr());
    daemon.stop().await
}

async fn beside(daemon: &Daemon) -> Outcome {
    for _ in 0..100 {
        within("a call beside it", daemon.client().embedder.embed("x")).await??;
    }
    Ok(())
}

/// Any other bus, and one whose policy was not installed.
async fn a_bus_that_does_not_tell_is_no_hindrance() -> Outcome {
    let setup = Setup::sim()?.setting("quota_tokens", "1000000");
    let setup = setup.setting("queue_tokens_max", "2000000");
    let policy = setup.path("policy.conf");
    let rule = r#"<deny send_interface="org.freedesktop.DBus.Debug.Stats"/>"#;
    let rule = format!(r#"<busconfig><policy context="mandatory">{rule}</policy></busconfig>"#);
    std::fs::write(&policy, rule)?;
    let bus = PrivateBus::start_with(&[&policy], |command| command).await?;
    let daemon = setup.ready(&bus).await?;
    let mut sleeper = Sleeper::on(&bus).await?;
    // More than a connection may have, and less than the bus keeps.
    for _ in 0..40 {
        sleeper.send(TEXTS).await?;
    }
    daemon.process.says("the bus does not tell what callers leave unread").await?;
    sleeper.wake().await?;
    daemon.stop().await
}
