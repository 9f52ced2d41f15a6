//! Calls that wait until there is an engine for them, within the bounds of one.

use std::sync::Arc;

use crate::admission::{Admission, Claim, Ledger, Permit, tokens_of_memory};
use crate::call::Priority;
use crate::config::Limits;
use crate::error::Error;
use crate::roster::TOKENS_PER_S_ASSUMED;

/// Where calls wait for an engine that is being made: within the bounds that it will have, and with what is in
/// flight in those that share them.
#[derive(Debug)]
pub struct Anteroom(Arc<Admission>);

/// A call's place there; given back when dropped.
#[derive(Debug)]
pub struct Seat {
    _permit: Permit,
}

impl Anteroom {
    /// An empty one under the limits of the engine to come, which will count in `ledger` as well.
    pub fn new(limits: &Limits, ledger: Arc<Ledger>) -> Self {
        Self(Admission::new(limits, ledger))
    }

    /// Lets a call in or refuses it at once. What its texts are in tokens is not known yet: they count by the
    /// memory that they take, which is never more than in the engine.
    ///
    /// # Errors
    /// `TooLarge`, `QuotaExceeded`, `Overloaded`.
    pub fn enter(&self, uid: u32, texts: usize, bytes: usize) -> Result<Seat, Error> {
        let tokens = tokens_of_memory(bytes).max(texts);
        let claim = Claim::new(uid, tokens, Priority::Interactive);
        self.0.admit(claim, TOKENS_PER_S_ASSUMED).map(|permit| Seat { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_the_bounds_of_who_is_served() {
        let limits = Limits { queue_tokens_max: 16, quota_tokens: 10, ..Limits::default() };
        let anteroom = Anteroom::new(&limits, Arc::default());
        // By texts, and by the memory that these take.
        for (texts, bytes) in [(11, 0), (1, 11 * 32)] {
            let refused = anteroom.enter(1, texts, bytes).unwrap_err();
            assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
        }
        let seat = anteroom.enter(1, 1, 8 * 32).unwrap();
        assert!(matches!(anteroom.enter(1, 3, 0), Err(Error::QuotaExceeded { uid: 1, .. })));
        let _other = anteroom.enter(2, 8, 0).unwrap();
        assert!(matches!(anteroom.enter(3, 1, 0), Err(Error::Overloaded { .. })));
        drop(seat);
        anteroom.enter(1, 3, 0).unwrap();
    }
}
