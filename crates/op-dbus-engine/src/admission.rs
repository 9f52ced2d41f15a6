//! Admission: permits for all texts of a call before any work, from a global and a per-user budget.

mod ledger;
mod loading;
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
pub use loading::{LoadAdmission, LoadPermit};
pub(crate) use turn::{Claim, Time};
use turn::{Share, TokenRatio};

/// What a text costs at least: one token per this many bytes, so that the budget of tokens bounds
/// the memory of texts that are cut to a few tokens later.
const BYTES_PER_TOKEN_MAX: usize = 32;

/// Who the engine's own calls are counted to: `(uid_t) -1`, which no user has.
pub(crate) const OWN_UID: u32 = u32::MAX;

/// Tokens that are computed before that is noted, under the lock that all calls are admitted under: not for each text.
const COMPUTED_AT_ONCE: usize = 512;

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
    token_ratio: TokenRatio,
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
    /// Those that are.
    computed: usize,
    /// Those that are as well and still count among the first.
    unnoted: usize,
    /// What counts against the bounds: all of these, and the memory of what is not computed at all.
    held: usize,
    class: Priority,
    /// Whether the model is used.
    is_use: bool,
}

/// What some texts of a call, for which it has a permit, turned out to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    /// Tokens that they were to have at most.
    pub work: usize,
    /// Those that they have.
    pub real: usize,
    /// What they counted as against the bounds.
    pub room: usize,
    /// As much of it as they hold.
    pub held: usize,
    /// Whether the work was no guess, and tells nothing of other texts.
    pub is_exact: bool,
}

/// Tokens that texts of `bytes` count as for the memory that they take.
pub(crate) fn tokens_of_memory(bytes: usize) -> usize {
    bytes / BYTES_PER_TOKEN_MAX
}

/// Tokens that are computed of a text of `bytes` at most: tokenizers rarely make more than one of a byte.
pub(crate) fn work(bytes: usize, truncate: Truncate, specials: usize, input_max: usize) -> usize {
    match truncate {
        Truncate::Mean => {
            let windows = bytes.div_ceil(input_max.saturating_sub(specials).max(1)).max(1);
            bytes.saturating_add(windows.saturating_mul(specials))
        }
        Truncate::Error | Truncate::End | Truncate::Start => {
            bytes.saturating_add(specials).min(input_max)
        }
    }
}

/// Tokens that it counts as against the bounds.
pub(crate) fn cost(bytes: usize, truncate: Truncate, specials: usize, input_max: usize) -> usize {
    work(bytes, truncate, specials, input_max).max(tokens_of_memory(bytes))
}

impl Admission {
    pub fn new(limits: &Limits, ledger: Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self {
            limits: limits.clone(),
            state: Mutex::new(State {
                closed: false,
                by_uid: HashMap::new(),
                token_ratio: TokenRatio::default(),
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
        claim.check_time(&state.by_uid, state.token_ratio)?;
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
        let (admission, is_use) = (Arc::clone(self), uid != OWN_UID);
        Permit { admission, uid, tokens, computed: 0, unnoted: 0, held, class, is_use }
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
        let tokens = |share: &Share| share.interactive + share.bulk + share.computed;
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

    /// Gives back early what some texts turned out not to need.
    pub fn settle(&mut self, Settled { work, real, room, held, is_exact }: Settled) {
        let tokens = work.saturating_sub(real).min(self.tokens);
        self.tokens -= tokens;
        let room = room.saturating_sub(held).min(self.held);
        self.held -= room;
        let mut state = self.admission.lock();
        if !is_exact {
            state.token_ratio.note(work, real);
        }
        state.release(self.uid, self.class, tokens);
        drop(state);
        self.admission.give_back(self.uid, room);
    }

    /// So many tokens are computed: no call comes behind them any more. They count against the bounds as before.
    pub fn computed(&mut self, tokens: usize) {
        self.unnoted += tokens;
        if self.unnoted < COMPUTED_AT_ONCE {
            return;
        }
        let tokens = std::mem::take(&mut self.unnoted).min(self.tokens);
        self.tokens -= tokens;
        self.computed += tokens;
        let mut state = self.admission.lock();
        if let Some(share) = state.by_uid.get_mut(&self.uid) {
            *share.of(self.class) -= tokens;
            share.computed += tokens;
        }
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
            share.computed -= self.computed;
            if share.calls == 0 {
                let Share { interactive, bulk, computed, .. } = *share;
                debug_assert_eq!([interactive, bulk, computed], [0; 3], "tokens of nobody");
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
mod tests;
