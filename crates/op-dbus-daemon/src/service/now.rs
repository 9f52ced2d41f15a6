//! What the service is at one moment. Properties, status lines and refusals all follow from it.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use op_dbus_engine::{BackendError, Description};
use op_dbus_models::Level;

use super::fleet::Fleet;
use super::memory::told;
use super::served::{Choice, Served};
use super::{Error, provider};
use crate::settings::{CpuEngine, Loaded, Provider, Settings};

/// Where the service is in its life.
#[derive(Clone)]
pub enum Phase {
    /// Vector level `none`.
    Disabled,
    /// A model, of this name, is being loaded and none serves.
    Loading(String),
    /// A model answers calls.
    Serving(Arc<Served>),
    /// No model could be loaded.
    Failed(Arc<Error>),
    /// Calls in flight are finished, new ones refused.
    Draining(Option<Arc<Served>>),
}

impl Phase {
    /// Whether this is the very phase that `other` is: the same kind, with the same engine.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Serving(a), Self::Serving(b)) => Arc::ptr_eq(a, b),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

/// The service at one moment.
#[derive(Clone)]
pub struct Now {
    /// Where it is in its life.
    pub phase: Phase,
    /// Since when it is there, and stands so.
    pub since: SystemTime,
    /// The settings in force.
    pub loaded: Arc<Loaded>,
    pub(super) fleet: Arc<Fleet>,
    /// How it [stood](Self::stands) when it came to be.
    pub(super) stood: (bool, bool),
}

impl Now {
    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.loaded.settings
    }

    /// The model that serves.
    pub fn served(&self) -> Option<&Arc<Served>> {
        match &self.phase {
            Phase::Serving(served) => Some(served),
            Phase::Draining(served) => served.as_ref(),
            Phase::Disabled | Phase::Loading(_) | Phase::Failed(_) => None,
        }
    }

    /// Whether this model, on this very engine, is the one that serves.
    pub(super) fn is_in_force(&self, served: &Served) -> bool {
        self.served().is_some_and(|it| ptr::eq(Arc::as_ptr(it), served))
    }

    /// The level in force; an imported model has none.
    pub fn level(&self) -> Option<Level> {
        match wanted(self.settings()) {
            Some(choice) => choice.level(),
            None => Some(Level::None),
        }
    }

    /// Whether the model of `level` is loaded, in force or beside it.
    pub(super) fn has(&self, level: Level) -> bool {
        self.fleet.served().iter().any(|served| served.choice == Choice::Level(level))
    }

    /// Why another provider runs than was asked for; empty where that is not so.
    pub fn fallback_reason(&self) -> String {
        self.stand_in().1
    }

    /// What computes in place of the provider that serves, where that is lost, the CPU beside it is not and no other
    /// provider is about to take over; and [why another provider](Self::fallback_reason) runs than was asked for.
    pub fn stand_in(&self) -> (Option<Description>, String) {
        self.served().map(|served| self.stand_in_of(served)).unwrap_or_default()
    }

    /// The same of a model that is loaded, in force or beside it.
    pub fn stand_in_of(&self, served: &Served) -> (Option<Description>, String) {
        let (reason, told) = (&served.fallback_reason, served.stand_in_told.lock().clone());
        match (served.engine.stand_in(), told) {
            // As signals told it: who keeps properties is not told of each try's own words.
            (Some((stand_in, _)), Some(told)) => (Some(stand_in), told),
            // Nobody looks for another provider but for the one in force.
            (Some(_), None) if self.is_in_force(served) && self.may_have_successor(served) => {
                (None, reason.clone())
            }
            (Some((stand_in, why)), None) if reason.is_empty() => (Some(stand_in), why),
            (Some((stand_in, why)), None) => (Some(stand_in), format!("{reason}; {why}")),
            (None, _) => (None, reason.clone()),
        }
    }

    /// The provider that computes a model that is loaded, and why it is not what was asked for.
    pub fn runs_on(&self, served: &Served) -> (String, String) {
        let (stand_in, reason) = self.stand_in_of(served);
        (stand_in.map_or_else(|| served.provider.clone(), |it| it.provider), reason)
    }

    /// Why `provider` does not compute, if it was tried: what it was refused for last, or lost before another one
    /// took over.
    pub fn refused(&self, provider: Provider) -> Option<String> {
        let is_asked_for = provider == self.settings().execution_provider;
        let passed_over =
            || Some(self.fallback_reason()).filter(|why| is_asked_for && !why.is_empty());
        self.fleet.refused.of(provider).or_else(passed_over)
    }

    /// Whether the settings name a provider to come after that of `served`.
    pub(super) fn may_have_successor(&self, served: &Served) -> bool {
        let last = provider::last(self.settings());
        !served.is_last.load(Ordering::Relaxed) && last.is_some_and(|last| !served.is_on(last))
    }

    /// Whether what serves has failed, and another provider is about to take over: calls wait for that.
    pub fn is_failing_over(&self) -> bool {
        let Phase::Serving(served) = &self.phase else { return false };
        served.engine.is_failing() && self.may_have_successor(served)
    }

    /// Why calls are refused though a model is loaded: its workers are lost, none can be had, and no other
    /// provider is about to take over.
    pub fn refusal(&self) -> Option<BackendError> {
        let Phase::Serving(served) = &self.phase else { return None };
        let refusal = served.engine.refusal()?;
        (!self.may_have_successor(served)).then_some(refusal)
    }

    /// Whether calls are refused though a model is loaded, or else another provider runs than was asked for: what may
    /// change while the phase stays.
    pub(super) fn stands(&self) -> (bool, bool) {
        let is_refusing = self.refusal().is_some();
        (is_refusing, !is_refusing && !self.fallback_reason().is_empty())
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        match &self.phase {
            Phase::Disabled => {
                "Embedding is off (vector level none); choose another level with SetVectorLevel"
                    .to_owned()
            }
            Phase::Loading(model) => format!("Loading {model}"),
            Phase::Serving(served) if let Some(why) = self.absence() => {
                format!("Serving {}, {}", served.model, told(why, self.settings()))
            }
            Phase::Serving(served) if let Some(why) = self.refusal() => {
                format!("Not embedding: no worker of {} can be had: {why}", served.model)
            }
            Phase::Serving(served) => {
                let reason = self.fallback_reason();
                let instead = if reason.is_empty() { reason } else { format!(" ({reason})") };
                format!("Serving {} on {}{instead}", served.model, served.device())
            }
            Phase::Failed(error) => format!("Not embedding: {error}"),
            Phase::Draining(_) => "Finishing the calls in flight".to_owned(),
        }
    }
}

/// The model that the settings ask for; `None` for level `none`.
pub fn wanted(settings: &Settings) -> Option<Choice> {
    match (settings.vector_level, &settings.model) {
        (Level::None, _) => None,
        (_, Some(name)) => Some(Choice::Imported(name.clone())),
        (level, None) => Some(Choice::Level(level)),
    }
}

/// That the model of `choice` is being loaded under these settings, which may not be in force yet.
pub(super) fn loading(choice: &Choice, settings: &Settings) -> Phase {
    let model = match settings.cpu_engine {
        CpuEngine::Sim => super::load::SIM_MODEL,
        CpuEngine::Native | CpuEngine::Ort => choice.model(),
    };
    Phase::Loading(model.to_owned())
}
