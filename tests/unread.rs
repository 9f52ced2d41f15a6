//! Clients that leave their replies in the bus.

use std::collections::HashSet;
use std::io::Write;
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use op_dbus_api::{BUS_NAME, ROOT_PATH};
use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, call, value};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::registry::tests;
use crate::harness::users::{MEMBER, Users};
use crate::harness::{Outcome, eventually, within};

tests! {
    who_reads_no_large_replies_waits_alone: [Bus],
    who_takes_no_descriptors_waits_alone: [Bus],
    what_others_send_to_a_caller_is_not_the_services: [Bus, Root],
    work_that_takes_long_needs_no_room: [Bus],
    a_bus_that_does_not_tell_is_no_hindrance: [Bus],
    what_waits_to_be_refused_has_a_bound: [Bus],
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
        Ok(Self::of(Builder::address(bus.address()).max_queued(one).build().await?))
    }

    fn of(connection: Connection) -> Self {
        // What it holds and does not read holds all up that follows.
        let replies = MessageStream::from(&connection);
        Self { connection, replies, waiting: HashSet::new() }
    }

    /// Sends a call of `EmbedPacked`.
    async fn send(&mut self, texts: usize) -> Outcome {
        self.send_to("EmbedPacked", texts).await
    }

    async fn send_to(&mut self, method: &'static str, texts: usize) -> Outcome {
        let call = call(method).build(&(vec!["x"; texts], Options::new()))?;
        self.waiting.insert(call.primary_header().serial_num());
        Ok(self.connection.send(&call).await?)
    }

    /// Reads until each call has its reply; how many were refused.
    async fn wake(&mut self) -> Outcome<usize> {
        let mut refused = 0;
        while !self.waiting.is_empty() {
            let message = within("a reply", self.replies.next()).await?.ok_or("the end")??;
            let header = message.header();
            if header.reply_serial().is_some_and(|serial| self.waiting.remove(&serial)) {
                let is_reply = message.message_type() == Type::MethodReturn;
                let error = header.error_name().map(ToString::to_string).unwrap_or_default();
                assert!(is_reply || error.ends_with(".Overloaded"), "{message}");
                refused += usize::from(!is_reply);
            }
        }
        Ok(refused)
    }
}

/// Where nothing but the account of the service holds a client back.
fn roomy() -> Outcome<Setup> {
    let setup = Setup::sim()?.setting("quota_tokens", "1000000");
    Ok(setup.setting("queue_tokens_max", "2000000"))
}

/// Replies of 180 MB together, where dbus-daemon keeps 127 MiB for the service.
async fn who_reads_no_large_replies_waits_alone() -> Outcome {
    let (bus, _setup, daemon) = roomy()?.alone().await?;
    let mut sleeper = Sleeper::on(&bus).await?;
    for _ in 0..CALLS {
        sleeper.send(TEXTS).await?;
    }
    daemon.process.says("does not read").await?;
    beside(&daemon).await?;
    // Another connection of the same user has room of its own.
    let mut other = Sleeper::on(&bus).await?;
    other.send(TEXTS).await?;
    assert_eq!(other.wake().await?, 0);
    // What waited is there, and what had no place to wait was refused.
    let refused = sleeper.wake().await?;
    assert!((20..CALLS - 40).contains(&refused), "{refused}");
    sleeper.send(TEXTS).await?;
    assert_eq!(sleeper.wake().await?, 0);
    beside(&daemon).await?;
    assert!(!daemon.process.stderr().contains("takes no replies"), "{}", daemon.process.stderr());
    daemon.stop().await
}

/// Small replies, with a descriptor each: dbus-daemon keeps 64 of these for the service.
async fn who_takes_no_descriptors_waits_alone() -> Outcome {
    let (bus, _setup, mut daemon) = roomy()?.alone().await?;
    let mut sleeper = Sleeper::on(&bus).await?;
    let name = sleeper.connection.unique_name().ok_or("it has no name")?.to_string();
    // Those that its own socket holds do not lie in the bus.
    let held_back = async {
        while descriptors(&bus, &name).await? < 10 {
            sleeper.send_to("EmbedToFd", 1).await?;
            daemon.client().embedder.embed("x").await?;
        }
        Outcome::Ok(())
    };
    within("its replies to lie in the bus", held_back).await??;
    // More than the service's account has room for.
    for _ in 0..80 {
        sleeper.send_to("EmbedToFd", 1).await?;
    }
    daemon.process.says("does not read").await?;
    beside(&daemon).await?;
    assert!(descriptors(&bus, &name).await? < 16);
    // None of them was refused.
    assert_eq!(sleeper.wake().await?, 0);
    sleeper.send_to("EmbedToFd", 1).await?;
    assert_eq!(sleeper.wake().await?, 0);
    beside(&daemon).await?;
    assert!(!daemon.process.stderr().contains("takes no replies"), "{}", daemon.process.stderr());
    // A stop waits for it as well.
    let computed = daemon.client().counter("texts").await?;
    for _ in 0..80 {
        sleeper.send_to("EmbedToFd", 1).await?;
    }
    daemon.client().counted("texts", computed + 80).await?;
    daemon.process.signal(Signal::SIGTERM)?;
    daemon.process.says("the calls in flight are finished first").await?;
    assert_eq!(sleeper.wake().await?, 0);
    assert!(daemon.process.ended().await?.success());
    Ok(())
}

/// How many file descriptors the bus keeps for a connection.
async fn descriptors(bus: &PrivateBus, name: &str) -> Outcome<u32> {
    let asker = bus.connect().await?;
    let (path, interface) = ("/org/freedesktop/DBus", "org.freedesktop.DBus.Debug.Stats");
    let to = Some("org.freedesktop.DBus");
    let reply = asker.call_method(to, path, Some(interface), "GetConnectionStats", &name).await?;
    value(&reply.body().deserialize()?, "OutgoingFDs")
}

/// The bus tells what lies there from anybody.
async fn what_others_send_to_a_caller_is_not_the_services() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = roomy()?;
    let daemon = setup.ready(&bus).await?;
    let mut sleeper = Sleeper::of(bus.connect_as(MEMBER.id).await?);
    let name = sleeper.connection.unique_name().ok_or("it has no name")?.to_string();
    let flood = bus.connect_as(MEMBER.id).await?;
    let body = "x".repeat(1 << 20);
    // It reads 64 of them.
    for _ in 0..162 {
        let (path, interface) = ("/", "org.example.Flood");
        let signal = Message::signal(path, interface, "Much").destination(&*name);
        flood.send(&signal.build(&body)?).await?;
    }
    // So many that it is asked what lies there.
    for _ in 0..40 {
        sleeper.send(TEXTS).await?;
    }
    daemon.process.says("does not read").await?;
    beside(&daemon).await?;
    // A stop would wait for it to read.
    drop(sleeper);
    daemon.stop().await
}

/// Replies of 48 MiB and more to two connections that read, all of whose calls are there before the worker, which
/// stands still, computes the first.
async fn work_that_takes_long_needs_no_room() -> Outcome {
    let (bus, _setup, daemon) = roomy()?.alone().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let mut clients = [Sleeper::on(&bus).await?, Sleeper::on(&bus).await?];
    for client in &mut clients {
        for _ in 0..18 {
            client.send(TEXTS).await?;
        }
    }
    daemon.client().counted("in_flight_calls", 36).await?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    let [first, second] = &mut clients;
    let refused = tokio::try_join!(first.wake(), second.wake())?;
    assert_eq!(refused, (0, 0));
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
    let setup = roomy()?;
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
    assert_eq!(sleeper.wake().await?, 0);
    daemon.stop().await
}

/// Has so much lie in the bus that it takes nothing more from the service, as long as what is returned is there: two that
/// ask for what nothing holds back, and read nothing. For one alone the bus keeps no more than it keeps of the service.
pub async fn fill_up(bus: &PrivateBus, daemon: &Daemon) -> Outcome<[UnixStream; 2]> {
    let mut deaf = [bus.connect_bare()?, bus.connect_bare()?];
    let beside = bus.connect().await?;
    let interface = "org.freedesktop.DBus.Introspectable";
    eventually("a bus that takes nothing", async || {
        for _ in 0..32 {
            for stream in &mut deaf {
                let ask = Message::method_call(ROOT_PATH, "Introspect").destination(BUS_NAME);
                let ask = ask.interface(interface).build(&())?;
                stream.write_all(ask.data())?;
            }
        }
        // The bus refuses what is more than 128 calls ahead of a service that is slow, in words of its own, which would
        // take the room of the replies.
        let answered =
            beside.call_method(Some(BUS_NAME), ROOT_PATH, Some(interface), "Introspect", &());
        timeout(Duration::from_secs(1), answered).await.ok();
        Ok(daemon.process.stderr().contains("the bus takes no replies from the service"))
    })
    .await?;
    Ok(deaf)
}

/// While nothing leaves, calls that are refused are held whole.
async fn what_waits_to_be_refused_has_a_bound() -> Outcome {
    // A busy machine may pass them on so slowly that the service gives the bus up before, and not five times.
    for _ in 0..5 {
        if is_ended_by_what_it_refuses().await? {
            return Ok(());
        }
    }
    Err("it was ended by something else each time".into())
}

/// Whether calls that wait for their refusals to leave end a service, and not the time in which nothing left.
async fn is_ended_by_what_it_refuses() -> Outcome<bool> {
    let (bus, _setup, mut daemon) = Setup::sim()?.alone().await?;
    let long = "a".repeat(30 << 20);
    let _deaf = fill_up(&bus, &daemon).await?;
    let mut refused = bus.connect_bare()?;
    for _ in 0..24 {
        refused.write_all(call("Embed").build(&long)?.data())?;
    }
    assert_eq!(daemon.process.ended().await?.code(), Some(1));
    let said = daemon.process.stderr();
    Ok(said.contains("bytes of calls wait here for their refusals to leave"))
}
