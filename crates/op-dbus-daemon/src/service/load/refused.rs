//! What became of providers when they were tried.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use op_dbus_engine::is_same_news;
use parking_lot::Mutex;

use crate::service::Error;
use crate::settings::Provider;

/// Why providers are not taken for a model, each once: what it was refused for, or lost, last.
#[derive(Clone, Debug, Default)]
pub(in crate::service) struct Reasons(Vec<(String, String)>);

impl Reasons {
    /// A provider, by its name, is not taken for this.
    pub(in crate::service) fn put(&mut self, provider: &str, reason: String) {
        self.0.retain(|(other, _)| other != provider);
        self.0.push((provider.to_owned(), reason));
    }

    /// Those of others than this one.
    pub(super) fn without(mut self, provider: &str) -> Self {
        self.0.retain(|(other, _)| other != provider);
        self
    }

    /// One sentence. Two may refuse a model, or what the settings ask of it, in the same words.
    pub(super) fn told(&self) -> String {
        let mut told: Vec<&str> = Vec::new();
        for (_, reason) in &self.0 {
            if !told.contains(&reason.as_str()) {
                told.push(reason);
            }
        }
        told.join("; ")
    }
}

/// The providers that have worked since the service was started, whatever its settings were then, each with the models
/// that it did so for.
#[derive(Debug, Default)]
pub(in crate::service) struct Worked(Mutex<HashMap<Provider, HashSet<String>>>);

/// Why each provider does not work that was tried and did not, the last time that it was, whichever model that was
/// for.
#[derive(Debug)]
pub(in crate::service) struct Refused {
    last: Mutex<HashMap<Provider, String>>,
    /// The models that providers can't have, whatever memory they have.
    unfit: Mutex<HashSet<(Provider, String)>>,
    worked: Arc<Worked>,
}

impl Refused {
    /// Nothing was tried yet under these settings.
    pub(in crate::service) fn new(worked: Arc<Worked>) -> Self {
        Self { last: Mutex::default(), unfit: Mutex::default(), worked }
    }

    /// Takes note of how a try for a model has ended; false where it was refused for what it was before.
    pub(super) fn note<T>(&self, provider: Provider, model: &str, end: &Result<T, Error>) -> bool {
        let mut unfit = self.unfit.lock();
        let _ = match end {
            Err(Error::Unfit(_)) => unfit.insert((provider, model.to_owned())),
            _ => unfit.remove(&(provider, model.to_owned())),
        };
        let mut last = self.last.lock();
        match end {
            Ok(_) => {
                last.remove(&provider);
                let mut worked = self.worked.0.lock();
                worked.entry(provider).or_default().insert(model.to_owned());
                true
            }
            Err(Error::Provider(reason) | Error::Unfit(reason) | Error::NoRoom(reason)) => {
                let before = last.insert(provider, reason.clone());
                !before.is_some_and(|before| is_same_news(&before, reason))
            }
            // It is something else that does not work.
            Err(_) => true,
        }
    }

    /// Why a provider does not work, if it was tried and did not.
    pub(in crate::service) fn of(&self, provider: Provider) -> Option<String> {
        self.last.lock().get(&provider).cloned()
    }

    /// Whether a provider has worked since the service was started, for any model.
    pub(in crate::service) fn has_worked(&self, provider: Provider) -> bool {
        self.worked.0.lock().contains_key(&provider)
    }

    /// Whether a provider can't have a model, as it was found when that was tried last.
    pub(in crate::service) fn is_unfit(&self, provider: Provider, model: &str) -> bool {
        self.unfit.lock().contains(&(provider, model.to_owned()))
    }

    /// Whether a provider that refuses a model was lost: the model had it, or another one had and it is not this model
    /// that is too large for it.
    pub(super) fn is_lost(&self, provider: Provider, model: &str, refusal: &Error) -> bool {
        let worked = self.worked.0.lock();
        let of_model = matches!(refusal, Error::Unfit(_) | Error::NoRoom(_));
        worked.get(&provider).is_some_and(|models| !of_model || models.contains(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_is_told_of_once_and_each_reason() {
        let mut reasons = Reasons::default();
        for (provider, why) in [("a", "no"), ("b", "no"), ("c", "lost"), ("d", "never")] {
            reasons.put(provider, why.to_owned());
        }
        assert_eq!(reasons.told(), "no; lost; never");
        // It was tried again, behind the others.
        reasons.put("c", "away".to_owned());
        assert_eq!(reasons.told(), "no; never; away");
        assert_eq!(reasons.without("d").told(), "no; away");
    }
}
