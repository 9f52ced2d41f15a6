//! The engine in this process, with workers as the daemon starts them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use op_dbus_daemon::service;
use op_dbus_daemon::settings::Loaded;

use super::Served;
use super::client::{Client, Tokens};
use crate::cli::Failure;

/// How long the workers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The model that the settings ask for, served without a bus.
pub struct Local {
    service: service::Service,
    pub served: Arc<service::Served>,
    uid: u32,
}

impl Local {
    /// Loads the model and starts the workers.
    pub async fn start(loaded: Loaded) -> Result<Self, Failure> {
        let spawner = service::WorkerProgram::this().spawner();
        let service = service::Service::new(loaded, spawner, None);
        service.start().await;
        let served = service.serving(None, None).await;
        let served = served.map_err(|error| Failure::not_configured(error.to_string()))?;
        Ok(Self { service, served, uid: nix::unistd::getuid().as_raw() })
    }

    pub fn client(&self) -> Client {
        Client::Engine { served: self.served.clone(), uid: self.uid }
    }

    /// Tokens of each text before truncation.
    pub async fn count_tokens(&self, texts: &[String]) -> Result<Vec<u32>, Failure> {
        let counts = self.served.engine.count_tokens(texts.to_vec()).await;
        counts.map_err(|error| Failure::refused(error.to_string()))
    }

    /// The counters of the engine.
    pub fn tokens(&self) -> Tokens {
        let stats = self.served.engine.stats();
        Tokens { real: stats.tokens, padded: stats.padded_tokens }
    }

    pub fn served(&self) -> Served {
        let served = &self.served;
        Served {
            level: served.choice.level().map_or("", |level| level.as_str()).to_owned(),
            model: served.model.clone(),
            space: served.vector_space(),
            provider: served.provider.clone(),
            precision: served.precision.clone(),
            max_input_tokens: served.max_input_tokens,
            workers: Some(served.engine.descriptions().len()),
        }
    }

    pub async fn stop(self) {
        self.service.drain(Instant::now() + STOP_TIMEOUT).await;
    }
}
