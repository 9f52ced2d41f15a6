//! The names that settings with a choice of names accept.

use super::kind::Choice;
use super::types::Provider;

pub(super) const fn name(name: &'static str) -> Choice {
    Choice { name, aliases: &[] }
}

/// Levels.
pub const LEVELS: &[Choice] = &[name("none"), name("low"), name("medium"), name("high")];

/// What may be fallen back to: everything that is one provider.
pub const FALLBACKS: &[Choice] = Provider::CHOICES.split_at(1).1;

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
