//! The D-Bus contract of op-dbus: names, error names, option keys and typed proxies.
//!
//! Service and clients both link this crate, so a name can't drift between them. The contract in
//! prose, with every argument, option and error, is in the interface files under
//! `dbus-policy/interfaces/` and in the manual page `org.opdbus.Embedding1(5)`.
//!
//! Each interface has two proxies: that of `zbus`, whose calls are `async`, and one of the same name
//! with `Blocking` behind it, whose calls return with the reply.
//!
//! # In a program with an event loop
//!
//! ```no_run
//! # async fn example() -> zbus::Result<()> {
//! use op_dbus_api::{EmbedderProxy, option};
//!
//! let bus = zbus::Connection::system().await?;
//! let embedder = EmbedderProxy::new(&bus).await?;
//! let options = [(option::TRUNCATE, "error".into())].into();
//! let texts = ["disk full", "no space left on device"];
//! let (bytes, rows, dimensions, info) = embedder.embed_packed(&texts, options).await?;
//! // Row-major, little-endian: row after row of 32-bit floating point numbers.
//! let numbers = bytes.chunks_exact(4).map(|n| f32::from_le_bytes([n[0], n[1], n[2], n[3]]));
//! let numbers: Vec<f32> = numbers.collect();
//! let vectors: Vec<&[f32]> = numbers.chunks_exact(dimensions as usize).collect();
//! assert_eq!(vectors.len(), rows as usize);
//! println!("{} tokens, in the space {}", info.tokens, info.space);
//! # Ok(())
//! # }
//! ```
//!
//! Properties are kept as signals tell them, and stay as they were last when the service ends without a word:
//! `state` may say `ready` then, and a call fails at once. A service that takes its place tells all of them anew, but
//! for those that do not change while it runs, such as `version`: a proxy that has read these keeps them.
//!
//! # In a program without one
//!
//! ```no_run
//! use op_dbus_api::{EmbedderProxyBlocking, direct_blocking};
//!
//! # fn main() -> zbus::Result<()> {
//! let bus = zbus::block_on(zbus::Connection::system())?;
//! let embedder = EmbedderProxyBlocking::new(&bus)?;
//! println!("{:.2} in {}", embedder.similarity("disk full", "no space left")?, embedder.model()?);
//! // For who calls all the time: past the bus.
//! let embedder = EmbedderProxyBlocking::new(&direct_blocking(&embedder)?)?;
//! let vector = embedder.embed("disk full")?;
//! # Ok(())
//! # }
//! ```
//!
//! Nothing runs between the calls: a property is asked for when it is read, a connection that was
//! dropped is closed by the next call or by `zbus::block_on(connection.close())`, and who wants
//! signals has them from the proxy in [`EmbedderProxyBlocking::proxy`].
//!
//! # Errors
//!
//! A refusal is a name and one sentence that says what, the limit, what was found and what to do.
//! [`Error::from_reply`] recognises it in the `zbus::Error` of a failed call:
//!
//! ```no_run
//! # async fn example(embedder: op_dbus_api::EmbedderProxy<'_>) -> zbus::Result<()> {
//! use op_dbus_api::{Error, ErrorName};
//!
//! match embedder.embed("disk full").await {
//!     Ok(vector) => println!("{} numbers", vector.len()),
//!     Err(error) => match Error::from_reply(&error) {
//!         Some(refusal) if refusal.name() == ErrorName::Overloaded => println!("later: {refusal}"),
//!         Some(refusal) => println!("refused: {refusal}"),
//!         None => return Err(error),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A text with a NUL byte never gets as far: D-Bus has no such strings, and a bus ends the connection
//! that sends one. Look for `'\0'` in texts that come from elsewhere.
//!
//! # Vector spaces
//!
//! Vectors may be compared if, and only if, the fingerprints of their spaces are equal. Keep
//! [`Info::space`] beside an index, and hand it back as [`option::EXPECT_SPACE`]: if the administrator
//! changes the model, the answer is [`ErrorName::WrongSpace`].

mod blocking;
mod cosine;
mod direct;
mod error;
mod info;
mod json;
mod proxy;

pub use cosine::cosine;
pub use direct::{direct, direct_blocking};
pub use error::{Error, ErrorName, about_text, is_about_text, retry_after};
pub use info::Info;
pub use json::{json, json_object};
pub use proxy::{
    EmbedderProxy, EmbedderProxyBlocking, JobProxy, JobProxyBlocking, ManagerProxy,
    ManagerProxyBlocking, ProviderFallback, ProviderFallbackStream,
};

/// Well-known name of the service.
pub const BUS_NAME: &str = "org.opdbus.Embedding1";
/// The object that carries every interface of the service.
pub const ROOT_PATH: &str = "/org/opdbus/Embedding1";
/// Interface for embedding; open to everyone.
pub const EMBEDDER_INTERFACE: &str = "org.opdbus.Embedding1.Embedder";
/// Interface for administration; reading is open, changing is not.
pub const MANAGER_INTERFACE: &str = "org.opdbus.Embedding1.Manager";

/// Interface of a job, which is there for the user who started it.
pub const JOB_INTERFACE: &str = "org.opdbus.Embedding1.Job";
/// The object manager of jobs, below which each of them is an object.
pub const JOBS_PATH: &str = "/org/opdbus/Embedding1/jobs";

/// Keys of the options dictionary (`a{sv}`) of the packed and fd methods.
pub mod option {
    /// `s`: serve another installed level than the default one.
    pub const LEVEL: &str = "level";
    /// `u`: Matryoshka cut; the vectors are renormalised.
    pub const DIMENSIONS: &str = "dimensions";
    /// `b`: unit length or not.
    pub const NORMALIZE: &str = "normalize";
    /// `s`: name of a prompt of the model that is put before each text.
    pub const PROMPT: &str = "prompt";
    /// `s`: `error`, `end` (default), `start` or `mean`.
    pub const TRUNCATE: &str = "truncate";
    /// `s`: element type of the reply: `f32` (default), `f16`, `i8` or `b1`.
    pub const ENCODING: &str = "encoding";
    /// `s`: `interactive` or `bulk`.
    pub const PRIORITY: &str = "priority";
    /// `u`: milliseconds after which the caller has no use for the reply any more.
    pub const DEADLINE_MS: &str = "deadline_ms";
    /// `s`: the vector space that the caller's index is in.
    pub const EXPECT_SPACE: &str = "expect_space";
    /// `s`: device that must compute.
    pub const DEVICE: &str = "device";
    /// `s`: what the result's file descriptor holds: `raw` (default) or `npy`.
    pub const FORMAT: &str = "format";
    /// `s`: how texts follow one another in a file descriptor: `lines` (default), `nul` or
    /// `json-lines`.
    pub const FRAMING: &str = "framing";
    /// `b`, of `Tokenize` alone: each token with the text that it stands for, in place of its piece.
    pub const COVERED: &str = "covered";
    /// What only some methods know.
    pub const OF_FDS: &[&str] = &[FORMAT, FRAMING];
    /// What every method that embeds with options knows.
    pub const ALL: &[&str] = &[
        LEVEL,
        DIMENSIONS,
        NORMALIZE,
        PROMPT,
        TRUNCATE,
        ENCODING,
        PRIORITY,
        DEADLINE_MS,
        EXPECT_SPACE,
        DEVICE,
    ];
}

/// Life of the service, as the `State` property tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Vector level `none`: everything answers but what needs a model.
    Disabled,
    /// A model is being loaded.
    Loading,
    /// Texts are embedded as configured.
    Ready,
    /// Texts are embedded, but not as asked: see `FallbackReason`.
    Degraded,
    /// Calls in flight are finished, new ones refused.
    Draining,
    /// No model could be loaded, or its workers are lost and none can be had; the reason is in the status.
    Failed,
}

impl State {
    /// The property's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Draining => "draining",
            Self::Failed => "failed",
        }
    }
}

/// Largest reply that is sent inline, in bytes. dbus-daemon disconnects a service whose reply
/// passes 32 MiB, so this stays far below.
pub const INLINE_REPLY_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// The most bytes that the results in the making of one user may have together, or a quarter of the memory that the
/// service may have, where that is less. A result that is handed over is its reader's.
pub const RESULT_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// The most bytes that the results in the making of all users may have together, or half of that memory.
pub const RESULT_BYTES_ALL_MAX: u64 = 4 * RESULT_BYTES_MAX;

/// The most bytes that are read from one file descriptor.
pub const INPUT_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;

/// The most bytes of one message on a direct connection; one that has more ends the connection.
pub const DIRECT_CALL_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// Seconds for which the result of a job is kept for who started it.
pub const JOB_RESULT_KEPT_S: u64 = 600;

/// Indices that `truncated` lists at most where texts come from a file descriptor.
pub const TRUNCATED_LISTED_MAX: usize = 65_536;
