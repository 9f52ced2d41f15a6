//! What became of providers when they were tried.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::service::Error;
use crate::service::engines::Engines;
use crate::service::served::Served;
use crate::settings::Provider;

/// The providers that have worked since the service was started, whatever its settings were then, each with the models
/// that it did so for.
#[derive(Debug, Default)]
pub(in crate::service) struct Worked(Mutex<HashMap<Provider, HashSet<String>>>);

/// Why each provider does not work that was tried and did not, the last time that it was, whichever model that was
/// for.
#[derive(Debug)]
pub(in crate::service) struct Refused {
    last: Mutex<HashMap<Provider, String>>,
    engines: Arc<Engines>,
}

impl Refused {
    /// Nothing was tried yet under these settings.
    pub(in crate::service) fn new(engines: Arc<Engines>) -> Self {
        Self { last: Mutex::default(), engines }
    }

    /// Takes note of how a try for a model has ended.
    pub(super) fn note<T>(&self, provider: Provider, model: &str, end: &Result<T, Error>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match end {
            Ok(_) => {
                last.remove(&provider);
                let worked = &self.engines.worked.0;
                let mut worked = worked.lock().unwrap_or_else(PoisonError::into_inner);
                worked.entry(provider).or_default().insert(model.to_owned());
            }
            Err(Error::Provider(reason)) => drop(last.insert(provider, reason.clone())),
            // It is something else that does not work.
            Err(_) => {}
        }
    }

    /// Why a provider does not work, if it was tried and did not.
    pub(in crate::service) fn of(&self, provider: Provider) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).get(&provider).cloned()
    }

    /// Whether a provider that refuses a model was lost: the model had it, or an engine that is there has lost it. One
    /// that it has only ever refused may be too large for it, while it computes others.
    pub(super) fn is_lost(&self, provider: Provider, model: &str) -> bool {
        let worked = self.engines.worked.0.lock().unwrap_or_else(PoisonError::into_inner);
        let had = worked.get(&provider).map(|models| models.contains(model));
        drop(worked);
        let has_lost = |served: &Arc<Served>| match served.is_on(provider) {
            true => served.engine.is_failing(),
            false => !served.fallback_reason.is_empty(),
        };
        had.is_some_and(|had| had || self.engines.all().iter().any(has_lost))
    }
}
