//! Sessions: what all have in common, and those on the built-in CPU device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ort::environment::Environment;
use ort::ep::{CPU, ExecutionProvider};
use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session};

/// Prepares a session that computes on `threads` threads of the CPU.
///
/// The device is always named: once a plugin with a CPU device is registered, a session without a
/// named device silently goes there. Idle threads sleep instead of spinning: workers on the same
/// machine would lose the cores they spin on.
///
/// # Errors
/// Whatever ONNX Runtime says; a library without its built-in CPU device.
pub(crate) fn builder(environment: &Environment, threads: usize) -> ort::Result<SessionBuilder> {
    let mut builder = plain(environment, threads)?;
    // Without an arena the memory of a large batch goes back to the system after it; measured, the
    // arena was no faster.
    CPU::default().with_arena_allocator(false).register(&mut builder)?;
    let cpu = environment.devices().find(|device| device.ep().is_ok_and(|name| name == CPU::NAME));
    let Some(cpu) = cpu else {
        return Err(ort::Error::new("the library has no CPU device"));
    };
    Ok(builder.with_devices([cpu], None)?)
}

/// Prepares a session that has no device yet, with what all have in common.
///
/// # Errors
/// Whatever ONNX Runtime says.
pub(crate) fn plain(environment: &Environment, threads: usize) -> ort::Result<SessionBuilder> {
    Ok(Session::builder(environment)?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        // Patterns are kept per shape of the input, and nearly every batch has a shape of its own.
        .with_memory_pattern(false)?)
}

/// Says that these arenas (`cpu:0;gpu:0`) give back what they don't use once a batch has run.
///
/// # Errors
/// Whatever ONNX Runtime says.
pub(crate) fn shrinking(arenas: &str) -> ort::Result<RunOptions> {
    let mut options = RunOptions::new()?;
    options.set("memory.enable_memory_arena_shrinkage", arenas)?;
    Ok(options)
}

/// To be held while a session of `provider` is made, runs, gives memory back or ends: of WebGPU's, which share what they
/// record for the device, two that do so at once in one process end it
/// (<https://github.com/microsoft/onnxruntime/issues/32561>, and pull request 29851). A service has one in each worker's
/// process; a program that has the engine as a library may have several.
pub(crate) fn alone(provider: &str) -> Option<MutexGuard<'static, ()>> {
    static RUNS: Mutex<()> = Mutex::new(());
    (provider == "webgpu").then(|| RUNS.lock().unwrap_or_else(PoisonError::into_inner))
}
