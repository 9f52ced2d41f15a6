//! The bus objects: who calls, what is asked, conversion to and from the wire, and nothing else.

mod authority;
mod bulk;
mod caller;
mod calls;
mod changes;
mod descriptors;
mod direct;
mod embedder;
pub mod encoding;
mod errors;
mod facts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod jobs;
mod manager;
mod many;
mod options;
mod pulse;
pub(crate) mod question;
mod reply;
mod socket;
#[cfg(test)]
mod tests;
mod unread;
mod views;
mod wire;

use std::future::Future;
use std::sync::Arc;

use op_dbus_api::ROOT_PATH;
use zbus::Connection;
use zbus::connection::Builder;

use crate::devices::Reader;
use crate::service::Service;
use crate::settings::Bus;
use calls::Calls;
use changes::Told;
use embedder::Embedder;
use manager::Manager;

/// Version of the service.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The objects on one connection.
pub struct Objects {
    calls: Calls,
    devices: Arc<Reader>,
    told: Arc<Told>,
}

impl Objects {
    /// The objects of `service`, on no connection yet; `devices` reads those of the machine.
    pub fn new(service: Service, devices: Arc<Reader>) -> Self {
        let told = Arc::default();
        let calls = Calls::new(service, Arc::default());
        Self { calls, devices, told }
    }

    /// The objects on a connection to `bus`, not made yet.
    ///
    /// # Errors
    /// The bus can't be connected to.
    pub async fn connect(&self, bus: &Bus) -> zbus::Result<Builder<'static>> {
        Ok(self.serve(socket::builder(bus, &self.calls).await?))
    }

    /// Puts the objects on the connection that `builder` makes, which then listens for calls before
    /// anything else is done with it. Objects that are added to a finished connection listen some
    /// time later, and a call that comes before is never answered.
    pub fn serve<'a>(&self, builder: Builder<'a>) -> Builder<'a> {
        let builder = builder.serve_at(ROOT_PATH, Embedder::new(self.calls.clone()));
        let (calls, devices, told) = (self.calls.clone(), self.devices.clone(), self.told.clone());
        builder.serve_at(ROOT_PATH, Manager::new(calls, devices, told))
    }

    /// Puts what leads to jobs on the connection that was made.
    ///
    /// # Errors
    /// Never on one that [`serve`](Self::serve) has made.
    pub async fn serve_jobs(&self, connection: &Connection) -> zbus::Result<()> {
        jobs::plant(connection, &self.calls).await
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
        self.calls.callers.watch(connection).await
    }

    /// Tells the bus of all properties, once the name is ours: whoever has kept those of a service before us is not
    /// told of the change of the name by what keeps them.
    pub async fn introduce(&self, connection: &Connection) {
        self.told.tell(&self.calls.service, connection, true).await;
    }

    /// Tells the bus of every change of the properties, and of a provider that runs in place of
    /// another; until the service drains, after which nothing changes any more.
    pub fn changes(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (service, told) = (self.calls.service.clone(), self.told.clone());
        changes::follow(service, connection.clone(), told, true)
    }

    /// Returns once the bus answers nothing on this connection any more, while it lets others in.
    pub async fn stuck<F: Future<Output = bool>>(
        &self,
        connection: &Connection,
        lets_in: impl Fn() -> F,
    ) {
        self.calls.pulse.lost(connection, self.calls.callers.missed(), lets_in).await;
    }

    /// Ends the jobs, and the direct connections, each once the calls under way on it have their
    /// replies.
    pub async fn end(&self) {
        if let Some(jobs) = &self.calls.jobs {
            jobs.end().await;
        }
        if let Some(direct) = &self.calls.direct {
            direct.end().await;
        }
    }
}
