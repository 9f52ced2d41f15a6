//! The engine of op-dbus as a library: texts in, vectors out, in your own process.
//!
//! An [`Embedder`] has the same parts as the service, without the bus and without worker processes:
//! the model store, the tokenizer, the queue and the batches, the native engine for the CPU, and ONNX
//! Runtime for other execution providers. A program that is not alone on its machine should ask the
//! service instead: a model in each process is what the service is there to avoid. And a fault of a
//! driver or of a provider's library ends the process that it is loaded into, which is yours.
//!
//! ```no_run
//! use op_dbus_embedder::{Embedder, Level};
//!
//! # fn main() -> Result<(), op_dbus_embedder::Error> {
//! let embedder = Embedder::builder().level(Level::Medium).build()?;
//! let texts = ["disk full", "no space left on device"];
//! let reply = embedder.embed_batch_blocking(&texts)?;
//! assert_eq!(reply.vectors.len(), reply.rows * reply.dimensions);
//! println!("{} on {}", embedder.model(), embedder.device());
//! # Ok(())
//! # }
//! ```
//!
//! In an `async` program, on any executor:
//!
//! ```no_run
//! # async fn example(embedder: op_dbus_embedder::Embedder) -> Result<(), op_dbus_embedder::Error> {
//! let vector = embedder.embed("disk full").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each text has the model's default prompt before it, if it has one: [`Builder::prompt`] names another, or none.
//!
//! Models are fetched by `op-dbus models pull`, libraries of other providers by `op-dbus runtime pull`.
//! Both are compared with their digests before they are loaded.
//!
//! ONNX Runtime's telemetry is off: `ORT_DISABLE_TELEMETRY=1` is put into the environment of your process before
//! that library is loaded, unless it is there. A program with threads of C code that read the environment
//! should be started with it.

pub mod backend;
mod builder;
mod embedder;
mod error;
mod provider;
mod timer;

pub use backend::{CpuEngine, Precision};
pub use builder::Builder;
pub use embedder::Embedder;
pub use error::Error;
pub use op_dbus_engine::{
    ArenaUse, BackendError, BufferUse, Call, CancellationToken, Description, Error as CallError,
    Excess, Inputs, LoadErrorKind, MemoryUse, Priority, Reply, RowSink, Snapshot, Times,
    TokenizerError, TransferUse, Truncate, WorkerState, WorkerStatus,
};
pub use op_dbus_models::manifest::provider_names;
pub use op_dbus_models::{Error as ModelError, Level};
