//! Who calls: the user behind a connection, told by the bus and never by an argument, and the calls
//! that end when their caller leaves.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use op_dbus_api::{Error, ErrorName};
use op_dbus_engine::CancellationToken;
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
    sender: String,
    uid: u32,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Known {
    users: HashMap<String, u32>,
    calls: HashMap<String, HashMap<u64, CancellationToken>>,
    next: u64,
    /// Nobody calls any more; what still comes is cancelled.
    ended: bool,
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

    /// Waits until it may have a reply of so many bytes on its direct connection, and holds that until it is sent.
    /// Returns at once on a bus, where it is the bus that holds it.
    pub async fn room_on_line(&self, bytes: usize) {
        if let Some(only) = &self.ticket.callers.only {
            only.gate.room_for_reply(self.serial, bytes).await;
        }
    }

    /// What it and the others have not read.
    pub fn unread(&self) -> &Unread {
        &self.ticket.callers.unread
    }
}

/// Takes a call off the list.
struct Ticket {
    callers: Arc<Callers>,
    sender: String,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut known = self.callers.known();
        if let Some(calls) = known.calls.get_mut(&self.sender) {
            calls.remove(&self.number);
            if calls.is_empty() {
                known.calls.remove(&self.sender);
            }
        }
    }
}

impl Callers {
    /// The calls on a connection that `caller` alone can use, as long as it is on the bus.
    pub fn of_one(caller: &Caller, gate: Arc<Gate>) -> Self {
        let only = Some(Only { sender: caller.sender().to_owned(), uid: caller.uid, gate });
        let quota_told = caller.ticket.callers.quota_told.clone();
        Self { only, quota_told, ..Self::default() }
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
        if let Some(Only { sender, uid, .. }) = &self.only {
            let (ticket, cancel) = self.register(sender.clone());
            return Ok(Caller { uid: *uid, cancel, connection, call_bytes, serial, ticket });
        }
        let sender = header.sender().map(ToString::to_string).unwrap_or_default();
        let (ticket, cancel) = self.register(sender);
        let known = self.known().users.get(&ticket.sender).copied();
        let uid = match known {
            Some(uid) => uid,
            None => {
                let uid = ask(&connection, &self.missed, &ticket.sender).await?;
                self.remember(&ticket, uid);
                uid
            }
        };
        Ok(Caller { uid, cancel, connection, call_bytes, serial, ticket })
    }

    /// Registered before the bus is asked: a caller that leaves meanwhile is not missed.
    fn register(self: &Arc<Self>, sender: String) -> (Ticket, CancellationToken) {
        let cancel = CancellationToken::default();
        let mut known = self.known();
        if known.ended {
            cancel.cancel();
        }
        let number = known.next;
        known.next = known.next.wrapping_add(1);
        known.calls.entry(sender.clone()).or_default().insert(number, cancel.clone());
        (Ticket { callers: self.clone(), sender, number }, cancel)
    }

    /// Not of a caller that has left while the bus was asked: nobody would forget it.
    fn remember(&self, ticket: &Ticket, uid: u32) {
        let mut known = self.known();
        let calls = known.calls.get(&ticket.sender);
        if !calls.is_some_and(|calls| calls.contains_key(&ticket.number)) {
            return;
        }
        if known.users.len() >= USERS_MAX {
            known.users.clear();
        }
        known.users.insert(ticket.sender.clone(), uid);
    }

    /// Cancels the calls of a connection that has left the bus, and forgets its user.
    pub(super) fn left(&self, name: &str) {
        let (calls, _) = {
            let mut known = self.known();
            (known.calls.remove(name), known.users.remove(name))
        };
        for cancel in calls.into_iter().flatten().map(|(_, cancel)| cancel) {
            cancel.cancel();
        }
        self.unread.left(name);
    }

    /// Who has called, to the best of our knowledge.
    fn names(&self) -> HashSet<String> {
        let known = self.known();
        known.calls.keys().chain(known.users.keys()).cloned().collect()
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
            let gone = names.iter().filter(|name| !there.contains(name.as_str()));
            gone.for_each(|name| self.left(name));
        }
    }

    /// Cancels all calls, those that are not registered yet as well: the connection is over.
    pub fn end(&self) {
        let calls = {
            let mut known = self.known();
            known.ended = true;
            std::mem::take(&mut known.calls)
        };
        for cancel in calls.into_values().flatten().map(|(_, cancel)| cancel) {
            cancel.cancel();
        }
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
        self.known().calls.is_empty()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
