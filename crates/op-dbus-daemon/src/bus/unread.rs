//! What callers leave unread in the bus, bytes and file descriptors. dbus-daemon keeps it on the account of who sent
//! it, and takes nothing more from the service when that is full, for whomever it is. A reply that has no room there
//! waits until its caller has read others.

mod account;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use op_dbus_api::{Error, ErrorName, INLINE_REPLY_BYTES_MAX};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use zbus::{Connection, fdo};

use super::caller::Caller;
use super::reply::TOKEN_HELD;
use crate::telemetry::OncePerUserAndMinute;
use account::{Side, lying, own_name};

/// Three quarters of the bytes that dbus-daemon keeps of one connection by default (127 MiB, `max_incoming_bytes` of
/// dbus-daemon(1)). What the rest is for is not counted here: signals, properties, refusals.
const POOL_BYTES: u64 = 96 << 20;
/// What a reply's file descriptor counts as: dbus-daemon keeps 64 of one connection (`max_incoming_unix_fds`), three
/// quarters of which share the room of the bytes.
const DESCRIPTOR_BYTES: u64 = 2 << 20;
/// What it holds while it waits: its result counts to those of its user already.
const DESCRIPTOR_HELD_BYTES: u64 = 256 << 10;
/// Where no more lies in the bus from us, it is nobody's: all read.
const LITTLE_BYTES: u64 = 8 << 20;
/// What calls hold whose replies wait, those of all callers.
const HELD_BYTES: u64 = 128 << 20;
/// A reply of tokens counts as no more: the longest may wait where its user has no other.
const ALONE_HELD_BYTES: u64 = 48 << 20;
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
/// What the bus has not told by then is asked anew.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// A bus that does not tell is asked again then: its policy may have been mended.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// What a reply is made of.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// So many bytes.
    Inline(usize),
    /// So many bytes of tokens.
    Tokens(usize),
    /// A file descriptor, and little beside it.
    Descriptor,
}

impl Reply {
    /// What it counts as in the bus.
    const fn unread(self) -> u64 {
        match self {
            Self::Inline(bytes) | Self::Tokens(bytes) => (bytes as u64).saturating_add(REPLY_BYTES),
            Self::Descriptor => DESCRIPTOR_BYTES + REPLY_BYTES,
        }
    }

    /// What it holds while it waits.
    fn held(self) -> u64 {
        match self {
            Self::Inline(_) => self.unread(),
            Self::Tokens(_) => ALONE_HELD_BYTES.min(self.unread() * TOKEN_HELD as u64),
            Self::Descriptor => DESCRIPTOR_HELD_BYTES,
        }
    }

    /// Whether it takes longer to be sent than the bus to be asked.
    const fn is_long(self) -> bool {
        matches!(self, Self::Inline(bytes) | Self::Tokens(bytes) if bytes as u64 > DESCRIPTOR_BYTES)
    }
}

/// The replies to all callers on one bus.
#[derive(Default)]
pub struct Unread {
    callers: Mutex<HashMap<String, Share>>,
    /// When the bus last did not tell what it keeps.
    untold: Mutex<Option<Instant>>,
    /// For one look at all of them at a time.
    looking: tokio::sync::Mutex<()>,
    told: OncePerUserAndMinute,
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
    /// When less lay there than before, last.
    read: Option<Instant>,
    /// When it was given room for a reply that is sent for a while.
    long: Option<Instant>,
}

impl Share {
    fn unread(&self) -> u64 {
        self.lies.saturating_add(self.before).saturating_add(self.since)
    }

    /// When the bus was asked, and this was so, `lies` were unread.
    fn learn(&mut self, was: Self, lies: u64) {
        let before = self.unread();
        // Others send to it as well: their bytes count as ours at most as long as ours did.
        self.lies = lies.min(was.unread());
        self.before = was.since;
        self.since = self.since.saturating_sub(was.since);
        self.looked = Some(Instant::now());
        if self.unread() < before {
            self.read = self.looked;
        }
    }

    /// Whether all that had room is in the bus, or will be before it is asked twice.
    fn is_sent(&self) -> bool {
        self.long.is_none_or(|long| long.elapsed() >= LOOK_AGAIN)
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
    /// Waits until there is room for a reply, which is sent at once then. Returns at once where the bus does not tell,
    /// or nothing is between the caller and us.
    ///
    /// # Errors
    /// `Overloaded` when the caller has read nothing for 30 s, or its user's replies hold too much.
    pub async fn room(&self, caller: &Caller, reply: Reply) -> Result<(), Error> {
        if !caller.connection.is_bus() {
            return Ok(());
        }
        // Before it takes room: a look that came between that and the sending would not see the reply.
        if self.sums(caller).is_much() && !self.is_untold() {
            self.look(&caller.connection).await;
        }
        if self.enter(caller, reply, false) {
            return Ok(());
        }
        let _held = self.hold(caller, reply)?;
        let (mut pause, mut last, mut read) = (LOOK_ENDS, self.sums(caller), Instant::now());
        loop {
            self.look(&caller.connection).await;
            if self.enter(caller, reply, true) {
                return Ok(());
            }
            let sums = self.sums(caller);
            if sums.its < last.its || sums.own < last.own {
                read = Instant::now();
            }
            last = sums;
            // Others may have taken what became free since.
            read = read.max(self.read(caller).unwrap_or(read));
            if read.elapsed() >= PATIENCE {
                return Err(refusal(caller, sums));
            }
            if read.elapsed() >= SUSPICIOUS && sums.its > 0 && self.told.is_due(caller.uid) {
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
    fn enter(&self, caller: &Caller, reply: Reply, waits: bool) -> bool {
        let bytes = reply.unread();
        let is_untold = self.is_untold();
        let mut callers = self.callers();
        let is_behind = callers.get(caller.sender()).is_some_and(|share| share.held > 0) && !waits;
        let fits = is_untold || (!is_behind && unread(&callers, caller).fit(bytes));
        if fits && let Some(share) = share(&mut callers, caller) {
            share.since = share.since.saturating_add(bytes);
            if reply.is_long() {
                share.long = Some(Instant::now());
            }
        }
        fits
    }

    fn hold<'a>(&'a self, caller: &'a Caller, reply: Reply) -> Result<Held<'a>, Error> {
        let bytes = reply.held().saturating_add(caller.call_bytes).saturating_add(CALL_BYTES);
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

    /// When the caller was last seen to have read.
    fn read(&self, caller: &Caller) -> Option<Instant> {
        self.callers().get(caller.sender()).and_then(|share| share.read)
    }

    fn is_untold(&self) -> bool {
        let untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.is_some_and(|asked| asked.elapsed() < ASK_AGAIN)
    }

    /// Asks the bus what lies there from us, and where that is much for whom, unless somebody does.
    async fn look(&self, connection: &Connection) {
        let Ok(_alone) = self.looking.try_lock() else { return };
        let known: Vec<_> = self.callers().iter().map(|(name, was)| (name.clone(), *was)).collect();
        let answer = async {
            if lying(connection, Side::Sent, &own_name(connection)).await? > LITTLE_BYTES {
                return self.look_at_each(connection, known).await;
            }
            let sent = known.into_iter().filter(|(_, was)| was.is_sent());
            sent.for_each(|(name, was)| self.learn(&name, was, 0));
            Ok(())
        };
        // An answer may be dropped, and whoever looks is a caller that waits, too.
        let Ok(end) = timeout(LOOK_MAX, answer).await else { return };
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

#[cfg(test)]
mod tests;
