//! What workers wait on. The system is asked for each notification, whether anybody waits or not: under load nobody
//! does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use super::State;

/// A condition variable that tells whether anybody waits on it.
#[derive(Debug, Default)]
pub(super) struct CountingCondvar {
    condvar: Condvar,
    /// How many wait; counted under the lock of the state, by which alone it is in order.
    waiting: AtomicUsize,
    /// How often one was notified, and all.
    #[cfg(test)]
    notified: [AtomicUsize; 2],
}

impl CountingCondvar {
    /// Whether somebody waits. Who comes to wait after that sees first what the state has now.
    pub(super) fn has_waiters(&self, _locked: &State) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes one.
    pub(super) fn notify_one(&self) {
        #[cfg(test)]
        self.notified[0].fetch_add(1, Ordering::Relaxed);
        self.condvar.notify_one();
    }

    /// Wakes all.
    pub(super) fn notify_all(&self) {
        #[cfg(test)]
        self.notified[1].fetch_add(1, Ordering::Relaxed);
        self.condvar.notify_all();
    }

    /// How often one was notified, and all.
    #[cfg(test)]
    pub(super) fn notified(&self) -> [usize; 2] {
        self.notified.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits to be notified, or for so long.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = match timeout {
            None => self.condvar.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let woken = self.condvar.wait_timeout(state, timeout);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }
}
