//! ONNX Runtime's errors in the engine's words.

use op_dbus_engine::{BackendError, LoadErrorKind};
use ort::ErrorCode;

/// A batch that failed. Whether the session stays usable is not told: a device whose context is broken fails
/// every later run in the same words as a batch that was refused. The engine finds out.
pub(crate) fn run(error: ort::Error) -> BackendError {
    let text = error.message();
    let memory = ["Failed to allocate memory", "bad_alloc", "bad allocation", "out of memory"];
    if memory.iter().any(|phrase| text.contains(phrase)) {
        BackendError::OutOfMemory(text.to_owned())
    } else {
        BackendError::Failed(format!("ONNX Runtime refused the batch: {text}"))
    }
}

/// A session that could not be made of `what`.
pub(crate) fn load(what: &str, error: ort::Error) -> BackendError {
    let damaged = matches!(
        error.code(),
        ErrorCode::InvalidProtobuf | ErrorCode::InvalidGraph | ErrorCode::NoModel
    );
    let kind = if damaged { LoadErrorKind::ModelCorrupt } else { LoadErrorKind::Other };
    BackendError::Load { kind, message: format!("ONNX Runtime can't load {what}: {error}") }
}

/// A graph that can be loaded and not be used.
pub(crate) fn unusable(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::Other, message }
}
