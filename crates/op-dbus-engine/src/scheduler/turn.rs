//! What an idle worker takes of what waits, and what it leaves to others.

use std::time::Duration;

use super::{Scheduler, State};
use crate::call::Priority;
use crate::clock::Clock;
use crate::planner;
use crate::reserve::Serves;

impl Scheduler {
    /// Whom an idle worker computes for now.
    ///
    /// # Errors
    /// How long it waits for more texts, or leaves these to others.
    pub(super) fn turn(
        &self,
        state: &mut State,
        worker: usize,
        now_us: u64,
    ) -> Result<Serves, Duration> {
        let serves = state.registry.serves(worker);
        let Some(delay) = self.delay(state, (worker, serves), now_us) else { return Ok(serves) };
        // Interactive work that is left to others is no reason to leave them what waits behind it.
        let is_both = state.queue.has_interactive() && state.queue.tokens_of(Priority::Bulk) > 0;
        match serves == Serves::Everybody
            && is_both
            && self.delay(state, (worker, Serves::Bulk), now_us).is_none()
        {
            true => Ok(Serves::Bulk),
            false => Err(delay),
        }
    }

    /// How long an idle worker waits before it takes what is next of what it serves; none where it takes it now.
    fn delay(
        &self,
        state: &mut State,
        (worker, serves): (usize, Serves),
        now_us: u64,
    ) -> Option<Duration> {
        let first = planner::first(&state.queue, serves, now_us)?;
        if let Some(failed_on) = first.failed_on {
            // What batches cost is of no matter here.
            return state.registry.wait_for_another(worker, failed_on, now_us);
        }
        let tokens = match serves {
            Serves::Interactive => return None,
            // A batch is of one class alone.
            Serves::Everybody => state.queue.tokens_of(first.class),
            // The others come to it behind all that is interactive.
            Serves::Bulk => state.queue.tokens(),
        };
        if self.delay_us > 0 {
            let tokens_max = state.registry.planner(worker)?.tokens_max();
            let until_us = state.queue.oldest_us()?.saturating_add(self.delay_us);
            let wait_us = until_us.saturating_sub(now_us);
            if wait_us > 0 && state.queue.tokens() < tokens_max {
                return Some(Duration::from_micros(wait_us));
            }
        }
        let wait = state.registry.wait_for_others(worker, tokens, now_us);
        if wait.is_some() {
            state.registry.note_left(worker, now_us);
        }
        wait
    }
}

impl State {
    /// Whether what is next is not for every worker, so that the one that wakes may leave it to another one.
    pub(super) fn is_choosy(&self, clock: Clock) -> bool {
        let first = planner::first(&self.queue, Serves::Everybody, clock.now_us());
        first.is_some_and(|first| {
            let tokens = self.queue.tokens_of(first.class);
            let registry = &self.registry;
            first.failed_on.is_some() || registry.is_choosy(tokens)
        })
    }
}
