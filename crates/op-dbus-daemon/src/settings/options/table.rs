//! The table of provider options.
//!
//! Names and values are ONNX Runtime's: those of CUDA, TensorRT, OpenVINO and MIGraphX from its
//! documentation of execution providers (onnxruntime.ai, "Execution Providers") and its headers
//! `cuda_provider_options.h`, `tensorrt_provider_options.h` and `onnxruntime_c_api.h`; those of WebGPU
//! from `webgpu_provider_options.h`. Those of the remote provider are our own.

mod nvidia;
mod others;
mod remote;

use super::super::choices::name;
use super::super::kind::{Kind, count};
use super::{Form, ProviderOption};

/// All options, in the order in which they are shown.
pub const OPTIONS: [&[ProviderOption]; 3] = [nvidia::OPTIONS, others::OPTIONS, remote::OPTIONS];

/// A function for each of these providers: an option of it that it is told as it is.
macro_rules! plain {
    ($($provider:ident),*) => {$(
        const fn $provider(
            key: &'static str,
            kind: Kind,
            default: &'static str,
            doc: &'static str,
        ) -> ProviderOption {
            let provider = stringify!($provider);
            ProviderOption { provider, key, kind, default, form: Form::Plain, doc }
        }
    )*};
}

plain!(cuda, tensorrt, webgpu, openvino, migraphx, remote);
