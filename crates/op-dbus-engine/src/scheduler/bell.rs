//! What workers wait on. The system is asked for each ring, whether anybody hears it or not: under load nobody does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Scheduler, State};

/// Wakes who waits on it.
#[derive(Debug, Default)]
pub(super) struct Bell {
    condition: Condvar,
    /// How many wait; counted under the lock of the state, by which alone it is in order.
    waiting: AtomicUsize,
    /// How often it was rung, for one and for all.
    #[cfg(test)]
    rings: [AtomicUsize; 2],
}

impl Bell {
    /// Whether somebody waits. Who comes to wait after that sees first what the state has now.
    pub(super) fn is_awaited(&self, _locked: &State) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes one.
    pub(super) fn notify_one(&self) {
        #[cfg(test)]
        self.rings[0].fetch_add(1, Ordering::Relaxed);
        self.condition.notify_one();
    }

    /// Wakes all.
    pub(super) fn notify_all(&self) {
        #[cfg(test)]
        self.rings[1].fetch_add(1, Ordering::Relaxed);
        self.condition.notify_all();
    }

    /// How often it was rung, for one and for all.
    #[cfg(test)]
    pub(super) fn rings(&self) -> [usize; 2] {
        self.rings.each_ref().map(|rings| rings.load(Ordering::Relaxed))
    }
}

impl Scheduler {
    /// Waits for a ring, or for so long.
    pub(super) fn wait<'a>(
        &self,
        bell: &Bell,
        state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        bell.waiting.fetch_add(1, Ordering::Relaxed);
        let state = match timeout {
            None => bell.condition.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let woken = bell.condition.wait_timeout(state, timeout);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        bell.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }
}
