//! What stands in the way of loading, with its causes, as text.

use std::error::Error;
use std::path::Path;

use op_dbus_engine::{BackendError, LoadErrorKind, with_causes};

/// The engine or the instruction set can't be had.
pub fn unavailable(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}

/// The provider can't have this model.
pub fn unfit(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::Unfit, message }
}

/// A file can't be read.
pub fn unreadable(path: &Path, error: &std::io::Error) -> BackendError {
    let message = format!("can't read {}: {error}", path.display());
    BackendError::Load { kind: LoadErrorKind::Other, message }
}

/// The content of a file can't be used, though it is the file that it should be.
pub fn corrupt(path: &Path, error: &dyn Error) -> BackendError {
    let message = format!("{}: {}", path.display(), with_causes(error));
    BackendError::Load { kind: LoadErrorKind::ModelCorrupt, message }
}

/// The store has no such model, or a damaged one.
pub fn store(error: &op_dbus_models::Error) -> BackendError {
    use op_dbus_models::Error as Models;
    let kind = match error {
        Models::NotInstalled { .. } | Models::NoFolder { .. } => LoadErrorKind::ModelNotInstalled,
        Models::Corrupt { .. } => LoadErrorKind::ModelCorrupt,
        _ => LoadErrorKind::Other,
    };
    BackendError::Load { kind, message: with_causes(error) }
}
