//! Who calls: the user behind a connection, told by the bus and never by an argument, and the calls
//! that end when their caller leaves.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use op_dbus_api::{Error, ErrorName};
use op_dbus_engine::CancellationToken;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use zbus::message::{Header, Type};
use zbus::{Connection, MatchRule, MessageStream};

use super::direct::Gate;
use super::question;
use super::unread::Unread;
use crate::telemetry::OncePerUserAndMinute;

/// The bus itself, as a name and as an interface.
pub const BUS: &str = "org.freedesktop.DBus";

/// Users are remembered for this many connections; a bus allows a user a few hundred. When it is
/// full it starts anew, which costs each caller one more question to the bus.
const USERS_MAX: usize = 4096;
/// A connection keeps room for so many calls while it has none.
const CALLS_KEPT: usize = 4;

/// How often the bus is asked, and how long it has for its answer each time.
const PATIENCE: (u32, Duration) = (5, Duration::from_secs(2));
/// After an answer was missed, what was dropped with it is looked for so much later: more may be dropped meanwhile.
const LOOK_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked for in any case.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Everyone who has called on one connection.
#[derive(Default)]
pub struct Callers {
    known: Mutex<Known>,
    /// Whose all calls are, where nobody else can call, whatever their messages say.
    only: Option<Only>,
    /// Refusals for quota.
    pub quota_told: OncePerUserAndMinute,
    unread: Unread,
    /// The bus has not answered in time.
    missed: Notify,
}

/// Whose a direct connection is, and what the calls under way on it hold.
struct Only {
    sender: Arc<str>,
    uid: u32,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Known {
    /// Those that have calls under way, or whose user is known.
    peers: HashMap<Arc<str>, Peer>,
    next: u64,
    /// Nobody calls any more; what still comes is cancelled.
    ended: bool,
}

/// One connection.
struct Peer {
    name: Arc<str>,
    /// Its user, once the bus has told it.
    uid: Option<u32>,
    calls: HashMap<u64, CancellationToken>,
}

impl Known {
    /// Puts a call on the list. Tells the name that it stands under, and the user if that is known.
    fn add(&mut self, name: &str, call: (u64, CancellationToken)) -> (Arc<str>, Option<u32>) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.calls.extend([call]);
            return (peer.name.clone(), peer.uid);
        }
        let name: Arc<str> = name.into();
        let peer = Peer { name: name.clone(), uid: None, calls: HashMap::from([call]) };
        self.peers.insert(name.clone(), peer);
        (name, None)
    }

    /// Takes a call off the list.
    fn remove(&mut self, name: &str, number: u64) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.calls.remove(&number);
        if peer.calls.is_empty() {
            peer.calls.shrink_to(CALLS_KEPT);
            if peer.uid.is_none() {
                self.peers.remove(name);
            }
        }
    }

    /// Keeps the user of a connection, as long as this call of it is on the list.
    fn remember(&mut self, name: &str, number: u64, uid: u32) {
        let is_there = |peer: &Peer| peer.calls.contains_key(&number);
        if !self.peers.get(name).is_some_and(is_there) {
            return;
        }
        let users = self.peers.values().filter(|peer| peer.uid.is_some());
        if users.count() >= USERS_MAX {
            self.peers.retain(|_, peer| {
                peer.uid = None;
                !peer.calls.is_empty()
            });
        }
        if let Some(peer) = self.peers.get_mut(name) {
            peer.uid = Some(uid);
        }
    }

    /// Forgets a connection. Returns its calls.
    fn forget(&mut self, name: &str) -> HashMap<u64, CancellationToken> {
        self.peers.remove(name).map(|peer| peer.calls).unwrap_or_default()
    }
}

/// One call's caller. The call is forgotten when this is dropped.
pub struct Caller {
    /// The user, as the bus tells it.
    pub uid: u32,
    /// Cancelled when the caller leaves the bus.
    pub cancel: CancellationToken,
    /// The connection that the call came on.
    pub connection: Connection,
    /// Bytes of its message, which is there as long as the call.
    pub call_bytes: u64,
    /// The number of its message on that connection.
    serial: NonZeroU32,
    ticket: Ticket,
}

impl Caller {
    /// The connection's unique name; empty without a bus in between.
    pub fn sender(&self) -> &str {
        &self.ticket.sender
    }

    /// The same, for who keeps it.
    pub fn name(&self) -> &Arc<str> {
        &self.ticket.sender
    }

    /// What waits until it may have a reply of so many bytes on its direct connection, and holds that until it is
    /// sent; none on a bus, where it is the bus that holds it.
    pub fn room_on_line(&self, bytes: usize) -> Option<impl Future<Output = ()>> {
        let only = self.ticket.callers.only.as_ref()?;
        Some(only.gate.room_for_reply(self.serial, bytes))
    }

    /// What it and the others have not read.
    pub fn unread(&self) -> &Unread {
        &self.ticket.callers.unread
    }
}

/// Takes a call off the list.
struct Ticket {
    callers: Arc<Callers>,
    sender: Arc<str>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.callers.known.lock().remove(&self.sender, self.number);
    }
}

impl Callers {
    /// The calls on a connection that `caller` alone can use, as long as it is on the bus.
    pub fn of_one(caller: &Caller, gate: Arc<Gate>) -> Self {
        let (sender, uid) = (caller.name().clone(), caller.uid);
        // As one whose user is known it stays, and no call has to put it there anew.
        let peer = Peer { name: sender.clone(), uid: Some(uid), calls: HashMap::new() };
        let peers = HashMap::from([(sender.clone(), peer)]);
        let known = Mutex::new(Known { peers, ..Known::default() });
        let quota_told = caller.ticket.callers.quota_told.clone();
        Self { known, only: Some(Only { sender, uid, gate }), quota_told, ..Self::default() }
    }

    /// Registers a call and finds out whose it is. Only the first call of a connection has to ask
    /// the bus.
    ///
    /// # Errors
    /// `AccessDenied` when the bus does not tell the user; `Overloaded` when it does not answer.
    pub async fn enter(
        self: &Arc<Self>,
        connection: &Connection,
        header: &Header<'_>,
    ) -> Result<Caller, Error> {
        let call_bytes = u64::from(header.primary().body_len());
        let (connection, serial) = (connection.clone(), header.primary().serial_num());
        let only = self.only.as_ref();
        let sender = match only {
            Some(only) => &*only.sender,
            None => header.sender().map_or("", |sender| sender.as_str()),
        };
        let (ticket, cancel, known) = self.register(sender);
        let uid = match only.map(|only| only.uid).or(known) {
            Some(uid) => uid,
            None => {
                let uid = ask(&connection, &self.missed, &ticket.sender).await?;
                self.remember(&ticket, uid);
                uid
            }
        };
        Ok(Caller { uid, cancel, connection, call_bytes, serial, ticket })
    }

    /// Registered before the bus is asked: a caller that leaves meanwhile is not missed. Tells its user as well, if
    /// that is known.
    fn register(self: &Arc<Self>, sender: &str) -> (Ticket, CancellationToken, Option<u32>) {
        let cancel = CancellationToken::default();
        let mut known = self.known.lock();
        if known.ended {
            cancel.cancel();
        }
        let number = known.next;
        known.next = known.next.wrapping_add(1);
        let (sender, uid) = known.add(sender, (number, cancel.clone()));
        (Ticket { callers: self.clone(), sender, number }, cancel, uid)
    }

    /// Not of a caller that has left while the bus was asked: nobody would forget it.
    fn remember(&self, ticket: &Ticket, uid: u32) {
        self.known.lock().remember(&ticket.sender, ticket.number, uid);
    }

    /// Cancels the calls of a connection that has left the bus, and forgets its user.
    pub(super) fn left(&self, name: &str) {
        let calls = self.known.lock().forget(name);
        calls.into_values().for_each(|cancel| cancel.cancel());
        self.unread.left(name);
    }

    /// Who has called, to the best of our knowledge.
    fn names(&self) -> HashSet<Arc<str>> {
        self.known.lock().peers.keys().cloned().collect()
    }

    /// What is told when the bus has not answered in time.
    pub fn missed(&self) -> &Notify {
        &self.missed
    }

    /// Looks who is still there whenever an answer was missed, as that somebody left was not told then, either; and now
    /// and then, as nothing may have been asked just then.
    async fn look(&self, connection: &Connection, after: Duration) {
        loop {
            let _ = timeout(LOOK_EVERY, self.missed.notified()).await;
            sleep(after).await;
            // Before the bus is asked, which does not count those that come later. No name is given twice.
            let names = self.names();
            if names.is_empty() {
                continue;
            }
            let question = ("ListNames", &());
            let answer = question::ask(connection, &self.missed, question, PATIENCE).await;
            let Some(Ok(answer)) = answer else { continue };
            let body = answer.body();
            let Ok(there) = body.deserialize::<HashSet<&str>>() else { continue };
            let gone = names.iter().filter(|name| !there.contains(&***name));
            gone.for_each(|name| self.left(name));
        }
    }

    /// Cancels all calls, those that are not registered yet as well: the connection is over.
    pub fn end(&self) {
        let peers = {
            let mut known = self.known.lock();
            known.ended = true;
            mem::take(&mut known.peers)
        };
        let calls = peers.into_values().flat_map(|peer| peer.calls.into_values());
        calls.for_each(|cancel| cancel.cancel());
    }

    /// Subscribes to departures; the future that comes back watches them until the connection ends.
    ///
    /// # Errors
    /// When the bus refuses the subscription.
    pub async fn watch(
        self: &Arc<Self>,
        connection: &Connection,
    ) -> zbus::Result<impl Future<Output = ()> + Send + 'static + use<>> {
        let departures = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(BUS)
            .interface(BUS)
            .member("NameOwnerChanged")
            // The new owner is empty: somebody left.
            .arg(2, "")
            .build()?;
        let mut stream = MessageStream::for_match_rule(departures, connection, None).await?;
        let (callers, connection) = (self.clone(), connection.clone());
        Ok(async move {
            let told = async {
                while let Some(Ok(message)) = stream.next().await {
                    if let Ok((name, _, _)) = message.body().deserialize::<(&str, &str, &str)>() {
                        callers.left(name);
                    }
                }
            };
            tokio::select! {
                () = told => {}
                () = callers.look(&connection, LOOK_AFTER) => {}
            }
        })
    }

    /// Whether no call is on the list.
    #[cfg(test)]
    pub fn idle(&self) -> bool {
        self.known.lock().peers.values().all(|peer| peer.calls.is_empty())
    }
}

/// The user behind a connection, as the bus or, without one, the socket tells it.
async fn ask(connection: &Connection, missed: &Notify, sender: &str) -> Result<u32, Error> {
    let denied = |error: zbus::Error| {
        let message = format!("the bus does not tell which user {sender} is ({error})");
        Error::new(ErrorName::AccessDenied, message)
    };
    if !connection.is_bus() {
        let peer = connection.peer_creds().await.map_err(|error| denied(error.into()))?;
        return peer.unix_user_id().ok_or_else(|| denied(zbus::Error::MissingField));
    }
    let question = ("GetConnectionUnixUser", &sender);
    let Some(reply) = question::ask(connection, missed, question, PATIENCE).await else {
        let message =
            format!("the bus has not answered in 10 s which user {sender} is; try again in 30 s");
        return Err(Error::new(ErrorName::Overloaded, message));
    };
    reply.and_then(|reply| reply.body().deserialize()).map_err(denied)
}

#[cfg(test)]
mod tests;
