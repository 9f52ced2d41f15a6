//! From a description to a backend that computes in this process.
//!
//! The service's worker processes and [`Embedder`](crate::Embedder) both load their backends here.

mod failure;
mod model;
mod native;
mod ort;
mod remote;

use op_dbus_engine::{Backend, BackendError};

pub use model::{check, family};
pub use op_dbus_engine::spec::{CpuEngine, Precision, Spec};
pub use ort::products;

/// The provider that needs no accelerator.
pub const CPU: &str = "cpu";
/// The provider that computes on other machines.
pub const REMOTE: &str = "remote";

/// Loads a backend in the calling thread, which then has to run it.
///
/// # Errors
/// The model is not what `spec` says or is damaged, or what is to compute it can't be used.
pub fn load(spec: &Spec) -> Result<Box<dyn Backend>, BackendError> {
    match spec.cpu_engine {
        CpuEngine::Native if spec.provider == CPU => native::load(spec),
        _ if spec.provider == REMOTE => remote::load(spec),
        _ => ort::load(spec),
    }
}
