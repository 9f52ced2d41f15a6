//! What the bounds of admission are on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Permit, retry_after_ms};
use crate::config::Limits;
use crate::error::Error;

/// The tokens in flight, of each user and of all. Engines that share one have the bounds together: who names
/// the models of several has no more room than who names one.
#[derive(Debug, Default)]
pub struct Ledger {
    counted: Mutex<Counted>,
    /// Notified whenever something is given back.
    pub(super) freed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Counted {
    tokens: usize,
    by_uid: HashMap<u32, usize>,
    /// Calls that wait for room: their users and tokens.
    waiting: Vec<(u32, usize)>,
}

impl Ledger {
    pub(super) fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens in flight: of all, and of the user who has most.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let counted = self.lock();
        (counted.tokens, counted.by_uid.values().copied().max().unwrap_or_default())
    }
}

impl Permit {
    /// Tokens that count against the bounds.
    pub fn held(&self) -> usize {
        self.held
    }
}

impl Counted {
    /// Whether there is room for so many more tokens of a user. `tokens_per_s` is the measured rate, for the hint.
    ///
    /// Beside others a user has no more than it leaves free, so that one who comes later finds room however many
    /// there are: of `n` who take all that they get, each has an `n + 1`th of the queue (dynamic thresholds, Choudhury
    /// and Hahne, 1998). Nor has it what one waits for who has nothing in flight, and who would not find that much else.
    pub fn check(
        &self,
        uid: u32,
        tokens: usize,
        limits: &Limits,
        tokens_per_s: f64,
    ) -> Result<(), Error> {
        let Limits { queue_tokens_max, quota_tokens, .. } = *limits;
        let in_flight = self.by_uid.get(&uid).copied().unwrap_or_default();
        let awaited = self.awaited();
        let left = queue_tokens_max.saturating_sub(self.tokens).saturating_sub(awaited);
        let is_beside_others = in_flight > 0 && (in_flight < self.tokens || awaited > 0);
        let limit = if is_beside_others { quota_tokens.min(left) } else { quota_tokens };
        if in_flight + tokens > limit {
            let excess = in_flight + tokens - limit;
            return Err(Error::QuotaExceeded {
                uid,
                needed: tokens,
                in_flight,
                limit,
                retry_after_ms: retry_after_ms(excess, tokens_per_s),
            });
        }
        if self.tokens + tokens > queue_tokens_max {
            let excess = self.tokens + tokens - queue_tokens_max;
            return Err(Error::Overloaded {
                needed: tokens,
                in_flight: self.tokens,
                limit: queue_tokens_max,
                retry_after_ms: retry_after_ms(excess, tokens_per_s),
            });
        }
        Ok(())
    }

    /// Tokens of the largest call that waits of a user who has nothing in flight.
    fn awaited(&self) -> usize {
        let first = self.waiting.iter().filter(|(uid, _)| !self.by_uid.contains_key(uid));
        first.map(|(_, tokens)| *tokens).max().unwrap_or_default()
    }

    /// A call of a user waits for room.
    pub fn wait(&mut self, uid: u32, tokens: usize) {
        self.waiting.push((uid, tokens));
    }

    /// It does so no more.
    pub fn wait_no_more(&mut self, uid: u32, tokens: usize) {
        if let Some(index) = self.waiting.iter().position(|call| *call == (uid, tokens)) {
            self.waiting.swap_remove(index);
        }
    }

    pub fn take(&mut self, uid: u32, tokens: usize) {
        self.tokens += tokens;
        *self.by_uid.entry(uid).or_default() += tokens;
    }

    pub fn give_back(&mut self, uid: u32, tokens: usize) {
        self.tokens -= tokens;
        if let Some(of_user) = self.by_uid.get_mut(&uid) {
            *of_user -= tokens;
            if *of_user == 0 {
                self.by_uid.remove(&uid);
            }
        }
    }
}
