//! Options of providers that nobody is to set in a provider's own words, as something else decides them; and in what a
//! provider computes by itself.

/// What decides in place of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// What chooses the device, for every provider alike.
    Device,
    /// What chooses the precision, for every provider alike.
    Precision,
    /// What says where things are kept that were compiled.
    Place,
    /// Nothing: batches have many shapes, and the option asks for one, or makes something for each and keeps it.
    OneShape,
    /// Nothing: the option is the address of something in the memory of a program.
    Address,
}

const RESERVED: [(Reserved, &[&str]); 5] = [
    (Reserved::Device, &["device_id", "deviceId", "adapterIndex"]),
    (Reserved::Precision, &["precision", "weights"]),
    (
        Reserved::Place,
        &[
            "trt_engine_cache_path",
            "trt_timing_cache_path",
            "trt_engine_cache_prefix",
            "trt_ep_context_file_path",
        ],
    ),
    (Reserved::OneShape, &["trt_cuda_graph_enable", "disable_dynamic_shapes"]),
    (
        Reserved::Address,
        &[
            "has_user_compute_stream",
            "user_compute_stream",
            "gpu_external_alloc",
            "gpu_external_free",
            "gpu_external_empty_cache",
            "trt_onnx_bytestream",
            "trt_external_data_bytestream",
            "context",
            "dawnProcTable",
            "webgpuInstance",
            "webgpuDevice",
        ],
    ),
];

/// What decides in place of the option of this name, whichever provider has it; nothing where it is the provider's own.
#[must_use]
pub fn reserved(key: &str) -> Option<Reserved> {
    RESERVED.iter().find(|(_, keys)| keys.contains(&key)).map(|(by, _)| *by)
}

/// Whether a provider heeds an option only where the runtime has it in itself: its plugin library would say so in a log
/// and compute as ever, in another precision than the one that is named.
#[must_use]
pub fn plugin_ignores(provider: &str, key: &str) -> bool {
    provider == "openvino" && key != "load_config"
}

/// Whether 16 bits are what a provider is given where nobody names a precision: those of which we have measured what
/// becomes of the order of texts.
#[must_use]
pub fn halves_by_itself(provider: &str) -> bool {
    provider == "cuda"
}
