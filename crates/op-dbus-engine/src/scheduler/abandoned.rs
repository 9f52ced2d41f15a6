//! What is left of calls that are over: rows that nobody waits for, and that count until they are dropped.

use std::collections::BTreeMap;

use super::{Entry, Scheduler, State, fail};
use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;

/// What is left is looked for before the next batch if it counts for this part of what waits. To look takes the
/// longer the more its users have queued: one who has much there could keep everybody waiting with calls that fail.
const PART: usize = 8;

/// Rows of a user that are looked at for each token of what is left of that user's calls, where a call needs the room.
const LOOKS: usize = 64;

/// What calls that are over have left in the queue: tokens of each user, at most, as rows may have been dropped at
/// their turn since.
#[derive(Debug, Default)]
pub(super) struct Abandoned(BTreeMap<u32, usize>);

impl Scheduler {
    /// A call was given up: its rows are dropped at their turn; before the next batch, as soon as what is left of such
    /// calls counts for an eighth of what waits; or at once while no worker can come by.
    pub fn cancelled(&self, job: &Job) {
        let held = job.held();
        let mut state = self.lock();
        // Asked under the lock that rows are queued under: whoever queues some later asks whether they are wanted.
        if let Some(held) = held.filter(|_| job.was_queued() && state.queue.texts() > 0) {
            // The engine's own call counts for nothing.
            *state.abandoned.0.entry(job.terms.uid).or_default() += held.max(1);
        }
        drop(state);
        self.purge_for_nobody();
    }

    /// Drops the rows of calls that were given up, but for those of users who have much else.
    pub fn purge(&self) {
        self.purge_if(|_| true);
    }

    /// [`purge`](Self::purge) where no worker has a backend that would do so before its next batch.
    pub(super) fn purge_for_nobody(&self) {
        self.purge_if(|registry| !registry.any_is_there());
    }

    fn purge_if(&self, wanted: fn(&Registry) -> bool) {
        let now_us = self.clock.now_us();
        let mut state = self.lock();
        if wanted(&state.registry) {
            let dead = state.purge_worth(&|entry| entry.item.job.is_alive(now_us));
            drop(state);
            // Those that were cancelled have been told already.
            fail(dead, &Error::DeadlineExceeded);
        }
    }
}

impl State {
    /// Takes out the rows of calls that were given up, if they are enough of what waits.
    pub(super) fn purge(&mut self, alive: &dyn Fn(&Entry) -> bool) -> Vec<Entry> {
        let tokens: usize = self.abandoned.0.values().sum();
        if tokens.saturating_mul(PART) < self.queue.tokens() {
            return Vec::new();
        }
        let users = std::mem::take(&mut self.abandoned.0).into_keys();
        users.flat_map(|uid| self.queue.purge(uid, alive)).collect()
    }

    /// Takes them out of what users have queued who have not much more there.
    fn purge_worth(&mut self, alive: &dyn Fn(&Entry) -> bool) -> Vec<Entry> {
        let Self { abandoned, queue, .. } = self;
        let is_worth =
            |uid: &u32, tokens: &mut usize| tokens.saturating_mul(LOOKS) >= queue.texts_of(*uid);
        let users: Vec<u32> = abandoned.0.extract_if(.., is_worth).map(|(uid, _)| uid).collect();
        users.into_iter().flat_map(|uid| queue.purge(uid, alive)).collect()
    }
}
