//! Which device a batch goes to where there are several, of one pool or of two: the one that will have it done first.
//!
//! Workers pull, so the question is put to an idle worker whose turn it would be: will all that waits be done
//! elsewhere before it has one batch of that, although others may still be busy with the batch before?
//! What batches cost is learned from those that ran.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::Priority;

/// Weight of the newest batch in what is known of its size.
const WEIGHT: f32 = 0.2;
/// A batch that took longer than so many times what was known counts as that: a moment that another program took
/// away is no reason to leave a device, and one that has become slower shows it by several.
const OUTLIER: f32 = 4.0;
/// Two devices cost alike where the dearer takes up to so many percent of the time of the other: what is known of
/// either is no better than that, and nobody waits for who is hardly quicker.
const ALIKE_PERCENT: u64 = 125;
/// Sizes are told apart by powers of two; a batch of a million tokens belongs to the last.
const OCTAVES: usize = 20;
/// However cheap a batch is, the question is not put again sooner than this.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// However dear it is, a device that hangs is not relied on for longer.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a batch of a certain size costs, as the mean of those that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCost {
    /// Tokens, without padding.
    pub tokens: usize,
    /// Microseconds.
    pub us: u64,
}

/// What batches cost on one device of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost([Option<Point>; OCTAVES]);

/// The mean of the batches of one size.
#[derive(Clone, Copy, Debug)]
struct Point {
    tokens: f32,
    us: f32,
    /// Whether nothing of this size has run since batches were left to another device.
    is_left: bool,
}

impl Cost {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// What was known earlier.
    pub fn of_known(costs: &[BatchCost]) -> Self {
        let mut cost = Self::default();
        costs.iter().for_each(|known| cost.learn(known.tokens, known.us));
        cost
    }

    /// What is known now, by size.
    pub fn known(&self) -> Vec<BatchCost> {
        let cost = |point: &Point| BatchCost {
            tokens: point.tokens.round().max(1.0) as usize,
            us: point.us.round().max(1.0) as u64,
        };
        self.0.iter().flatten().map(cost).collect()
    }

    /// Takes note of a batch of `tokens` that took `us`.
    pub fn learn(&mut self, tokens: usize, us: u64) {
        let new = Point { tokens: tokens as f32, us: us as f32, is_left: false };
        let octave = tokens.max(1).ilog2() as usize;
        let point = self.0[octave.min(OCTAVES - 1)].get_or_insert(new);
        point.is_left = false;
        point.tokens += WEIGHT * (new.tokens - point.tokens);
        point.us += WEIGHT * (new.us.min(OUTLIER * point.us.max(1.0)) - point.us);
    }

    /// From here on batches are left to another device: of sizes that don't run any more nothing is learned.
    pub fn note_left(&mut self) {
        self.0.iter_mut().flatten().for_each(|point| point.is_left = true);
    }

    /// Takes what was measured in place of what was known of such sizes, and of those that have not run since.
    pub fn measured(&mut self, costs: &[BatchCost]) {
        for (known, new) in self.0.iter_mut().zip(Self::of_known(costs).0) {
            if new.is_some() || known.is_some_and(|point| point.is_left) {
                *known = new;
            }
        }
    }

    /// What a batch of `tokens` will take, in microseconds: on the line between the nearest sizes
    /// that are known, at least what the smallest of them takes, and in proportion beyond the
    /// largest. `None` while nothing has run.
    pub fn of(&self, tokens: usize) -> Option<u64> {
        let tokens = tokens as f32;
        let known = || self.0.iter().flatten();
        let above = known().find(|point| point.tokens >= tokens);
        let below = known().rfind(|point| point.tokens < tokens);
        let us = match (below, above) {
            (None, above) => above?.us,
            (Some(below), None) => below.us * tokens / below.tokens.max(1.0),
            (Some(below), Some(above)) => {
                let part = (tokens - below.tokens) / (above.tokens - below.tokens).max(1.0);
                below.us + part * (above.us - below.us)
            }
        };
        // A cast from a float saturates.
        Some(us.max(0.0) as u64)
    }

    /// Tokens of the largest batches that are known.
    pub fn largest(&self) -> usize {
        self.0.iter().flatten().last().map_or(0, |point| point.tokens.round() as usize)
    }

    /// Tokens per second in batches of `tokens`.
    pub fn rate(&self, tokens: usize) -> Option<f64> {
        self.of(tokens).map(|us| tokens as f64 * 1e6 / us.max(1) as f64)
    }
}

/// A worker, as the question sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub cost: &'a Cost,
    /// Tokens of its largest batch.
    pub tokens_max: usize,
    /// What it runs now.
    pub running: Option<Running>,
}

/// A batch that is being computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub class: Priority,
    pub tokens: usize,
    pub started_us: u64,
}

/// Whether batches that take so many microseconds cost alike.
pub(crate) fn are_alike(one_us: u64, other_us: u64) -> bool {
    let (least, most) = (one_us.min(other_us), one_us.max(other_us));
    most.saturating_mul(100) <= least.saturating_mul(ALIKE_PERCENT)
}

/// How long `own`, which is idle, leaves the next batch of so many tokens that wait to those that can be had on other
/// devices, before it asks again: whoever was to be faster may not be. None where it takes it itself.
pub(crate) fn wait_for_others<'a>(
    own: &Candidate<'_>,
    others: impl IntoIterator<Item = Candidate<'a>>,
    waiting_tokens: usize,
    now_us: u64,
) -> Option<Duration> {
    // A device that nothing is known of has to run something first.
    let own_us = own.next_us(waiting_tokens)?;
    let done = others.into_iter().filter_map(|other| {
        let next_us = other.next_us(waiting_tokens)?;
        // Of batches as large.
        let is_alike = other.tokens_max == own.tokens_max && are_alike(own_us, next_us);
        (!is_alike).then(|| other.done_within(own_us, next_us, now_us))
    });
    // What they do not come to by then is done sooner with one more to help.
    let left = done.fold(0, usize::saturating_add) >= waiting_tokens.max(1);
    left.then(|| Duration::from_micros(own_us).clamp(PAUSE_MIN, PAUSE_MAX))
}

impl Candidate<'_> {
    /// What it takes for the next batch of so many tokens that wait, in microseconds; none where that is not known.
    pub fn next_us(&self, waiting_tokens: usize) -> Option<u64> {
        self.cost.of(waiting_tokens.min(self.tokens_max))
    }

    /// Tokens of what waits that it has done in less than `us`, in batches that take it `next_us` each.
    fn done_within(&self, us: u64, next_us: u64, now_us: u64) -> usize {
        let left_us = us.saturating_sub(self.remaining(now_us));
        let batches = left_us.saturating_sub(1) / next_us.max(1);
        usize::try_from(batches).unwrap_or(usize::MAX).saturating_mul(self.tokens_max.max(1))
    }

    /// Time until it is idle. One that is late will be so for half as long again, as far as anybody knows.
    fn remaining(&self, now_us: u64) -> u64 {
        let Some(Running { tokens, started_us, .. }) = self.running else { return 0 };
        let elapsed = now_us.saturating_sub(started_us);
        let expected = self.cost.of(tokens).unwrap_or(0);
        expected.checked_sub(elapsed).unwrap_or(elapsed / 2)
    }
}

#[cfg(test)]
mod tests;
