//! Why the service refuses or fails; each is one sentence for the caller or the administrator.

use std::sync::Arc;

use op_dbus_engine::{BackendError, LoadErrorKind, TokenizerError};
use op_dbus_models::Error as ModelError;

use crate::settings::Mistakes;
use crate::state::StateError;

/// Why a request to the service was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The vector level is `none`.
    #[error("embedding is off: the vector level is none; choose another with SetVectorLevel")]
    Disabled,
    /// The first model is still on its way.
    #[error(
        "{model} is being loaded; wait until the property State is no longer loading, then call again"
    )]
    NotReady {
        /// What is being loaded.
        model: String,
    },
    /// The service is on its way out.
    #[error("the service is shutting down; send the call again once it is back")]
    ShuttingDown,
    /// A model has workers still that were to end.
    #[error("{model} could not be unloaded within {waited_s} s: {why}; call again")]
    Busy {
        /// The model.
        model: String,
        /// How long its calls and workers were waited for.
        waited_s: u64,
        /// What they have not ended for.
        why: &'static str,
    },
    /// An argument or an option is wrong.
    #[error("{0}")]
    InvalidArgument(String),
    /// The time that the caller gave was over before a model was there.
    #[error("the deadline passed before {model} was loaded; allow more time")]
    DeadlineExceeded {
        /// What was being loaded.
        model: String,
    },
    /// The caller's index was made in another vector space.
    #[error(
        "expect_space is {expected} but the vectors would be in {found}; embed the index again, or \
         serve the model that it was made with"
    )]
    WrongSpace {
        /// What the caller named, as it is shown.
        expected: String,
        /// What serves.
        found: String,
    },
    /// The setting is held by the environment, a flag or another setting.
    #[error("{0}")]
    Pinned(String),
    /// The state file can't be written, so the change was not made.
    #[error("{0}; the service stays as it was")]
    State(#[source] StateError),
    /// No provider that was allowed can be used.
    #[error("{0}")]
    Provider(String),
    /// A provider can't have this model, and may have others: its graph or its precision is not the provider's, or its
    /// vectors are not the model's.
    #[error("{0}")]
    Unfit(String),
    /// A provider has no memory for this model, and may have for others, or later.
    #[error("{0}")]
    NoRoom(String),
    /// The model can't be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's tokenizer can't be used.
    #[error("the tokenizer of {model} can't be used: {source}")]
    Tokenizer {
        /// The model.
        model: String,
        /// What is wrong.
        source: TokenizerError,
    },
    /// A provider is looked for that serves the model as before, and the store has another one under its name.
    #[error(
        "the store has another {model} by now than the one that serves; reload the service to take it up"
    )]
    Replaced {
        /// The name.
        model: String,
    },
    /// The model has other dimensions than the settings demand.
    #[error("{0}")]
    Dimensions(String),
    /// No worker could be loaded.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The engine refused or failed the call.
    #[error(transparent)]
    Engine(#[from] op_dbus_engine::Error),
    /// The settings can't be read again; those in force stay.
    #[error("{0}\nthe settings in force stay as they were")]
    Settings(#[source] Mistakes),
    /// A load that several callers waited for.
    #[error(transparent)]
    Load(Arc<Error>),
    /// The model in force could not be loaded.
    #[error(transparent)]
    InForce(Arc<Error>),
    /// A fault of ours: a task ended without a result.
    #[error("an internal fault ended the work ({0}); the service's log has more")]
    Fault(&'static str),
}

impl Error {
    /// The error itself, behind those who waited for the same load.
    pub fn root(&self) -> &Error {
        match self {
            Self::Load(shared) | Self::InForce(shared) => shared.root(),
            other => other,
        }
    }

    /// Whether it is the model that is missing or damaged.
    pub(super) fn is_of_model(&self) -> bool {
        match self.root() {
            Self::Model(_) | Self::Tokenizer { .. } => true,
            Self::Backend(BackendError::Load { kind, .. }) => {
                matches!(kind, LoadErrorKind::ModelCorrupt | LoadErrorKind::ModelNotInstalled)
            }
            _ => false,
        }
    }

    /// Whether the store lacks the model. That it does is found at a glance, and may be over by the next call.
    pub(super) fn is_of_missing_model(&self) -> bool {
        match self.root() {
            Self::Model(error) => {
                matches!(error, ModelError::NotInstalled { .. } | ModelError::NoFolder { .. })
            }
            Self::Backend(BackendError::Load { kind, .. }) => {
                *kind == LoadErrorKind::ModelNotInstalled
            }
            _ => false,
        }
    }
}

/// What a caller wrote may be long, and need not be fit to print.
pub fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let start: String = text.chars().take(CHARACTERS_MAX).collect();
    if start.len() < text.len() { format!("{start:?}…") } else { format!("{start:?}") }
}
