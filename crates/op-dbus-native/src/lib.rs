//! The native CPU backend of op-dbus: sentence encoders on kernels of our own, behind the engine's
//! [`Backend`](op_dbus_engine::Backend) trait.
//!
//! No runtime library and no graph: weights are packed once from the model's own file, in the order
//! in which the kernels read them, and mapped from a cache. A batch is the tokens of its texts one
//! after another; nothing is padded, and a text's vector is the same to the last bit whatever else
//! is in the batch and however many threads compute it.

mod arena;
mod backend;
mod encode;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod head;
mod isa;
mod kernels;
mod load;
mod maxima;
mod pack;
mod packed;
pub mod peak;
mod plan;
mod precision;
mod share;
mod team;
#[cfg(test)]
mod tests;
mod tuning;

pub use backend::NativeBackend;
pub use isa::Isa;
pub use load::{Options, Source};
pub use maxima::calibration_texts;
pub use precision::Precision;
