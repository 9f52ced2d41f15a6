//! When a call's turn would be over, as far as it can be told from what is in flight before it: what can't
//! be done in its time is refused at once, so that what is admitted is done.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::retry_after_ms;
use crate::call::Priority;
use crate::error::Error;

/// The part of a call's time that may be planned: batches take longer at times than those before did.
const PLANNED: f64 = 0.75;

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub uid: u32,
    /// Against the bounds.
    pub tokens: usize,
    /// Those that are to be computed at most.
    pub work: usize,
    /// Whether it will be all of these, as of token ids.
    pub is_exact: bool,
    pub class: Priority,
    /// Until its deadline, if it has one and how fast its turn comes is known.
    pub time: Option<Time>,
}

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub left: Duration,
    /// What all workers together were seen to do.
    pub tokens_per_s: f64,
}

impl Time {
    /// The time until `deadline`, where it is known what can be done in it.
    pub fn until(deadline: Instant, tokens_per_s: Option<f64>) -> Option<Self> {
        let left = deadline.saturating_duration_since(Instant::now());
        Some(Self { left, tokens_per_s: tokens_per_s? })
    }
}

/// The work of texts as it was told by their bytes, and the tokens that they turned out to have: most have far
/// fewer, and of a call that comes no more than its bytes is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenRatio {
    work: usize,
    real: usize,
}

impl TokenRatio {
    /// Of so many tokens at least each counts for half as much once as many more are there.
    const MEMORY: usize = 1 << 18;

    pub fn note(&mut self, work: usize, real: usize) {
        self.work += work;
        self.real += real;
        if self.work > 2 * Self::MEMORY {
            (self.work, self.real) = (self.work / 2, self.real / 2);
        }
    }

    /// The tokens that are to be expected of so much work.
    fn expected(self, work: usize) -> usize {
        match self.work {
            0 => work,
            all => ((work as f64 * self.real as f64 / all as f64) as usize).max(1),
        }
    }
}

/// What a user has in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    pub calls: usize,
    pub interactive: usize,
    pub bulk: usize,
    /// What is computed, of both classes, and waits for the rest of its call.
    pub computed: usize,
}

impl Share {
    pub fn of(&mut self, class: Priority) -> &mut usize {
        match class {
            Priority::Interactive => &mut self.interactive,
            Priority::Bulk => &mut self.bulk,
        }
    }

    fn tokens_of(mut self, class: Priority) -> usize {
        *self.of(class)
    }
}

impl Claim {
    /// A claim on room alone.
    pub fn new(uid: u32, tokens: usize, class: Priority) -> Self {
        Self { uid, tokens, work: tokens, is_exact: false, class, time: None }
    }

    /// Refuses what would not be done in its time behind what is in flight. What is alone is always tried:
    /// there is nothing that it could wait for.
    pub(super) fn check_time(
        &self,
        by_uid: &HashMap<u32, Share>,
        ratio: TokenRatio,
    ) -> Result<(), Error> {
        let needed = if self.is_exact { self.work } else { ratio.expected(self.work) };
        let before = self.before(by_uid, needed);
        let Some(Time { left, tokens_per_s }) = self.time.filter(|time| !time.left.is_zero())
        else {
            return Ok(());
        };
        let planned = left.as_secs_f64() * PLANNED * tokens_per_s;
        let excess = (before + needed) as f64 - planned;
        if before == 0 || excess <= 0.0 {
            return Ok(());
        }
        Err(Error::Late {
            needed,
            before,
            tokens_per_s: tokens_per_s as u64,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            retry_after_ms: retry_after_ms(excess as usize, tokens_per_s),
        })
    }

    /// Tokens that are computed before the last of the `needed` of this call is: users take turns by tokens, so another
    /// one has as many as this user at most until then; and bulk waits for what is interactive.
    fn before(&self, by_uid: &HashMap<u32, Share>, needed: usize) -> usize {
        let own = by_uid.get(&self.uid).copied().unwrap_or_default().tokens_of(self.class);
        let until = own.saturating_add(needed);
        let others = by_uid.iter().filter(|(uid, _)| **uid != self.uid);
        let others: usize = others.map(|(_, share)| share.tokens_of(self.class).min(until)).sum();
        let first: usize = match self.class {
            Priority::Interactive => 0,
            Priority::Bulk => by_uid.values().map(|share| share.interactive).sum(),
        };
        own + others + first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Time = Time { left: Duration::from_secs(10), tokens_per_s: 100.0 };

    fn refused(tokens: usize, class: Priority, in_flight: &[(u32, usize, usize)]) -> bool {
        let share = |(uid, interactive, bulk)| {
            (uid, Share { calls: 1, interactive, bulk, ..Share::default() })
        };
        let by_uid = in_flight.iter().copied().map(share).collect();
        let claim = Claim { time: Some(TIME), ..Claim::new(1, tokens, class) };
        let error = claim.check_time(&by_uid, TokenRatio::default()).err();
        assert!(Claim { time: None, ..claim }.check_time(&by_uid, TokenRatio::default()).is_ok());
        assert!(error.as_ref().is_none_or(|error| matches!(error, Error::Late { .. })));
        error.is_some()
    }

    #[test]
    fn what_is_not_done_in_its_time_is_refused() {
        use Priority::{Bulk, Interactive};
        // 1000 tokens in 10 s, of which 750 are planned with.
        assert!(!refused(100, Interactive, &[(1, 650, 0)]));
        assert!(refused(101, Interactive, &[(1, 650, 0)]));
        // A user who floods leaves the others their turns.
        assert!(!refused(100, Interactive, &[(2, 9000, 9000)]));
        assert!(refused(400, Interactive, &[(2, 9000, 0)]));
        // Bulk waits for all that is interactive, which does not wait for it.
        assert!(!refused(100, Interactive, &[(1, 0, 9000)]));
        assert!(refused(100, Bulk, &[(2, 700, 0)]));
        // What is alone is tried, however long it takes.
        assert!(!refused(9000, Bulk, &[]));
    }

    #[test]
    fn what_calls_were_counted_as_is_set_right() {
        let mut ratio = TokenRatio::default();
        assert_eq!(ratio.expected(100), 100);
        ratio.note(100, 25);
        assert_eq!(ratio.expected(100), 25);
        let share = Share { calls: 1, interactive: 700, ..Share::default() };
        let by_uid = HashMap::from([(1, share)]);
        let claim =
            |tokens| Claim { time: Some(TIME), ..Claim::new(1, tokens, Priority::Interactive) };
        assert!(claim(200).check_time(&by_uid, ratio).is_ok());
        // 51 of them.
        assert!(claim(205).check_time(&by_uid, ratio).is_err());
        (0..100).for_each(|_| ratio.note(TokenRatio::MEMORY, TokenRatio::MEMORY));
        assert!(ratio.expected(100) >= 99 && ratio.work <= 2 * TokenRatio::MEMORY);
    }

    #[test]
    fn who_is_refused_is_told_when_to_come_back() {
        let share = Share { calls: 1, interactive: 900, ..Share::default() };
        let by_uid = HashMap::from([(1, share)]);
        let claim = Claim { time: Some(TIME), ..Claim::new(1, 50, Priority::Interactive) };
        assert_eq!(
            claim.check_time(&by_uid, TokenRatio::default()).unwrap_err().to_string(),
            "900 tokens come before the 50 of this call, at 100 tokens a second, which is not done in \
             the 10000 ms that it allows; try again in 2000 ms"
        );
    }
}
