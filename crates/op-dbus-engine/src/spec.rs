//! What a backend is made of: which model, on which device, by what.
//!
//! The engine itself reads none of it. It stands here because whoever decides it and whoever loads the backend see
//! nothing of each other: the service tells its worker processes.

use std::path::PathBuf;

/// One model on one device: what is loaded, and what computes it.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// Model store.
    pub model_dir: PathBuf,
    /// Name of the model in the store.
    pub model: String,
    /// Fingerprint that the model must have.
    pub space: String,
    /// Tokens of the longest text, whatever the store says: the fingerprint does not cover it.
    pub max_input_tokens: usize,
    /// The model's own folder of packed weights and compiled graphs.
    pub cache_dir: PathBuf,
    /// ONNX Runtime library; of no meaning to the native engine.
    pub runtime: PathBuf,
    /// Threads that compute one batch together; at least 1.
    pub threads: usize,
    /// What computes on the CPU; of no meaning to other providers.
    pub cpu_engine: CpuEngine,
    /// Instruction set of the native engine by its name; `auto` is the best.
    pub cpu_isa: String,
    /// CPUs to place the native engine's threads on; empty leaves that to the kernel.
    pub cpus: Vec<usize>,
    /// Whether the native engine, unless the cache says, or an accelerator measures which batches it computes
    /// best.
    pub calibrate: bool,
    /// Execution provider, by its canonical name.
    pub provider: String,
    /// Plugin library of the provider; without one the runtime is to have it.
    pub provider_library: Option<PathBuf>,
    /// The provider's own settings, in its own words.
    pub provider_options: Vec<(String, String)>,
    /// Number of the device among the provider's.
    pub device: usize,
    /// Precision of the arithmetic; none is what suits the device.
    pub precision: Option<Precision>,
    /// Tokens of the largest batch, padding included.
    pub batch_tokens_max: usize,
    /// Rows of the largest batch.
    pub batch_rows_max: usize,
    /// Whether ONNX Runtime keeps buffers for the shapes of batches; none is where the device has
    /// memory of its own.
    pub io_binding: Option<bool>,
}

/// What computes on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CpuEngine {
    /// Our own kernels: no library, no padding.
    #[default]
    Native,
    /// ONNX Runtime.
    Ort,
}

/// Precision of what is multiplied with weights. Sums, norms and the softmax are 32-bit floats in each
/// of them, unless a provider rounds by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// 16-bit floats, which ONNX Runtime has. Where batches have no padding, as with `cuda`, what goes from one layer
    /// to the next has 16 bits as well.
    F16,
    /// bfloat16, which the native engine has, and OpenVINO and TensorRT, which round by themselves.
    Bf16,
    /// 8-bit integers, which the native engine has.
    Int8,
}
