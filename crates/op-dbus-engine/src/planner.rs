//! The batch planner, pure: the entry whose turn it is, and what goes well with it within a budget.
//!
//! Where rows are padded that is its nearest in length; where they are packed any texts go together,
//! so that turns are simply taken until the batch is full.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::buckets::Buckets;
use crate::call::Priority;
use crate::config::{BatchLayout, BatchLimits};
use crate::queue::{Entry, Lane, Queue};
use crate::reserve::Serves;

/// Below this many padded tokens a second batch would cost more than any padding.
const PADDING_EXEMPT_TOKENS: usize = 64;

/// Bounds of the window that neighbours are looked for in: some batches deep, and never so many
/// that looking takes longer than a small batch.
const WINDOW: std::ops::RangeInclusive<usize> = 64..=4096;
const WINDOW_BATCHES: usize = 8;

/// Entries that are passed over in a packed layout, because they don't fit the rest of the budget,
/// before the batch leaves as it is: a few long ones in a row must not cost a search of the queue.
const PASSED_MAX: usize = 64;

/// After so long, batches that were made smaller because one did not fit are twice as large again: what
/// else was on the device may have gone.
const TIGHT_US: u64 = 60_000_000;

/// What leaves the queue. The vectors are those of the plan before, emptied.
#[derive(Debug)]
pub(crate) struct Plan<T> {
    /// The rows of the next batch; none if nobody waits.
    pub batch: Vec<Entry<T>>,
    /// Whether it is of bulk whose turn it is by ageing.
    pub aged: bool,
    /// Entries that nobody waits for any more.
    pub dead: Vec<Entry<T>>,
}

impl<T> Default for Plan<T> {
    fn default() -> Self {
        Self { batch: Vec::new(), aged: false, dead: Vec::new() }
    }
}

/// An entry that may join a batch.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    tokens: usize,
    uid: u32,
    index: usize,
    /// Place of its user in the order of turns.
    rank: usize,
}

/// What a batch in the making costs.
#[derive(Clone, Copy, Default)]
struct Fill {
    rows: usize,
    longest: usize,
    real: usize,
    squares: u64,
}

impl Fill {
    fn with(self, tokens: usize) -> Self {
        let square = (tokens as u64).saturating_mul(tokens as u64);
        Self {
            rows: self.rows + 1,
            longest: self.longest.max(tokens),
            real: self.real + tokens,
            squares: self.squares.saturating_add(square),
        }
    }

    fn fits(self, budget: &BatchLimits, buckets: Option<Buckets>) -> bool {
        match budget.layout {
            BatchLayout::Padded => self.fits_padded(budget, buckets),
            BatchLayout::Packed => {
                self.real <= budget.tokens_max
                    && self.rows <= budget.rows_max
                    && self.squares <= budget.attention_max
            }
        }
    }

    fn fits_padded(self, budget: &BatchLimits, buckets: Option<Buckets>) -> bool {
        let length = buckets.map_or(self.longest, |buckets| buckets.length(self.longest));
        let computed = self.rows.saturating_mul(length);
        let attention = (computed as u64).saturating_mul(length as u64);
        // Who goes with whom is decided by their own lengths: rounding comes on top for all alike.
        let padded = self.rows.saturating_mul(self.longest);
        let padding = (padded - self.real.min(padded)).saturating_mul(100);
        computed <= budget.tokens_max
            && self.rows <= budget.rows_max
            && attention <= budget.attention_max
            && (padded <= PADDING_EXEMPT_TOKENS
                || padding <= budget.padding_percent_max.saturating_mul(padded))
    }
}

/// The user whose turn it is: who was served least, of equals who waits longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    served: u64,
    enqueued_us: u64,
    uid: u32,
    /// The entry in the user's lane.
    index: usize,
}

impl Turn {
    fn of<T>(uid: u32, (served, lane): (u64, &Lane<T>), index: usize) -> Option<Self> {
        let enqueued_us = lane.entries.get(index)?.enqueued_us;
        Some(Self { served, enqueued_us, uid, index })
    }
}

/// Makes plans, in memory that is used again for the next.
#[derive(Debug)]
pub(crate) struct Planner {
    limits: BatchLimits,
    /// The limits, with fewer tokens while the device has no memory for more.
    budget: BatchLimits,
    /// When the budget was changed last, while it is below the limits.
    tight_us: Option<u64>,
    /// The shapes that batches are rounded up to.
    buckets: Option<Buckets>,
    lanes: Vec<Turn>,
    window: Vec<Neighbour>,
    turns: BinaryHeap<Reverse<Turn>>,
}

impl Planner {
    pub fn new(limits: BatchLimits) -> Self {
        let (lanes, window, turns) = Default::default();
        Self { limits, budget: limits, tight_us: None, buckets: None, lanes, window, turns }
    }

    /// From here on batches are rounded up to these shapes.
    pub fn round_up(&mut self, buckets: Buckets) {
        self.buckets = Some(buckets);
    }

    /// Tokens of the largest batch of several rows.
    pub fn tokens_max(&self) -> usize {
        self.budget.tokens_max
    }

    /// Makes batches of `tokens` at most from here on, and of fewer while the device has no memory for them.
    pub fn set_tokens_max(&mut self, tokens: usize) {
        let now = self.tight_us.map_or(tokens, |_| self.budget.tokens_max);
        self.limits.tokens_max = tokens;
        self.budget.tokens_max = now.min(tokens);
    }

    /// A batch of `tokens` did not fit the device: makes batches of half of that at most, for a time.
    /// Tells how many tokens that are, if it is less than before.
    pub fn did_not_fit(&mut self, tokens: usize, now_us: u64) -> Option<usize> {
        let half = (tokens / 2).max(1);
        (half < self.budget.tokens_max).then(|| {
            self.budget.tokens_max = half;
            self.tight_us = Some(now_us);
            half
        })
    }

    /// Tries larger batches again once that is due: twice as large for each such time that went by.
    fn widen(&mut self, now_us: u64) {
        let Some(since) = self.tight_us else { return };
        let times = now_us.saturating_sub(since) / TIGHT_US;
        if times > 0 {
            let widened = self.budget.tokens_max.saturating_mul(1 << times.min(31));
            self.budget.tokens_max = widened.min(self.limits.tokens_max);
            self.tight_us = (widened < self.limits.tokens_max).then_some(now_us);
        }
    }

    /// Takes the next batch of a worker out of the queue. The entry whose turn it is goes in any case;
    /// a single row may exceed the budget.
    pub fn plan<T>(
        &mut self,
        queue: &mut Queue<T>,
        (serves, now_us): (Serves, u64),
        alive: &dyn Fn(&Entry<T>) -> bool,
        plan: &mut Plan<T>,
    ) {
        plan.batch.clear();
        plan.dead.clear();
        self.widen(now_us);
        let whole = self.budget;
        if serves == Serves::Interactive {
            // The others' batches would take one thread many times as long.
            self.budget = whole.of_one_thread();
        }
        while let Some((class, aged)) = queue.turn(serves, now_us) {
            let Some(Turn { uid, served, .. }) = turn_in(queue, class) else { break };
            let Some(head) = take_alive(queue, class, uid, alive, &mut plan.dead) else { continue };
            plan.aged = aged;
            queue.advance(uid);
            queue.charge(uid, head.tokens);
            let alone = head.failed_on.is_some();
            plan.batch.push(head);
            let served_max = served.saturating_add(self.budget.tokens_max as u64);
            match self.budget.layout {
                _ if alone => {}
                BatchLayout::Padded => self.nearest(queue, served_max, alive, plan),
                BatchLayout::Packed => self.in_turn(queue, served_max, alive, plan),
            }
            queue.forget(whole.tokens_max);
            break;
        }
        self.budget = whole;
    }

    /// Adds entries to the one that a batch begins with, as if each were planned by itself, until
    /// the batch is full. One that does not fit any more is passed over, which makes it no younger:
    /// it stays first in its lane, and a lane's first is taken whatever its size once it is the
    /// lane's turn to begin a batch.
    fn in_turn<T>(
        &mut self,
        queue: &mut Queue<T>,
        served_max: u64,
        alive: &dyn Fn(&Entry<T>) -> bool,
        plan: &mut Plan<T>,
    ) {
        let Self { budget, turns, .. } = self;
        let Some(head) = plan.batch.first() else { return };
        let (class, mut fill) = (head.class, Fill::default().with(head.tokens));
        let turn = |uid, (served, lane): (u64, &Lane<T>), index| {
            let open = served <= served_max && index < lane.open();
            Turn::of(uid, (served, lane), index).filter(|_| open).map(Reverse)
        };
        turns.clear();
        turns.extend(
            queue.lanes(class).filter_map(|(uid, served, lane)| turn(uid, (served, lane), 0)),
        );
        let mut passed = 0;
        while let Some(Reverse(Turn { uid, mut index, .. })) = turns.pop() {
            let Some(entry) = queue.lane(class, uid).and_then(|(_, lane)| lane.entries.get(index))
            else {
                continue;
            };
            let next = fill.with(entry.tokens);
            if !alive(entry) {
                plan.dead.extend(queue.take(class, uid, index));
            } else if entry.failed_on.is_none() && next.fits(budget, None) {
                fill = next;
                queue.charge(uid, entry.tokens);
                plan.batch.extend(queue.take(class, uid, index));
            } else {
                passed += 1;
                index += 1;
            }
            let full = fill.real >= budget.tokens_max || fill.rows >= budget.rows_max;
            if full || passed > PASSED_MAX {
                break;
            }
            turns.extend(queue.lane(class, uid).and_then(|lane| turn(uid, lane, index)));
        }
    }

    /// Adds those nearest in length to the entry that a batch begins with, as far as they fit.
    fn nearest<T>(
        &mut self,
        queue: &mut Queue<T>,
        served_max: u64,
        alive: &dyn Fn(&Entry<T>) -> bool,
        plan: &mut Plan<T>,
    ) {
        let Some(head) = plan.batch.first() else { return };
        let (class, tokens) = (head.class, head.tokens);
        self.look_around(queue, (class, tokens), served_max, alive);
        let chosen = nearest(&mut self.window, tokens, (&self.budget, self.buckets));
        // As they were queued, so that texts that follow one another are handed over at once.
        chosen.sort_unstable_by_key(|neighbour| (neighbour.uid, neighbour.index));
        for of_user in chosen.chunk_by(|one, other| one.uid == other.uid) {
            let (uid, indices) = (of_user[0].uid, of_user.iter().map(|neighbour| neighbour.index));
            queue.take_all((class, uid), indices, &mut plan.batch);
            queue.charge(uid, of_user.iter().map(|neighbour| neighbour.tokens).sum());
        }
    }

    /// Fills the window: the oldest entries of each user who is not ahead by more than a batch.
    fn look_around<T>(
        &mut self,
        queue: &Queue<T>,
        (class, head_tokens): (Priority, usize),
        served_max: u64,
        alive: &dyn Fn(&Entry<T>) -> bool,
    ) {
        let Self { budget, lanes, window, .. } = self;
        let size = WINDOW_BATCHES * (budget.tokens_max / head_tokens.max(1));
        let size = size.clamp(*WINDOW.start(), *WINDOW.end());
        lanes.clear();
        let near = queue.lanes(class).filter(|(_, served, _)| *served <= served_max);
        lanes.extend(near.filter_map(|(uid, served, lane)| Turn::of(uid, (served, lane), 0)));
        lanes.sort_unstable();
        let share = (size / lanes.len().max(1)).max(1);
        window.clear();
        for (rank, turn) in lanes.iter().enumerate().take(size) {
            let Some((_, lane)) = queue.lane(class, turn.uid) else { continue };
            for (index, entry) in lane.entries.iter().enumerate().take(share.min(lane.open())) {
                if entry.failed_on.is_none() && alive(entry) {
                    window.push(Neighbour { tokens: entry.tokens, uid: turn.uid, index, rank });
                }
            }
        }
    }
}

/// The entry that a worker's next batch begins with, unless nobody waits for it any more.
pub(crate) fn first<T>(queue: &Queue<T>, serves: Serves, now_us: u64) -> Option<&Entry<T>> {
    let (class, _) = queue.turn(serves, now_us)?;
    queue.lane(class, turn_in(queue, class)?.uid)?.1.entries.front()
}

/// Whose turn it is in a class.
fn turn_in<T>(queue: &Queue<T>, class: Priority) -> Option<Turn> {
    queue.lanes(class).filter_map(|(uid, served, lane)| Turn::of(uid, (served, lane), 0)).min()
}

fn take_alive<T>(
    queue: &mut Queue<T>,
    class: Priority,
    uid: u32,
    alive: &dyn Fn(&Entry<T>) -> bool,
    dead: &mut Vec<Entry<T>>,
) -> Option<Entry<T>> {
    while let Some(entry) = queue.take(class, uid, 0) {
        if alive(&entry) {
            return Some(entry);
        }
        dead.push(entry);
    }
    None
}

/// Those nearest in length to the head that fit the budget together with it.
fn nearest<'a>(
    window: &'a mut [Neighbour],
    head_tokens: usize,
    (budget, buckets): (&BatchLimits, Option<Buckets>),
) -> &'a mut [Neighbour] {
    window.sort_unstable_by_key(|neighbour| (neighbour.tokens, neighbour.index, neighbour.rank));
    let mut fill = Fill::default().with(head_tokens);
    let start = window.partition_point(|neighbour| neighbour.tokens < head_tokens);
    let (mut low, mut high) = (start, start);
    let (mut low_end, mut high_end) = (0, window.len());
    while low > low_end || high < high_end {
        let shorter = (low > low_end).then(|| head_tokens - window[low - 1].tokens);
        let longer = (high < high_end).then(|| window[high].tokens - head_tokens);
        let take_longer = match (shorter, longer) {
            (Some(shorter), Some(longer)) => longer <= shorter,
            (shorter, _) => shorter.is_none(),
        };
        let tokens = if take_longer { window[high].tokens } else { window[low - 1].tokens };
        let next = fill.with(tokens);
        let fits = next.fits(budget, buckets);
        match (fits, take_longer) {
            (true, true) => high += 1,
            (true, false) => low -= 1,
            // What lies further on this side fits even less.
            (false, true) => high_end = high,
            (false, false) => low_end = low,
        }
        if fits {
            fill = next;
        }
    }
    &mut window[low..high]
}

#[cfg(test)]
mod tests;
