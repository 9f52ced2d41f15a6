//! The D-Bus contract of op-dbus: names, error names, option keys and typed proxies.
//!
//! Service and clients both link this crate, so a name can't drift between them. The contract in
//! prose, with every argument, is in the interface files under `dbus-policy/interfaces/`.

mod error;
mod json;
mod proxy;

pub use error::{Error, ErrorName};
pub use json::{json, json_object};
pub use proxy::{EmbedderProxy, ManagerProxy, ProviderFallback, ProviderFallbackStream};

/// Well-known name of the service.
pub const BUS_NAME: &str = "org.opdbus.Embedding1";
/// The object that carries every interface of the service.
pub const ROOT_PATH: &str = "/org/opdbus/Embedding1";
/// Interface for embedding; open to everyone.
pub const EMBEDDER_INTERFACE: &str = "org.opdbus.Embedding1.Embedder";
/// Interface for administration; reading is open, changing is not.
pub const MANAGER_INTERFACE: &str = "org.opdbus.Embedding1.Manager";

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
    /// `s`: element type of the reply, `f32`.
    pub const ENCODING: &str = "encoding";
    /// `s`: `interactive` or `bulk`.
    pub const PRIORITY: &str = "priority";
    /// `u`: milliseconds after which the caller has no use for the reply any more.
    pub const DEADLINE_MS: &str = "deadline_ms";
    /// `s`: the vector space that the caller's index is in.
    pub const EXPECT_SPACE: &str = "expect_space";
    /// `s`: device that must compute.
    pub const DEVICE: &str = "device";
    /// Every key, for messages that list them.
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

/// Keys of the information dictionary (`a{sv}`) in each packed reply.
pub mod info {
    /// `s`: vector space of the vectors, with the precision suffix.
    pub const SPACE: &str = "space";
    /// `s`: level that served, empty for an imported model.
    pub const LEVEL: &str = "level";
    /// `s`: model that served.
    pub const MODEL: &str = "model";
    /// `u`: length of one vector.
    pub const DIMENSIONS: &str = "dimensions";
    /// `s`: execution provider that computed.
    pub const PROVIDER: &str = "provider";
    /// `s`: device that computed.
    pub const DEVICE: &str = "device";
    /// `s`: precision of the arithmetic.
    pub const PRECISION: &str = "precision";
    /// `t`: tokens computed, special tokens included.
    pub const TOKENS: &str = "tokens";
    /// `au`: indices of the texts that were cut.
    pub const TRUNCATED: &str = "truncated";
    /// `u`: texts answered from a cache.
    pub const CACHED: &str = "cached";
    /// `t`: microseconds from admission to the first batch.
    pub const QUEUE_US: &str = "queue_us";
    /// `t`: microseconds in the batches of this call.
    pub const COMPUTE_US: &str = "compute_us";
}

/// Life of the service, as the `State` property tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Vector level `none`: everything answers but embedding.
    Disabled,
    /// A model is being loaded.
    Loading,
    /// Texts are embedded as configured.
    Ready,
    /// Texts are embedded, but not as asked: see `FallbackReason`.
    Degraded,
    /// Calls in flight are finished, new ones refused.
    Draining,
    /// No model could be loaded; the reason is in the status.
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
