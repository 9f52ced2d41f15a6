//! What each caller leaves unread, and each user and all of them together: summed up as it changes, since every reply
//! asks for the sums.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use op_dbus_api::INLINE_REPLY_BYTES_MAX;

use super::{LOOK_AGAIN, POOL_BYTES, SMALL_ALL_BYTES, SMALL_BYTES};

/// The shares of all callers.
#[derive(Debug, Default)]
pub struct Shares {
    callers: HashMap<Arc<str>, Share>,
    /// Of all callers of each user that has any.
    users: HashMap<u32, Bytes>,
    all: Bytes,
}

/// What there are bounds for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes {
    unread: u64,
    held: u64,
}

impl Bytes {
    /// Of what makes it up, `before` has become `after`.
    const fn replace(&mut self, before: Self, after: Self) {
        self.unread = self.unread - before.unread + after.unread;
        self.held = self.held - before.held + after.held;
    }
}

impl Shares {
    /// How a caller of a user stands.
    pub fn standing(&self, (name, uid): (&str, u32)) -> Standing {
        let its = self.callers.get(name).map(Share::bytes).unwrap_or_default();
        let own = self.users.get(&uid).copied().unwrap_or_default();
        let (unread, held) = (self.all.unread - own.unread, self.all.held - own.held);
        Standing {
            unread: Sums { its: its.unread, own: own.unread, others: unread },
            held: Sums { its: its.held, own: own.held, others: held },
        }
    }

    /// The share of a caller that has one.
    pub fn get(&self, name: &str) -> Option<&Share> {
        self.callers.get(name)
    }

    /// All callers, each with its share.
    pub fn all(&self) -> Vec<(Arc<str>, Share)> {
        self.callers.iter().map(|(name, share)| (name.clone(), *share)).collect()
    }

    /// Changes the share of a caller of a user, which has one from now on.
    pub fn add(&mut self, (name, uid): (&Arc<str>, u32), change: impl FnOnce(&mut Share)) {
        let new = || Share { uid, ..Share::default() };
        let share = self.callers.entry(name.clone()).or_insert_with(new);
        let (uid, before) = (share.uid, share.bytes());
        change(share);
        let after = share.bytes();
        self.sum(uid, before, after);
    }

    /// Changes the share of a caller that has one.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Share)) {
        let Some(share) = self.callers.get_mut(name) else { return };
        let (uid, before) = (share.uid, share.bytes());
        change(share);
        let after = share.bytes();
        self.sum(uid, before, after);
    }

    /// Forgets a caller.
    pub fn remove(&mut self, name: &str) {
        if let Some(share) = self.callers.remove(name) {
            self.sum(share.uid, share.bytes(), Bytes::default());
        }
    }

    /// Forgets those who have read all, and for whom nothing is held.
    pub fn forget_empty(&mut self) {
        self.callers.retain(|_, share| share.bytes() != Bytes::default());
    }

    fn sum(&mut self, uid: u32, before: Bytes, after: Bytes) {
        self.all.replace(before, after);
        let user = self.users.entry(uid).or_default();
        user.replace(before, after);
        if *user == Bytes::default() {
            self.users.remove(&uid);
        }
    }
}

/// Bytes of the replies to one caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    pub uid: u32,
    /// Unread when the bus was asked.
    pub lies: u64,
    /// Sent before that, and not necessarily in the bus then.
    pub before: u64,
    /// Sent since.
    pub since: u64,
    /// Held by calls whose replies wait.
    pub held: u64,
    pub looked: Option<Instant>,
    /// When less lay there than before, last.
    pub read: Option<Instant>,
    /// When it was given room for a reply that is sent for a while.
    pub long: Option<Instant>,
}

impl Share {
    /// What counts as unread.
    pub fn unread(&self) -> u64 {
        self.lies.saturating_add(self.before).saturating_add(self.since)
    }

    fn bytes(&self) -> Bytes {
        Bytes { unread: self.unread(), held: self.held }
    }

    /// When the bus was asked, and this was so, `lies` were unread.
    pub fn learn(&mut self, was: Self, lies: u64) {
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
    pub fn is_sent(&self) -> bool {
        self.long.is_none_or(|long| long.elapsed() >= LOOK_AGAIN)
    }
}

/// How the caller, its user and all other users stand: what they have not read, and what is held for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub unread: Sums,
    pub held: Sums,
}

/// Bytes of the caller, of all callers of its user, and of those of all other users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub its: u64,
    pub own: u64,
    pub others: u64,
}

impl Sums {
    /// What one user may have of `pool`: half of what the others leave. So nobody can fill it, however many they are.
    pub const fn user_max(&self, pool: u64) -> u64 {
        pool.saturating_sub(self.others) / 2
    }

    /// Whether a reply has room in the bus. A connection has half of what its user may have, or all of it for its
    /// only reply. Small ones of a connection and the first of a user also fit where others of the user, or other
    /// users, leave no more than that.
    pub fn fit(&self, reply: u64) -> bool {
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
    pub const fn is_much(&self) -> bool {
        let user_max = self.user_max(POOL_BYTES);
        self.own > user_max / 2 || self.its > user_max / 4
    }

    const fn all(&self) -> u64 {
        self.own.saturating_add(self.others)
    }
}
