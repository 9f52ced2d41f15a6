//! The engine in this process, with the backends that the daemon's workers would have: what there
//! is to gain, without a service, a bus or another process in the way.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use op_dbus_daemon::service::{self, Spawner};
use op_dbus_daemon::settings::{Loaded, Provider};
use op_dbus_embedder::backend::Spec;

use super::client::{Client, Tokens};
use super::variant::{Facts, providers};
use crate::cli::Failure;
use crate::worker;

/// How long the workers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The model that the settings ask for, served without a bus.
pub struct Local {
    service: service::Service,
    served: Arc<service::Served>,
    uid: u32,
    device: Arc<OnceLock<Spec>>,
}

impl Local {
    /// Loads the model and starts the workers.
    pub async fn start(loaded: Loaded) -> Result<Self, Failure> {
        let device = Arc::default();
        let means = service::Means { spawner: spawner(&device), devices: None };
        let service = service::Service::new(loaded, means, None);
        service.start().await;
        let served = service.serving(None, None).await;
        let served = served.map_err(|error| Failure::not_configured(error.to_string()))?;
        Ok(Self { service, served, uid: nix::unistd::getuid().as_raw(), device })
    }

    pub fn client(&self) -> Client {
        Client::Engine { served: self.served.clone(), uid: self.uid }
    }

    /// What a worker computes with that does so on a device other than the CPU, if there is one.
    pub fn device(&self) -> Option<Spec> {
        self.device.get().cloned()
    }

    /// Tokens of each text with the default prompt, before truncation.
    pub async fn count_tokens(&self, texts: &[String]) -> Result<Vec<u32>, Failure> {
        let counts = self.served.count_tokens(self.uid, texts.to_vec()).await;
        counts.map_err(|error| Failure::refused(error.to_string()))
    }

    /// What a batch takes on each device.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        self.served.engine.costs(tokens)
    }

    /// The counters of the engine.
    pub fn tokens(&self) -> Tokens {
        let stats = self.served.engine.stats();
        Tokens { real: stats.tokens, padded: stats.padded_tokens }
    }

    pub fn facts(&self) -> Facts {
        let served = &self.served;
        Facts {
            level: served.choice.level().map_or("", |level| level.as_str()).to_owned(),
            model: served.model.clone(),
            engine: served.engine_name.clone(),
            provider: providers(&served.device()),
            precision: served.precision.clone(),
            isa: served.isa.clone(),
            batch_tokens: self.service.now().settings().batch_tokens_max.unwrap_or(0),
            max_input_tokens: served.max_input_tokens,
            space: served.vector_space(),
        }
    }

    pub async fn stop(self) {
        self.service.drain(Instant::now() + STOP_TIMEOUT).await;
    }
}

/// Backends in this process, each on the thread that owns it. The first that computes on a device is
/// kept in `device`.
fn spawner(device: &Arc<OnceLock<Spec>>) -> Spawner {
    let device = device.clone();
    Arc::new(move |blueprint, settings| {
        let configs = blueprint.configs(settings);
        if !matches!(blueprint.host.provider, Provider::Cpu | Provider::Remote) {
            device.get_or_init(|| configs(0).backend);
        }
        Box::new(move |number| worker::in_process(&configs(number)))
    })
}
