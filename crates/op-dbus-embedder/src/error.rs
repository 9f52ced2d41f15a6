//! What can go wrong, each as one sentence.

use op_dbus_engine::{BackendError, LoadErrorKind, TokenizerError};

/// Why there is no embedder, or no vector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option of the builder is wrong, or has no effect beside the others.
    #[error("{0}")]
    Option(String),
    /// The model is not there or is damaged.
    #[error(transparent)]
    Model(#[from] op_dbus_models::Error),
    /// The model's tokenizer can't be used.
    #[error("the tokenizer of {model} can't be used ({source}); install the model again")]
    Tokenizer {
        /// The model.
        model: String,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// None of the providers computes this model here; each says why.
    #[error("{0}")]
    Provider(String),
    /// The backend could not be loaded for another reason.
    #[error(transparent)]
    Backend(BackendError),
    /// A call was refused or failed.
    #[error(transparent)]
    Call(#[from] op_dbus_engine::Error),
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Load {
                kind:
                    LoadErrorKind::ProviderUnavailable
                    | LoadErrorKind::Unfit
                    | LoadErrorKind::OutOfMemory,
                message,
            } => Self::Provider(message),
            error => Self::Backend(error),
        }
    }
}
