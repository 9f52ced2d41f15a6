//! The names that settings accept.

use super::kind::Choice;

const fn name(name: &'static str) -> Choice {
    Choice { name, aliases: &[], later: false }
}

const fn alias(name: &'static str, aliases: &'static [&'static str]) -> Choice {
    Choice { name, aliases, later: false }
}

const fn later(name: &'static str) -> Choice {
    Choice { name, aliases: &[], later: true }
}

pub(super) const LEVELS: &[Choice] = &[name("none"), name("low"), name("medium"), name("high")];

pub(super) const PROVIDERS: &[Choice] = &[
    name("auto"),
    name("cpu"),
    alias("cuda", &["gpu"]),
    alias("tensorrt", &["trt"]),
    alias("webgpu", &["wgpu"]),
    name("ggml"),
    name("openvino"),
    alias("migraphx", &["rocm"]),
    alias("directml", &["dml"]),
    name("coreml"),
    name("remote"),
];

/// What may be fallen back to: everything that is one provider.
pub(super) const FALLBACKS: &[Choice] = PROVIDERS.split_at(1).1;

pub(super) const PRECISIONS: &[Choice] =
    &[name("auto"), name("f32"), later("f16"), name("bf16"), name("int8")];

pub(super) const CPU_ENGINES: &[Choice] = &[name("native"), name("ort"), name("sim")];

/// Every name that a build for some processor has; whether this CPU has it, the worker says.
pub(super) const CPU_ISAS: &[Choice] = &[
    name("auto"),
    name("portable"),
    name("avx2"),
    name("avx-vnni"),
    name("avx512"),
    name("avx512-vnni"),
    name("avx512-bf16"),
    name("amx"),
    name("neon"),
    name("neon-dotprod"),
    name("neon-i8mm"),
    name("neon-bf16"),
];

pub(super) const AUTO: &[Choice] = &[name("auto")];
pub(super) const OFFLOAD: &[Choice] = &[name("off"), name("auto")];
