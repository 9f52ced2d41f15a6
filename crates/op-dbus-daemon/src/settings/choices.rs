//! The names that settings with a choice of names accept.

use super::kind::Choice;

pub(super) const fn name(name: &'static str) -> Choice {
    Choice { name, aliases: &[] }
}

pub(super) const fn alias(name: &'static str, aliases: &'static [&'static str]) -> Choice {
    Choice { name, aliases }
}

/// Levels.
pub const LEVELS: &[Choice] = &[name("none"), name("low"), name("medium"), name("high")];

/// Execution providers, and what else people call them.
pub const PROVIDERS: &[Choice] = &[
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
pub const FALLBACKS: &[Choice] = PROVIDERS.split_at(1).1;

/// Number formats.
pub const PRECISIONS: &[Choice] =
    &[name("auto"), name("f32"), name("f16"), name("bf16"), name("int8")];

/// What computes on the CPU.
pub const CPU_ENGINES: &[Choice] = &[name("native"), name("ort"), name("sim")];

/// Every name that a build for some processor has; whether this CPU has it, the worker says.
pub const CPU_ISAS: &[Choice] = &[
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

/// Whether something is done by itself, always, or never.
pub const AUTO_ON_OFF: &[Choice] = &[name("auto"), name("on"), name("off")];
/// How memory that is taken grows.
pub const ARENAS: &[Choice] = &[name("auto"), name("next-power-of-two"), name("same-as-requested")];
/// Whether the CPU computes beside a device.
pub const OFFLOAD: &[Choice] = &[name("off"), name("auto")];
