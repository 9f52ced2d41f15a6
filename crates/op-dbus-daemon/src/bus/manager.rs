//! `org.opdbus.Embedding1.Manager`: administration. Its documentation for callers is in
//! `dbus-policy/interfaces/`.

use std::sync::Arc;

use op_dbus_api::{Error, ErrorName};
use op_dbus_models::Level;
use zbus::Connection;
use zbus::interface;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;

use super::authority::{CONFIGURE, MANAGE_MEMORY, authorize};
use super::calls::Calls;
use super::changes::Told;
use super::many::Many;
use super::pulse::Refusal;
use super::reply::Dictionary;
use super::views;
use crate::devices::Reader;
use crate::service::{self, Service};

/// The longest value that a setting may be given: a list of devices, with room.
const VALUE_BYTES_MAX: usize = 4 << 10;

/// The bus object for administration.
pub struct Manager {
    calls: Calls,
    devices: Arc<Reader>,
    told: Arc<Told>,
}

impl Manager {
    /// An object that answers from `calls`, and about devices from `devices`, on the connection that was
    /// `told`.
    pub fn new(calls: Calls, devices: Arc<Reader>, told: Arc<Told>) -> Self {
        Self { calls, devices, told }
    }

    /// Makes the change that `wanted` finds possible, if the caller may: nobody is asked for a password for what can't
    /// be done. It is told of before the reply: whoever keeps properties as signals tell them has the new ones then.
    async fn change<F>(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        action: (&str, &str),
        wanted: impl FnOnce(Service) -> Result<F, Error>,
    ) -> Result<(), Refusal>
    where
        F: Future<Output = Result<(), service::Error>>,
    {
        let work = async move |calls: Calls, caller| {
            let change = wanted(calls.service.clone())?;
            authorize(&calls.budget, header, &caller, action).await?;
            let result = change.await;
            // What was made is answered as that, also where the service ends before everybody has heard of it.
            tokio::select! {
                biased;
                _ = self.told.tell(&calls.service, connection, true) => {}
                () = calls.service.ended() => {}
            }
            result.map_err(Error::from)
        };
        self.calls.run(connection, header, work).await
    }
}

#[interface(name = "org.opdbus.Embedding1.Manager", introspection_docs = false)]
impl Manager {
    async fn set_vector_level(
        &self,
        level: String,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (CONFIGURE, "change the vector level");
        let wanted = |service: Service| {
            let level = parse_level(&level)?;
            service.may_set_level(level)?;
            Ok(async move { service.set_level(level).await })
        };
        self.change(connection, &header, action, wanted).await
    }

    async fn set_execution_provider(
        &self,
        provider: String,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (CONFIGURE, "change the execution provider");
        let wanted = |service| set(service, "execution_provider", provider);
        self.change(connection, &header, action, wanted).await
    }

    async fn set_devices(
        &self,
        devices: Many<String>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (CONFIGURE, "change the devices");
        let wanted = |service| {
            let value = devices.kept.join(",");
            // Of too many none is kept. Each takes a byte at least, its comma.
            fits("gpu_device", value.len().max(devices.count))?;
            set(service, "gpu_device", value)
        };
        self.change(connection, &header, action, wanted).await
    }

    async fn reload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (CONFIGURE, "reload the settings");
        let wanted = |service: Service| Ok(async move { service.reload().await });
        self.change(connection, &header, action, wanted).await
    }

    async fn warm_up(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (MANAGE_MEMORY, "load the model");
        let wanted = |service: Service| Ok(async move { service.warm_up().await });
        self.change(connection, &header, action, wanted).await
    }

    async fn unload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let action = (MANAGE_MEMORY, "unload the model");
        let wanted = |service: Service| Ok(async move { service.unload().await });
        self.change(connection, &header, action, wanted).await
    }

    #[zbus(out_args("bytes"))]
    async fn trim_memory(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<u64, Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let action = (MANAGE_MEMORY, "have the service give memory back");
            authorize(&calls.budget, header, &caller, action).await?;
            Ok(calls.service.trim().await)
        };
        self.calls.run(connection, header, work).await
    }

    #[zbus(out_args("levels"))]
    async fn list_levels(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Dictionary>, Refusal> {
        let work = async |calls, caller| views::on_disk(calls, &caller, views::levels).await;
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("models"))]
    async fn list_models(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Dictionary>, Refusal> {
        let work = async |calls, caller| views::on_disk(calls, &caller, views::models).await;
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("providers"))]
    async fn list_providers(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Dictionary>, Refusal> {
        // It looks for libraries.
        let work = async |calls, caller| views::on_disk(calls, &caller, views::providers).await;
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("devices"))]
    async fn list_devices(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Dictionary>, Refusal> {
        let devices = &self.devices;
        let work = async move |calls: Calls, _caller| {
            let known = devices.read().await;
            Ok(views::devices(&calls.service, known))
        };
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("status"))]
    async fn get_status(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Dictionary, Refusal> {
        let work = async |calls: Calls, _caller| Ok(views::status(&calls.service));
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("statistics"))]
    async fn get_statistics(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Dictionary, Refusal> {
        let work = async |calls: Calls, _caller| Ok(views::statistics(&calls.service));
        self.calls.run(connection, &header, work).await
    }

    #[zbus(out_args("settings"))]
    async fn get_settings(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Dictionary>, Refusal> {
        let work = async |calls: Calls, _caller| Ok(views::settings(&calls.service.now().loaded));
        self.calls.run(connection, &header, work).await
    }

    /// Another provider runs than was asked for.
    #[zbus(signal)]
    pub async fn provider_fallback(
        emitter: &SignalEmitter<'_>,
        requested: &str,
        active: &str,
        reason: &str,
    ) -> zbus::Result<()>;
}

/// A change of one setting, which anybody may have looked at.
fn set(
    service: Service,
    key: &'static str,
    value: String,
) -> Result<impl Future<Output = Result<(), service::Error>>, Error> {
    fits(key, value.len())?;
    service.now().loaded.with(key, &value).map_err(service::Error::from)?;
    Ok(async move { service.change(key, value).await })
}

/// What anybody may have looked at, which takes many times as much memory.
fn fits(key: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("{key} would have {bytes} bytes; it may have {VALUE_BYTES_MAX}");
    Err(Error::new(ErrorName::InvalidArgument, message))
}

fn parse_level(text: &str) -> Result<Level, Error> {
    text.parse().map_err(|_| {
        let names = Level::ALL.map(Level::as_str).join(", ");
        let message = format!("{} is not a vector level; accepted: {names}", service::shown(text));
        Error::new(ErrorName::InvalidArgument, message)
    })
}
