//! What can go wrong, each as one sentence.

use op_dbus_engine::{BackendError, Error as CallError, Excess, LoadErrorKind, TokenizerError};

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
    /// A call was refused or failed. What a worker failed by is in the value, and not a source of its own.
    #[error("{}", here(.0))]
    Call(CallError),
}

/// What the engine says, in the words of a program that has it in itself: no service comes back, and limits are
/// options of [`Builder`](crate::Builder).
fn here(error: &CallError) -> String {
    match error {
        CallError::ShuttingDown => "the embedder was closed; build another".to_owned(),
        CallError::WorkerFailed(reason) => {
            format!("no worker could embed the texts ({reason}); see the log (tracing)")
        }
        CallError::OutOfMemory(reason) => format!(
            "the device or server could not hold the batch ({reason}); lower batch_tokens, shorten \
             the text or free its memory"
        ),
        CallError::TooLarge { excess: excess @ Excess::QueueTokens, found, limit } => format!(
            "{excess} is {found}, the limit is {limit}; send less in a call, or raise queue_tokens"
        ),
        CallError::QuotaExceeded { needed, in_flight, limit, retry_after_ms, .. } => format!(
            "{in_flight} tokens are in flight and this call needs {needed}, of {limit} together; wait for \
             earlier calls, try again in {retry_after_ms} ms, or raise queue_tokens"
        ),
        other => other.to_string(),
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
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
