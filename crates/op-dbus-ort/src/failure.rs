//! ONNX Runtime's errors in the engine's words.

use op_dbus_engine::{BackendError, LoadErrorKind};
use ort::ErrorCode;

/// What ONNX Runtime says where there is no memory for a batch. The last two are an arena's: one with a limit of its
/// own (`gpu_mem_limit`) has nothing else to say, and gives no code either.
const NO_MEMORY: [&str; 6] = [
    "Failed to allocate memory",
    "bad_alloc",
    "bad allocation",
    "out of memory",
    "is smaller than requested bytes of",
    "Failed to find a free memory block",
];

/// A batch that failed. Whether the session stays usable is not told: a device whose context is broken fails
/// every later run in the same words as a batch that was refused. The engine finds out.
pub(crate) fn run(error: ort::Error) -> BackendError {
    said(error.message())
}

fn said(text: &str) -> BackendError {
    if NO_MEMORY.iter().any(|phrase| text.contains(phrase)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_at_its_limit_is_out_of_memory() {
        let of_an_arena = [
            "Non-zero status code returned while running Add node. Name:'query/Add' Status Message: \
             bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, Stream*) \
             Available memory of 0 is smaller than requested bytes of 294912",
            "bfc_arena.cc:400 Failed to find a free memory block despite calling Extend. \
             rounded_bytes=1024",
        ];
        for text in of_an_arena {
            assert_eq!(said(text), BackendError::OutOfMemory(text.to_owned()));
        }
        let other = said("Got invalid dimensions for input: input_ids");
        assert!(matches!(other, BackendError::Failed(_)), "{other:?}");
    }
}
