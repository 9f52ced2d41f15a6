//! When an endpoint is tried: pure code, `now` is an argument.

use std::time::{Duration, Instant};

/// Rest after the first failure; doubled for each in a row.
const REST: Duration = Duration::from_millis(100);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(30);
/// How long a proof holds: whatever an endpoint is by then, it shows once more.
const PROOF_MAX: Duration = Duration::from_secs(60);

/// Whether one endpoint may be asked, and has to prove itself first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circuit {
    failures: u32,
    rests_until: Option<Instant>,
    proved: Option<Instant>,
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

    /// Whether it needs no trial before its next batch.
    pub fn is_proved(&self, now: Instant) -> bool {
        self.proved.is_some_and(|proved| now.saturating_duration_since(proved) < PROOF_MAX)
    }

    /// It has given the trial batch's vectors.
    pub fn prove(&mut self, now: Instant) {
        *self = Self { failures: 0, rests_until: None, proved: Some(now) };
    }

    /// It failed: it rests, and its proof is void.
    pub fn fail(&mut self, now: Instant) {
        let rest = REST.saturating_mul(1 << self.failures.min(16)).min(REST_MAX);
        let failures = self.failures.saturating_add(1);
        *self = Self { failures, rests_until: Some(now + rest), proved: None };
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
        circuit.fail(start);
        assert!(!circuit.is_proved(start) && !circuit.allows(start));
        assert!(circuit.allows(start + REST));
    }

    proptest! {
        /// However often one fails, it is asked again within the longest rest, and each rest is at least
        /// as long as the one before.
        #[test]
        fn rests_grow_and_end(failures in 1_usize..100) {
            let now = Instant::now();
            let mut circuit = Circuit::default();
            let mut before = now;
            for _ in 0..failures {
                circuit.fail(now);
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
