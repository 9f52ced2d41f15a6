//! The engine's time, which the queue and the planner are given as a number.

use std::time::Instant;

/// Microseconds since the engine's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now_us(self) -> u64 {
        self.at_us(Instant::now())
    }

    pub fn at_us(self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.0).as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}
