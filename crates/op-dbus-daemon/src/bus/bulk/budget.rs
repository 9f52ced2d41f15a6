//! How much a user may have open and in the making: streams, jobs, direct connections, questions to polkit, and
//! bytes of results and of vectors for replies.

use std::collections::HashMap;
use std::sync::Arc;

use op_dbus_api::{Error, ErrorName, RESULT_BYTES_ALL_MAX, RESULT_BYTES_MAX};
use parking_lot::Mutex;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A call whose texts come from a descriptor. It may hold a thread that reads a slow file, and eight of the
    /// service's descriptors: the source, two pipes of its thread, the result, the stub in its message and what that
    /// stands on.
    Stream,
    /// A job, from its start until its result is fetched.
    Job,
    /// A direct connection. It may hold a call of [`op_dbus_api::DIRECT_CALL_BYTES_MAX`].
    Direct,
    /// What polkit is asked about a call, until somebody has given a password. A bus lets the service wait for 128
    /// answers.
    Question,
    /// A call of `EmbedToFd`, which has the descriptor of its result before anything is computed.
    Result,
}

/// Results of `EmbedToFd` that one user may have in the making.
const RESULTS_MAX: usize = 256;

/// Bytes of vectors for replies that a user may have whatever others have, and that keep no call from its room.
const VECTORS_MIN: u64 = 1 << 20;

impl Work {
    /// What they are, and how a place becomes free.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Stream => ("streams under way", "wait for one of them"),
            Self::Job => ("jobs", "fetch the result of one of them, or cancel one"),
            Self::Direct => ("direct connections open", "close one of them"),
            Self::Question => ("questions of polkit to answer", "answer one of them"),
            Self::Result => ("results of EmbedToFd in the making", "wait for one of them"),
        }
    }
}

/// What all users have in the making.
#[derive(Debug)]
pub struct Budget {
    /// The most bytes of results of one user, and of all.
    results_max: (u64, u64),
    /// The same of vectors for replies.
    vectors_max: (u64, u64),
    /// File descriptors that the service may have.
    descriptors: usize,
    shares: Mutex<HashMap<u32, Share>>,
}

#[derive(Debug, Default, PartialEq)]
struct Share {
    /// Of each [`Work`].
    places: [usize; 5],
    bytes: u64,
    vectors: u64,
}

/// The bytes of one call's result; given back when dropped.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    uid: u32,
    bytes: u64,
}

/// The bytes of the vectors that one call's reply is made of; given back when dropped.
#[derive(Debug)]
pub struct Vectors {
    budget: Arc<Budget>,
    uid: u32,
    bytes: u64,
}

/// The place of a piece of work; given back when dropped.
#[derive(Debug)]
pub struct Place {
    budget: Arc<Budget>,
    uid: u32,
    work: Work,
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(None, None)
    }
}

impl Budget {
    /// Of a service that may have `memory` bytes, of which one user's results take a quarter at most and those of
    /// all a half: the kernel counts them to the service, and ends it where there is no more. Vectors for replies may
    /// have half as much, apart from these: a result may lie there for long, and nobody else could embed a word
    /// meanwhile. Results of `EmbedToFd` take a quarter of its `descriptors` at most, and streams an eighth: where it
    /// has no more of these, nobody is answered with one.
    pub fn of(memory: Option<u64>, descriptors: Option<u64>) -> Self {
        let descriptors = descriptors.and_then(|most| usize::try_from(most).ok());
        let descriptors = descriptors.unwrap_or(usize::MAX);
        let memory = memory.unwrap_or(u64::MAX);
        let results_max = (RESULT_BYTES_MAX.min(memory / 4), RESULT_BYTES_ALL_MAX.min(memory / 2));
        let vectors_max = (results_max.0 / 2, results_max.1 / 2);
        Self { results_max, vectors_max, descriptors, shares: Mutex::default() }
    }

    /// Room for a result of `uid`, of nothing yet.
    pub fn grant(self: &Arc<Self>, uid: u32) -> Grant {
        Grant { budget: self.clone(), uid, bytes: 0 }
    }

    /// Room for `bytes` of vectors that a reply to `uid` is made of. It may have much less itself, as that of `Rank`
    /// has. A call beside which there is no more than
    /// that always finds room, however large. Beside others a user has no more than is left free, so that
    /// one who comes later finds some, as with the tokens in flight.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`.
    pub fn vectors(self: &Arc<Self>, uid: u32, bytes: u64) -> Result<Vectors, Error> {
        let (own_max, all_max) = self.vectors_max;
        let mut shares = self.shares.lock();
        let own = shares.get(&uid).map_or(0, |share| share.vectors);
        let all: u64 = shares.values().map(|share| share.vectors).sum();
        let (users, left) = (own.saturating_add(bytes), all_max.saturating_sub(all));
        let limit = if own < all { own_max.min(left) } else { own_max };
        let is_much = users > VECTORS_MIN;
        if is_much && own > VECTORS_MIN && users > limit {
            let message = format!(
                "user {uid} has vectors of {own} of {limit} bytes in the making for replies and this \
                 call needs {bytes} more; wait for earlier calls"
            );
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        if is_much && all > VECTORS_MIN && bytes > left {
            let message = format!(
                "all users have vectors of {all} of {all_max} bytes in the making for replies and this \
                 call needs {bytes} more; try again later"
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        shares.entry(uid).or_default().vectors = users;
        Ok(Vectors { budget: self.clone(), uid, bytes })
    }

    /// How much of it one user may have at once, and all users.
    fn most(&self, work: Work) -> (usize, usize) {
        match work {
            Work::Stream => (4.min(self.descriptors / 64), 64.min(self.descriptors / 64)),
            Work::Job | Work::Direct => (16, 64),
            Work::Question => (8, 112),
            Work::Result => (RESULTS_MAX.min(self.descriptors / 8), self.descriptors / 4),
        }
    }

    /// A place for `work` of `uid`.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`.
    pub fn place(self: &Arc<Self>, uid: u32, work: Work) -> Result<Place, Error> {
        let ((own_max, all_max), (what, remedy)) = (self.most(work), work.words());
        let mut shares = self.shares.lock();
        let all: usize = shares.values().map(|share| share.places[work as usize]).sum();
        let own = shares.get(&uid).map_or(0, |share| share.places[work as usize]);
        if own >= own_max {
            let message = format!("user {uid} has {own} of {own_max} {what}; {remedy}");
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        if all >= all_max {
            let message = format!("all users have {all} of {all_max} {what}; try again later");
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        shares.entry(uid).or_default().places[work as usize] += 1;
        Ok(Place { budget: self.clone(), uid, work })
    }

    fn give_back(&self, uid: u32, take: impl FnOnce(&mut Share)) {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get_mut(&uid) {
            take(share);
            if *share == Share::default() {
                shares.remove(&uid);
            }
        }
    }
}

impl Grant {
    /// Counts `bytes` more of the result in.
    ///
    /// # Errors
    /// `TooLarge` for a result that never fits, `QuotaExceeded` for one beside the user's others,
    /// `Overloaded` for one beside those of all users.
    pub fn more(&mut self, bytes: u64) -> Result<(), Error> {
        let mut shares = self.budget.shares.lock();
        let before = shares.get(&self.uid).map_or(0, |share| share.bytes);
        let all: u64 = shares.values().map(|share| share.bytes).sum();
        let (own_max, all_max) = self.budget.results_max;
        let (own, users) = (self.bytes.saturating_add(bytes), before.saturating_add(bytes));
        if own > own_max {
            let message = format!(
                "the result is {own} bytes and more, the limit is {own_max}; split the \
                 texts over several calls, or choose a smaller encoding"
            );
            return Err(Error::new(ErrorName::TooLarge, message));
        }
        if users > own_max {
            let message = format!(
                "user {} has results of {} of {own_max} bytes in the making and this one \
                 needs {bytes} more; wait for earlier calls",
                self.uid, before
            );
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        if all.saturating_add(bytes) > all_max {
            let message = format!(
                "all users have results of {all} of {all_max} bytes in the making and \
                 this one needs {bytes} more; try again later"
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        shares.entry(self.uid).or_default().bytes = users;
        self.bytes = own;
        Ok(())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, |share| share.bytes -= self.bytes);
    }
}

impl Drop for Vectors {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, |share| share.vectors -= self.bytes);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, |share| share.places[self.work as usize] -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_user_and_given_back() {
        let works = [Work::Stream, Work::Job, Work::Direct, Work::Question, Work::Result];
        for work in works {
            let budget = Arc::new(Budget::of(None, Some(4096)));
            let (own, all) = budget.most(work);
            let mut places: Vec<_> = (0..own).map(|_| budget.place(1, work).unwrap()).collect();
            assert_eq!(budget.place(1, work).unwrap_err().name(), ErrorName::QuotaExceeded);
            places.pop();
            places.push(budget.place(1, work).unwrap());
            let others = (own..all).map(|n| budget.place(2 + (n / own) as u32, work).unwrap());
            places.extend(others);
            assert_eq!(budget.place(99, work).unwrap_err().name(), ErrorName::Overloaded);
            drop(places);
            assert!(budget.shares.lock().is_empty(), "a user without work is forgotten");
        }
        let budget = Arc::<Budget>::default();
        let _streams: Vec<_> = (0..4).map(|_| budget.place(1, Work::Stream).unwrap()).collect();
        budget.place(1, Work::Direct).unwrap();
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

    #[test]
    fn results_leave_memory_to_the_service() {
        let budget = Arc::new(Budget::of(Some(512 << 20), None));
        let own = 128 << 20;
        let error = budget.grant(1).more(own + 1).unwrap_err();
        assert_eq!(error.name(), ErrorName::TooLarge);
        assert!(error.to_string().contains("the limit is 134217728"), "{error}");
        let grants = [1, 2].map(|uid| {
            let mut grant = budget.grant(uid);
            grant.more(own).unwrap();
            grant
        });
        assert_eq!(budget.grant(3).more(1).unwrap_err().name(), ErrorName::Overloaded);
        drop(grants);
        budget.grant(3).more(own).unwrap();
    }

    /// Of a service of 1,000 MiB one user has 125, and all have 250.
    #[test]
    fn vectors_for_replies_leave_memory_to_the_service_and_to_others() {
        let budget = Arc::new(Budget::of(Some(1_000 << 20), None));
        let room = |uid, mebibytes: u64| budget.vectors(uid, mebibytes << 20);
        let refused = |uid, mebibytes| room(uid, mebibytes).unwrap_err();
        let first = room(1, 100).unwrap();
        let error = refused(1, 26);
        assert_eq!(error.name(), ErrorName::QuotaExceeded);
        assert!(error.message().contains("of 104857600 of 131072000 bytes"), "{error}");
        drop(room(1, 25).unwrap());
        // Beside others no more than they leave free.
        let _second = room(2, 80).unwrap();
        assert_eq!(refused(2, 1).name(), ErrorName::QuotaExceeded);
        assert_eq!(refused(3, 71).name(), ErrorName::Overloaded);
        let _third = room(3, 70).unwrap();
        assert_eq!(refused(4, 2).name(), ErrorName::Overloaded);
        let _little = room(4, 1).unwrap();
        drop(first);
        drop(room(2, 19).unwrap());
    }

    #[test]
    fn a_call_alone_has_its_vectors_however_small_the_service_is() {
        let budget = Arc::new(Budget::of(Some(8), None));
        let large = budget.vectors(1, 1 << 30).unwrap();
        assert_eq!(budget.vectors(1, 1).unwrap_err().name(), ErrorName::QuotaExceeded);
        assert_eq!(budget.vectors(2, 1 << 30).unwrap_err().name(), ErrorName::Overloaded);
        drop(large);
        drop(budget.vectors(2, 1 << 30).unwrap());
        // Nor is it kept out by a word that is under way.
        let word = budget.vectors(1, 4 << 10).unwrap();
        for uid in [1, 2] {
            drop(budget.vectors(uid, 1 << 30).unwrap());
        }
        drop(word);
        assert!(budget.shares.lock().is_empty());
    }

    #[test]
    fn results_that_lie_there_keep_nobody_from_a_reply() {
        let budget = Arc::new(Budget::of(Some(400 << 20), None));
        let grants = [1, 2].map(|uid| {
            let mut grant = budget.grant(uid);
            grant.more(100 << 20).unwrap();
            grant
        });
        let vectors = [1, 2].map(|uid| budget.vectors(uid, 50 << 20).unwrap());
        drop((grants, vectors));
    }

    #[test]
    fn results_and_streams_leave_descriptors_to_the_service() {
        for (descriptors, results, streams) in [
            (1 << 20, (256, 1 << 18), (4, 64)),
            (4096, (256, 1024), (4, 64)),
            (1024, (128, 256), (4, 16)),
            (128, (16, 32), (2, 2)),
        ] {
            let budget = Budget::of(None, Some(descriptors));
            assert_eq!((budget.most(Work::Result), budget.most(Work::Stream)), (results, streams));
        }
    }

    #[test]
    fn results_of_all_users_share_another() {
        let budget = Arc::<Budget>::default();
        let whole = |uid| {
            let mut grant = budget.grant(uid);
            grant.more(RESULT_BYTES_MAX).map(|()| grant)
        };
        let users = (RESULT_BYTES_ALL_MAX / RESULT_BYTES_MAX) as u32;
        let mut all: Vec<_> = (0..users).map(|uid| whole(uid).unwrap()).collect();
        let error = budget.grant(users).more(1).unwrap_err();
        assert_eq!(error.name(), ErrorName::Overloaded);
        assert!(error.to_string().contains("try again later"), "{error}");
        // Whoever has too much alone is told that, however full it is.
        assert_eq!(budget.grant(0).more(1).unwrap_err().name(), ErrorName::QuotaExceeded);
        all.pop();
        whole(users).unwrap();
        drop(all);
        assert!(budget.shares.lock().is_empty());
    }
}
