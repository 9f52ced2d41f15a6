//! What providers were refused for when they were tried last.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::service::Error;
use crate::settings::Provider;

/// Why each provider does not work that was tried and did not, the last time that it was, whichever model that was
/// for.
#[derive(Debug, Default)]
pub(in crate::service) struct Refused(Mutex<HashMap<Provider, String>>);

impl Refused {
    /// Takes note of how a try has ended.
    pub(super) fn note<T>(&self, provider: Provider, end: &Result<T, Error>) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match end {
            Ok(_) => drop(refused.remove(&provider)),
            Err(Error::Provider(reason)) => drop(refused.insert(provider, reason.clone())),
            // It is something else that does not work.
            Err(_) => {}
        }
    }

    /// Why a provider does not work, if it was tried and did not.
    pub(in crate::service) fn of(&self, provider: Provider) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&provider).cloned()
    }
}
