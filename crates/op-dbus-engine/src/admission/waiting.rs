//! Calls that wait for room.

use std::sync::Arc;

use super::{Admission, Claim, Ledger, Permit};
use crate::error::Error;
use crate::wait::until;

/// That a call waits; dropped once it does not any more.
struct Waits<'a> {
    ledger: &'a Ledger,
    uid: u32,
    tokens: usize,
}

impl<'a> Waits<'a> {
    fn new(ledger: &'a Ledger, uid: u32, tokens: usize) -> Self {
        ledger.lock().wait(uid, tokens);
        Self { ledger, uid, tokens }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.ledger.lock().wait_no_more(self.uid, self.tokens);
        // Others had less room because of it.
        self.ledger.freed.notify_waiters();
    }
}

impl Admission {
    /// Admits a call as soon as there is room for it; refuses only what never fits.
    pub async fn admit_when_free(self: &Arc<Self>, claim: Claim) -> Result<Permit, Error> {
        let admitted = || match self.admit(claim, f64::INFINITY) {
            Err(Error::QuotaExceeded { .. } | Error::Overloaded { .. }) => None,
            result => Some(result),
        };
        if let Some(result) = admitted() {
            return result;
        }
        let _waits = Waits::new(&self.ledger, claim.uid, claim.tokens);
        until(&self.ledger.freed, admitted).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::call::Priority;
    use crate::config::Limits;

    const QUEUE: usize = 120;

    fn admission() -> Arc<Admission> {
        let limits = Limits { queue_tokens_max: QUEUE, quota_tokens: QUEUE, ..Limits::default() };
        Admission::new(&limits, Arc::default())
    }

    fn claim(uid: u32, tokens: usize) -> Claim {
        Claim::new(uid, tokens, Priority::Interactive)
    }

    /// All that fits of a user, token by token.
    fn all(admission: &Arc<Admission>, uid: u32) -> impl Iterator<Item = Permit> {
        std::iter::from_fn(move || admission.admit(claim(uid, 1), 1.0).ok())
    }

    /// Rounds until one who waits for a quarter of the queue has it, beside so many users who give a token back and
    /// take all that fits in each.
    fn rounds_beside(users: u32) -> Option<usize> {
        let admission = admission();
        let mut held: Vec<Vec<Permit>> = (0..users).map(|_| Vec::new()).collect();
        let mut round = || {
            for (permits, uid) in held.iter_mut().zip(0..) {
                permits.pop();
                permits.extend(all(&admission, uid));
            }
        };
        (0..QUEUE).for_each(|_| round());
        let mut waiting = pin!(admission.admit_when_free(claim(users, QUEUE / 4)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        (1..10 * QUEUE).find(|_| {
            round();
            matches!(waiting.as_mut().poll(&mut context), Poll::Ready(Ok(_)))
        })
    }

    #[test]
    fn who_waits_and_has_nothing_in_flight_is_not_passed_for_ever() {
        for users in [1, 4, 8] {
            let rounds = rounds_beside(users);
            assert!(rounds.is_some_and(|rounds| rounds <= QUEUE), "{users} users: {rounds:?}");
        }
    }

    #[test]
    fn who_waits_no_more_leaves_others_their_room() {
        let admission = admission();
        let _first = admission.admit(claim(1, QUEUE / 2), 1.0).unwrap();
        {
            let mut waiting = pin!(admission.admit_when_free(claim(2, QUEUE)));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(all(&admission, 1).next().is_none());
        }
        assert_eq!(all(&admission, 1).collect::<Vec<_>>().len(), QUEUE / 2);
    }
}
