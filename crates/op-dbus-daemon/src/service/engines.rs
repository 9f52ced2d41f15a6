//! Every engine that is there: those in use, and those from which the traffic has moved away, which live
//! until their last call has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use op_dbus_api::ErrorName;
use op_dbus_engine::{Cache, EngineConfig, Ledger, MemoryUse, Snapshot, Stats};

use super::Service;
use super::served::Served;

/// All engines of a service, and what they share.
#[derive(Debug)]
pub(super) struct Engines {
    /// Vectors of texts that come again.
    pub(super) cache: Arc<Cache>,
    /// What they count together, so that nothing is lost with one of them.
    stats: Arc<Stats>,
    /// What their users have in flight, whichever engine it is in.
    pub(super) ledger: Arc<Ledger>,
    there: Mutex<There>,
    /// Calls that were refused or failed, by kind.
    failures: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct There {
    engines: Vec<Weak<Served>>,
    /// Whether the machine is about to sleep: what comes lets its devices go at once.
    asleep: bool,
}

impl There {
    fn all(&self) -> Vec<Arc<Served>> {
        self.engines.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Engines {
    /// None yet.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let (stats, ledger, there, failures) = Default::default();
        Self { cache: Arc::new(Cache::new(cache_bytes)), stats, ledger, there, failures }
    }

    /// What the next engine is made with.
    pub(super) fn config(&self) -> EngineConfig {
        let (cache, stats) = (self.cache.clone(), self.stats.clone());
        EngineConfig { cache, stats, ledger: self.ledger.clone(), ..EngineConfig::default() }
    }

    /// One more is there.
    pub(super) fn enter(&self, served: Served) -> Arc<Served> {
        let served = Arc::new(served);
        let mut there = self.there();
        there.engines.retain(|one| one.strong_count() > 0);
        there.engines.push(Arc::downgrade(&served));
        if there.asleep {
            served.engine.begin_sleep();
        }
        served
    }

    /// Those that are there now.
    pub(super) fn all(&self) -> Vec<Arc<Served>> {
        self.there().all()
    }

    /// Those that are there now; whether the machine is `asleep` holds for those that come as well.
    pub(super) fn told(&self, asleep: bool) -> Vec<Arc<Served>> {
        let mut there = self.there();
        there.asleep = asleep;
        there.all()
    }

    fn there(&self) -> MutexGuard<'_, There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Every engine that is there, those included in which calls end that came before a change.
    pub(super) fn engines(&self) -> Vec<Arc<Served>> {
        self.0.engines.all()
    }

    /// The engines that new calls find: that of the model in force, then those of others by name.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        let now = self.now();
        let in_force = now.served().cloned();
        let is_other = |one: &Arc<Served>| in_force.as_ref().is_none_or(|it| !Arc::ptr_eq(it, one));
        let mut others = now.fleet.served();
        others.retain(is_other);
        others.sort_by(|a, b| a.model.cmp(&b.model));
        in_force.into_iter().chain(others).collect()
    }

    /// A call or a job ended with this error. It is counted by the last word of its name, as in `too-long`.
    pub fn call_failed(&self, error: ErrorName) {
        let name = error.as_str().rsplit('.').next().unwrap_or_default();
        let mut kind = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !kind.is_empty() {
                kind.push('-');
            }
            kind.push(letter.to_ascii_lowercase());
        }
        let failures = &self.0.engines.failures;
        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(kind).or_default() += 1;
    }

    /// Calls that were refused or failed since the start, by kind.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        let failures = &self.0.engines.failures;
        failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was counted since the start, of all engines, and what is in them now.
    pub fn statistics(&self) -> Snapshot {
        let counted = self.0.engines.stats.snapshot();
        self.engines().iter().fold(counted, |sum, served| {
            let now = served.engine.stats();
            Snapshot {
                queue_texts: sum.queue_texts + now.queue_texts,
                queue_tokens: sum.queue_tokens + now.queue_tokens,
                in_flight_calls: sum.in_flight_calls + now.in_flight_calls,
                in_flight_tokens: sum.in_flight_tokens + now.in_flight_tokens,
                memory: MemoryUse::and(sum.memory, now.memory),
                ..sum
            }
        })
    }
}
