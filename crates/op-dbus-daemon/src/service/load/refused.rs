//! What became of providers when they were tried.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::service::Error;
use crate::settings::Provider;

/// The providers that have worked since the service was started, whatever its settings were then.
#[derive(Debug, Default)]
pub(in crate::service) struct Worked(Mutex<HashSet<Provider>>);

/// Why each provider does not work that was tried and did not, the last time that it was, whichever model that was
/// for.
#[derive(Debug)]
pub(in crate::service) struct Refused {
    last: Mutex<HashMap<Provider, String>>,
    worked: Arc<Worked>,
}

impl Refused {
    /// Nothing was tried yet under these settings.
    pub(in crate::service) fn new(worked: Arc<Worked>) -> Self {
        Self { last: Mutex::default(), worked }
    }

    /// Takes note of how a try has ended.
    pub(super) fn note<T>(&self, provider: Provider, end: &Result<T, Error>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match end {
            Ok(_) => {
                last.remove(&provider);
                self.worked.0.lock().unwrap_or_else(PoisonError::into_inner).insert(provider);
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

    /// Whether a provider has worked since the service was started.
    pub(super) fn has_worked(&self, provider: Provider) -> bool {
        self.worked.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&provider)
    }
}
