//! The ONNX Runtime backend of op-dbus: one session on one device behind the engine's
//! [`Backend`](op_dbus_engine::Backend) trait.
//!
//! The library itself is loaded when the first backend is made, from the path that the caller
//! names; nothing of it is linked. One process can load one library, once.

mod accelerator;
mod arena;
mod backend;
mod binding;
mod built_in;
mod calibrate;
mod elf;
mod failure;
mod feed;
mod library;
mod openvino;
mod own;
mod placement;
mod recording;
mod rows;
mod session;
mod told;

use std::path::PathBuf;

use op_dbus_engine::Buckets;
use op_dbus_engine::foreign::Pooling;

pub use accelerator::Accelerator;
pub use backend::OrtBackend;
pub use library::loaded;
pub use told::is_on;

/// What to load and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ONNX Runtime shared library.
    pub runtime: PathBuf,
    /// Threads that compute one batch together; at least 1.
    pub threads: usize,
    /// What computes in place of the CPU.
    pub accelerator: Option<Accelerator>,
    /// What to run.
    pub graph: Graph,
    /// What is to be computed in, by its public name: that of what the graph multiplies, or a coarser one
    /// that the accelerator is told.
    pub precision: &'static str,
    /// The shapes of batches, where they are rounded up to few.
    pub buckets: Buckets,
    /// Whether an accelerator's batches are to be as large as makes it fastest, within `buckets`.
    pub calibrate: bool,
    /// Whether inputs and outputs of a compiled graph are kept in buffers that are used again; without
    /// a word, where the device has memory of its own.
    pub io_binding: Option<bool>,
    /// Length of one vector, as the model's record says; another length is refused at load.
    pub dimensions: usize,
}

/// A graph to run.
#[derive(Clone, Debug)]
pub enum Graph {
    /// An output of the model compiler: rows of token ids in, with padding or without, `embedding` out.
    Compiled(Vec<u8>),
    /// A user's own ONNX file, run as it is.
    Own {
        /// The file, with its weights inside.
        path: PathBuf,
        /// How token vectors become one vector, if the graph ends in token vectors.
        pooling: Pooling,
        /// Whether vectors are divided by their length after the graph.
        normalize: bool,
    },
}
