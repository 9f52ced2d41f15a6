//! The batch planner, pure: the entry whose turn it is, and what goes well with it within a budget.
//!
//! Where rows are padded that is its nearest in length; where they are packed any texts go together,
//! so that turns are simply taken until the batch is full.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::call::Priority;
use crate::config::BatchLayout;
use crate::queue::{Entry, Queue};

/// Below this many padded tokens a second batch would cost more than any padding.
const PADDING_EXEMPT_TOKENS: usize = 64;

/// Bounds of the window that neighbours are looked for in: some batches deep, and never so many
/// that looking takes longer than a small batch.
const WINDOW: std::ops::RangeInclusive<usize> = 64..=4096;
const WINDOW_BATCHES: usize = 8;

/// Entries that are passed over in a packed layout, because they don't fit the rest of the budget,
/// before the batch leaves as it is: a few long ones in a row must not cost a search of the queue.
const PASSED_MAX: usize = 64;

/// What one batch may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub layout: BatchLayout,
    /// Rows × sequence length, or the tokens of all rows.
    pub tokens_max: usize,
    pub rows_max: usize,
    /// Rows × sequence length², or the sum of the rows' lengths squared.
    pub attention_max: u64,
    /// Padding in percent of the padded tokens; nothing to a packed layout.
    pub padding_percent_max: usize,
}

/// What leaves the queue.
#[derive(Debug)]
pub(crate) struct Plan<T> {
    /// The rows of the next batch; none if nobody waits.
    pub batch: Vec<Entry<T>>,
    /// Entries that nobody waits for any more.
    pub dead: Vec<Entry<T>>,
}

#[derive(Clone, Copy)]
struct Candidate {
    tokens: usize,
    uid: u32,
    index: usize,
}

/// A batch in the making.
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

    fn fits(self, budget: &Budget) -> bool {
        match budget.layout {
            BatchLayout::Padded => self.fits_padded(budget),
            BatchLayout::Packed => {
                self.real <= budget.tokens_max
                    && self.rows <= budget.rows_max
                    && self.squares <= budget.attention_max
            }
        }
    }

    fn fits_padded(self, budget: &Budget) -> bool {
        let padded = self.rows.saturating_mul(self.longest);
        let attention = (padded as u64).saturating_mul(self.longest as u64);
        let padding = (padded - self.real.min(padded)).saturating_mul(100);
        padded <= budget.tokens_max
            && self.rows <= budget.rows_max
            && attention <= budget.attention_max
            && (padded <= PADDING_EXEMPT_TOKENS
                || padding <= budget.padding_percent_max.saturating_mul(padded))
    }
}

/// Takes the next batch out of the queue. The entry whose turn it is goes in any case; a single row
/// may exceed the budget.
pub(crate) fn plan<T>(
    queue: &mut Queue<T>,
    budget: &Budget,
    now_us: u64,
    alive: &dyn Fn(&Entry<T>) -> bool,
) -> Plan<T> {
    let mut plan = Plan { batch: Vec::new(), dead: Vec::new() };
    while let Some((class, aged)) = queue.turn(now_us) {
        let Some((uid, served)) =
            queue.lanes(class).first().map(|(uid, lane)| (*uid, lane.served()))
        else {
            break;
        };
        let Some(head) = take_alive(queue, class, uid, alive, &mut plan.dead) else { continue };
        queue.taken(class, aged, now_us);
        queue.advance(class, uid);
        queue.charge(class, uid, head.tokens);
        let (tokens, alone) = (head.tokens, head.alone);
        plan.batch.push(head);
        let served_max = served.saturating_add(budget.tokens_max as u64);
        match budget.layout {
            _ if alone => {}
            BatchLayout::Padded => {
                let window = window(queue, class, (tokens, budget.tokens_max), served_max, alive);
                for Candidate { tokens, uid, index } in nearest(window, tokens, budget) {
                    plan.batch.extend(queue.take(class, uid, index));
                    queue.charge(class, uid, tokens);
                }
            }
            BatchLayout::Packed => in_turn(queue, served_max, budget, alive, &mut plan),
        }
        queue.forget(class);
        break;
    }
    plan
}

/// The next entry that a user may add to a batch: whoever was served least goes first, of equals
/// whoever waits longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    served: u64,
    enqueued_us: u64,
    uid: u32,
    /// In the user's lane.
    index: usize,
}

/// Adds entries to the one that a batch begins with, as if each were planned by itself, until the batch is full. One that does not fit
/// any more is passed over, which makes it no younger: it stays first in its lane, and a lane's
/// first is taken whatever its size once it is the lane's turn to begin a batch.
fn in_turn<T>(
    queue: &mut Queue<T>,
    served_max: u64,
    budget: &Budget,
    alive: &dyn Fn(&Entry<T>) -> bool,
    plan: &mut Plan<T>,
) {
    let Some(head) = plan.batch.first() else { return };
    let (class, mut fill) = (head.class, Fill::default().with(head.tokens));
    let turn = |queue: &Queue<T>, uid, index| {
        let lane = queue.lane(class, uid)?;
        let entry = lane.entries.get(index).filter(|_| index < lane.open())?;
        let enqueued_us = entry.enqueued_us;
        let served = lane.served();
        (served <= served_max).then_some(Reverse(Turn { served, enqueued_us, uid, index }))
    };
    let lanes = queue.lanes(class);
    let mut turns: BinaryHeap<_> =
        lanes.iter().filter_map(|(uid, _)| turn(queue, *uid, 0)).collect();
    let mut passed = 0;
    while let Some(Reverse(Turn { uid, mut index, .. })) = turns.pop() {
        let Some(entry) = queue.lane(class, uid).and_then(|lane| lane.entries.get(index)) else {
            continue;
        };
        let next = fill.with(entry.tokens);
        if !alive(entry) {
            plan.dead.extend(queue.take(class, uid, index));
        } else if !entry.alone && next.fits(budget) {
            fill = next;
            queue.charge(class, uid, entry.tokens);
            plan.batch.extend(queue.take(class, uid, index));
        } else {
            passed += 1;
            index += 1;
        }
        if fill.real >= budget.tokens_max || fill.rows >= budget.rows_max || passed > PASSED_MAX {
            break;
        }
        turns.extend(turn(queue, uid, index));
    }
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

/// Entries that may join: the oldest of each user who is not ahead by more than a batch.
fn window<T>(
    queue: &Queue<T>,
    class: Priority,
    (head_tokens, tokens_max): (usize, usize),
    served_max: u64,
    alive: &dyn Fn(&Entry<T>) -> bool,
) -> Vec<Candidate> {
    let size =
        (WINDOW_BATCHES * (tokens_max / head_tokens.max(1))).clamp(*WINDOW.start(), *WINDOW.end());
    let lanes: Vec<_> =
        queue.lanes(class).into_iter().filter(|(_, lane)| lane.served() <= served_max).collect();
    let share = (size / lanes.len().max(1)).max(1);
    let mut candidates = Vec::new();
    for (uid, lane) in lanes.into_iter().take(size) {
        for (index, entry) in lane.entries.iter().enumerate().take(share.min(lane.open())) {
            if !entry.alone && alive(entry) {
                candidates.push(Candidate { tokens: entry.tokens, uid, index });
            }
        }
    }
    candidates
}

/// Those nearest in length to the head that fit the budget, in an order in which they can be
/// taken out one after another: of each user, the last first.
fn nearest(mut window: Vec<Candidate>, head_tokens: usize, budget: &Budget) -> Vec<Candidate> {
    window.sort_by_key(|candidate| (candidate.tokens, candidate.index));
    let mut fill = Fill::default().with(head_tokens);
    let start = window.partition_point(|candidate| candidate.tokens < head_tokens);
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
        match (next.fits(budget), take_longer) {
            (true, true) => high += 1,
            (true, false) => low -= 1,
            // What lies further on this side fits even less.
            (false, true) => high_end = high,
            (false, false) => low_end = low,
        }
        if next.fits(budget) {
            fill = next;
        }
    }
    let mut chosen = window[low..high].to_vec();
    chosen.sort_by_key(|candidate| (candidate.uid, Reverse(candidate.index)));
    chosen
}

#[cfg(test)]
mod tests;
