//! CUDA and TensorRT.

use super::super::super::kind::{Choice, Kind};
use super::super::{Form, ProviderOption, shapes};
use super::{cuda, name, tensorrt};

const SEARCHES: &[Choice] = &[name("EXHAUSTIVE"), name("HEURISTIC"), name("DEFAULT")];
const SHAPES: Kind = Kind::Text { accepted: shapes::ACCEPTED, is_right: shapes::is_right };

/// Their options, in the order in which they are shown.
pub const OPTIONS: &[ProviderOption] = &[
    cuda(
        "cudnn_conv_algo_search",
        Kind::Choice(SEARCHES),
        "EXHAUSTIVE",
        "How cuDNN looks for the best way to convolve. Encoders of the levels have no \
        convolutions.",
    ),
    cuda(
        "use_tf32",
        Kind::Bool,
        "true",
        "Whether products of `f32` are computed in TF32, with 10 bits of mantissa, where the \
        device can.",
    ),
    cuda(
        "enable_cuda_graph",
        Kind::Bool,
        "false",
        "Whether batches of up to 256 tokens are recorded as CUDA graphs, one for each shape, and \
        replayed.",
    ),
    tensorrt(
        "trt_fp16_enable",
        Kind::Bool,
        "false",
        "Whether TensorRT may compute in 16-bit floating point. The vector space then says `f16`.",
    ),
    tensorrt(
        "trt_bf16_enable",
        Kind::Bool,
        "false",
        "The same with the range of `f32`. The vector space then says `bf16`.",
    ),
    ProviderOption {
        form: Form::WithFolder("trt_engine_cache_path"),
        ..tensorrt(
            "trt_engine_cache_enable",
            Kind::Bool,
            "true",
            "Whether compiled engines are kept below `cache_dir`. Compiling takes minutes.",
        )
    },
    ProviderOption {
        form: Form::WithFolder("trt_timing_cache_path"),
        ..tensorrt(
            "trt_timing_cache_enable",
            Kind::Bool,
            "true",
            "Whether what was measured while compiling is kept there as well.",
        )
    },
    tensorrt(
        "trt_profile_min_shapes",
        SHAPES,
        "",
        "The smallest batches that are compiled for. Set it with the two that follow, or none of \
        them. The inputs of the levels' graphs are `input_ids`, texts by tokens, and `lengths`, \
        texts.",
    ),
    tensorrt(
        "trt_profile_opt_shapes",
        SHAPES,
        "",
        "The batches for which the result is to be fastest.",
    ),
    tensorrt(
        "trt_profile_max_shapes",
        SHAPES,
        "",
        "The largest batches that are compiled for. `batch_tokens_max` has to keep within.",
    ),
];
