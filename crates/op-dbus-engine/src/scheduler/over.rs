//! What is left of calls that are over: rows that nobody waits for, and that count until they are dropped.

use super::{Entry, Scheduler, State, fail};
use crate::error::Error;

impl Scheduler {
    /// A call of this user was given up: its rows are dropped before the next batch, or at once while no
    /// worker can come by.
    pub fn cancelled(&self, uid: u32) {
        let mut state = self.lock();
        if state.queue.texts() > 0 {
            state.cancelled.insert(uid);
        }
        drop(state);
        self.purge_for_nobody();
    }

    /// Drops the rows of calls that were given up; false if there are none.
    pub fn purge(&self) -> bool {
        let now_us = self.clock.now_us();
        let over = self.lock().purge(&|entry| entry.item.job.is_alive(now_us));
        let any = !over.is_empty();
        // Those that were cancelled have been told already.
        fail(over, &Error::DeadlineExceeded);
        any
    }

    /// [`purge`](Self::purge) where no worker has a backend that would do so before its next batch.
    pub(super) fn purge_for_nobody(&self) {
        let state = self.lock();
        let wanted = !state.cancelled.is_empty() && !state.roster.any_is_there();
        drop(state);
        if wanted {
            self.purge();
        }
    }
}

impl State {
    /// Takes out the rows of calls that were cancelled.
    pub(super) fn purge(&mut self, alive: &dyn Fn(&Entry) -> bool) -> Vec<Entry> {
        let users = std::mem::take(&mut self.cancelled).into_iter();
        users.flat_map(|uid| self.queue.purge(uid, alive)).collect()
    }
}
