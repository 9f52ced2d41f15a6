//! Why an endpoint gave no vectors, by what that means for the batch.

use std::fmt;

/// Why there are no vectors.
#[derive(Debug)]
pub enum Failure {
    /// The endpoint can't be used now: it is not there, does not answer in time, refuses us, or answers
    /// with what makes no sense.
    Away(String),
    /// It refuses this batch; others it may take.
    Refused(String),
    /// The batch is too large for it.
    TooLarge(String),
}

impl Failure {
    /// An answer that makes no sense.
    pub fn nonsense(what: impl fmt::Display) -> Self {
        Self::Away(format!("its answer makes no sense: {what}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Away(why) | Self::Refused(why) | Self::TooLarge(why)) = self;
        f.write_str(why)
    }
}
