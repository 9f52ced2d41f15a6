//! Calls that wait until there is an engine for them, within the bounds of one.

use std::sync::Arc;

use crate::admission::{Admission, Claim, Permit, tokens_of_memory};
use crate::call::Priority;
use crate::config::Limits;
use crate::error::Error;
use crate::roster::TOKENS_PER_S_ASSUMED;

/// Where calls wait for an engine that is being made: as many as it would have in flight.
#[derive(Debug)]
pub struct Anteroom(Arc<Admission>);

/// A call's place there; given back when dropped.
#[derive(Debug)]
pub struct Seat {
    _permit: Permit,
}

impl Anteroom {
    /// An empty one under the limits of the engine to come.
    pub fn new(limits: &Limits) -> Self {
        Self(Admission::new(limits))
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
