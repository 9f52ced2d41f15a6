//! HTTP in front of op-dbus: an ordinary client of the bus contract, in a process of its own.
//!
//! Every request becomes calls on `org.opdbus.Embedding1`; nothing is computed or kept here. What
//! the program is started with is a [`Config`], and [`run`] serves until it is told to end.

mod body;
mod bus;
mod embed;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gate;
mod held;
mod input;
mod key;
mod leaving;
mod limits;
mod listen;
mod metrics;
mod models;
mod object;
mod pace;
mod page;
mod places;
mod prometheus;
mod refusal;
mod routes;
mod seats;
mod serve;
mod shared;
mod spare;
mod stream;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};

pub use bus::Connect;
pub use listen::Address;

use bus::Bus;
use key::Key;
use leaving::Leaving;
use metrics::Metrics;
use models::{Models, Offered};
use places::Places;
use prometheus::Told;
use refusal::Refusal;
use shared::Shared;

/// What the gateway is started with.
pub struct Config {
    /// Where it answers; a socket that systemd hands over is used in its place.
    pub address: Option<Address>,
    /// Where that setting comes from: a file, a variable or a flag, as refusals name it.
    pub address_from: String,
    /// The folder with the credential `api-key`, which systemd names in `CREDENTIALS_DIRECTORY`.
    pub credentials: Option<PathBuf>,
    /// The way to the bus that the service is on.
    pub connect: Connect,
    /// Gives memory that was freed back to the system.
    pub trim: fn(),
}

/// Why the gateway does not serve, in one sentence.
#[derive(Debug)]
pub enum Fatal {
    /// A setting or the credential is wrong or missing: starting again would not help.
    NotConfigured(String),
    /// Something else stands in the way.
    Failed(String),
}

/// What all requests share.
struct Gateway {
    bus: Bus,
    models: Models,
    key: Option<Key>,
    /// Whether the names that browsers may ask for are restricted.
    checks_host: bool,
    /// For requests that ask for work, once all of them is there.
    places: Arc<Places>,
    /// The right to take a large body apart.
    parsing: Arc<Semaphore>,
    metrics: Metrics,
    leaving: Arc<Leaving>,
    asked: Asked,
    /// Notified when a large request is done.
    large: Arc<Notify>,
}

impl Gateway {
    fn new(connect: Connect, key: Option<Key>, checks_host: bool) -> Arc<Self> {
        Arc::new(Self {
            bus: Bus::new(connect),
            models: Models::default(),
            key,
            checks_host,
            places: Arc::default(),
            parsing: Arc::new(Semaphore::new(1)),
            metrics: Metrics::default(),
            leaving: Arc::default(),
            asked: Asked::default(),
            large: Arc::default(),
        })
    }

    /// Whether who sends these may be told what is not for everybody.
    fn trusts(&self, headers: &HeaderMap) -> bool {
        self.key.as_ref().is_none_or(|key| key.is_in(headers))
    }
}

/// What is asked of the service for requests that are no work, whose number nothing else bounds.
#[derive(Default)]
struct Asked {
    /// Whether it embeds.
    ready: Shared<Result<(), Refusal>>,
    /// What it tells of itself.
    told: Shared<Result<Arc<Told>, Refusal>>,
    /// The models that can be asked for.
    models: Shared<Result<Arc<Vec<Offered>>, Refusal>>,
    /// What runs, for `/info`.
    runs: Shared<Result<Value, Refusal>>,
}

/// Serves until SIGTERM or SIGINT, then finishes the requests that are in flight.
///
/// # Errors
/// Why it can't serve.
pub async fn run(config: Config) -> Result<(), Fatal> {
    let Config { address, address_from, credentials, connect, trim } = config;
    let key = Key::read(credentials.as_deref())?;
    let has_key = key.is_some();
    let listener = listen::Listener::open(address, &address_from, has_key)?;
    // A page of another origin can't know the key, and nothing but programs comes by a Unix socket.
    let checks_host = !has_key && listener.is_tcp();
    let gateway = Gateway::new(connect, key, checks_host);
    tokio::spawn(spare::give_back(Arc::clone(&gateway.large), trim));
    let leaving = Arc::clone(&gateway.leaving);
    serve::serve(listener, routes::router(gateway), has_key, &leaving).await
}
