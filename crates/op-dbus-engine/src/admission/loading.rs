//! Admission before there is an engine: calls that wait while their model is loaded.

use std::sync::Arc;

use super::{Admission, Claim, Ledger, Permit, tokens_of_memory};
use crate::call::Priority;
use crate::config::Limits;
use crate::error::Error;
use crate::registry::TOKENS_PER_S_ASSUMED;

/// Admits calls that wait for an engine which is being made: within the bounds that it will have, and with what is in
/// flight in those that share them.
#[derive(Debug)]
pub struct LoadAdmission(Arc<Admission>);

/// A call's right to wait; given back when dropped.
#[derive(Debug)]
pub struct LoadPermit {
    _permit: Permit,
}

impl LoadAdmission {
    /// One under the limits of the engine to come, which will count in `ledger` as well.
    pub fn new(limits: &Limits, ledger: Arc<Ledger>) -> Self {
        Self(Admission::new(limits, ledger))
    }

    /// Admits a call or refuses it at once. What its texts are in tokens is not known yet: they count by the
    /// memory that they take, which is never more than in the engine.
    ///
    /// # Errors
    /// `TooLarge`, `QuotaExceeded`, `Overloaded`.
    pub fn admit(&self, uid: u32, texts: usize, bytes: usize) -> Result<LoadPermit, Error> {
        let tokens = tokens_of_memory(bytes).max(texts);
        let claim = Claim::new(uid, tokens, Priority::Interactive);
        self.0.admit(claim, TOKENS_PER_S_ASSUMED).map(|permit| LoadPermit { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_the_bounds_of_who_is_served() {
        let limits = Limits { queue_tokens_max: 16, quota_tokens: 10, ..Limits::default() };
        let admission = LoadAdmission::new(&limits, Arc::default());
        // By texts, and by the memory that these take.
        for (texts, bytes) in [(11, 0), (1, 11 * 32)] {
            let refused = admission.admit(1, texts, bytes).unwrap_err();
            assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
        }
        let permit = admission.admit(1, 1, 8 * 32).unwrap();
        assert!(matches!(admission.admit(1, 3, 0), Err(Error::QuotaExceeded { uid: 1, .. })));
        let _other = admission.admit(2, 8, 0).unwrap();
        assert!(matches!(admission.admit(3, 1, 0), Err(Error::Overloaded { .. })));
        drop(permit);
        admission.admit(1, 3, 0).unwrap();
    }
}
