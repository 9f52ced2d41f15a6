//! What callers leave unread in the bus, bytes and file descriptors. dbus-daemon keeps it on the account of who sent
//! it, and takes nothing more from the service when that is full, for whomever it is. A reply that has no room there
//! waits until its caller has read others.

mod account;
mod shares;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use op_dbus_api::{Error, ErrorName};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use zbus::{Connection, fdo};

use super::caller::Caller;
use super::reply::TOKEN_HELD;
use crate::telemetry::OncePerUserAndMinute;
use account::{Side, lying, own_name};
use shares::{Share, Shares, Standing, Sums};

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
    known: Mutex<Known>,
    /// For one look at all of them at a time.
    looking: tokio::sync::Mutex<()>,
    told: OncePerUserAndMinute,
}

/// What is known of the bus.
#[derive(Default)]
struct Known {
    shares: Shares,
    /// When it last did not tell what it keeps, if it has not told since.
    untold: Option<Instant>,
}

impl Known {
    /// Whether the bus did not tell when it was asked last: then nothing is held back.
    const fn is_untold(&self) -> bool {
        self.untold.is_some()
    }

    fn is_to_be_asked(&self) -> bool {
        self.untold.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN)
    }

    fn standing(&self, caller: &Caller) -> Standing {
        self.shares.standing((caller.sender(), caller.uid))
    }

    /// Takes room if there is any for who stands so, but not before replies that wait for it, unless it is one of
    /// those.
    fn enter(&mut self, caller: &Caller, stands: Standing, reply: Reply, waits: bool) -> bool {
        let bytes = reply.unread();
        let is_behind = stands.held.its > 0 && !waits;
        let fits = self.is_untold() || (!is_behind && stands.unread.fit(bytes));
        if fits {
            self.add(caller, |share| {
                share.since = share.since.saturating_add(bytes);
                if reply.is_long() {
                    share.long = Some(Instant::now());
                }
            });
        }
        fits
    }

    /// Nothing to one that has left already: nobody would forget it.
    fn add(&mut self, caller: &Caller, change: impl FnOnce(&mut Share)) {
        if !caller.cancel.is_cancelled() {
            self.shares.add((caller.name(), caller.uid), change);
        }
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
        let gives_back = |share: &mut Share| share.held = share.held.saturating_sub(self.bytes);
        self.unread.known.lock().shares.change(self.caller, gives_back);
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
        let has_entered = match self.enter_at_once(caller, reply) {
            Some(has_entered) => has_entered,
            None => {
                self.look(&caller.connection).await;
                self.enter(caller, reply, false)
            }
        };
        if has_entered {
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
        self.known.lock().shares.remove(caller);
    }

    /// Whether a reply that has come has taken room; none where it is time to look before it does: a look that came
    /// between that and the sending would not see it.
    fn enter_at_once(&self, caller: &Caller, reply: Reply) -> Option<bool> {
        let mut known = self.known.lock();
        let stands = known.standing(caller);
        let is_due = stands.unread.is_much() && known.is_to_be_asked();
        (!is_due).then(|| known.enter(caller, stands, reply, false))
    }

    fn enter(&self, caller: &Caller, reply: Reply, waits: bool) -> bool {
        let mut known = self.known.lock();
        let stands = known.standing(caller);
        known.enter(caller, stands, reply, waits)
    }

    fn hold<'a>(&'a self, caller: &'a Caller, reply: Reply) -> Result<Held<'a>, Error> {
        let bytes = reply.held().saturating_add(caller.call_bytes).saturating_add(CALL_BYTES);
        let mut known = self.known.lock();
        let held = known.standing(caller).held;
        let held_max = held.user_max(HELD_BYTES);
        if held.own.saturating_add(bytes) > held_max {
            let message = format!(
                "{} bytes of calls of user {} wait until what was sent to it is read, and no more than {held_max} may; \
                 read what there is, have fewer calls under way at once, or use OpenDirect, and try again in 30 s",
                held.own, caller.uid
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        known.add(caller, |share| share.held = share.held.saturating_add(bytes));
        Ok(Held { unread: self, caller: caller.sender(), bytes })
    }

    fn sums(&self, caller: &Caller) -> Sums {
        self.known.lock().standing(caller).unread
    }

    /// When the caller was last seen to have read.
    fn read(&self, caller: &Caller) -> Option<Instant> {
        self.known.lock().shares.get(caller.sender()).and_then(|share| share.read)
    }

    /// Asks the bus what lies there from us, and where that is much for whom, unless somebody does.
    async fn look(&self, connection: &Connection) {
        let Ok(_alone) = self.looking.try_lock() else { return };
        let known = self.known.lock().shares.all();
        let answer = async {
            if lying(connection, Side::Sent, &own_name(connection)).await? > LITTLE_BYTES {
                return self.look_at_each(connection, known).await;
            }
            let sent = known.into_iter().filter(|(_, was)| was.is_sent());
            sent.for_each(|(name, was)| self.learn(&name, was, 0));
            Ok(())
        };
        // An answer may be dropped, and whoever looks is a caller that waits, too.
        let Ok(end) = timeout(LOOK_MAX, answer).await else {
            // It is not asked again at once.
            if let Some(asked) = &mut self.known.lock().untold {
                *asked = Instant::now();
            }
            return;
        };
        let mut known = self.known.lock();
        let before = match &end {
            Ok(()) => known.untold.take(),
            Err(_) => known.untold.replace(Instant::now()),
        };
        if end.is_ok() && before.is_some() {
            // Nobody knows what is read by now of what was sent before.
            known.shares = Shares::default();
        }
        known.shares.forget_empty();
        // Nobody's reply waits for the log.
        drop(known);
        // Its policy, or another kind of bus, whose accounts are the receivers'. Not each minute: some never will.
        if let Err(error) = end
            && before.is_none()
        {
            info!("the bus does not tell what callers leave unread there ({error})");
        }
    }

    async fn look_at_each(
        &self,
        connection: &Connection,
        known: Vec<(Arc<str>, Share)>,
    ) -> zbus::Result<()> {
        let is_due = |(_, share): &(Arc<str>, Share)| {
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
        self.known.lock().shares.change(name, |share| share.learn(was, lies));
    }
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
