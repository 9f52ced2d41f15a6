//! What is left of calls that are over: rows that nobody waits for, and that count until they are dropped.

use std::collections::BTreeSet;

use super::{Entry, Scheduler, State, fail};
use crate::error::Error;
use crate::job::Job;

/// What is left is looked for before the next batch if it counts for this part of what waits. To look takes the
/// longer the more its users have queued: one who has much there could keep everybody waiting with calls that fail.
const PART: usize = 8;

/// What calls that are over have left in the queue.
#[derive(Debug, Default)]
pub(super) struct Over {
    users: BTreeSet<u32>,
    /// What those calls count for, at most: rows may have been dropped at their turn since.
    tokens: usize,
}

impl Scheduler {
    /// A call was given up: its rows are dropped at their turn; before the next batch, as soon as what is left of such
    /// calls counts for an eighth of what waits; or at once while no worker can come by.
    pub fn cancelled(&self, job: &Job) {
        let held = job.held();
        let mut state = self.lock();
        // Asked under the lock that rows are queued under: whoever queues some later asks whether they are wanted.
        if held > 0 && job.was_queued() && state.queue.texts() > 0 {
            state.over.users.insert(job.terms.uid);
            state.over.tokens += held;
        }
        drop(state);
        self.purge_for_nobody();
    }

    /// Drops the rows of calls that were given up; false if there are none.
    pub fn purge(&self) -> bool {
        let now_us = self.clock.now_us();
        let over = self.lock().purge_all(&|entry| entry.item.job.is_alive(now_us));
        let any = !over.is_empty();
        // Those that were cancelled have been told already.
        fail(over, &Error::DeadlineExceeded);
        any
    }

    /// [`purge`](Self::purge) where no worker has a backend that would do so before its next batch.
    pub(super) fn purge_for_nobody(&self) {
        let state = self.lock();
        let wanted = !state.over.users.is_empty() && !state.roster.any_is_there();
        drop(state);
        if wanted {
            self.purge();
        }
    }
}

impl State {
    /// Takes out the rows of calls that were given up, if they are enough of what waits.
    pub(super) fn purge(&mut self, alive: &dyn Fn(&Entry) -> bool) -> Vec<Entry> {
        match self.over.tokens.saturating_mul(PART) >= self.queue.tokens() {
            true => self.purge_all(alive),
            false => Vec::new(),
        }
    }

    fn purge_all(&mut self, alive: &dyn Fn(&Entry) -> bool) -> Vec<Entry> {
        let users = std::mem::take(&mut self.over).users.into_iter();
        users.flat_map(|uid| self.queue.purge(uid, alive)).collect()
    }
}
