//! What changes, told on a connection as it changes.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use op_dbus_api::{EMBEDDER_INTERFACE, ROOT_PATH, State};
use tokio::sync::Mutex;
use zbus::Connection;
use zbus::fdo;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;

use super::facts::Facts;
use super::manager::Manager;
use crate::service::Service;

/// What one connection was told last of the embedder's properties.
#[derive(Debug)]
pub struct Told(Mutex<Facts>);

impl Told {
    /// What there is when nobody has asked yet.
    pub fn new(service: &Service) -> Self {
        Self(Mutex::new(Facts::of(&service.now())))
    }

    /// Tells `connection` of what is not as it was told and, where the `manager` is on it, of a provider that
    /// runs in place of another. What is sent there after this comes behind it.
    pub async fn tell(&self, service: &Service, connection: &Connection, manager: bool) -> State {
        let mut last = self.0.lock().await;
        let facts = Facts::of(&service.now());
        if let Err(error) = announce(connection, &last, &facts, manager).await {
            tracing::warn!("a change could not be told on the bus: {error}");
        }
        *last = facts;
        last.state
    }
}

/// Tells `connection` of every change, until the service drains, after which nothing changes any more.
pub fn follow(
    service: Service,
    connection: Connection,
    told: Arc<Told>,
    manager: bool,
) -> impl Future<Output = ()> + Send + 'static + use<> {
    let mut watch = service.watch();
    async move {
        while told.tell(&service, &connection, manager).await != State::Draining
            && watch.changed().await.is_ok()
        {}
    }
}

async fn announce(
    connection: &Connection,
    old: &Facts,
    new: &Facts,
    manager: bool,
) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, ROOT_PATH)?;
    let changed = new.changed_since(old);
    if !changed.is_empty() {
        let interface = InterfaceName::from_static_str(EMBEDDER_INTERFACE)?;
        fdo::Properties::properties_changed(&emitter, interface, changed, Cow::Borrowed(&[]))
            .await?;
    }
    if manager && new.fallback_reason != old.fallback_reason && !new.fallback_reason.is_empty() {
        let (requested, active) = (&new.requested_execution_provider, &new.execution_provider);
        Manager::provider_fallback(&emitter, requested, active, &new.fallback_reason).await?;
    }
    Ok(())
}
