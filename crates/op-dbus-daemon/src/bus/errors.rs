//! From the service's and the engine's errors to the names on the bus. Each match is complete, so
//! that a new error can't be forgotten here.

use op_dbus_api::{Error as Reply, ErrorName};
use op_dbus_engine::{BackendError, Error as EngineError, LoadErrorKind};
use op_dbus_models::Error as ModelError;

use crate::service::Error;

impl From<Error> for Reply {
    fn from(error: Error) -> Self {
        Self::new(name(&error), error.to_string())
    }
}

fn name(error: &Error) -> ErrorName {
    let root = error.root();
    if matches!((error, root), (Error::InForce(_), Error::Dimensions(_))) {
        // Whoever has not asked for that model can't mend it.
        return ErrorName::WorkerFailed;
    }
    match root {
        Error::Disabled => ErrorName::Disabled,
        Error::NotReady { .. } => ErrorName::NotReady,
        Error::ShuttingDown => ErrorName::ShuttingDown,
        // Who asks for a model of other dimensions can ask for another one.
        Error::InvalidArgument(_) | Error::Settings(_) | Error::Dimensions(_) => {
            ErrorName::InvalidArgument
        }
        Error::DeadlineExceeded { .. } => ErrorName::DeadlineExceeded,
        Error::WrongSpace { .. } => ErrorName::WrongSpace,
        Error::Pinned(_) => ErrorName::Pinned,
        Error::State(_) => ErrorName::NoSpace,
        Error::Provider(_) | Error::Unfit(_) | Error::NoRoom(_) => ErrorName::ProviderUnavailable,
        Error::Model(error) => model(error),
        Error::Tokenizer { .. } => ErrorName::ModelCorrupt,
        Error::Busy { .. } | Error::Replaced { .. } | Error::Fault(_) => ErrorName::Failed,
        Error::Backend(error) => backend(error),
        Error::Engine(error) => engine(error),
        Error::Load(shared) | Error::InForce(shared) => name(shared),
    }
}

fn engine(error: &EngineError) -> ErrorName {
    match error {
        EngineError::Overloaded { .. } | EngineError::Late { .. } => ErrorName::Overloaded,
        EngineError::QuotaExceeded { .. } => ErrorName::QuotaExceeded,
        EngineError::TooLarge { .. } => ErrorName::TooLarge,
        EngineError::TooLong { .. } => ErrorName::TooLong,
        EngineError::DeadlineExceeded => ErrorName::DeadlineExceeded,
        EngineError::Cancelled => ErrorName::Cancelled,
        EngineError::ShuttingDown => ErrorName::ShuttingDown,
        EngineError::WorkerFailed(_) => ErrorName::WorkerFailed,
        EngineError::OutOfMemory(_) => ErrorName::OutOfMemory,
        EngineError::Untokenizable { .. } | EngineError::InvalidArgument(_) => {
            ErrorName::InvalidArgument
        }
    }
}

fn backend(error: &BackendError) -> ErrorName {
    match error {
        BackendError::Load { kind, .. } => match kind {
            LoadErrorKind::ModelNotInstalled => ErrorName::ModelNotInstalled,
            LoadErrorKind::ModelCorrupt => ErrorName::ModelCorrupt,
            LoadErrorKind::ProviderUnavailable
            | LoadErrorKind::Unfit
            | LoadErrorKind::OutOfMemory
            | LoadErrorKind::Untrusted => ErrorName::ProviderUnavailable,
            LoadErrorKind::Other => ErrorName::WorkerFailed,
        },
        BackendError::Lost(_) | BackendError::Killed(_) | BackendError::Failed(_) => {
            ErrorName::WorkerFailed
        }
        BackendError::OutOfMemory(_) => ErrorName::OutOfMemory,
    }
}

fn model(error: &ModelError) -> ErrorName {
    match error {
        ModelError::NotInstalled { .. }
        | ModelError::NoFolder { .. }
        | ModelError::Unknown { .. } => ErrorName::ModelNotInstalled,
        // A file that others may write can't be trusted any more than a damaged one.
        ModelError::Corrupt { .. } | ModelError::Permission { .. } | ModelError::NoModel { .. } => {
            ErrorName::ModelCorrupt
        }
        ModelError::NoSpace { .. } => ErrorName::NoSpace,
        // The rest comes from installing, which the service does not do.
        _ => ErrorName::Failed,
    }
}
