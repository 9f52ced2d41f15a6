//! When reserved workers are to be there: those that compute interactive work alone, while bulk keeps
//! the others.
//!
//! A bulk batch that has begun is not interrupted, and it may be as large as is fastest. What comes
//! meanwhile is computed by a reserved worker beside it, on CPUs that the kernel shares out between
//! the two. So a reserve costs memory only where both kinds of work are about.

use crate::admission::OWN_UID;
use crate::call::Priority;
use crate::clock::Clock;

/// How long a kind of work counts as being about after it was last seen.
const KEPT_US: u64 = 60_000_000;
/// How long interactive work is expected to come again after it was last seen.
const EXPECTED_US: u64 = 1_000_000;

/// Whom a worker computes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Everybody,
    /// Interactive work alone, and only while bulk is in its way or nobody else is there.
    Interactive,
    /// Bulk alone, beside interactive work that it leaves to others.
    Bulk,
}

/// Which kinds of work were seen of late.
#[derive(Debug)]
pub(crate) struct RecentWork {
    clock: Clock,
    interactive_us: Option<u64>,
    bulk_us: Option<u64>,
}

impl RecentWork {
    pub fn new(clock: Clock) -> Self {
        Self { clock, interactive_us: None, bulk_us: None }
    }

    /// Work of a user was queued or is computed. The engine's own texts are nobody's who waits.
    pub fn note(&mut self, class: Priority, uid: u32) {
        if uid == OWN_UID {
            return;
        }
        let now_us = Some(self.clock.now_us());
        match class {
            Priority::Interactive => self.interactive_us = now_us,
            Priority::Bulk => self.bulk_us = now_us,
        }
    }

    /// Whether both kinds are about.
    pub fn has_both(&self) -> bool {
        let now_us = self.clock.now_us();
        let about = |seen: Option<u64>| seen.is_some_and(|at| now_us.saturating_sub(at) < KEPT_US);
        about(self.interactive_us) && about(self.bulk_us)
    }

    /// Whether interactive work is to be expected while a batch is computed.
    pub fn expects_interactive(&self) -> bool {
        let now_us = self.clock.now_us();
        self.interactive_us.is_some_and(|at| now_us.saturating_sub(at) < EXPECTED_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MADE_UP_US;

    #[test]
    fn both_kinds_are_about_for_a_minute_after_the_older_was_seen() {
        MADE_UP_US.set(Some(0));
        let mut recent = RecentWork::new(Clock::start());
        recent.note(Priority::Bulk, 1);
        recent.note(Priority::Interactive, OWN_UID);
        assert!(!recent.has_both(), "the engine's own text is not interactive work");
        MADE_UP_US.set(Some(KEPT_US - 1));
        recent.note(Priority::Interactive, 1);
        assert!(recent.has_both());
        MADE_UP_US.set(Some(KEPT_US));
        assert!(!recent.has_both());
        recent.note(Priority::Bulk, 2);
        assert!(recent.has_both());
        assert!(recent.expects_interactive());
        MADE_UP_US.set(Some(KEPT_US - 1 + EXPECTED_US));
        assert!(!recent.expects_interactive() && recent.has_both());
        MADE_UP_US.set(None);
    }
}
