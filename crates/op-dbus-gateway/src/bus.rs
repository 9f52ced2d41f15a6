//! Connections to the bus: each request has one to itself, so that a client that leaves takes its
//! calls with it.
//!
//! The service cancels the calls of a connection that leaves the bus, and there is no other way to
//! take a call back. So a request borrows a connection, and one whose client left in the middle of a
//! call is closed instead of being used again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use op_dbus_api::{BUS_NAME, EmbedderProxy, ManagerProxy, json_object};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::timeout;
use tracing::{info, warn};
use zbus::connection::Builder;
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::wire::DynamicDeserialize;
use zbus::{Connection, OwnedVariant};

use crate::limits;
use crate::refusal::Refusal;

/// Makes a new connection to the bus that the service is on.
pub type Connect = Arc<dyn Fn() -> Builder<'static> + Send + Sync>;

type Dictionary = HashMap<String, OwnedVariant>;

/// The way to the service. Cheap to clone.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    connect: Connect,
    /// Connections that nobody uses: as many as requests were at work at once.
    idle: Mutex<Vec<Connection>>,
    /// Whether the service could not be reached when it was asked last.
    is_away: AtomicBool,
}

/// A connection of one request.
pub struct Lease {
    bus: Bus,
    connection: Connection,
    /// Whether no call is on its way.
    at_rest: bool,
}

impl Bus {
    /// A way to the service; nothing is connected yet.
    pub fn new(connect: Connect) -> Self {
        Self(Arc::new(Inner { connect, idle: Mutex::default(), is_away: AtomicBool::default() }))
    }

    /// A connection to oneself.
    ///
    /// # Errors
    /// When there is no bus, or it lets nobody in.
    pub async fn lease(&self) -> Result<Lease, Refusal> {
        loop {
            let idle = self.0.idle.lock().pop();
            let connection = match idle {
                // The bus may have gone away, and come back, since.
                Some(connection) if connection.is_closed() => continue,
                Some(connection) => connection,
                None => self.connected().await.inspect_err(|refusal| self.lost(refusal))?,
            };
            return Ok(Lease { bus: self.clone(), connection, at_rest: true });
        }
    }

    async fn connected(&self) -> Result<Connection, Refusal> {
        timeout(limits::READY_TIME, (self.0.connect)().build())
            .await
            .map_err(|_| Refusal::silent("the bus", limits::READY_TIME))?
            .map_err(|error| Refusal::of_call(&error))
    }

    /// The service can't be reached. The log has that once, however many ask, and once that it is back.
    fn lost(&self, why: &Refusal) {
        if !self.0.is_away.swap(true, Ordering::Relaxed) {
            warn!("requests can't be served: {}", why.message());
        }
    }

    /// The service has answered.
    fn found(&self) {
        if self.0.is_away.swap(false, Ordering::Relaxed) {
            info!("{BUS_NAME} answers again");
        }
    }
}

impl Lease {
    /// The service's methods for embedding.
    pub async fn embedder(&self) -> Result<EmbedderProxy<'static>, Refusal> {
        let proxy = EmbedderProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        proxy.build().await.map_err(|error| Refusal::of_call(&error))
    }

    /// The service's methods for administration; only reading ones are used.
    pub async fn manager(&self) -> Result<ManagerProxy<'static>, Refusal> {
        let proxy = ManagerProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        proxy.build().await.map_err(|error| Refusal::of_call(&error))
    }

    /// Waits for the answer to a call on this connection. When it is dropped before, the call is
    /// cancelled.
    ///
    /// # Errors
    /// Those of the call, and 504 when there is none in time.
    pub async fn answer<T>(
        &mut self,
        call: impl Future<Output = zbus::Result<T>>,
    ) -> Result<T, Refusal> {
        // The service itself answers at the deadline; this is for one that hangs.
        let answer = self.answer_within(limits::ANSWER_TIME + limits::READY_TIME, call).await;
        if let (Err(refusal), false) = (&answer, self.at_rest) {
            self.bus.lost(refusal);
        }
        answer
    }

    /// The same for an answer that is of no use later than after `time`.
    ///
    /// # Errors
    /// As there.
    pub async fn answer_within<T>(
        &mut self,
        time: Duration,
        call: impl Future<Output = zbus::Result<T>>,
    ) -> Result<T, Refusal> {
        self.at_rest = false;
        let answer = timeout(time, call).await;
        let answer = answer.map_err(|_| Refusal::silent("the service", time))?;
        self.at_rest = true;
        let answer = answer.map_err(|error| Refusal::of_call(&error));
        match &answer {
            Err(refusal) if refusal.is_unreachable() => self.bus.lost(refusal),
            _ => self.bus.found(),
        }
        answer
    }

    /// What a reading method of the manager tells, as JSON. A service that is not running is not
    /// started for it.
    ///
    /// # Errors
    /// 503 when it does not run, 504 when it hangs.
    pub async fn read(&mut self, method: &'static str) -> Result<Value, Refusal> {
        Ok(json_object(&self.told::<Dictionary>(method).await?))
    }

    /// The devices of the machine, as JSON objects.
    ///
    /// # Errors
    /// As [`Lease::read`].
    pub async fn devices(&mut self) -> Result<Vec<Value>, Refusal> {
        let devices: Vec<Dictionary> = self.told("ListDevices").await?;
        Ok(devices.iter().map(json_object).collect())
    }

    async fn told<T>(&mut self, method: &'static str) -> Result<T, Refusal>
    where
        T: Default + for<'d> DynamicDeserialize<'d>,
    {
        let manager = self.manager().await?;
        let call = manager.inner().call_with_flags(method, MethodFlags::NO_AUTO_START, &());
        Ok(self.answer_within(limits::TOLD_TIME, call).await?.unwrap_or_default())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let connection = self.connection.clone();
        if self.at_rest && !connection.is_closed() {
            let mut idle = self.bus.0.idle.lock();
            if idle.len() < limits::REQUESTS {
                idle.push(connection);
            }
            return;
        }
        tokio::spawn(async move {
            // It may be closed already.
            let _ = connection.close().await;
        });
    }
}
