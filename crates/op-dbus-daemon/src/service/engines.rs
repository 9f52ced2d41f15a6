//! Every engine that is there: those in use, and those from which the traffic has moved away, which live
//! until their last call has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use op_dbus_api::ErrorName;
use op_dbus_engine::{Cache, EngineConfig, Ledger, MemoryUse, Presence, Snapshot, Stats};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Service;
use super::load::Worked;
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
    /// The providers that they had.
    pub(super) worked: Arc<Worked>,
    /// Where what outlives its caller goes on: a direct connection's own runtime ends with it.
    pub(super) runtime: Handle,
    there: watch::Sender<There>,
    /// Calls that were refused or failed, by kind.
    failures: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct There {
    engines: Vec<Weak<Served>>,
    /// Whether the machine is about to sleep: what comes lets its devices go at once.
    asleep: bool,
    /// Loads under way that may take a device.
    takings: usize,
}

impl There {
    fn all(&self) -> Vec<Arc<Served>> {
        self.engines.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A load that may take a device; until it is dropped.
#[derive(Debug)]
pub(super) struct Taking<'a>(&'a Engines);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.there.send_modify(|there| there.takings -= 1);
    }
}

impl Engines {
    /// None yet. Has to be called within the Tokio runtime of the service.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let (stats, ledger, worked, there, failures) = Default::default();
        let (cache, runtime) = (Arc::new(Cache::new(cache_bytes)), Handle::current());
        Self { cache, stats, ledger, worked, runtime, there, failures }
    }

    /// What the next engine is made with.
    pub(super) fn config(&self) -> EngineConfig {
        let (cache, stats) = (self.cache.clone(), self.stats.clone());
        EngineConfig { cache, stats, ledger: self.ledger.clone(), ..EngineConfig::default() }
    }

    /// One more is there.
    pub(super) fn enter(&self, served: Served) -> Arc<Served> {
        let served = Arc::new(served);
        self.there.send_modify(|there| {
            there.engines.retain(|one| one.strong_count() > 0);
            there.engines.push(Arc::downgrade(&served));
            if there.asleep {
                served.engine.begin_sleep();
            }
        });
        served
    }

    /// Those that are there now.
    pub(super) fn all(&self) -> Vec<Arc<Served>> {
        self.there.borrow().all()
    }

    /// Waits until the machine is awake, and has a sleep wait for what is returned.
    pub(super) async fn taking(&self) -> Taking<'_> {
        let counted = |there: &mut There| {
            there.takings += usize::from(!there.asleep);
            !there.asleep
        };
        let mut changes = self.there.subscribe();
        while !self.there.send_if_modified(counted) {
            // Its sender is ours.
            let _ = changes.wait_for(|there| !there.asleep).await;
        }
        Taking(self)
    }

    /// Has all devices let go, those included that are being loaded; returns once they are, or the machine is
    /// awake again.
    pub(super) async fn sleep(&self) {
        self.there.send_modify(|there| there.asleep = true);
        let asleep = || async {
            let engines = self.all();
            join_all(engines.iter().map(|served| served.engine.sleep())).await;
        };
        asleep().await;
        let mut changes = self.there.subscribe();
        // Its sender is ours.
        let _ = changes.wait_for(|there| !there.asleep || there.takings == 0).await;
        let is_asleep = self.there.borrow().asleep;
        if is_asleep {
            asleep().await;
        }
    }

    /// Has devices be loaded again.
    pub(super) fn wake(&self) {
        self.there.send_modify(|there| there.asleep = false);
        self.all().iter().for_each(|served| served.engine.wake());
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
        let mut others = now.fleet.served();
        others.retain(|one| !now.is_in_force(one));
        others.sort_by(|a, b| a.model.cmp(&b.model));
        now.served().cloned().into_iter().chain(others).collect()
    }

    /// As [`Service::loaded`], and behind them those that new calls do not find and that have their workers: they end
    /// calls that came before a change, as of a source that is slow to go on, or are about to be found.
    pub fn with_workers(&self) -> Vec<Arc<Served>> {
        let mut engines = self.loaded();
        let mut others = self.engines();
        others.retain(|one| {
            let is_away = matches!(one.engine.presence(), Presence::Unloaded(_));
            !is_away && !engines.iter().any(|it| Arc::ptr_eq(it, one))
        });
        engines.append(&mut others);
        engines
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
        *self.0.engines.failures.lock().entry(kind).or_default() += 1;
    }

    /// Calls that were refused or failed since the start, by kind.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        self.0.engines.failures.lock().clone()
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_sleep_waits_for_a_load_under_way_and_the_next_load_for_its_end() {
        let engines = Engines::new(0);
        let taking = engines.taking().await;
        let mut sleep = pin!(engines.sleep());
        assert!(sleep.as_mut().now_or_never().is_none(), "a device is being taken");
        drop(taking);
        sleep.await;
        let mut next = pin!(engines.taking());
        assert!(next.as_mut().now_or_never().is_none(), "a device is taken during a sleep");
        engines.wake();
        let _next = next.await;
        // It does not hold up a machine that is awake again before it fell asleep.
        let mut sleep = pin!(engines.sleep());
        assert!(sleep.as_mut().now_or_never().is_none());
        engines.wake();
        sleep.await;
    }
}
