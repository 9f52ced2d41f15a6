//! The remote backend of op-dbus: batches computed by a fleet that others run, behind the engine's
//! [`Backend`](op_dbus_engine::Backend) trait.
//!
//! Token ids go out and vectors come in: by the Open Inference Protocol v2 (Triton, KServe, OpenVINO Model
//! Server, MLServer), over HTTP or gRPC, or by OpenAI's route `/v1/embeddings`. A server tokenizes nothing,
//! so that what was cut is known here and told to whoever called. Servers that take nothing but texts get
//! texts that are made of the token ids, cut as these are.
//!
//! Nobody at the other end is believed. An endpoint computes a batch only after it has given the same
//! vectors for a trial batch as the endpoint that the engine proved; what it sends is bounded, and its
//! shape and its numbers are checked. One that fails rests, longer each time, and tries again with the
//! trial batch; its batch goes to the next one meanwhile.

mod backend;
mod circuit;
mod endpoint;
mod failure;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grpc;
mod http;
mod names;
mod news;
mod numbers;
mod oip;
mod openai;
mod options;
mod roots;
mod texts;
mod trial;

pub use backend::RemoteBackend;
pub use options::{Options, Protocol, Shape, Token};
