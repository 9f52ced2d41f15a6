//! The queue, pure: entries and `now` in, the entry whose turn it is out. No clock, no channel.
//!
//! Two classes, each with one lane per user. Within a class the lane that was served fewest tokens
//! is next, so that users share by tokens, not by texts or calls. Interactive work goes first; bulk
//! work gets one batch whenever it has waited `bulk_wait_us_max`, and never two in a row that way.

use std::collections::{BTreeMap, VecDeque};

use crate::call::Priority;
use crate::reserve::Serves;

/// Entries of a lane that may be taken from behind its first while that one fits no batch. After
/// that the lane gives its first or nothing: else what is taken from behind could keep the lane
/// ahead of others just enough for its turn, and so the first one's, never to come.
const OVERTAKEN_MAX: usize = 64;

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
    /// How many workers had ended before they read a batch with this entry.
    pub missed: u32,
    pub item: T,
}

/// Entries of one user in one class, oldest first.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    /// Tokens served, on the class's virtual clock.
    served: u64,
    /// Entries that were taken from behind the first.
    overtaken: usize,
    pub entries: VecDeque<Entry<T>>,
}

#[derive(Debug)]
struct Class<T> {
    lanes: BTreeMap<u32, Lane<T>>,
    /// `served` of the lane that was last picked: where a user who comes back starts.
    clock: u64,
    texts: usize,
    tokens: usize,
}

impl<T> Default for Class<T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), clock: 0, texts: 0, tokens: 0 }
    }
}

/// All entries that wait.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    interactive: Class<T>,
    bulk: Class<T>,
    bulk_wait_us_max: u64,
    ageing: Ageing,
    /// Entries between those that are taken, meanwhile.
    passed: Vec<Entry<T>>,
}

/// What decides when bulk is served although interactive work waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ageing {
    /// When a batch of bulk left last.
    bulk_served_us: u64,
    /// The last batch was bulk by ageing: interactive work has the next one.
    aged: bool,
}

impl<T> Queue<T> {
    pub fn new(bulk_wait_us_max: u64) -> Self {
        Self {
            interactive: Class::default(),
            bulk: Class::default(),
            bulk_wait_us_max,
            ageing: Ageing::default(),
            passed: Vec::new(),
        }
    }

    pub fn texts(&self) -> usize {
        self.interactive.texts + self.bulk.texts
    }

    pub fn tokens(&self) -> usize {
        self.interactive.tokens + self.bulk.tokens
    }

    /// Tokens of one class.
    pub fn tokens_of(&self, class: Priority) -> usize {
        self.class_ref(class).tokens
    }

    /// Entries of one user.
    pub fn texts_of(&self, uid: u32) -> usize {
        let classes = [&self.interactive, &self.bulk].into_iter();
        classes.filter_map(|class| class.lanes.get(&uid)).map(|lane| lane.entries.len()).sum()
    }

    /// When the oldest entry came.
    pub fn oldest_us(&self) -> Option<u64> {
        [&self.interactive, &self.bulk].into_iter().filter_map(Class::oldest_us).min()
    }

    /// Adds an entry behind all of its user's.
    pub fn push(&mut self, entry: Entry<T>) {
        self.lane_for(&entry).entries.push_back(entry);
    }

    /// Puts an entry that was taken back before all of its user's. What was charged for it is given back: it
    /// is charged again when it is taken again.
    pub fn push_front(&mut self, entry: Entry<T>) {
        let lane = self.lane_for(&entry);
        lane.served = lane.served.saturating_sub(entry.tokens as u64);
        lane.entries.push_front(entry);
    }

    fn lane_for(&mut self, entry: &Entry<T>) -> &mut Lane<T> {
        let class = self.class(entry.class);
        class.texts += 1;
        class.tokens += entry.tokens;
        let clock = class.clock;
        let lane = class.lanes.entry(entry.uid).or_insert_with(|| Lane {
            served: clock,
            overtaken: 0,
            entries: VecDeque::new(),
        });
        if lane.entries.is_empty() {
            // Being away earns no credit; having been served more than others is not forgotten.
            lane.served = lane.served.max(clock);
        }
        lane
    }

    /// Removes a user's entries that nobody waits for any more.
    pub fn purge(&mut self, uid: u32, alive: &dyn Fn(&Entry<T>) -> bool) -> Vec<Entry<T>> {
        let mut removed = Vec::new();
        for class in [&mut self.interactive, &mut self.bulk] {
            let Some(lane) = class.lanes.get_mut(&uid) else { continue };
            // In place: a copy of what is left may be large.
            for _ in 0..lane.entries.len() {
                let Some(entry) = lane.entries.pop_front() else { break };
                if alive(&entry) {
                    lane.entries.push_back(entry);
                } else {
                    class.texts -= 1;
                    class.tokens -= entry.tokens;
                    removed.push(entry);
                }
            }
        }
        removed
    }

    /// Removes everything.
    pub fn clear(&mut self) -> Vec<Entry<T>> {
        let classes = [std::mem::take(&mut self.interactive), std::mem::take(&mut self.bulk)];
        classes.into_iter().flat_map(|c| c.lanes.into_values()).flat_map(|l| l.entries).collect()
    }

    /// Whether interactive work waits.
    pub fn has_interactive(&self) -> bool {
        self.interactive.texts > 0
    }

    /// The class whose turn it is with a worker, and whether by ageing.
    pub fn turn(&self, serves: Serves, now_us: u64) -> Option<(Priority, bool)> {
        let bulk = (serves == Serves::Everybody).then(|| self.bulk.oldest_us()).flatten();
        let Some(oldest) = bulk else {
            return self.has_interactive().then_some((Priority::Interactive, false));
        };
        if self.interactive.texts == 0 {
            return Some((Priority::Bulk, false));
        }
        let Ageing { bulk_served_us, aged } = self.ageing;
        let waited = now_us.saturating_sub(oldest.max(bulk_served_us));
        if waited >= self.bulk_wait_us_max && !aged {
            return Some((Priority::Bulk, true));
        }
        Some((Priority::Interactive, false))
    }

    /// Notes that a batch of `class` leaves now.
    pub fn taken(&mut self, class: Priority, aged: bool, now_us: u64) {
        self.ageing.aged = aged;
        if class == Priority::Bulk {
            self.ageing.bulk_served_us = now_us;
        }
    }

    /// How far bulk has aged.
    pub fn ageing(&self) -> Ageing {
        self.ageing
    }

    /// As it was before a batch was taken that does not leave yet.
    pub fn restore_ageing(&mut self, ageing: Ageing) {
        self.ageing = ageing;
    }

    /// Users of `class` with entries, in no order that means anything.
    pub fn lanes(&self, class: Priority) -> impl Iterator<Item = (u32, &Lane<T>)> {
        let lanes = self.class_ref(class).lanes.iter().map(|(uid, lane)| (*uid, lane));
        lanes.filter(|(_, lane)| !lane.entries.is_empty())
    }

    /// A user's lane; `None` for one who has neither waited nor been served lately.
    pub fn lane(&self, class: Priority, uid: u32) -> Option<&Lane<T>> {
        self.class_ref(class).lanes.get(&uid)
    }

    /// Removes the entry at `index` of a user's lane.
    pub fn take(&mut self, class: Priority, uid: u32, index: usize) -> Option<Entry<T>> {
        let state = self.class(class);
        let lane = state.lanes.get_mut(&uid)?;
        let entry = lane.entries.remove(index)?;
        lane.overtaken = if index == 0 { 0 } else { lane.overtaken + 1 };
        state.texts -= 1;
        state.tokens -= entry.tokens;
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
        let state = self.class(class);
        let Some(lane) = state.lanes.get_mut(&uid) else { return };
        let (mut next, mut first_too) = (0, false);
        for index in indices {
            passed.extend((next..index).map_while(|_| lane.entries.pop_front()));
            taken.extend(lane.entries.pop_front());
            (next, first_too) = (index + 1, first_too || index == 0);
        }
        for entry in passed.drain(..).rev() {
            lane.entries.push_front(entry);
        }
        let own = &taken[before..];
        lane.overtaken = if first_too { 0 } else { lane.overtaken + own.len() };
        state.texts -= own.len();
        state.tokens -= own.iter().map(|entry| entry.tokens).sum::<usize>();
        self.passed = passed;
    }

    /// Counts tokens as served to a user.
    pub fn charge(&mut self, class: Priority, uid: u32, tokens: usize) {
        if let Some(lane) = self.class(class).lanes.get_mut(&uid) {
            lane.served += tokens as u64;
        }
    }

    /// Sets the class's clock to a picked lane, before it is charged for what it gets.
    pub fn advance(&mut self, class: Priority, uid: u32) {
        let class = self.class(class);
        if let Some(lane) = class.lanes.get(&uid) {
            class.clock = class.clock.max(lane.served);
        }
    }

    /// Forgets users who are neither waiting nor ahead.
    pub fn forget(&mut self, class: Priority) {
        let class = self.class(class);
        let clock = class.clock;
        class.lanes.retain(|_, lane| !lane.entries.is_empty() || lane.served > clock);
    }

    fn class_ref(&self, class: Priority) -> &Class<T> {
        match class {
            Priority::Interactive => &self.interactive,
            Priority::Bulk => &self.bulk,
        }
    }

    fn class(&mut self, class: Priority) -> &mut Class<T> {
        match class {
            Priority::Interactive => &mut self.interactive,
            Priority::Bulk => &mut self.bulk,
        }
    }
}

impl<T> Class<T> {
    fn oldest_us(&self) -> Option<u64> {
        let heads = self.lanes.values().filter_map(|lane| lane.entries.front());
        heads.map(|entry| entry.enqueued_us).min()
    }
}

impl<T> Lane<T> {
    /// Tokens served, on the class's virtual clock.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Entries, from the first on, that may be taken before the lane's turn comes.
    pub fn open(&self) -> usize {
        if self.overtaken < OVERTAKEN_MAX { self.entries.len() } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<usize> {
        let mut queue = Queue::new(0);
        for item in 0..8 {
            let (uid, class) = (1, Priority::Bulk);
            let tokens = 10 + item;
            queue.push(Entry {
                uid,
                class,
                tokens,
                enqueued_us: 0,
                failed_on: None,
                missed: 0,
                item,
            });
        }
        queue
    }

    #[test]
    fn several_are_taken_as_one_after_another_from_the_last_on() {
        for indices in [vec![0, 1, 2], vec![0, 2, 3, 7], vec![1, 6], vec![5, 99], vec![]] {
            let (mut one_by_one, mut together) = (queue(), queue());
            let take = |index: &usize| one_by_one.take(Priority::Bulk, 1, *index);
            let mut expected: Vec<_> = indices.iter().rev().filter_map(take).collect();
            expected.reverse();
            let mut taken = Vec::new();
            together.take_all((Priority::Bulk, 1), indices.iter().copied(), &mut taken);
            let items = |entries: &[Entry<usize>]| -> Vec<usize> {
                entries.iter().map(|entry| entry.item).collect()
            };
            assert_eq!(items(&taken), items(&expected), "{indices:?}");
            let left = |queue: &Queue<usize>| {
                let lane = queue.lane(Priority::Bulk, 1).unwrap();
                let items: Vec<usize> = lane.entries.iter().map(|entry| entry.item).collect();
                (items, lane.overtaken, queue.texts(), queue.tokens())
            };
            assert_eq!(left(&together), left(&one_by_one), "{indices:?}");
        }
    }
}
