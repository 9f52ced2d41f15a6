//! What callers leave unread in the bus, bytes and file descriptors. dbus-daemon keeps it on the account of who sent
//! it, and takes nothing more from the service when that is full, for whomever it is. A reply that has no room there
//! waits until its caller has read others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use op_dbus_api::{Error, ErrorName, INLINE_REPLY_BYTES_MAX};
use tokio::time::sleep;
use tracing::{info, warn};
use zbus::{Connection, Variant, fdo};

use super::caller::{BUS, Caller};
use crate::telemetry::OncePerMinute;

/// Three quarters of the bytes that dbus-daemon keeps of one connection by default (127 MiB, `max_incoming_bytes` of
/// dbus-daemon(1)). What the rest is for is not counted here: signals, properties, refusals.
const POOL_BYTES: u64 = 96 << 20;
/// What a reply's file descriptor counts as: dbus-daemon keeps 64 of one connection (`max_incoming_unix_fds`), three
/// quarters of which share the room of the bytes.
pub const DESCRIPTOR_BYTES: usize = 2 << 20;
/// Where no more lies in the bus from us, it is nobody's: all read.
const LITTLE_BYTES: u64 = 8 << 20;
/// What calls hold whose replies wait, those of all callers.
const HELD_BYTES: u64 = 128 << 20;
/// Beside what fills a reply: its header, its dictionary.
const REPLY_BYTES: u64 = 1024;
/// A connection has room for so much whatever others of its user leave, and all of them for so much more.
const SMALL_BYTES: u64 = 64 << 10;
const SMALL_ALL_BYTES: u64 = 4 << 20;
/// What a call takes beside its message and its reply, while it waits.
const CALL_BYTES: u64 = 16 << 10;
/// A caller of whom nothing was read for so long is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// Who takes so long is no client that has much under way.
const SUSPICIOUS: Duration = Duration::from_secs(1);
/// What was read may have been seen by a look of somebody else that soon, which is waited for first.
const LOOK_ENDS: Duration = Duration::from_millis(1);
/// As often is it looked whether there is room, and then less and less.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(250);
/// A bus that does not tell is asked again then: its policy may have been mended.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The replies to all callers on one bus.
#[derive(Default)]
pub struct Unread {
    callers: Mutex<HashMap<String, Share>>,
    /// When the bus last did not tell what it keeps.
    untold: Mutex<Option<Instant>>,
    /// For one look at all of them at a time.
    looking: tokio::sync::Mutex<()>,
    told: OncePerMinute,
}

/// Bytes of the replies to one caller.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    uid: u32,
    /// Unread when the bus was asked.
    lies: u64,
    /// Sent before that, and not necessarily in the bus then.
    before: u64,
    /// Sent since.
    since: u64,
    /// Held by calls whose replies wait.
    held: u64,
    looked: Option<Instant>,
}

impl Share {
    fn unread(&self) -> u64 {
        self.lies.saturating_add(self.before).saturating_add(self.since)
    }

    /// When the bus was asked, and this was so, `lies` were unread.
    fn learn(&mut self, was: Self, lies: u64) {
        // Others send to it as well: their bytes count as ours at most as long as ours did.
        self.lies = lies.min(was.unread());
        self.before = was.since;
        self.since = self.since.saturating_sub(was.since);
        self.looked = Some(Instant::now());
    }
}

/// How the caller, its user and all other users stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    its: u64,
    own: u64,
    others: u64,
}

impl Sums {
    fn of(
        callers: &HashMap<String, Share>,
        (name, uid): (&str, u32),
        bytes: impl Fn(&Share) -> u64,
    ) -> Self {
        let mut sums = Self::default();
        for (of, share) in callers {
            let sum = if share.uid == uid { &mut sums.own } else { &mut sums.others };
            *sum = sum.saturating_add(bytes(share));
            if of == name {
                sums.its = bytes(share);
            }
        }
        sums
    }

    /// What one user may have of `pool`: half of what the others leave. So nobody can fill it, however many they are.
    const fn user_max(&self, pool: u64) -> u64 {
        pool.saturating_sub(self.others) / 2
    }

    /// Whether a reply has room in the bus. A connection has half of what its user may have, or all of it for its
    /// only reply. Small ones of a connection and the first of a user also fit where others of the user, or other
    /// users, leave no more than that.
    fn fit(&self, reply: u64) -> bool {
        let (user_max, all) = (self.user_max(POOL_BYTES), self.all().saturating_add(reply));
        let its_max = if self.its == 0 { user_max } else { user_max / 2 };
        let is_within =
            self.own.saturating_add(reply) <= user_max && self.its.saturating_add(reply) <= its_max;
        let is_small = self.its.saturating_add(reply) <= SMALL_BYTES
            && self.own.saturating_add(reply) <= user_max + SMALL_ALL_BYTES
            && all <= POOL_BYTES;
        let is_first = self.own == 0 && all <= POOL_BYTES + u64::from(INLINE_REPLY_BYTES_MAX);
        is_within || is_small || is_first
    }

    /// Whether there is room for half as much only. It is time to look, before anybody has to wait for it.
    const fn is_much(&self) -> bool {
        let user_max = self.user_max(POOL_BYTES);
        self.own > user_max / 2 || self.its > user_max / 4
    }

    const fn all(&self) -> u64 {
        self.own.saturating_add(self.others)
    }
}

/// What a call holds whose reply waits.
struct Held<'a> {
    unread: &'a Unread,
    caller: &'a str,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(share) = self.unread.callers().get_mut(self.caller) {
            share.held = share.held.saturating_sub(self.bytes);
        }
    }
}

impl Unread {
    /// Waits until there is room for a reply with so many bytes, which is sent at once then. Returns at once where
    /// the bus does not tell, or nothing is between the caller and us.
    ///
    /// # Errors
    /// `Overloaded` when the caller has read nothing for 30 s, or its user's replies hold too much.
    pub async fn room(&self, caller: &Caller, reply: usize) -> Result<(), Error> {
        if !caller.connection.is_bus() {
            return Ok(());
        }
        let bytes = (reply as u64).saturating_add(REPLY_BYTES);
        // Before it takes room: a look that came between that and the sending would not see the reply.
        if self.sums(caller).is_much() && !self.is_untold() {
            self.look(&caller.connection).await;
        }
        if self.enter(caller, bytes, false) {
            return Ok(());
        }
        let _held = self.hold(caller, bytes)?;
        let (mut pause, mut last, mut read) = (LOOK_ENDS, self.sums(caller), Instant::now());
        loop {
            self.look(&caller.connection).await;
            if self.enter(caller, bytes, true) {
                return Ok(());
            }
            let sums = self.sums(caller);
            if sums.its < last.its || sums.own < last.own {
                read = Instant::now();
            }
            last = sums;
            if read.elapsed() >= PATIENCE {
                return Err(refusal(caller, sums));
            }
            if read.elapsed() >= SUSPICIOUS && sums.its > 0 && self.told.is_due() {
                let (uid, name, its) = (caller.uid, caller.sender(), sums.its);
                warn!(
                    "user {uid} does not read {its} bytes that were sent to {name}: what follows waits"
                );
            }
            sleep(pause).await;
            pause = LOOK_AGAIN_MAX.min(2 * pause);
        }
    }

    /// Forgets a caller that has left the bus: what it left is gone with it.
    pub fn left(&self, caller: &str) {
        self.callers().remove(caller);
    }

    /// Takes room if there is any, but not before replies that wait for it, unless it is one of those.
    fn enter(&self, caller: &Caller, bytes: u64, waits: bool) -> bool {
        let is_untold = self.is_untold();
        let mut callers = self.callers();
        let is_behind = callers.get(caller.sender()).is_some_and(|share| share.held > 0) && !waits;
        let fits = is_untold || (!is_behind && unread(&callers, caller).fit(bytes));
        if fits && let Some(share) = share(&mut callers, caller) {
            share.since = share.since.saturating_add(bytes);
        }
        fits
    }

    fn hold<'a>(&'a self, caller: &'a Caller, reply: u64) -> Result<Held<'a>, Error> {
        let bytes = reply.saturating_add(caller.call_bytes).saturating_add(CALL_BYTES);
        let mut callers = self.callers();
        let held = Sums::of(&callers, (caller.sender(), caller.uid), |share| share.held);
        let held_max = held.user_max(HELD_BYTES);
        if held.own.saturating_add(bytes) > held_max {
            let message = format!(
                "{} bytes of calls of user {} wait until what was sent to it is read, and no more than {held_max} may; \
                 read what there is, have fewer calls under way at once, or use OpenDirect, and try again in 30 s",
                held.own, caller.uid
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        if let Some(share) = share(&mut callers, caller) {
            share.held = share.held.saturating_add(bytes);
        }
        Ok(Held { unread: self, caller: caller.sender(), bytes })
    }

    fn sums(&self, caller: &Caller) -> Sums {
        unread(&self.callers(), caller)
    }

    fn is_untold(&self) -> bool {
        let untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.is_some_and(|asked| asked.elapsed() < ASK_AGAIN)
    }

    /// Asks the bus what lies there from us, and where that is much for whom, unless somebody does.
    async fn look(&self, connection: &Connection) {
        let Ok(_alone) = self.looking.try_lock() else { return };
        let known: Vec<_> = self.callers().iter().map(|(name, was)| (name.clone(), *was)).collect();
        let end = match lying(connection, Side::Sent, &own_name(connection)).await {
            Ok(bytes) if bytes <= LITTLE_BYTES => {
                known.into_iter().for_each(|(name, was)| self.learn(&name, was, 0));
                Ok(())
            }
            Ok(_) => self.look_at_each(connection, known).await,
            Err(error) => Err(error),
        };
        // Its policy, or another kind of bus, whose accounts are the receivers'.
        if let Err(error) = end {
            let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
            // Not each minute: some never will.
            if untold.replace(Instant::now()).is_none() {
                info!("the bus does not tell what callers leave unread there ({error})");
            }
        }
        self.callers().retain(|_, share| share.unread() > 0 || share.held > 0);
    }

    async fn look_at_each(
        &self,
        connection: &Connection,
        known: Vec<(String, Share)>,
    ) -> zbus::Result<()> {
        let is_due = |(_, share): &(String, Share)| {
            let is_old = share.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN);
            share.unread() > 0 && is_old
        };
        let asked = known.into_iter().filter(is_due).map(async |(name, was)| {
            match lying(connection, Side::Received, &name).await {
                Ok(lies) => self.learn(&name, was, lies),
                Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::NameHasNoOwner(_)) => {
                    self.left(&name);
                }
                Err(error) => return Err(error),
            }
            Ok(())
        });
        join_all(asked).await.into_iter().collect()
    }

    fn learn(&self, name: &str, was: Share, lies: u64) {
        if let Some(share) = self.callers().get_mut(name) {
            share.learn(was, lies);
        }
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, Share>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unread(callers: &HashMap<String, Share>, caller: &Caller) -> Sums {
    Sums::of(callers, (caller.sender(), caller.uid), Share::unread)
}

/// None of one that has left already: nobody would forget it.
fn share<'a>(callers: &'a mut HashMap<String, Share>, caller: &Caller) -> Option<&'a mut Share> {
    if caller.cancel.is_cancelled() {
        return None;
    }
    let share = callers.entry(caller.sender().to_owned()).or_default();
    share.uid = caller.uid;
    Some(share)
}

fn refusal(caller: &Caller, Sums { its, own, others }: Sums) -> Error {
    let message = format!(
        "the bus has no room for the reply: {its} bytes that were sent to {} are unread there, {own} of all connections of \
         user {}, and {others} of other users; read them, have fewer calls under way at once, or use OpenDirect, and \
         try again in 30 s",
        caller.sender(),
        caller.uid
    );
    Error::new(ErrorName::Overloaded, message)
}

/// Which of a connection's accounts is asked for.
enum Side {
    /// What it has sent and others have not taken.
    Sent,
    /// What it has not taken, from whomever.
    Received,
}

/// What dbus-daemon keeps of a connection or for it: bytes, or its descriptors where they count as more.
async fn lying(connection: &Connection, side: Side, name: &str) -> zbus::Result<u64> {
    let (path, interface) = ("/org/freedesktop/DBus", "org.freedesktop.DBus.Debug.Stats");
    let reply =
        connection.call_method(Some(BUS), path, Some(interface), "GetConnectionStats", &name);
    let body = reply.await?.body();
    let stats: HashMap<&str, Variant<'_>> = body.deserialize()?;
    let (bytes, descriptors) = match side {
        Side::Sent => ("IncomingBytes", "IncomingFDs"),
        Side::Received => ("OutgoingBytes", "OutgoingFDs"),
    };
    let count = |name| match stats.get(name) {
        Some(Variant::U32(count)) => Some(u64::from(*count)),
        _ => None,
    };
    let bytes = count(bytes).ok_or(zbus::Error::MissingField)?;
    let descriptors = count(descriptors).unwrap_or_default();
    Ok(bytes.max(descriptors * DESCRIPTOR_BYTES as u64))
}

fn own_name(connection: &Connection) -> String {
    connection.unique_name().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests;
