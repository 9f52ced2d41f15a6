//! When an endpoint is tried: pure code, `now` is an argument.

use std::time::{Duration, Instant};

/// Rest after the first failure; doubled for each in a row.
const REST: Duration = Duration::from_millis(100);
/// The longest rest, also where a server asks for a longer one.
const REST_MAX: Duration = Duration::from_secs(30);
/// How long a proof holds: whatever an endpoint is by then, it shows once more.
const PROOF_MAX: Duration = Duration::from_secs(60);
/// Who takes so long to fail is silent: to ask again sooner would be to wait for that as well.
const SILENCE: Duration = Duration::from_secs(1);
/// Batches in a row that one fails and others take: then it is not the batches.
const OUTDONE_MAX: u32 = 3;

/// Whether one endpoint may be asked, and has to prove itself first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circuit {
    /// The last rest since it has computed a caller's batch; nothing where it has not failed since.
    rest: Duration,
    rests_until: Option<Instant>,
    /// Whether nothing is to be had of it before: it was silent.
    is_gone: bool,
    proved: Option<Instant>,
    /// Batches that it has failed and another one has computed, since it has computed one itself.
    outdone: u32,
}

impl Circuit {
    /// Whether it may be asked.
    pub fn allows(&self, now: Instant) -> bool {
        self.rests_until.is_none_or(|until| until <= now)
    }

    /// When it may be asked again, if it rests.
    pub fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Until when what has time until `deadline` waits for it, if it rests; none where that would be in vain.
    /// Who failed at once may be there again by the deadline, when a new worker looks for it.
    pub fn wakes(&self, deadline: Instant) -> Option<Instant> {
        let until = self.rests_until.filter(|until| *until < deadline || !self.is_gone);
        until.map(|until| until.min(deadline))
    }

    /// Whether it needs no trial before its next batch.
    pub fn is_proved(&self, now: Instant) -> bool {
        self.proved.is_some_and(|proved| now.saturating_duration_since(proved) < PROOF_MAX)
    }

    /// Whether it has proved itself, if long ago, and nothing is known against it.
    pub fn serves(&self, now: Instant) -> bool {
        self.proved.is_some() && self.allows(now)
    }

    /// Whether it has failed since it proved itself.
    pub fn has_failed(&self) -> bool {
        self.proved.is_none() && !self.rest.is_zero()
    }

    /// Whether it has proved itself at `since` or later.
    pub fn has_proved(&self, since: Instant) -> bool {
        self.proved.is_some_and(|proved| proved >= since)
    }

    /// It has given the trial batch's vectors. Its next rest is no shorter for that: the trial asks for
    /// less than callers do.
    pub fn prove(&mut self, now: Instant) {
        (self.rests_until, self.proved) = (None, Some(now));
    }

    /// It has computed a caller's batch, and nothing is held against it any more.
    pub fn succeed(&mut self) {
        (self.rest, self.outdone) = (Duration::ZERO, 0);
    }

    /// It failed, which took this long: it rests, and its proof is void. Who is waited for in vain keeps
    /// callers no more than half of the time.
    pub fn fail(&mut self, now: Instant, took: Duration) {
        let rest = self.rest.saturating_mul(2).max(REST).max(took).min(REST_MAX);
        let is_gone = took >= SILENCE;
        *self = Self { rest, rests_until: Some(now + rest), is_gone, proved: None, outdone: 0 };
    }

    /// Another one has computed a batch that it failed; whether that has come too often.
    pub fn is_outdone(&mut self) -> bool {
        self.outdone += 1;
        self.outdone >= OUTDONE_MAX
    }

    /// It asks for a rest, and is what it was. Who asks for none at all is not asked without end.
    pub fn pause(&mut self, now: Instant, time: Duration) {
        (self.rests_until, self.is_gone) = (Some(now + time.clamp(REST, REST_MAX)), false);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_proof_holds_for_a_while_and_a_failure_voids_it() {
        let start = Instant::now();
        let mut circuit = Circuit::default();
        assert!(circuit.allows(start) && !circuit.is_proved(start));
        circuit.prove(start);
        assert!(circuit.is_proved(start + PROOF_MAX / 2));
        assert!(!circuit.is_proved(start + PROOF_MAX));
        circuit.fail(start, Duration::ZERO);
        assert!(!circuit.is_proved(start) && !circuit.allows(start));
        assert!(circuit.allows(start + REST) && !circuit.serves(start + REST));
        assert!(circuit.has_failed());
    }

    /// Who proves itself and fails every batch is asked less and less.
    #[test]
    fn a_proof_shortens_no_rest_and_a_batch_ends_them() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for doubled in [1, 2, 4, 8] {
            circuit.fail(now, Duration::ZERO);
            assert_eq!(circuit.rests_until(), Some(now + doubled * REST));
            circuit.prove(now);
            assert!(circuit.serves(now) && !circuit.has_failed() && circuit.has_proved(now));
        }
        circuit.succeed();
        circuit.fail(now, Duration::ZERO);
        assert_eq!(circuit.rests_until(), Some(now + REST));
    }

    #[test]
    fn who_is_outdone_time_and_again_is_told() {
        let mut circuit = Circuit::default();
        assert!(!circuit.is_outdone() && !circuit.is_outdone());
        circuit.succeed();
        assert!(!circuit.is_outdone() && !circuit.is_outdone() && circuit.is_outdone());
    }

    #[test]
    fn who_was_waited_for_rests_at_least_as_long() {
        let (now, took) = (Instant::now(), Duration::from_secs(10));
        let mut circuit = Circuit::default();
        circuit.fail(now, took);
        assert_eq!(circuit.rests_until(), Some(now + took));
        circuit.fail(now, REST);
        assert_eq!(circuit.rests_until(), Some(now + 2 * took));
    }

    #[test]
    fn nobody_waits_in_vain_for_who_is_silent() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let of = |change: &dyn Fn(&mut Circuit)| {
            let mut circuit = Circuit::default();
            change(&mut circuit);
            move |seconds| circuit.wakes(now + seconds * second)
        };
        let silent = of(&|circuit| circuit.fail(now, 10 * second));
        assert_eq!((silent(10), silent(11)), (None, Some(now + 10 * second)));
        let busy = of(&|circuit| {
            circuit.fail(now, 10 * second);
            circuit.pause(now, 5 * second);
        });
        assert_eq!((busy(4), busy(6)), (Some(now + 4 * second), Some(now + 5 * second)));
        let absent = of(&|circuit| (0..5).for_each(|_| circuit.fail(now, REST)));
        assert_eq!((absent(1), absent(2)), (Some(now + second), Some(now + 16 * REST)));
        assert_eq!(of(&|_| ())(1), None);
    }

    #[test]
    fn who_asks_for_a_rest_keeps_the_proof() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        circuit.prove(now);
        circuit.pause(now, Duration::from_secs(5));
        assert!(circuit.is_proved(now) && !circuit.serves(now) && !circuit.has_failed());
        assert!(circuit.serves(now + Duration::from_secs(5)));
        circuit.pause(now, Duration::MAX);
        assert_eq!(circuit.rests_until(), Some(now + REST_MAX));
        circuit.pause(now, Duration::ZERO);
        assert_eq!(circuit.rests_until(), Some(now + REST));
    }

    proptest! {
        /// However often one fails, it is asked again within the longest rest, and each rest is at least
        /// as long as the one before.
        #[test]
        fn rests_grow_and_end(failures in 1_usize..100, took in 0_u64..100) {
            let now = Instant::now();
            let mut circuit = Circuit::default();
            let mut before = now;
            for _ in 0..failures {
                circuit.fail(now, Duration::from_secs(took));
                let until = circuit.rests_until().unwrap();
                prop_assert!(until >= before && until <= now + REST_MAX);
                before = until;
            }
            prop_assert!(circuit.allows(now + REST_MAX));
            circuit.prove(now);
            prop_assert!(circuit.allows(now));
        }
    }
}
