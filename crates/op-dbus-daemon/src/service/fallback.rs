//! That another provider runs than was asked for, as the journal and the counter tell it.

use std::sync::atomic::Ordering;

use tracing::warn;

use super::Service;
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

    /// The same of the CPU that stands in for a provider beside which it computes; once until that is back.
    pub(super) fn tell_stand_in(&self) {
        let now = self.now();
        let Some(served) = now.served() else { return };
        let (stand_in, reason) = now.stand_in();
        let is_told = served.stand_in_is_told.swap(stand_in.is_some(), Ordering::Relaxed);
        if let Some(stand_in) = stand_in.filter(|_| !is_told) {
            self.tell_runs(&stand_in.provider, &reason, &served.model, now.settings());
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
