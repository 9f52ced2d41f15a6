//! The bus objects: who calls, what is asked, conversion to and from the wire, and nothing else.

mod authority;
mod caller;
mod calls;
mod embedder;
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
use zbus::fdo;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;

use crate::service::Service;
use caller::Callers;
use calls::Calls;
use embedder::Embedder;
use facts::Facts;
use manager::Manager;

/// Version of the service.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The objects on one connection. End it with [`Objects::close`].
pub struct Objects {
    connection: Connection,
    service: Service,
    callers: Arc<Callers>,
}

impl Objects {
    /// Puts the objects of `service` on the connection. Names are requested afterwards, so that
    /// whoever finds the name finds the objects.
    ///
    /// # Errors
    /// When they are there already, or the connection is gone.
    pub async fn serve(connection: &Connection, service: Service) -> zbus::Result<Self> {
        let callers = Callers::new(connection.clone());
        let calls = Calls::new(service.clone(), callers.clone());
        let server = connection.object_server();
        server.at(ROOT_PATH, Embedder::new(calls.clone())).await?;
        server.at(ROOT_PATH, Manager::new(calls)).await?;
        Ok(Self { connection: connection.clone(), service, callers })
    }

    /// Subscribes to callers that leave the bus; the future that comes back cancels their calls
    /// until the connection ends.
    ///
    /// # Errors
    /// When the bus refuses the subscription.
    pub async fn departures(
        &self,
    ) -> zbus::Result<impl Future<Output = ()> + Send + 'static + use<>> {
        self.callers.watch(&self.connection).await
    }

    /// Tells the bus of every change of the properties, and of a provider that runs in place of
    /// another; until the service drains, after which nothing changes any more.
    pub fn changes(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (connection, mut watch) = (self.connection.clone(), self.service.watch());
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

    /// Takes no more calls from new callers, and lets go of the connection.
    pub fn close(self) {
        self.callers.close();
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
