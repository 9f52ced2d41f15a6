//! How much bulk a user may have in the making: streams, and bytes of results.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use op_dbus_api::{Error, ErrorName, RESULT_BYTES_MAX};

/// Streams of one user at once. Each may hold a thread that reads a slow file.
const STREAMS_PER_USER_MAX: usize = 4;
/// Streams of all users at once.
const STREAMS_MAX: usize = 64;

/// What all users have in the making.
#[derive(Debug, Default)]
pub struct Budget(Mutex<HashMap<u32, Share>>);

#[derive(Debug, Default)]
struct Share {
    streams: usize,
    bytes: u64,
}

/// The bytes of one call's result; given back when dropped.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    uid: u32,
    bytes: u64,
}

/// A stream's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    budget: Arc<Budget>,
    uid: u32,
}

impl Budget {
    /// Room for a result of `uid`, of nothing yet.
    pub fn grant(self: &Arc<Self>, uid: u32) -> Grant {
        Grant { budget: self.clone(), uid, bytes: 0 }
    }

    /// A place for a stream of `uid`.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`.
    pub fn place(self: &Arc<Self>, uid: u32) -> Result<Place, Error> {
        let mut shares = self.lock();
        let all: usize = shares.values().map(|share| share.streams).sum();
        let own = shares.get(&uid).map_or(0, |share| share.streams);
        if own >= STREAMS_PER_USER_MAX {
            let message = format!(
                "user {uid} has {own} of {STREAMS_PER_USER_MAX} streams under way; wait for one of \
                 them"
            );
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        if all >= STREAMS_MAX {
            let message = format!(
                "{all} of {STREAMS_MAX} streams are under way; try again when one of them is done"
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        shares.entry(uid).or_default().streams += 1;
        Ok(Place { budget: self.clone(), uid })
    }

    fn give_back(&self, uid: u32, streams: usize, bytes: u64) {
        let mut shares = self.lock();
        if let Some(share) = shares.get_mut(&uid) {
            share.streams -= streams;
            share.bytes -= bytes;
            if share.streams == 0 && share.bytes == 0 {
                shares.remove(&uid);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grant {
    /// Counts `bytes` more of the result in.
    ///
    /// # Errors
    /// `TooLarge` for a result that never fits, `QuotaExceeded` for one beside the user's others.
    pub fn more(&mut self, bytes: u64) -> Result<(), Error> {
        let mut shares = self.budget.lock();
        let before = shares.get(&self.uid).map_or(0, |share| share.bytes);
        let (own, all) = (self.bytes.saturating_add(bytes), before.saturating_add(bytes));
        if own > RESULT_BYTES_MAX {
            let message = format!(
                "the result is {own} bytes and more, the limit is {RESULT_BYTES_MAX}; split the \
                 texts over several calls, or choose a smaller encoding"
            );
            return Err(Error::new(ErrorName::TooLarge, message));
        }
        if all > RESULT_BYTES_MAX {
            let message = format!(
                "user {} has results of {} of {RESULT_BYTES_MAX} bytes in the making and this one \
                 needs {bytes} more; wait for earlier calls",
                self.uid, before
            );
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        shares.entry(self.uid).or_default().bytes = all;
        self.bytes = own;
        Ok(())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, 0, self.bytes);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_by_user_and_given_back() {
        let budget = Arc::<Budget>::default();
        let mut streams: Vec<_> = (0..4).map(|_| budget.place(1).unwrap()).collect();
        assert_eq!(budget.place(1).unwrap_err().name(), ErrorName::QuotaExceeded);
        streams.pop();
        streams.push(budget.place(1).unwrap());
        streams.extend((8..68).map(|n| budget.place(n / 4).unwrap()));
        assert_eq!(budget.place(99).unwrap_err().name(), ErrorName::Overloaded);
        drop(streams);
        assert!(budget.lock().is_empty(), "a user without work is forgotten");
    }

    #[test]
    fn results_share_one_bound_of_bytes() {
        let budget = Arc::<Budget>::default();
        let (mut one, mut other) = (budget.grant(1), budget.grant(1));
        one.more(RESULT_BYTES_MAX - 10).unwrap();
        assert_eq!(other.more(11).unwrap_err().name(), ErrorName::QuotaExceeded);
        other.more(10).unwrap();
        assert_eq!(one.more(11).unwrap_err().name(), ErrorName::TooLarge);
        budget.grant(2).more(RESULT_BYTES_MAX).unwrap();
        drop(one);
        other.more(RESULT_BYTES_MAX - 10).unwrap();
    }
}
