//! Typed proxies, two per interface: asynchronous and blocking. Each method is documented in the
//! interface file.

use std::collections::HashMap;

use zbus::{Fd, OwnedFd, OwnedObjectPath, OwnedVariant, Variant, proxy};

use crate::Info;
use crate::blocking::both;

both! {
    EmbedderProxy, EmbedderProxyBlocking:

    /// `org.opdbus.Embedding1.Embedder`: texts in, vectors out.
    #[proxy(
        interface = "org.opdbus.Embedding1.Embedder",
        default_service = "org.opdbus.Embedding1",
        default_path = "/org/opdbus/Embedding1"
    )]
    pub trait Embedder {
        /// One text, one vector.
        fn embed(&self, text: &str) -> zbus::Result<Vec<f64>>;

        /// Many texts, a vector each.
        fn embed_batch(&self, texts: &[&str]) -> zbus::Result<Vec<Vec<f64>>>;

        /// Many texts: vectors as row-major little-endian bytes, rows, dimensions, information.
        fn embed_packed(
            &self,
            texts: &[&str],
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<(serde_bytes::ByteBuf, u32, u32, Info)>;

        /// As `embed_packed`, with the vectors in a sealed memfd. Map it with `MAP_PRIVATE` (`memmap2`:
        /// `map_copy_read_only`): kernels before 6.7 refuse a shared mapping of what is sealed against writing.
        fn embed_to_fd(
            &self,
            texts: &[&str],
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<(OwnedFd, u32, u32, Info)>;

        /// Texts from a sealed memfd, a file or a pipe; vectors in a sealed memfd.
        fn embed_from_fd(
            &self,
            source: Fd<'_>,
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<(OwnedFd, u32, u32, Info)>;

        /// As `embed_from_fd`, but as a job: its path, for [`JobProxy`].
        fn start_embed_from_fd(
            &self,
            source: Fd<'_>,
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<OwnedObjectPath>;

        /// A connection of this caller's own, past the bus: see [`direct`](crate::direct).
        fn open_direct(&self) -> zbus::Result<OwnedFd>;

        /// Many texts as token ids of the served model; else as `embed_packed`.
        fn embed_tokens(
            &self,
            tokens: &[&[u32]],
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<(serde_bytes::ByteBuf, u32, u32, Info)>;

        /// Tokens of each text: id, piece, whether it is special, first byte and end in the text.
        fn tokenize(
            &self,
            texts: &[&str],
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<Vec<Vec<(u32, String, bool, u32, u32)>>>;

        /// Cosine of the vectors of two texts.
        fn similarity(&self, first: &str, second: &str) -> zbus::Result<f64>;

        /// Indices and cosines of the `count` candidates nearest to `query`, best first.
        fn rank(&self, query: &str, candidates: &[&str], count: u32) -> zbus::Result<Vec<(u32, f64)>>;

        /// Tokens of each text with the default prompt, before truncation, special tokens included.
        fn count_tokens(&self, texts: &[&str]) -> zbus::Result<Vec<u32>>;

        /// Level in force.
        #[zbus(property)]
        fn vector_level(&self) -> zbus::Result<String>;
        /// Model that serves.
        #[zbus(property)]
        fn model(&self) -> zbus::Result<String>;
        /// Fingerprint of the vector space, with the precision suffix.
        #[zbus(property)]
        fn vector_space(&self) -> zbus::Result<String>;
        /// Length of one vector.
        #[zbus(property)]
        fn dimensions(&self) -> zbus::Result<u32>;
        /// Tokens that the model reads of one text, special tokens included.
        #[zbus(property)]
        fn max_input_tokens(&self) -> zbus::Result<u32>;
        /// Execution provider that verifiably runs.
        #[zbus(property)]
        fn execution_provider(&self) -> zbus::Result<String>;
        /// Execution provider that was asked for.
        #[zbus(property)]
        fn requested_execution_provider(&self) -> zbus::Result<String>;
        /// Why the two differ; empty where they don't.
        #[zbus(property)]
        fn fallback_reason(&self) -> zbus::Result<String>;
        /// Precision of the arithmetic.
        #[zbus(property)]
        fn precision(&self) -> zbus::Result<String>;
        /// `disabled`, `loading`, `ready`, `degraded`, `draining` or `failed`.
        #[zbus(property)]
        fn state(&self) -> zbus::Result<String>;
        /// Largest reply that is sent inline, in bytes.
        #[zbus(property(emits_changed_signal = "const"))]
        fn inline_reply_bytes_max(&self) -> zbus::Result<u32>;
        /// Most texts in one call.
        #[zbus(property(emits_changed_signal = "const"))]
        fn texts_per_call_max(&self) -> zbus::Result<u32>;
        /// Most bytes in one text, with its prompt.
        #[zbus(property(emits_changed_signal = "const"))]
        fn text_bytes_max(&self) -> zbus::Result<u32>;
        /// Version of the service.
        #[zbus(property(emits_changed_signal = "const"))]
        fn version(&self) -> zbus::Result<String>;
    }
}

both! {
    JobProxy, JobProxyBlocking:

    /// `org.opdbus.Embedding1.Job`: work that no call waits for.
    #[proxy(interface = "org.opdbus.Embedding1.Job", default_service = "org.opdbus.Embedding1")]
    pub trait Job {
        /// Ends the job, whatever it does; it is not there any more.
        fn cancel(&self) -> zbus::Result<()>;

        /// The result, once it is there; the job is not there any more then.
        fn fetch(&self) -> zbus::Result<(OwnedFd, u32, u32, Info)>;

        /// `running`, `done` or `failed`.
        #[zbus(property)]
        fn state(&self) -> zbus::Result<String>;
        /// Vectors that are done.
        #[zbus(property)]
        fn rows(&self) -> zbus::Result<u64>;
        /// Bytes of the source that were read.
        #[zbus(property)]
        fn bytes_read(&self) -> zbus::Result<u64>;
        /// Bytes that the source has; 0 where that is not known.
        #[zbus(property(emits_changed_signal = "const"))]
        fn bytes_total(&self) -> zbus::Result<u64>;
        /// Name of the error of a job that failed; else empty.
        #[zbus(property)]
        fn error_name(&self) -> zbus::Result<String>;
        /// Its sentence.
        #[zbus(property)]
        fn error_message(&self) -> zbus::Result<String>;
    }
}

both! {
    ManagerProxy, ManagerProxyBlocking:

    /// `org.opdbus.Embedding1.Manager`: administration.
    #[proxy(
        interface = "org.opdbus.Embedding1.Manager",
        default_service = "org.opdbus.Embedding1",
        default_path = "/org/opdbus/Embedding1"
    )]
    pub trait Manager {
        /// Serves another level from now on, and after a restart.
        fn set_vector_level(&self, level: &str) -> zbus::Result<()>;

        /// Computes on another execution provider from now on, and after a restart.
        fn set_execution_provider(&self, provider: &str) -> zbus::Result<()>;

        /// Computes on these devices of the provider from now on, and after a restart.
        fn set_devices(&self, devices: &[&str]) -> zbus::Result<()>;

        /// Reads the settings again.
        fn reload(&self) -> zbus::Result<()>;

        /// Loads the model in force if it is unloaded; returns when it is ready.
        fn warm_up(&self) -> zbus::Result<()>;

        /// Ends all workers; the next call loads the model again.
        fn unload(&self) -> zbus::Result<()>;

        /// Gives back what memory can be spared; the bytes.
        fn trim_memory(&self) -> zbus::Result<u64>;

        /// The levels, what each stands for and whether it is installed.
        fn list_levels(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;

        /// The models in the store.
        fn list_models(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;

        /// The execution providers and whether each can be used here.
        fn list_providers(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;

        /// The devices that a provider could compute on, and how busy each is.
        fn list_devices(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;

        /// What runs now.
        fn get_status(&self) -> zbus::Result<HashMap<String, OwnedVariant>>;

        /// Counters since the start.
        fn get_statistics(&self) -> zbus::Result<HashMap<String, OwnedVariant>>;

        /// Each setting, its value and where it came from.
        fn get_settings(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;

        /// Another provider runs than was asked for.
        #[zbus(signal)]
        fn provider_fallback(&self, requested: &str, active: &str, reason: &str) -> zbus::Result<()>;
    }
}
