//! The engines under one set of settings, one for each model in use. A model is loaded once, however
//! many callers wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, OptionFuture, Shared};
use op_dbus_engine::LoadAdmission;
use parking_lot::Mutex;

use super::engines::Engines;
use super::load::{Before, Reasons, Refused, Tries};
use super::now::{Phase, loading};
use super::served::{Choice, Served};
use super::{Error, Means, blocking, load, provider};
use crate::settings::{Loaded, Provider};

/// A failed load is answered from memory for this long: otherwise every call of an impatient client
/// would read and check a damaged model again.
const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// The end of a load, shared by all who wait for it.
type Load = Shared<BoxFuture<'static, Result<Arc<Served>, Arc<Error>>>>;

struct Entry {
    load: Load,
    /// When the load ended.
    ended: Arc<OnceLock<Instant>>,
}

impl Entry {
    /// One that is there already.
    fn of(served: &Arc<Served>) -> Self {
        let load: Load = std::future::ready(Ok(served.clone())).boxed().shared();
        // Peeked at by all others.
        let _ = load.clone().now_or_never();
        Self { load, ended: Arc::default() }
    }

    fn failed(&self) -> bool {
        matches!(self.load.peek(), Some(Err(_)))
    }

    /// Whether it failed, or has nobody who computes by now: a new try may find what this one lacks.
    fn is_of_no_use(&self) -> bool {
        self.failed() || self.served().is_some_and(|served| served.engine.refusal().is_some())
    }

    /// Whether it failed so long ago, or of so little, that it is worth another try.
    fn is_stale(&self) -> bool {
        let Some(Err(error)) = self.load.peek() else { return false };
        let is_long_ago = |ended: &Instant| ended.elapsed() >= FAILURE_KEPT;
        error.is_of_missing_model() || self.ended.get().is_none_or(is_long_ago)
    }

    fn served(&self) -> Option<&Arc<Served>> {
        self.load.peek().and_then(|end| end.as_ref().ok())
    }
}

/// Why a model is loaded, which decides on the providers that are tried.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// It is wanted.
    Use,
    /// It is wanted on the provider that is asked for, or not at all; where that is `auto`, on none that comes after
    /// the one of this engine.
    AsAsked(Option<&'a Served>),
    /// What served it has failed.
    InsteadOf(&'a Served),
    /// A provider that is preferred to the one of this engine may work again.
    BetterThan(&'a Served),
}

impl Purpose<'_> {
    fn tries(self, loaded: &Loaded) -> Tries {
        let mut providers = provider::candidates(&loaded.settings);
        let (mut reasons, mut are_told) = (Reasons::default(), true);
        let mut before = None;
        let whole = matches!(self, Self::AsAsked(_));
        match self {
            // Nobody has asked for what `auto` passes over, but who has lost it is told.
            Self::Use => are_told = loaded.settings.execution_provider != Provider::Auto,
            Self::AsAsked(serves) if loaded.settings.execution_provider == Provider::Auto => {
                are_told = false;
                let own = serves.and_then(|it| providers.iter().position(|one| it.is_on(*one)));
                providers.truncate(own.map_or(providers.len(), |own| own + 1));
            }
            Self::AsAsked(_) => providers.truncate(1),
            // One that can be loaded and then loses what it computes would be taken again, and callers have waited
            // for one that is silent. Those before it were left not long ago: they are the last to be tried.
            Self::InsteadOf(failed) => {
                before = Some(Before { record: failed.record.clone(), may_go: true });
                if let Some(why) = failed.engine.in_vain() {
                    let own = providers.iter().position(|provider| failed.is_on(*provider));
                    providers.rotate_left(own.unwrap_or(0));
                    providers.retain(|provider| !failed.is_on(*provider));
                    reasons = failed.reasons.clone();
                    reasons.put(&failed.provider, format!("{} {why}", failed.provider));
                }
            }
            Self::BetterThan(fallback) => {
                before = Some(Before { record: fallback.record.clone(), may_go: false });
                providers = provider::preferred(providers, fallback);
            }
        }
        Tries { providers, reasons, are_told, whole, before }
    }
}

/// Engines by model.
pub(super) struct Fleet {
    loaded: Arc<Loaded>,
    means: Means,
    engines: Arc<Engines>,
    /// What waits for a model beside the one in force.
    pub(super) load_admission: LoadAdmission,
    /// Why providers do not work that were tried under these settings.
    pub(super) refused: Arc<Refused>,
    /// Whether other settings came into force.
    is_left: Arc<AtomicBool>,
    entries: Mutex<HashMap<Choice, Entry>>,
}

impl Fleet {
    /// An empty fleet; nothing is loaded yet.
    pub(super) fn new(loaded: Arc<Loaded>, means: Means, engines: Arc<Engines>) -> Arc<Self> {
        let limits = load::limits(&loaded.settings);
        let load_admission = LoadAdmission::new(&limits, engines.ledger.clone());
        let refused = Arc::new(Refused::new(engines.worked.clone()));
        let (is_left, entries) = Default::default();
        Arc::new(Self { loaded, means, engines, load_admission, refused, is_left, entries })
    }

    /// Other settings come into force: what is better under these is not tried any more.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// That the model is being loaded here.
    pub(super) fn loading(&self, choice: &Choice) -> Phase {
        loading(choice, &self.loaded.settings)
    }

    /// The model, loaded now if it is not yet. A recent failure is answered again.
    pub(super) fn get(&self, choice: &Choice) -> Load {
        self.load(choice, Purpose::Use, Entry::is_stale)
    }

    /// As [`Fleet::get`] of the model of `failed`, in its place.
    pub(super) fn get_instead_of(&self, failed: &Arc<Served>) -> Load {
        // That of a call from before a change of settings says nothing of what works under these.
        let purpose = match Arc::ptr_eq(&failed.loaded, &self.loaded) {
            true => Purpose::InsteadOf(failed),
            false => Purpose::Use,
        };
        let is_failed = |entry: &Entry| entry.served().is_some_and(|it| Arc::ptr_eq(it, failed));
        let stale = |entry: &Entry| is_failed(entry) || entry.is_stale();
        self.load(&failed.choice, purpose, stale)
    }

    /// As [`Fleet::get`], but tries again after a failure, however recent, and where all workers are lost.
    pub(super) fn get_anew(&self, choice: &Choice) -> Load {
        self.load(choice, Purpose::Use, Entry::is_of_no_use)
    }

    /// As [`Fleet::get_anew`], but on no provider that is only a fallback; nor on one that `auto` takes only where that
    /// of `serves` is not to be had.
    pub(super) fn get_as_asked(&self, choice: &Choice, serves: Option<&Arc<Served>>) -> Load {
        let purpose = Purpose::AsAsked(serves.map(Arc::as_ref));
        self.load(choice, purpose, Entry::is_of_no_use)
    }

    /// The model of `fallback` on a provider that is preferred to its own, beside it; an error where none works.
    pub(super) fn get_better(&self, fallback: &Served) -> Load {
        self.start(fallback.choice.clone(), Purpose::BetterThan(fallback)).0
    }

    /// Has `better` serve in the place of `fallback`; false where that does not serve any more.
    pub(super) fn replace(&self, fallback: &Arc<Served>, better: &Arc<Served>) -> bool {
        let mut entries = self.entries.lock();
        let is_it = |entry: &&mut Entry| entry.served().is_some_and(|it| Arc::ptr_eq(it, fallback));
        let Some(entry) = entries.get_mut(&fallback.choice).filter(is_it) else { return false };
        *entry = Entry::of(better);
        true
    }

    /// Has `served`, which comes into force, be found here: it may have been taken out as idle before it was.
    pub(super) fn keep(&self, served: &Arc<Served>) {
        let mut entries = self.entries.lock();
        let known = entries.get(&served.choice).and_then(Entry::served);
        if !known.is_some_and(|known| Arc::ptr_eq(known, served)) {
            entries.insert(served.choice.clone(), Entry::of(served));
        }
    }

    fn load(
        &self,
        choice: &Choice,
        purpose: Purpose<'_>,
        stale: impl FnOnce(&Entry) -> bool,
    ) -> Load {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(choice).filter(|entry| !stale(entry)) {
            return entry.load.clone();
        }
        let (load, ended) = self.start(choice.clone(), purpose);
        entries.insert(choice.clone(), Entry { load: load.clone(), ended });
        load
    }

    /// Lets go of every engine but that of `keep`. Calls that are in one hold it until they end.
    pub(super) fn retain(&self, keep: Option<&Choice>) {
        self.entries.lock().retain(|choice, _| Some(choice) == keep);
    }

    /// Takes every engine out but that of `keep` in which no call was for `time`.
    pub(super) fn take_idle(&self, keep: Option<&Choice>, time: Duration) -> Vec<Arc<Served>> {
        let idle = |served: &Served| served.engine.idle_for().is_some_and(|idle| idle >= time);
        let mut entries = self.entries.lock();
        let out = |choice: &Choice, entry: &mut Entry| {
            Some(choice) != keep && entry.served().is_some_and(|served| idle(served))
        };
        let taken = entries.extract_if(|choice, entry| out(choice, entry));
        taken.filter_map(|(_, entry)| entry.served().cloned()).collect()
    }

    /// Whether new calls find `served` here.
    pub(super) fn has(&self, served: &Arc<Served>) -> bool {
        self.served().iter().any(|it| Arc::ptr_eq(it, served))
    }

    /// Every engine that is there.
    pub(super) fn served(&self) -> Vec<Arc<Served>> {
        self.entries.lock().values().filter_map(Entry::served).cloned().collect()
    }

    /// Lets go of every engine, once its calls have ended, and keeps what batches were seen to cost.
    pub(super) async fn close(&self) {
        let entries = std::mem::take(&mut *self.entries.lock());
        let loaded: Vec<Arc<Served>> =
            entries.values().filter_map(Entry::served).cloned().collect();
        let keep = move || loaded.iter().for_each(|served| served.keep_costs());
        // What kept it from being done was said.
        let _ = blocking("disk", keep).await;
    }

    /// Loading blocks for seconds, and a hanging worker for minutes; one that may take a device begins when the
    /// machine is awake. Its end is seen also where nobody waits for it any more, and the runtime of who asked is gone.
    fn start(&self, choice: Choice, purpose: Purpose<'_>) -> (Load, Arc<OnceLock<Instant>>) {
        let (loaded, means) = (self.loaded.clone(), self.means.clone());
        let is_left = matches!(purpose, Purpose::BetterThan(_)).then(|| self.is_left.clone());
        let tries = Arc::new(purpose.tries(&loaded));
        let (engines, refused) = (self.engines.clone(), self.refused.clone());
        let ended = Arc::<OnceLock<Instant>>::default();
        let tells_end = ended.clone();
        let load = async move {
            let (of, under) = (tries.clone(), loaded.clone());
            let may_hold_device = blocking("disk", move || of.may_hold_device(&under)).await;
            // Without a thread for that there is none to load with either.
            let may_hold_device = may_hold_device.unwrap_or(true);
            let waiting = OptionFuture::from(may_hold_device.then(|| engines.taking()));
            let _taking = waiting.await;
            // What is loaded under other settings wants the same devices.
            if is_left.is_some_and(|it| it.load(Ordering::Relaxed)) {
                let why = "other settings are in force by now";
                return Err(Arc::new(Error::Provider(why.to_owned())));
            }
            let entered = engines.clone();
            let work = move || {
                let with = (&means, entered.config());
                let end = load::load(&choice, &tries, &loaded, with, &refused);
                end.map(|served| entered.enter(served)).map_err(Arc::new)
            };
            let end = blocking("load", work).await.map_err(Arc::new).flatten();
            tells_end.get_or_init(Instant::now);
            end
        };
        let load = load.boxed().shared();
        self.engines.runtime.spawn(load.clone());
        (load, ended)
    }
}
