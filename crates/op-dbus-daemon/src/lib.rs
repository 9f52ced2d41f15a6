//! The op-dbus service: bus objects, settings, state and lifecycle.

pub mod bus;
pub mod daemon;
pub mod devices;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod memfd;
mod memory_limit;
mod notify;
pub mod npy;
pub mod service;
pub mod settings;
mod sleep;
pub mod state;
pub mod telemetry;
mod text_file;
