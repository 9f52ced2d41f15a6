//! What callers leave unread in the bus. dbus-daemon keeps it on the account of who sent it, and takes nothing more
//! from the service when that is full, for whomever it is. A call whose reply has no room waits until its caller
//! has read others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use op_dbus_api::{Error, ErrorName};
use tokio::time::sleep;
use tracing::{info, warn};
use zbus::{Connection, Variant, fdo};

use super::caller::{BUS, Caller};
use crate::telemetry::OncePerMinute;

/// Three quarters of the bytes that dbus-daemon keeps of one connection by default (127 MiB, `max_incoming_bytes` of
/// dbus-daemon(1)). What the rest is for is not counted here: signals, properties, refusals, and replies that are
/// on their way to the bus.
const POOL_BYTES: u64 = 96 << 20;
/// Beside what fills a reply: its header, its dictionary.
const REPLY_BYTES: u64 = 1024;
/// A caller that has not read by then is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// Who takes so long is no client that has much under way.
const SUSPICIOUS: Duration = Duration::from_secs(1);
/// As often does who waits look whether there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// What calls that wait may hold, all of them.
const HELD_BYTES_MAX: u64 = 64 << 20;

/// The replies to all callers on one bus.
#[derive(Default)]
pub struct Unread {
    callers: Mutex<HashMap<String, Share>>,
    /// The bus does not tell what it keeps.
    is_untold: AtomicBool,
    held: AtomicU64,
    /// For one look at all of them at a time.
    looking: tokio::sync::Mutex<()>,
    told: OncePerMinute,
}

/// The replies to one caller.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    uid: u32,
    /// Bytes that calls under way will have.
    promised: u64,
    /// Bytes that were sent; as many may be unread.
    sent: u64,
    looked: Option<Instant>,
}

/// Room for one reply, which is on its way when this is dropped.
pub struct Room<'a> {
    unread: &'a Unread,
    caller: &'a str,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(share) = self.unread.callers().get_mut(self.caller) {
            share.promised = share.promised.saturating_sub(self.bytes);
            share.sent = share.sent.saturating_add(self.bytes);
        }
    }
}

/// What a call that waits holds.
struct Held<'a> {
    all: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Unread {
    /// Waits until there is room for a reply with so many bytes to a call of so many; none is counted where the bus
    /// does not tell, or nothing is between the caller and us.
    ///
    /// # Errors
    /// `Overloaded` when the caller does not read what it has for 30 s, or too much waits for such callers.
    pub async fn room<'a>(
        &'a self,
        caller: &'a Caller,
        (reply, call): (usize, usize),
    ) -> Result<Option<Room<'a>>, Error> {
        if !caller.connection.is_bus() {
            return Ok(None);
        }
        let bytes = (reply as u64).saturating_add(REPLY_BYTES);
        let (mut held, begun) = (None, Instant::now());
        while !self.is_untold.load(Ordering::Relaxed) {
            for look in [None, Some(Some(caller.sender())), Some(None)] {
                if let Some(of) = look {
                    self.look(&caller.connection, of).await;
                }
                if self.enter(caller, bytes) {
                    return Ok(Some(Room { unread: self, caller: caller.sender(), bytes }));
                }
            }
            if held.is_none() {
                held = Some(self.hold(caller, call as u64)?);
            }
            let waits = begun.elapsed();
            if waits >= PATIENCE {
                return Err(self.refusal(caller));
            }
            if waits >= SUSPICIOUS && self.told.is_due() {
                let (uid, name, bytes) = (caller.uid, caller.sender(), self.sent_to(caller));
                warn!(
                    "user {uid} does not read {bytes} bytes that were sent to {name}: its calls wait"
                );
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(None)
    }

    /// Forgets a caller that has left the bus: what it left is gone with it.
    pub fn left(&self, caller: &str) {
        self.callers().remove(caller);
    }

    /// Takes room if there is any.
    fn enter(&self, caller: &Caller, bytes: u64) -> bool {
        let mut callers = self.callers();
        if !fits(&callers, (caller.sender(), caller.uid), bytes) {
            return false;
        }
        // Nobody would forget one that has left already.
        if !caller.cancel.is_cancelled() {
            let share = callers.entry(caller.sender().to_owned()).or_default();
            share.uid = caller.uid;
            share.promised = share.promised.saturating_add(bytes);
        }
        true
    }

    fn hold(&self, caller: &Caller, bytes: u64) -> Result<Held<'_>, Error> {
        let held = Held { all: &self.held, bytes };
        if self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > HELD_BYTES_MAX {
            return Err(self.refusal(caller));
        }
        Ok(held)
    }

    fn sent_to(&self, caller: &Caller) -> u64 {
        self.callers().get(caller.sender()).map_or(0, |share| share.sent)
    }

    fn refusal(&self, caller: &Caller) -> Error {
        let message = format!(
            "the bus has no room for the reply, as {} bytes that were sent to {} are not read, or those of other \
             connections of user {}; read them, have fewer calls under way at once, or use OpenDirect",
            self.sent_to(caller),
            caller.sender(),
            caller.uid
        );
        Error::new(ErrorName::Overloaded, message)
    }

    /// Asks the bus what lies there for `of`, or for each caller.
    async fn look(&self, connection: &Connection, of: Option<&str>) {
        let _alone = self.looking.lock().await;
        let mut asked = Vec::new();
        for (name, share) in &mut *self.callers() {
            let is_meant = of.is_none_or(|of| of == name) && share.sent > 0;
            if is_meant && share.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN) {
                share.looked = Some(Instant::now());
                asked.push((name.clone(), share.sent));
            }
        }
        let answers = asked.into_iter().map(async |(name, sent)| {
            match unread(connection, &name).await {
                // What was sent while the bus was asked is not in there.
                Ok(lies) => {
                    if let Some(share) = self.callers().get_mut(&name) {
                        share.sent = share.sent.saturating_sub(sent).saturating_add(lies);
                    }
                }
                Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::NameHasNoOwner(_)) => {
                    self.left(&name);
                }
                // Its policy, or another kind of bus, whose accounts are the receivers'.
                Err(error) => {
                    if !self.is_untold.swap(true, Ordering::Relaxed) {
                        info!("the bus does not tell what callers leave unread there ({error})");
                    }
                }
            }
        });
        join_all(answers).await;
        self.callers().retain(|_, share| share.sent > 0 || share.promised > 0);
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, Share>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the reply fits: all connections of a user have half of what other users leave of the pool, and one of
/// them half of that, unless it has nothing yet. So nobody can fill the pool, however many they are.
fn fits(callers: &HashMap<String, Share>, (name, uid): (&str, u32), reply: u64) -> bool {
    let [mut others, mut own, mut its] = [0_u64; 3];
    for (of, share) in callers {
        let bytes = share.sent.saturating_add(share.promised);
        if share.uid != uid {
            others = others.saturating_add(bytes);
            continue;
        }
        own = own.saturating_add(bytes);
        if of == name {
            its = bytes;
        }
    }
    let user_max = POOL_BYTES.saturating_sub(others) / 2;
    let its_max = if its == 0 { user_max } else { user_max / 2 };
    own.saturating_add(reply) <= user_max && its.saturating_add(reply) <= its_max
}

/// What dbus-daemon keeps for a connection that has not taken it.
async fn unread(connection: &Connection, name: &str) -> zbus::Result<u64> {
    let (path, interface) = ("/org/freedesktop/DBus", "org.freedesktop.DBus.Debug.Stats");
    let reply =
        connection.call_method(Some(BUS), path, Some(interface), "GetConnectionStats", &name);
    let body = reply.await?.body();
    let stats: HashMap<&str, Variant<'_>> = body.deserialize()?;
    match stats.get("OutgoingBytes") {
        Some(Variant::U32(bytes)) => Ok(u64::from(*bytes)),
        _ => Err(zbus::Error::MissingField),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(callers: &[(&str, u32, u64)], of: (&str, u32), reply: u64) -> bool {
        let share = |uid, sent| Share { uid, sent, ..Share::default() };
        let callers =
            callers.iter().map(|(name, uid, sent)| ((*name).to_owned(), share(*uid, *sent)));
        fits(&callers.collect(), of, reply)
    }

    /// The largest inline reply.
    const LARGE: u64 = (16 << 20) + REPLY_BYTES;

    #[test]
    fn who_reads_has_room_whatever_others_leave() {
        assert!(fit(&[], (":1", 1), LARGE));
        let (one, two) = ((":1", 1, 24 << 20), (":2", 1, 24 << 20));
        assert!(!fit(&[one], (":1", 1), 1));
        assert!(fit(&[one], (":2", 1), LARGE));
        assert!(fit(&[one, two], (":3", 2), LARGE));
        // All of one user together.
        assert!(!fit(&[one, two], (":3", 1), 1));
    }

    /// However many users and connections there are.
    #[test]
    fn nobody_fills_the_pool() {
        for reply in [REPLY_BYTES << 6, LARGE] {
            let (mut callers, mut all) = (HashMap::new(), 0);
            for uid in 0..20 {
                for number in 0..20 {
                    let name = format!(":{uid}.{number}");
                    while fits(&callers, (&name, uid), reply) {
                        let share: &mut Share = callers.entry(name.clone()).or_default();
                        (share.uid, all) = (uid, all + reply);
                        share.sent += reply;
                    }
                }
            }
            assert!(all <= POOL_BYTES && all > POOL_BYTES / 2, "{all}");
        }
    }
}
