//! The properties that change, all taken from one moment.

use std::collections::HashMap;

use op_dbus_api::State;
use zbus::Variant;

use super::reply::wire;
use crate::service::{Now, Phase};

/// The changing properties of the embedder. Where no model serves, what a model would tell is empty
/// or zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Level in force; empty for an imported model.
    pub vector_level: String,
    /// Model that serves.
    pub model: String,
    /// Its vector space, with the precision suffix.
    pub vector_space: String,
    /// Length of its vectors.
    pub dimensions: u32,
    /// Tokens that it reads of one text.
    pub max_input_tokens: u32,
    /// Provider that verifiably runs.
    pub execution_provider: String,
    /// Provider that was asked for.
    pub requested_execution_provider: String,
    /// Why the two differ.
    pub fallback_reason: String,
    /// Precision of the arithmetic.
    pub precision: String,
    /// Life of the service.
    pub state: State,
}

impl Facts {
    /// The properties at one moment.
    pub fn of(now: &Now) -> Self {
        let served = now.served();
        let (stand_in, fallback_reason) = now.stand_in();
        let (execution_provider, precision) = match (stand_in, served) {
            (Some(it), _) => (it.provider, it.precision),
            (None, Some(served)) => (served.provider.clone(), served.precision.clone()),
            (None, None) => Default::default(),
        };
        let state = match now.phase {
            Phase::Disabled => State::Disabled,
            Phase::Loading(_) => State::Loading,
            Phase::Serving(_) if now.refusal().is_some() => State::Failed,
            Phase::Serving(_) if fallback_reason.is_empty() => State::Ready,
            Phase::Serving(_) => State::Degraded,
            Phase::Failed(_) => State::Failed,
            Phase::Draining(_) => State::Draining,
        };
        Self {
            vector_level: now.level().map_or("", |level| level.as_str()).to_owned(),
            model: served.map(|s| s.model.clone()).unwrap_or_default(),
            vector_space: served.map(|s| s.space_in(&precision)).unwrap_or_default(),
            dimensions: served.map_or(0, |s| wire(s.dimensions)),
            max_input_tokens: served.map_or(0, |s| wire(s.max_input_tokens)),
            execution_provider,
            requested_execution_provider: now.settings().execution_provider.to_string(),
            fallback_reason,
            precision,
            state,
        }
    }

    /// What is not as it was in `old`, by the property's name; everything where there is no such.
    pub fn changed_since(&self, old: Option<&Self>) -> HashMap<&'static str, Variant<'static>> {
        let old: HashMap<_, _> = old.into_iter().flat_map(Self::entries).collect();
        let mut changed: HashMap<_, _> = self.entries().into_iter().collect();
        changed.retain(|name, value| old.get(name) != Some(value));
        changed
    }

    fn entries(&self) -> [(&'static str, Variant<'static>); 10] {
        let text = |text: &String| Variant::from(text.clone());
        [
            ("VectorLevel", text(&self.vector_level)),
            ("Model", text(&self.model)),
            ("VectorSpace", text(&self.vector_space)),
            ("Dimensions", self.dimensions.into()),
            ("MaxInputTokens", self.max_input_tokens.into()),
            ("ExecutionProvider", text(&self.execution_provider)),
            ("RequestedExecutionProvider", text(&self.requested_execution_provider)),
            ("FallbackReason", text(&self.fallback_reason)),
            ("Precision", text(&self.precision)),
            ("State", self.state.as_str().into()),
        ]
    }
}
