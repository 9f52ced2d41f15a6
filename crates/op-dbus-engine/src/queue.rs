//! The queue, pure: entries and `now` in, the entry whose turn it is out. No clock, no channel.
//!
//! Users share by tokens, not by texts or calls, whatever they send: within a class the user who was served
//! fewest is next. Interactive work goes before bulk, but for two: bulk of a user who is `BEHIND_TOKENS` behind
//! all whose interactive work waits has the next batch, so that nobody gets more than a share by calling
//! everything interactive; and bulk gets one batch whenever it has waited `bulk_wait_us_max`, and never two in
//! a row that way.

use std::collections::{BTreeMap, VecDeque};

use crate::call::Priority;
use crate::reserve::Serves;

/// Entries of a lane that may be taken from behind its first while that one fits no batch. After
/// that the lane gives its first or nothing: else what is taken from behind could keep the lane
/// ahead of others just enough for its turn, and so the first one's, never to come.
const OVERTAKEN_MAX: usize = 64;

/// Entries that an empty lane keeps the room of: else that of the longest queue would be kept for good.
const ROOM_MAX: usize = 4096;

/// Tokens that interactive work of others may be ahead of a user's bulk. Less, and each burst of calls would wait for
/// others' bulk; more, and it would take bulk longer to have its share. These are 16 batches of a CPU.
const BEHIND_TOKENS: u64 = 8192;

/// One row that waits for a batch.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub uid: u32,
    pub class: Priority,
    /// Tokens, special tokens included.
    pub tokens: usize,
    pub enqueued_us: u64,
    /// The worker on which a batch with this entry failed: it may be what the batch failed of, so it
    /// is run once more without neighbours.
    pub failed_on: Option<usize>,
    /// Whether the backend was lost with it there, by itself.
    pub lost: bool,
    /// How many workers had ended before they read a batch with this entry.
    pub missed: u32,
    pub item: T,
}

/// Entries of one user in one class, oldest first.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    /// Entries that were taken from behind the first.
    overtaken: usize,
    pub entries: VecDeque<Entry<T>>,
}

#[derive(Debug)]
struct User<T> {
    /// Tokens served, in the queue's virtual time.
    served: u64,
    /// By class.
    lanes: [Lane<T>; 2],
}

/// What waits in a class.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    texts: usize,
    tokens: usize,
}

/// All entries that wait.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    users: BTreeMap<u32, User<T>>,
    /// `served` of who was served least of those who waited when a batch was last begun: where one who comes back
    /// starts, whatever is sent.
    virtual_time: u64,
    /// By class.
    sums: [Sum; 2],
    bulk_wait_us_max: u64,
    ageing: Ageing,
    /// Entries between those that are taken, meanwhile.
    passed: Vec<Entry<T>>,
}

/// What decides when bulk is served although interactive work waits.
#[derive(Clone, Copy, Debug, Default)]
struct Ageing {
    /// When a batch of bulk left last.
    bulk_served_us: u64,
    /// The last batch was bulk by ageing: interactive work has the next one.
    aged: bool,
}

impl<T> Queue<T> {
    pub fn new(bulk_wait_us_max: u64) -> Self {
        Self {
            users: BTreeMap::new(),
            virtual_time: 0,
            sums: Default::default(),
            bulk_wait_us_max,
            ageing: Ageing::default(),
            passed: Vec::new(),
        }
    }

    pub fn texts(&self) -> usize {
        self.sums.iter().map(|sum| sum.texts).sum()
    }

    pub fn tokens(&self) -> usize {
        self.sums.iter().map(|sum| sum.tokens).sum()
    }

    /// Tokens of one class.
    pub fn tokens_of(&self, class: Priority) -> usize {
        self.sums[class as usize].tokens
    }

    /// Entries of one user.
    pub fn texts_of(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, User::texts)
    }

    /// When the oldest entry came.
    pub fn oldest_us(&self) -> Option<u64> {
        [Priority::Interactive, Priority::Bulk]
            .iter()
            .filter_map(|class| self.oldest_of(*class))
            .min()
    }

    fn oldest_of(&self, class: Priority) -> Option<u64> {
        let heads =
            self.users.values().filter_map(|user| user.lanes[class as usize].entries.front());
        heads.map(|entry| entry.enqueued_us).min()
    }

    /// Adds an entry behind all of its user's.
    pub fn push(&mut self, entry: Entry<T>) {
        self.user_for(&entry).lanes[entry.class as usize].entries.push_back(entry);
    }

    /// Puts an entry that was taken back before all of its user's. What was charged for it is given back: it
    /// is charged again when it is taken again.
    pub fn push_front(&mut self, entry: Entry<T>) {
        let user = self.user_for(&entry);
        user.served = user.served.saturating_sub(entry.tokens as u64);
        user.lanes[entry.class as usize].entries.push_front(entry);
    }

    /// The user of an entry that is added.
    fn user_for(&mut self, entry: &Entry<T>) -> &mut User<T> {
        self.sums[entry.class as usize].add(entry);
        let virtual_time = self.virtual_time;
        let user = self.users.entry(entry.uid).or_default();
        if user.texts() == 0 {
            // Being away earns no credit; having been served more than others is not forgotten.
            user.served = user.served.max(virtual_time);
        }
        user
    }

    /// Removes a user's entries that nobody waits for any more.
    pub fn purge(&mut self, uid: u32, alive: &dyn Fn(&Entry<T>) -> bool) -> Vec<Entry<T>> {
        let mut removed = Vec::new();
        let Some(user) = self.users.get_mut(&uid) else { return removed };
        for (lane, sum) in user.lanes.iter_mut().zip(&mut self.sums) {
            // In place: a copy of what is left may be large.
            for _ in 0..lane.entries.len() {
                let Some(entry) = lane.entries.pop_front() else { break };
                if alive(&entry) {
                    lane.entries.push_back(entry);
                } else {
                    sum.remove(&entry);
                    removed.push(entry);
                }
            }
            lane.shrink();
        }
        removed
    }

    /// Removes everything.
    pub fn clear(&mut self) -> Vec<Entry<T>> {
        (self.sums, self.virtual_time) = Default::default();
        let lanes = std::mem::take(&mut self.users).into_values().flat_map(|user| user.lanes);
        lanes.flat_map(|lane| lane.entries).collect()
    }

    /// Whether interactive work waits.
    pub fn has_interactive(&self) -> bool {
        self.sums[Priority::Interactive as usize].texts > 0
    }

    /// The class whose turn it is with a worker, and whether by ageing.
    pub fn turn(&self, serves: Serves, now_us: u64) -> Option<(Priority, bool)> {
        let bulk =
            (serves != Serves::Interactive).then(|| self.oldest_of(Priority::Bulk)).flatten();
        if serves == Serves::Bulk {
            // Beside the turns of the others: whose was to be next is next.
            return bulk.map(|_| (Priority::Bulk, self.ageing.aged));
        }
        let Some(oldest) = bulk else {
            return self.has_interactive().then_some((Priority::Interactive, false));
        };
        if !self.has_interactive() || self.bulk_is_behind() {
            return Some((Priority::Bulk, false));
        }
        let Ageing { bulk_served_us, aged } = self.ageing;
        let waited = now_us.saturating_sub(oldest.max(bulk_served_us));
        if waited >= self.bulk_wait_us_max && !aged {
            return Some((Priority::Bulk, true));
        }
        Some((Priority::Interactive, false))
    }

    /// Whether a user whose bulk waits was served so much less than all whose interactive work waits.
    fn bulk_is_behind(&self) -> bool {
        let least = |class| self.waiting(class).map(|(_, user)| user.served).min();
        let (interactive, bulk) = (least(Priority::Interactive), least(Priority::Bulk));
        bulk.zip(interactive)
            .is_some_and(|(bulk, other)| other.saturating_sub(bulk) > BEHIND_TOKENS)
    }

    /// Notes that a batch of `class` begins now, and whether by ageing.
    pub fn begun(&mut self, class: Priority, aged: bool, now_us: u64) {
        self.ageing.aged = aged;
        if class == Priority::Bulk {
            self.ageing.bulk_served_us = now_us;
        }
    }

    /// Users of `class` with entries, in no order that means anything: what they were served and what waits.
    pub fn lanes(&self, class: Priority) -> impl Iterator<Item = (u32, u64, &Lane<T>)> {
        self.waiting(class).map(move |(uid, user)| (uid, user.served, &user.lanes[class as usize]))
    }

    fn waiting(&self, class: Priority) -> impl Iterator<Item = (u32, &User<T>)> {
        let users = self.users.iter().map(|(uid, user)| (*uid, user));
        users.filter(move |(_, user)| !user.lanes[class as usize].entries.is_empty())
    }

    /// A user's lane, and the tokens that the user was served; `None` for one who has neither waited nor been
    /// served lately.
    pub fn lane(&self, class: Priority, uid: u32) -> Option<(u64, &Lane<T>)> {
        self.users.get(&uid).map(|user| (user.served, &user.lanes[class as usize]))
    }

    /// Removes the entry at `index` of a user's lane.
    pub fn take(&mut self, class: Priority, uid: u32, index: usize) -> Option<Entry<T>> {
        let lane = &mut self.users.get_mut(&uid)?.lanes[class as usize];
        let entry = lane.entries.remove(index)?;
        lane.overtaken = if index == 0 { 0 } else { lane.overtaken + 1 };
        lane.shrink();
        self.sums[class as usize].remove(&entry);
        Some(entry)
    }

    /// As [`take`](Self::take), of all `indices`, which ascend, into `taken`. Each entry is moved once: taken one by
    /// one, each would move all those before it.
    pub fn take_all(
        &mut self,
        (class, uid): (Priority, u32),
        indices: impl Iterator<Item = usize>,
        taken: &mut Vec<Entry<T>>,
    ) {
        let (before, mut passed) = (taken.len(), std::mem::take(&mut self.passed));
        let Some(user) = self.users.get_mut(&uid) else { return };
        let lane = &mut user.lanes[class as usize];
        let (mut next, mut first_too) = (0, false);
        for index in indices {
            passed.extend((next..index).map_while(|_| lane.entries.pop_front()));
            taken.extend(lane.entries.pop_front());
            (next, first_too) = (index + 1, first_too || index == 0);
        }
        for entry in passed.drain(..).rev() {
            lane.entries.push_front(entry);
        }
        lane.shrink();
        let own = &taken[before..];
        lane.overtaken = if first_too { 0 } else { lane.overtaken + own.len() };
        own.iter().for_each(|entry| self.sums[class as usize].remove(entry));
        self.passed = passed;
    }

    /// Counts tokens as served to a user.
    pub fn charge(&mut self, uid: u32, tokens: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.served += tokens as u64;
        }
    }

    /// Sets the virtual time, before a user who was picked is charged for what it gets.
    pub fn advance(&mut self, uid: u32) {
        let waits = |(own, user): &(&u32, &User<T>)| **own == uid || user.texts() > 0;
        let least = self.users.iter().filter(waits).map(|(_, user)| user.served).min();
        self.virtual_time = self.virtual_time.max(least.unwrap_or_default());
    }

    /// Forgets users who are neither waiting nor ahead, and how far others are ahead by more than they can be by
    /// their turns, with batches of so many tokens: what a worker computed that had nothing else to do is not held
    /// against them.
    pub fn forget(&mut self, batch_tokens: usize) {
        let virtual_time = self.virtual_time;
        let most = virtual_time
            .saturating_add(BEHIND_TOKENS)
            .saturating_add((batch_tokens as u64).saturating_mul(2));
        self.users.retain(|_, user| {
            user.served = user.served.min(most);
            user.texts() > 0 || user.served > virtual_time
        });
    }
}

impl Sum {
    fn add<T>(&mut self, entry: &Entry<T>) {
        self.texts += 1;
        self.tokens += entry.tokens;
    }

    fn remove<T>(&mut self, entry: &Entry<T>) {
        self.texts -= 1;
        self.tokens -= entry.tokens;
    }
}

impl<T> Default for User<T> {
    fn default() -> Self {
        let lanes = [(); 2].map(|()| Lane { overtaken: 0, entries: VecDeque::new() });
        Self { served: 0, lanes }
    }
}

impl<T> User<T> {
    fn texts(&self) -> usize {
        self.lanes.iter().map(|lane| lane.entries.len()).sum()
    }
}

impl<T> Lane<T> {
    /// Entries, from the first on, that may be taken before the lane's turn comes.
    pub fn open(&self) -> usize {
        if self.overtaken < OVERTAKEN_MAX { self.entries.len() } else { 1 }
    }

    /// Gives back the room of many entries once none is left.
    fn shrink(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > ROOM_MAX {
            self.entries = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests;
