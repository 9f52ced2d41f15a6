//! The embedding engine of op-dbus: texts in, vectors out, on whatever computes.

mod admission;
mod backend;
mod call;
mod config;
mod dispatch;
mod engine;
mod error;
mod job;
mod planner;
mod prepare;
mod queue;
mod scheduler;
pub mod sim;
mod stats;
mod tokenizer;
mod vector;
pub mod worker;

pub use backend::{Backend, BackendError, BackendFactory, Batch, Description, LoadErrorKind};
pub use call::{Call, CancelToken, Priority, Reply, Truncate};
pub use config::{EngineConfig, Limits, ModelShape};
pub use engine::{Engine, WorkerState, WorkerStatus};
pub use error::{Error, Excess};
pub use stats::{Quantiles, Snapshot};
pub use tokenizer::{Tokenizer, TokenizerError};
