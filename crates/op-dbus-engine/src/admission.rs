//! Admission: permits for all texts of a call before any work, from a global and a per-user budget.

mod ledger;
mod turn;
mod waiting;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{Priority, Truncate};
use crate::config::Limits;
use crate::error::{Error, Excess};
use crate::wait::until;

pub use ledger::Ledger;
pub(crate) use turn::{Claim, Time};
use turn::{Made, Share};

/// What a text costs at least: one token per this many bytes, so that the budget of tokens bounds
/// the memory of texts that are cut to a few tokens later.
const BYTES_PER_TOKEN_MAX: usize = 32;

/// Who the engine's own calls are counted to: `(uid_t) -1`, which no user has.
pub(crate) const OWN_UID: u32 = u32::MAX;

/// A retry is never asked for sooner or later than this.
const RETRY_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// The calls of one engine, within bounds that it may share with others.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    state: Mutex<State>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct State {
    closed: bool,
    /// Users with calls in flight.
    by_uid: HashMap<u32, Share>,
    made: Made,
    /// When the last call of a user has ended, or the engine was started.
    last_call: Instant,
}

/// The right to have a number of tokens in flight; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    uid: u32,
    /// Those to be computed.
    tokens: usize,
    /// What counts against the bounds: these, and the memory of what is not computed.
    held: usize,
    class: Priority,
    /// Whether the model is used.
    is_use: bool,
}

/// Tokens that texts of `bytes` count as for the memory that they take.
pub(crate) fn tokens_of_memory(bytes: usize) -> usize {
    bytes / BYTES_PER_TOKEN_MAX
}

/// Tokens that a text of `bytes` may take at most: tokenizers rarely make more than one of a byte.
pub(crate) fn cost(bytes: usize, truncate: Truncate, specials: usize, input_max: usize) -> usize {
    let whole = bytes.saturating_add(specials);
    let tokens = match truncate {
        Truncate::Mean => {
            let windows = bytes / input_max.saturating_sub(specials).max(1) + 1;
            bytes.saturating_add(windows.saturating_mul(specials))
        }
        Truncate::Error | Truncate::End | Truncate::Start => whole.min(input_max),
    };
    tokens.max(tokens_of_memory(bytes))
}

impl Admission {
    pub fn new(limits: &Limits, ledger: Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self {
            limits: limits.clone(),
            state: Mutex::new(State {
                closed: false,
                by_uid: HashMap::new(),
                made: Made::default(),
                last_call: Instant::now(),
            }),
            ledger,
        })
    }

    /// Admits a call or refuses it at once. `tokens_per_s` is the measured rate, for the hint.
    pub fn admit(self: &Arc<Self>, claim: Claim, tokens_per_s: f64) -> Result<Permit, Error> {
        let Claim { uid, tokens, .. } = claim;
        let Limits { queue_tokens_max, quota_tokens, .. } = self.limits;
        let too_large = |excess, limit| Err(Error::TooLarge { excess, found: tokens, limit });
        if tokens > queue_tokens_max {
            return too_large(Excess::QueueTokens, queue_tokens_max);
        }
        if tokens > quota_tokens {
            return too_large(Excess::QuotaTokens, quota_tokens);
        }
        let mut state = self.lock();
        if state.closed {
            return Err(Error::ShuttingDown);
        }
        let mut counted = self.ledger.lock();
        counted.check(uid, tokens, &self.limits, tokens_per_s)?;
        claim.check_time(&state.by_uid, state.made)?;
        counted.take(uid, tokens);
        drop(counted);
        Ok(self.grant(&mut state, claim))
    }

    /// Admits a call of the engine's own, whatever is in flight.
    pub fn admit_own(self: &Arc<Self>) -> Result<Permit, Error> {
        let mut state = self.lock();
        let claim = Claim::new(OWN_UID, 0, Priority::Interactive);
        if state.closed { Err(Error::ShuttingDown) } else { Ok(self.grant(&mut state, claim)) }
    }

    fn grant(self: &Arc<Self>, state: &mut State, claim: Claim) -> Permit {
        let Claim { uid, tokens: held, work: tokens, class, .. } = claim;
        let share = state.by_uid.entry(uid).or_default();
        share.calls += 1;
        *share.of(class) += tokens;
        Permit { admission: Arc::clone(self), uid, tokens, held, class, is_use: uid != OWN_UID }
    }

    /// Refuses every later call, and those that wait for room.
    pub fn close(&self) {
        self.lock().closed = true;
        self.ledger.freed.notify_waiters();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Calls and tokens in flight.
    pub fn in_flight(&self) -> (usize, usize) {
        let state = self.lock();
        let shares = state.by_uid.values();
        let tokens = |share: &Share| share.interactive + share.bulk;
        (shares.clone().map(|share| share.calls).sum(), shares.map(tokens).sum())
    }

    /// Whether no call is in flight.
    pub fn is_idle(&self) -> bool {
        self.lock().by_uid.is_empty()
    }

    /// How long ago the last call of a user ended; `None` while one is in flight.
    pub fn idle_for(&self) -> Option<Duration> {
        let state = self.lock();
        state.by_uid.is_empty().then(|| state.last_call.elapsed())
    }

    /// Returns once no call is in flight.
    pub async fn idle(&self) {
        until(&self.ledger.freed, || self.is_idle().then_some(())).await;
    }

    fn give_back(&self, uid: u32, tokens: usize) {
        self.ledger.lock().give_back(uid, tokens);
        self.ledger.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// The permit of a call that does not need the model, and keeps it loaded no longer.
    pub fn of_a_look(mut self) -> Self {
        self.is_use = false;
        self
    }

    /// Some texts that were counted as so many tokens have `real` ones, and hold the memory of `held`: gives the others
    /// back early.
    pub fn settle(&mut self, counted: usize, real: usize, held: usize) {
        let tokens = counted.saturating_sub(real).min(self.tokens);
        self.tokens -= tokens;
        let room = counted.saturating_sub(held).min(self.held);
        self.held -= room;
        let mut state = self.admission.lock();
        state.made.note(counted, real);
        state.release(self.uid, self.class, tokens);
        drop(state);
        self.admission.give_back(self.uid, room);
    }
}

impl State {
    fn release(&mut self, uid: u32, class: Priority, tokens: usize) {
        if let Some(share) = self.by_uid.get_mut(&uid) {
            *share.of(class) -= tokens;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.release(self.uid, self.class, self.tokens);
        if self.is_use {
            state.last_call = Instant::now();
        }
        if let Some(share) = state.by_uid.get_mut(&self.uid) {
            share.calls -= 1;
            if share.calls == 0 {
                debug_assert_eq!((share.interactive, share.bulk), (0, 0), "tokens of nobody");
                state.by_uid.remove(&self.uid);
            }
        }
        drop(state);
        self.admission.give_back(self.uid, self.held);
    }
}

fn retry_after_ms(excess_tokens: usize, tokens_per_s: f64) -> u64 {
    let ms = excess_tokens as f64 * 1e3 / tokens_per_s.max(1.0);
    (ms as u64).clamp(*RETRY_MS.start(), *RETRY_MS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharing(
        ledger: Arc<Ledger>,
        queue_tokens_max: usize,
        quota_tokens: usize,
    ) -> Arc<Admission> {
        let limits = Limits { queue_tokens_max, quota_tokens, ..Limits::default() };
        Admission::new(&limits, ledger)
    }

    fn admission(queue_tokens_max: usize, quota_tokens: usize) -> Arc<Admission> {
        sharing(Arc::default(), queue_tokens_max, quota_tokens)
    }

    fn claim(uid: u32, tokens: usize) -> Claim {
        Claim::new(uid, tokens, Priority::Interactive)
    }

    #[test]
    fn a_full_queue_refuses_until_a_permit_is_dropped() {
        let admission = admission(100, 60);
        let first = admission.admit(claim(1, 60), 1000.0).unwrap();
        let error = admission.admit(claim(2, 50), 1000.0).unwrap_err();
        let expected =
            Error::Overloaded { needed: 50, in_flight: 60, limit: 100, retry_after_ms: 10 };
        assert_eq!(error, expected);
        drop(first);
        assert_eq!(admission.in_flight(), (0, 0));
        admission.admit(claim(2, 50), 1000.0).unwrap();
    }

    #[test]
    fn a_user_at_its_quota_does_not_stop_others() {
        let admission = admission(200, 60);
        let mut permit = admission.admit(claim(1, 60), 10.0).unwrap();
        let error = admission.admit(claim(1, 5), 10.0).unwrap_err();
        assert!(matches!(error, Error::QuotaExceeded { uid: 1, retry_after_ms: 500, .. }));
        let _other = admission.admit(claim(2, 40), 10.0).unwrap();
        permit.settle(6, 1, 1);
        let _more = admission.admit(claim(1, 5), 10.0).unwrap();
        assert_eq!(admission.in_flight(), (3, 100));
    }

    /// What is cut is kept by who calls, and computed by nobody.
    #[test]
    fn memory_is_no_work() {
        let admission = admission(100, 60);
        let mut permit = admission.admit(claim(1, 50), 1.0).unwrap();
        permit.settle(50, 5, 40);
        assert_eq!(admission.in_flight(), (1, 5));
        let error = admission.admit(claim(1, 30), 1.0).unwrap_err();
        assert!(matches!(error, Error::QuotaExceeded { in_flight: 40, .. }), "{error}");
        let time = Some(Time { left: Duration::from_secs(20), tokens_per_s: 1.0 });
        let _in_time = admission.admit(Claim { time, ..claim(1, 20) }, 1.0).unwrap();
        drop(permit);
        let _all = admission.admit(claim(1, 40), 1.0).unwrap();
    }

    /// Another engine, which may have begun under other settings, gives nobody more room.
    #[tokio::test]
    async fn engines_have_their_bounds_together() {
        let ledger = Arc::<Ledger>::default();
        let [one, other] = [sharing(ledger.clone(), 100, 60), sharing(ledger.clone(), 90, 50)];
        let mut first = one.admit(claim(1, 40), 1.0).unwrap();
        let refused = other.admit(claim(1, 20), 1.0).unwrap_err();
        assert!(matches!(refused, Error::QuotaExceeded { in_flight: 40, limit: 50, .. }));
        let second = other.admit(claim(2, 50), 1.0).unwrap();
        assert!(matches!(
            one.admit(claim(3, 20), 1.0),
            Err(Error::Overloaded { in_flight: 90, .. })
        ));
        assert_eq!((one.in_flight(), other.in_flight()), ((1, 40), (1, 50)));
        // Who waits for room in one is told of what is given back in the other.
        let waiting = tokio::spawn(async move { other.admit_when_free(claim(1, 20)).await });
        tokio::task::yield_now().await;
        first.settle(40, 10, 10);
        let third = waiting.await.unwrap().unwrap();
        drop((first, second, third));
        one.admit(claim(1, 60), 1.0).unwrap();
    }

    /// However many take what they get, the next one finds room.
    #[test]
    fn users_leave_room_for_others() {
        let admission = admission(120, 120);
        let all_that_fits = |uid| {
            let next = || admission.admit(claim(uid, 1), 1.0).ok();
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let mut held: Vec<Vec<Permit>> = vec![all_that_fits(0)];
        assert_eq!(held[0].len(), 120, "one alone has all");
        // Beside the next ones no more, as soon as it gives back.
        held[0].truncate(60);
        for uid in 1..5 {
            held.push(all_that_fits(uid));
            assert!(held.last().is_some_and(|permits| !permits.is_empty()));
        }
        let refused = admission.admit(claim(0, 1), 1.0).unwrap_err();
        assert!(matches!(refused, Error::QuotaExceeded { in_flight: 60, .. }), "{refused}");
        for _ in 0..100 {
            for (uid, permits) in held.iter_mut().enumerate() {
                permits.pop();
                permits.extend(all_that_fits(uid as u32));
            }
        }
        // Each a sixth.
        let shares = held.iter().map(Vec::len).collect::<Vec<_>>();
        assert!(shares.iter().all(|share| (15..=25).contains(share)), "{shares:?}");
    }

    #[test]
    fn what_can_never_fit_is_too_large() {
        let admission = admission(100, 60);
        for tokens in [61, 101, usize::MAX] {
            assert!(matches!(admission.admit(claim(1, tokens), 1.0), Err(Error::TooLarge { .. })));
        }
    }

    #[tokio::test]
    async fn who_waits_is_admitted_once_there_is_room() {
        let admission = admission(100, 60);
        let first = admission.admit(claim(1, 60), 1.0).unwrap();
        let waiting = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.admit_when_free(claim(1, 50)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let _second = waiting.await.unwrap().unwrap();
        assert_eq!(admission.in_flight(), (1, 50));
        let never = admission.admit_when_free(claim(1, 61)).await;
        assert!(matches!(never, Err(Error::TooLarge { .. })));
        let refused = admission.admit_when_free(claim(1, 50));
        let close = async { admission.close() };
        let (refused, ()) = tokio::join!(refused, close);
        assert_eq!(refused.unwrap_err(), Error::ShuttingDown);
    }

    #[test]
    fn closed_means_shutting_down() {
        let admission = admission(100, 60);
        admission.close();
        assert_eq!(admission.admit(claim(1, 1), 1.0).unwrap_err(), Error::ShuttingDown);
        assert_eq!(admission.admit_own().unwrap_err(), Error::ShuttingDown);
    }

    #[test]
    fn a_text_costs_what_it_may_become() {
        assert_eq!(cost(0, Truncate::End, 2, 256), 2);
        assert_eq!(cost(10, Truncate::End, 2, 256), 12);
        assert_eq!(cost(4096, Truncate::End, 2, 256), 256);
        assert_eq!(cost(1 << 20, Truncate::End, 2, 256), 1 << 15);
        assert_eq!(cost(508, Truncate::Mean, 2, 256), 508 + 3 * 2);
    }
}
