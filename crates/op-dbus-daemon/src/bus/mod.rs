//! The bus objects: who calls, what is asked, conversion to and from the wire, and nothing else.

mod authority;
mod bulk;
mod caller;
mod calls;
mod embedder;
mod encoding;
mod errors;
mod facts;
mod manager;
mod options;
mod reply;
#[cfg(test)]
mod tests;
mod views;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use op_dbus_api::{EMBEDDER_INTERFACE, ROOT_PATH, State};
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;

use crate::devices::Reader;
use crate::service::Service;
use caller::Callers;
use calls::Calls;
use embedder::Embedder;
use facts::Facts;
use manager::Manager;

/// Version of the service.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The objects on one connection.
pub struct Objects {
    service: Service,
    devices: Arc<Reader>,
    callers: Arc<Callers>,
}

impl Objects {
    /// The objects of `service`, on no connection yet; `devices` reads those of the machine.
    pub fn new(service: Service, devices: Reader) -> Self {
        Self { service, devices: Arc::new(devices), callers: Arc::default() }
    }

    /// Puts the objects on the connection that `builder` makes, which then listens for calls before
    /// anything else is done with it. Objects that are added to a finished connection listen some
    /// time later, and a call that comes before is never answered.
    pub fn serve<'a>(&self, builder: Builder<'a>) -> Builder<'a> {
        let calls = Calls::new(self.service.clone(), self.callers.clone());
        let builder = builder.serve_at(ROOT_PATH, Embedder::new(calls.clone()));
        builder.serve_at(ROOT_PATH, Manager::new(calls, self.devices.clone()))
    }

    /// Subscribes to callers that leave the bus; the future that comes back cancels their calls
    /// until the connection ends.
    ///
    /// # Errors
    /// When the bus refuses the subscription.
    pub async fn departures(
        &self,
        connection: &Connection,
    ) -> zbus::Result<impl Future<Output = ()> + Send + 'static + use<>> {
        self.callers.watch(connection).await
    }

    /// Tells the bus of every change of the properties, and of a provider that runs in place of
    /// another; until the service drains, after which nothing changes any more.
    pub fn changes(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (connection, mut watch) = (connection.clone(), self.service.watch());
        let mut last = Facts::of(&watch.borrow_and_update());
        async move {
            while last.state != State::Draining && watch.changed().await.is_ok() {
                let facts = Facts::of(&watch.borrow_and_update());
                if let Err(error) = announce(&connection, &last, &facts).await {
                    tracing::warn!(%error, "a change could not be told on the bus");
                }
                last = facts;
            }
        }
    }
}

async fn announce(connection: &Connection, old: &Facts, new: &Facts) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, ROOT_PATH)?;
    let changed = new.changed_since(old);
    if !changed.is_empty() {
        let interface = InterfaceName::from_static_str(EMBEDDER_INTERFACE)?;
        fdo::Properties::properties_changed(&emitter, interface, changed, Cow::Borrowed(&[]))
            .await?;
    }
    if new.fallback_reason != old.fallback_reason && !new.fallback_reason.is_empty() {
        let (requested, active) = (&new.requested_execution_provider, &new.execution_provider);
        Manager::provider_fallback(&emitter, requested, active, &new.fallback_reason).await?;
    }
    Ok(())
}
