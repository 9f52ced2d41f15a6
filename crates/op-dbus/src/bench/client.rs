//! One client of either place: texts in, vectors out, as fast as that place gives them.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use op_dbus_api::{EmbedderProxy, Info};
use op_dbus_daemon::service::{Options, Request, Served};
use op_dbus_daemon::settings::Bus;
use op_dbus_engine::CancellationToken;

use super::variant::{Facts, Place};
use crate::cli::{Failure, Properties, Service, connect, floats, mapped};

/// Direct connections of one place; more clients share them. A user may have 16, and two places have some.
const DIRECT_MAX: usize = 8;

/// The smallest page that there is.
const PAGE_BYTES: usize = 4096;

/// Tokens that batches had, and how many of them were real.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    pub real: u64,
    pub padded: u64,
}

impl Tokens {
    /// Padded over real tokens since `before`; `None` when nothing ran meanwhile.
    pub fn padding_since(self, before: Self) -> Option<f64> {
        let real = self.real.checked_sub(before.real).filter(|real| *real > 0)?;
        Some(self.padded.checked_sub(before.padded)? as f64 / real as f64)
    }
}

/// The service on a bus.
pub struct Remote {
    bus: Bus,
    service: Service,
}

impl Remote {
    pub fn new(bus: Bus, service: Service) -> Self {
        Self { bus, service }
    }

    /// Clients of a `place`, each with a connection of its own, as a program has, where it may.
    pub async fn clients(&self, place: Place, count: usize) -> Result<Vec<Client>, Failure> {
        let mut clients: Vec<Client> = Vec::with_capacity(count);
        let direct = matches!(place, Place::Direct | Place::DirectMemfd);
        let memfd = matches!(place, Place::Memfd | Place::DirectMemfd);
        for number in 0..count {
            let (service, opener) = match clients.get(number % DIRECT_MAX) {
                Some(Client::Daemon { service, opener, .. }) if direct => {
                    (service.clone(), opener.clone())
                }
                _ if direct => {
                    let bus = connect(&self.bus).await?;
                    (bus.direct().await?, Some(bus))
                }
                _ => (connect(&self.bus).await?, None),
            };
            let embedder = service.embedder().await?;
            clients.push(Client::Daemon { embedder, service, memfd, opener });
        }
        Ok(clients)
    }

    /// Tokens of each text before truncation.
    pub async fn count_tokens(&self, texts: &[String]) -> Result<Vec<u32>, Failure> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let counts = self.service.embedder().await?.count_tokens(&texts).await;
        counts.map_err(|error| self.service.failure(&error))
    }

    /// What the service says of itself.
    pub async fn facts(&self) -> Result<Facts, Failure> {
        let properties = self.service.properties().await?;
        let manager = self.service.manager().await?;
        let status = self.service.told(manager.get_status()).await?;
        Ok(Facts::of_service(&properties, &Properties(status)))
    }

    /// The counters of the service.
    pub async fn tokens(&self) -> Result<Tokens, Failure> {
        let manager = self.service.manager().await?;
        let statistics = Properties(self.service.told(manager.get_statistics()).await?);
        let number = |name| statistics.number(name).unwrap_or(0) as u64;
        Ok(Tokens { real: number("tokens"), padded: number("padded_tokens") })
    }
}

/// One who sends a call and waits for its vectors.
pub enum Client {
    Engine {
        served: Arc<Served>,
        uid: u32,
    },
    Daemon {
        embedder: EmbedderProxy<'static>,
        service: Service,
        /// Whether vectors come in a memfd.
        memfd: bool,
        /// The connection to the bus without which a direct one ends.
        opener: Option<Service>,
    },
}

/// Vectors, row-major, and what the engine says of the call.
pub struct Answer {
    pub vectors: Vectors,
    /// Microseconds from the call's arrival in the engine to the end of its last batch.
    pub engine_us: u64,
}

/// Where they are.
pub enum Vectors {
    Mapped(Bytes),
    Own(Vec<f32>),
}

impl Vectors {
    pub fn into_numbers(self) -> Vec<f32> {
        match self {
            Self::Mapped(bytes) => floats(&bytes).collect(),
            Self::Own(numbers) => numbers,
        }
    }
}

impl Client {
    /// An empty call: what the way to the service and back costs by itself. Nothing in the engine.
    pub async fn ping(&self) -> Result<(), Failure> {
        match self {
            Self::Engine { .. } => Ok(()),
            Self::Daemon { service, .. } => service.ping().await,
        }
    }

    /// The vectors of `texts`.
    pub async fn embed(&self, texts: &[&str]) -> Result<Answer, Failure> {
        let (embedder, service, memfd) = match self {
            Self::Engine { served, uid } => return embed_here(served, *uid, texts).await,
            Self::Daemon { embedder, service, memfd, .. } => (embedder, service, *memfd),
        };
        let failure = |error: zbus::Error| service.failure(&error);
        let (vectors, told) = if memfd {
            let reply = embedder.embed_to_fd(texts, Default::default()).await;
            let (fd, _, _, told) = reply.map_err(failure)?;
            let vectors = mapped(&File::from(OwnedFd::from(fd)));
            let vectors = vectors.map_err(|error| Failure::refused(format!("a memfd: {error}")))?;
            // A page is mapped when it is read first, which a client does.
            black_box(vectors.iter().step_by(PAGE_BYTES).fold(0, |sum, byte| sum ^ byte));
            (Vectors::Mapped(vectors), told)
        } else {
            let reply = embedder.embed_packed(texts, Default::default()).await;
            let (bytes, _, _, told) = reply.map_err(failure)?;
            (Vectors::Own(floats(&bytes).collect()), told)
        };
        let Info { cached, queue_us, compute_us, .. } = told;
        // The texts come again and again, and what is looked up says nothing of what computes.
        if cached > 0 {
            return Err(Failure::refused(format!(
                "the service answered {cached} of {} texts from its cache, and what it computes is to be \
                 measured: set `cache_bytes = 0` and reload it, or measure one of your own with --spawn",
                texts.len()
            )));
        }
        Ok(Answer { vectors, engine_us: queue_us + compute_us })
    }
}

async fn embed_here(served: &Served, uid: u32, texts: &[&str]) -> Result<Answer, Failure> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let (cancel, options) = (CancellationToken::default(), Options::default());
    let inputs = texts.into();
    let request = Request { uid, cancel, inputs, options, wait: false, sink: None };
    let reply = served.embed(request).await;
    let reply = reply.map_err(|error| Failure::refused(format!("the engine: {error}")))?;
    let vectors = Vectors::Own(reply.vectors);
    Ok(Answer { vectors, engine_us: reply.queue_us + reply.compute_us })
}
