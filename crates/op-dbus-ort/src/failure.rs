//! ONNX Runtime's errors in the engine's words.

use op_dbus_engine::{BackendError, LoadErrorKind};
use ort::ErrorCode;

/// What ONNX Runtime says where there is no memory: in its own words, in those of the C library, of cuBLAS and cuDNN
/// (`CUBLAS_STATUS_ALLOC_FAILED`, since cuDNN 9 `…_DEVICE_ALLOCATION_FAILED`), and of an arena: one with a limit of its own (`gpu_mem_limit`) has nothing else to
/// say than the last two, and gives no code either.
const NO_MEMORY: [&str; 10] = [
    "Failed to allocate memory",
    "bad_alloc",
    "bad allocation",
    "out of memory",
    "Cannot allocate memory",
    "could not allocate",
    "_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
    "is smaller than requested bytes of",
    "Failed to find a free memory block",
];

/// A batch that failed. Whether the session stays usable is not told: a device whose context is broken fails
/// every later run in the same words as a batch that was refused. The engine finds out.
pub(crate) fn run(error: ort::Error) -> BackendError {
    said(error.message())
}

/// Whether it is memory that the runtime lacks, by what it said.
fn is_of_memory(text: &str) -> bool {
    NO_MEMORY.iter().any(|phrase| text.contains(phrase))
}

fn said(text: &str) -> BackendError {
    if is_of_memory(text) {
        BackendError::OutOfMemory(text.to_owned())
    } else {
        BackendError::Failed(format!("ONNX Runtime refused the batch: {text}"))
    }
}

/// What the runtime means, without the lines of its sources, the codes and the conditions that come before it.
pub(crate) fn meant(said: &str) -> &str {
    let said = match said.rsplit_once("[ONNXRuntimeError]") {
        Some((_, error)) => error.splitn(4, " : ").last().unwrap_or(error),
        None => said,
    };
    let of_a_line = said.rsplit_once(" was false. ").filter(|_| said.starts_with('/'));
    let meaning = of_a_line.map(|(_, meaning)| meaning).filter(|it| !it.trim().is_empty());
    // The runtime's own sentences end in a period, and others follow here.
    meaning.unwrap_or(said).trim_end().trim_end_matches('.')
}

/// A provider that can't be used, and why. Where there is no memory for this model there may be for others.
pub(crate) fn unavailable(provider: &str, why: &str) -> BackendError {
    let kind = match is_of_memory(why) {
        true => LoadErrorKind::OutOfMemory,
        false => LoadErrorKind::ProviderUnavailable,
    };
    of_provider(kind, provider, why)
}

/// A provider that can't have this model, and why.
pub(crate) fn unfit(provider: &str, why: &str) -> BackendError {
    of_provider(LoadErrorKind::Unfit, provider, why)
}

fn of_provider(kind: LoadErrorKind, provider: &str, why: &str) -> BackendError {
    BackendError::Load { kind, message: format!("{provider} does not work here: {}", meant(why)) }
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
    fn what_the_runtime_means_comes_last() {
        let line = "/onnxruntime_src/onnxruntime/core/providers/webgpu/webgpu_context.cc:136 \
                    onnxruntime::webgpu::WebGpuContext::Initialize() adapter_result.status == \
                    wgpu::RequestAdapterStatus::Success was false.";
        let no_adapter = "Failed to get a WebGPU adapter: No supported adapters";
        assert_eq!(meant(&format!("{line} {no_adapter}\n")), no_adapter);
        assert_eq!(meant(&format!("{line} \n")), line.trim_end_matches('.'));
        let coded = "/a.cc:9 void f() [ONNXRuntimeError] : 1 : FAIL : libx.so.1: cannot open.";
        assert_eq!(meant(coded), "libx.so.1: cannot open");
        let of_a_node = "while running MatMul node: /a.cc:9 f() a == b was false. It is not.";
        assert_eq!(meant(of_a_node), of_a_node.trim_end_matches('.'));
    }

    #[test]
    fn no_memory_is_told_from_other_failures() {
        let full = [
            "Non-zero status code returned while running Add node. Name:'query/Add' Status Message: \
             bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, Stream*) \
             Available memory of 0 is smaller than requested bytes of 294912",
            "bfc_arena.cc:400 Failed to find a free memory block despite calling Extend. \
             rounded_bytes=1024",
            "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);",
            "CUDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
            "CUDNN failure 4004: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; GPU=0",
            "mmap: Cannot allocate memory",
        ];
        for text in full {
            assert_eq!(said(text), BackendError::OutOfMemory(text.to_owned()));
            // The card may have room for another model.
            let refusal = unavailable("cuda", &said(text).to_string());
            assert!(
                matches!(refusal, BackendError::Load { kind: LoadErrorKind::OutOfMemory, .. }),
                "{refusal:?}"
            );
        }
        let other = said("Got invalid dimensions for input: input_ids");
        assert!(matches!(other, BackendError::Failed(_)), "{other:?}");
    }
}
