//! One client of either place: texts in, vectors out, as fast as that place gives them.

use std::sync::Arc;

use op_dbus_api::EmbedderProxy;
use op_dbus_daemon::service::{Options, Request, Served};
use op_dbus_daemon::settings::Bus;
use op_dbus_engine::CancelToken;

use super::variant::Facts;
use crate::cli::{Failure, Properties, Service, connect};

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

    /// A client with a connection of its own, as a program has.
    pub async fn client(&self) -> Result<Client, Failure> {
        let service = connect(&self.bus).await?;
        let embedder = service.embedder().await?;
        Ok(Client::Daemon { embedder, service })
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
        let status = self.service.manager().await?.get_status().await;
        let status = status.map_err(|error| self.service.failure(&error))?;
        Ok(Facts::of_service(&properties, &Properties(status)))
    }

    /// The counters of the service.
    pub async fn tokens(&self) -> Result<Tokens, Failure> {
        let statistics = self.service.manager().await?.get_statistics().await;
        let statistics = statistics.map_err(|error| self.service.failure(&error))?;
        let statistics = Properties(statistics);
        let number = |name| statistics.number(name).unwrap_or(0) as u64;
        Ok(Tokens { real: number("tokens"), padded: number("padded_tokens") })
    }
}

/// One who sends a call and waits for its vectors.
pub enum Client {
    Engine { served: Arc<Served>, uid: u32 },
    Daemon { embedder: EmbedderProxy<'static>, service: Service },
}

impl Client {
    /// An empty call: what the way to the service and back costs by itself. Nothing in the engine.
    pub async fn ping(&self) -> Result<(), Failure> {
        match self {
            Self::Engine { .. } => Ok(()),
            Self::Daemon { service, .. } => service.ping().await,
        }
    }

    /// The vectors of `texts`, row-major.
    pub async fn embed(&self, texts: &[&str]) -> Result<Vec<f32>, Failure> {
        match self {
            Self::Engine { served, uid } => {
                let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
                let (cancel, options) = (CancelToken::default(), Options::default());
                let (uid, inputs) = (*uid, texts.into());
                let request = Request { uid, cancel, inputs, options, wait: false, sink: None };
                let reply = served.embed(request).await;
                Ok(reply.map_err(|error| Failure::refused(format!("the engine: {error}")))?.vectors)
            }
            Self::Daemon { embedder, service } => {
                let reply = embedder.embed_packed(texts, Default::default()).await;
                let (bytes, ..) = reply.map_err(|error| service.failure(&error))?;
                Ok(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
            }
        }
    }
}
