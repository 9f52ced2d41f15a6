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
        #[cfg(test)]
        if let Some(now_us) = MADE_UP_US.get() {
            return now_us;
        }
        self.at_us(Instant::now())
    }

    pub fn at_us(self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.0).as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
thread_local! {
    /// The time of every clock on this thread, where a test makes it up.
    pub(crate) static MADE_UP_US: std::cell::Cell<Option<u64>> =
        const { std::cell::Cell::new(None) };
}
