//! What changes, told on a connection as it changes.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use op_dbus_api::{EMBEDDER_INTERFACE, ROOT_PATH, State};
use op_dbus_engine::is_same_news;
use tokio::sync::Mutex;
use zbus::Connection;
use zbus::fdo;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;

use super::facts::Facts;
use super::manager::Manager;
use crate::service::Service;

/// What one connection was told last of the embedder's properties; nothing where those who listen may know them of
/// another service.
#[derive(Debug, Default)]
pub struct Told(Mutex<Option<Facts>>);

impl Told {
    /// What there is when nobody has asked yet.
    pub fn new(service: &Service) -> Self {
        Self(Mutex::new(Some(Facts::of(&service.now()))))
    }

    /// Tells `connection` of what is not as it was told and, where the `manager` is on it, of a provider that
    /// runs in place of another. What is sent there after this comes behind it.
    pub async fn tell(&self, service: &Service, connection: &Connection, manager: bool) -> State {
        let mut last = self.0.lock().await;
        let facts = Facts::of(&service.now());
        if let Err(error) = announce(connection, last.as_ref(), &facts, manager).await {
            tracing::warn!("a change could not be told on the bus: {error}");
        }
        last.insert(facts).state
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
    old: Option<&Facts>,
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
    let is_told = |old: &Facts| {
        old.execution_provider == new.execution_provider
            // The last error of what is tried again names a process that the one before it did not.
            && is_same_news(&new.fallback_reason, &old.fallback_reason)
    };
    if manager && !new.fallback_reason.is_empty() && !old.is_some_and(is_told) {
        let (requested, active) = (&new.requested_execution_provider, &new.execution_provider);
        Manager::provider_fallback(&emitter, requested, active, &new.fallback_reason).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures_util::StreamExt;
    use zbus::{MessageStream, OwnedVariant};

    use super::super::tests::{idle, peers};
    use super::*;

    /// Which may be as they are here, where they were otherwise there.
    #[tokio::test]
    async fn who_knows_the_properties_of_another_service_is_told_all_of_them_once() {
        let service = idle();
        let (server, client) = peers().await;
        let mut signals = MessageStream::from(&client);
        let (asked, another) = (Told::new(&service), Told::default());
        for told in [&asked, &another, &another] {
            told.tell(&service, &server, false).await;
        }
        let signal = signals.next().await.unwrap().unwrap();
        let body = signal.body();
        let (_, changed, _): (String, HashMap<String, OwnedVariant>, Vec<String>) =
            body.deserialize().unwrap();
        assert_eq!(changed.len(), 10, "{changed:?}");
        assert!(changed.contains_key("State") && changed.contains_key("FallbackReason"));
        server.close().await.unwrap();
        assert!(signals.next().await.is_none_or(|message| message.is_err()), "a second one");
    }
}
