//! CUDA and TensorRT.

use super::super::super::kind::{Choice, Kind};
use super::super::Preset::{Ours, Setting, Theirs};
use super::super::{Form, ProviderOption, shapes};
use super::{ARENAS, BYTES, MEMORY, count, cuda, name, tensorrt};

const SEARCHES: &[Choice] = &[name("EXHAUSTIVE"), name("HEURISTIC"), name("DEFAULT")];
const SHAPES: Kind = Kind::Text { accepted: shapes::ACCEPTED, is_right: shapes::is_right };

/// Their options, in the order in which they are shown.
pub const OPTIONS: &[ProviderOption] = &[
    cuda(
        "gpu_mem_limit",
        MEMORY,
        Setting("gpu_memory_limit"),
        "Bytes of device memory that the arena of each worker may take. What libraries take beside \
        it is not counted.",
    ),
    cuda(
        "arena_extend_strategy",
        Kind::Choice(ARENAS),
        Setting("arena_strategy"),
        "How the arena grows: to the next power of two, or by what a batch asks for.",
    ),
    cuda(
        "cudnn_conv_algo_search",
        Kind::Choice(SEARCHES),
        Theirs("EXHAUSTIVE"),
        "How cuDNN looks for the best way to convolve. Encoders of the levels have no \
        convolutions.",
    ),
    cuda(
        "cudnn_conv_use_max_workspace",
        Kind::Bool,
        Theirs("true"),
        "Whether cuDNN may take as much memory as it likes while it looks.",
    ),
    cuda(
        "do_copy_in_default_stream",
        Kind::Bool,
        Theirs("true"),
        "Whether batches are copied in the stream in which they are computed.",
    ),
    cuda(
        "use_tf32",
        Kind::Bool,
        Theirs("true"),
        "Whether products of `f32` are computed in TF32, with 10 bits of mantissa, where the \
        device can.",
    ),
    cuda(
        "enable_skip_layer_norm_strict_mode",
        Kind::Bool,
        Theirs("false"),
        "Whether layer norms sum in `f32` whatever they are computed in.",
    ),
    cuda(
        "tunable_op_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether kernels that were tuned are used.",
    ),
    cuda(
        "tunable_op_tuning_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether kernels are tuned when they are first used.",
    ),
    cuda(
        "enable_cuda_graph",
        Kind::Bool,
        Theirs("false"),
        "Whether batches of up to 256 tokens are recorded as CUDA graphs, one for each shape, and \
        replayed.",
    ),
    tensorrt(
        "trt_fp16_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether TensorRT may compute in 16-bit floating point. The vector space then says `f16`.",
    ),
    tensorrt(
        "trt_bf16_enable",
        Kind::Bool,
        Theirs("false"),
        "The same with the range of `f32`. The vector space then says `bf16`.",
    ),
    tensorrt(
        "trt_layer_norm_fp32_fallback",
        Kind::Bool,
        Theirs("false"),
        "Whether layer norms are computed in `f32` while the rest is in 16 bits.",
    ),
    ProviderOption {
        form: Form::WithFolder("trt_engine_cache_path"),
        ..tensorrt(
            "trt_engine_cache_enable",
            Kind::Bool,
            Ours("true"),
            "Whether compiled engines are kept below `cache_dir`. Compiling takes minutes.",
        )
    },
    ProviderOption {
        form: Form::WithFolder("trt_timing_cache_path"),
        ..tensorrt(
            "trt_timing_cache_enable",
            Kind::Bool,
            Ours("true"),
            "Whether what was measured while compiling is kept there as well.",
        )
    },
    tensorrt(
        "trt_profile_min_shapes",
        SHAPES,
        Theirs(""),
        "The smallest batches that are compiled for. Set it with the two that follow, or none of \
        them. The inputs of the levels' graphs are `input_ids`, texts by tokens, and `lengths`, \
        texts.",
    ),
    tensorrt(
        "trt_profile_opt_shapes",
        SHAPES,
        Theirs(""),
        "The batches for which the result is to be fastest.",
    ),
    tensorrt(
        "trt_profile_max_shapes",
        SHAPES,
        Theirs(""),
        "The largest batches that are compiled for. `batch_tokens_max` has to keep within.",
    ),
    tensorrt(
        "trt_max_workspace_size",
        BYTES,
        Theirs("0"),
        "Bytes that one operation may take beside its inputs and outputs; with 0 as many as the \
        device has.",
    ),
    tensorrt(
        "trt_builder_optimization_level",
        count(0, 5),
        Theirs("3"),
        "How hard the compiler tries; below 3 it is faster, and what it makes slower.",
    ),
    tensorrt(
        "trt_auxiliary_streams",
        Kind::Count { min: 0, max: 64, word: Some("-1") },
        Theirs("-1"),
        "Streams that compute beside the main one; 0 takes the least memory, `-1` leaves it to \
        TensorRT.",
    ),
    tensorrt(
        "trt_build_heuristics_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether the compiler guesses where it would measure.",
    ),
    tensorrt(
        "trt_sparsity_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether zeros in weights are made use of.",
    ),
    tensorrt(
        "trt_context_memory_sharing_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether the parts of a graph share their memory.",
    ),
    tensorrt(
        "trt_min_subgraph_size",
        count(1, 10_000),
        Theirs("1"),
        "Operators that a part of the graph has at least to be given to TensorRT.",
    ),
    tensorrt(
        "trt_max_partition_iterations",
        count(1, 10_000),
        Theirs("1000"),
        "How often the graph is divided anew at most.",
    ),
];
