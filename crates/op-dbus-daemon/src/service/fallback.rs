//! That another provider runs than was asked for, as the journal and the counter tell it.

use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{info, warn};

use super::Service;
use super::now::Now;
use super::served::Served;
use crate::settings::Settings;
use crate::telemetry::message_id;

impl Service {
    /// Tells the journal, and counts, that another provider runs than was asked for, if that is so; once
    /// for each engine.
    pub(super) fn tell_fallback(&self, served: &Served, settings: &Settings) {
        let Served { provider, fallback_reason: reason, model, .. } = served;
        if !reason.is_empty() && !served.fallback_is_told.swap(true, Ordering::Relaxed) {
            self.tell_runs(provider, reason, model, settings);
        }
    }

    /// The same of the CPU that stands in for the provider of the model in force, beside which it computes; once until
    /// that is back.
    pub(super) fn tell_stand_in(&self) {
        let now = self.now();
        if let Some(served) = now.served() {
            self.tell_stand_in_of(served, &now);
        }
    }

    /// The same of a model beside the one in force, which nobody follows but its callers.
    pub(super) fn tell_stand_in_beside(&self, served: &Arc<Served>) {
        if served.engine.stand_in().is_some() == served.stand_in_told.lock().is_some() {
            return;
        }
        let now = self.now();
        // What a change has let go of is under other settings.
        if now.fleet.has(served) {
            self.tell_stand_in_of(served, &now);
        }
    }

    fn tell_stand_in_of(&self, served: &Served, now: &Now) {
        let (stand_in, reason) = now.stand_in_of(served);
        let told = stand_in.is_some().then(|| reason.clone());
        let before = replace(&mut *served.stand_in_told.lock(), told);
        match (stand_in, before) {
            (Some(it), None) => {
                self.tell_runs(&it.provider, &reason, &served.model, now.settings());
            }
            (None, Some(_)) => {
                let Served { provider, model, .. } = served;
                info!(provider, model, "{provider} computes again, for which the CPU stood in");
            }
            _ => {}
        }
    }

    fn tell_runs(&self, provider: &str, reason: &str, model: &str, settings: &Settings) {
        self.0.fallbacks.fetch_add(1, Ordering::Relaxed);
        warn!(
            MESSAGE_ID = message_id::PROVIDER_FALLBACK,
            requested = %settings.execution_provider,
            provider,
            model,
            "another provider runs than was asked for: {reason}"
        );
    }

    /// How often another provider came to run than was asked for, since the start.
    pub fn fallbacks(&self) -> u64 {
        self.0.fallbacks.load(Ordering::Relaxed)
    }
}
