//! The embedding engine of op-dbus: texts in, vectors out, on whatever computes.
//!
//! An [`Engine`] admits calls (permits for all their texts, or a refusal at once), tokenizes them,
//! queues them fairly by user and by class, plans batches by length and token budget, and runs them
//! on workers. A worker is anything that implements [`Backend`]: code in this process, or a child
//! process behind [`worker::ChildBackend`]. The engine knows of no bus, no HTTP and no runtime
//! library; it is complete without the daemon.
//!
//! ```text
//! Call → admission → tokenizing → queue ← idle worker plans a batch → backend → Reply
//! ```
//!
//! Batches form while all workers are busy: an idle worker takes what is there at once, unless it is
//! told to wait a little ([`Limits::batch_delay_us_max`]). Whatever a caller sends and whatever a worker does,
//! every queue, buffer and wait here is bounded, a worker that dies, lies or hangs is replaced, and
//! its batch is run once more.
//!
//! ```
//! use op_dbus_engine::sim::SimBackend;
//! use op_dbus_engine::{Call, Engine, EngineConfig, ModelShape, Pool, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ModelShape::new(384, 256);
//! let engine = Engine::start(
//!     Tokenizer::bytes(model.max_input_tokens),
//!     model,
//!     vec![Pool::new(Box::new(|_worker| Ok(Box::new(SimBackend::new(384)))))],
//!     EngineConfig::default(),
//! )?;
//! let call = Call { inputs: vec!["one".to_owned(), "two".to_owned()].into(), ..Call::default() };
//! let reply = tokio::runtime::Runtime::new()?.block_on(engine.embed(call))?;
//! assert_eq!((reply.rows, reply.dimensions), (2, 384));
//! assert_eq!(reply.vectors.len(), 2 * 384);
//! # Ok(())
//! # }
//! ```

mod admission;
mod backend;
mod batch;
mod buckets;
mod cache;
mod call;
mod clock;
mod config;
mod dispatch;
mod engine;
mod error;
mod faults;
pub mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod job;
pub mod memory;
mod output;
mod planner;
mod prepare;
mod presence;
mod proof;
mod queue;
mod reference;
mod registry;
mod reserve;
mod routing;
mod scheduler;
pub mod sim;
pub mod spec;
mod start;
mod stats;
mod status;
mod tokenizer;
mod tokenizer_threads;
mod usage;
mod vector;
mod wait;
pub mod worker;

pub use admission::{Ledger, LoadAdmission, LoadPermit};
pub use backend::{
    Backend, BackendError, BackendFactory, Begin, Description, Footprint, LoadErrorKind, Meanwhile,
    with_causes,
};
pub use batch::Batch;
pub use buckets::Buckets;
pub use cache::{Cache, Kept};
pub use call::{Call, Inputs, Priority, Reply, RowSink, Truncate};
pub use config::{BatchLayout, BatchLimits, EngineConfig, Limits, ModelShape, Pool};
pub use dispatch::{WORKER_LOST_MESSAGE_ID, WORKER_REPLACED_MESSAGE_ID};
pub use engine::Engine;
pub use error::{Error, Excess, is_same_news};
pub use presence::{Absence, Presence};
pub use proof::once_more;
pub use reference::{Reference, Sample};
pub use routing::BatchCost;
pub use start::{reference, try_tokenizer};
pub use stats::{Snapshot, Stats, Times};
pub use status::{WorkerState, WorkerStatus};
pub use tokenizer::{Piece, Tokenizer, TokenizerError};
pub use tokio_util::sync::{CancellationToken, DropGuard};
pub use usage::{ArenaUse, BufferUse, MemoryUse, TransferUse};
