//! The model store of op-dbus: which models there are, where their files come from, and the proof
//! that what is on disk is what it should be.
//!
//! The store is a folder with one folder per model, each with the model's own files and a record,
//! `op-dbus.json`. Built-in models are data in a manifest with a SHA-256 for every file. A pull or
//! an import works in a hidden folder inside the store; only a complete and verified model is moved
//! to its name. Nothing here loads a model, and the daemon only ever reads: what writes is the
//! command line.

mod amount;
pub mod cache;
mod child;
mod config_files;
mod describe;
mod digest;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hub;
pub mod import;
pub mod manifest;
mod model;
mod modules;
mod pip;
mod place;
mod pooling;
mod progress;
pub mod pull;
mod regular;
pub mod runtime;
mod shell;
mod shown;
mod staging;
mod store;
#[cfg(test)]
mod tests;
mod tokenizer;
mod transformer;
mod weights;
mod wheels;
mod writers;

pub use child::end_with_us;
pub use error::{Error, HookError};
pub use import::{ImportOptions, OnnxFacts};
pub use model::{Family, FileRecord, Level, Model, Pooling};
pub use progress::Progress;
pub use pull::{PullOptions, Source};
pub use runtime::{ProviderPlugin, RuntimeStore};
pub use shell::shell_word;
pub use shown::printable;
pub use store::{Store, USUAL_DIR, named};
pub use writers::foreign_writer;
