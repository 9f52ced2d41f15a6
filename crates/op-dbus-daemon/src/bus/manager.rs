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
use super::pulse::Refusal;
use super::reply::Dictionary;
use super::views;
use crate::devices::Reader;
use crate::service;

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

    /// Makes a change, and tells of it before the reply: whoever keeps properties as signals tell them has
    /// the new ones then.
    async fn change(
        &self,
        connection: &Connection,
        change: impl Future<Output = Result<(), service::Error>>,
    ) -> Result<(), Error> {
        let result = change.await;
        self.told.tell(&self.calls.service, connection, true).await;
        result.map_err(Error::from)
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
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let level = parse_level(&level)?;
            let action = (CONFIGURE, "change the vector level");
            authorize(&calls.budget, header, &caller, action).await?;
            self.change(connection, calls.service.set_level(level)).await
        };
        self.calls.run(connection, header, work).await
    }

    async fn set_execution_provider(
        &self,
        provider: String,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            check(&calls, "execution_provider", &provider)?;
            let action = (CONFIGURE, "change the execution provider");
            authorize(&calls.budget, header, &caller, action).await?;
            let change = calls.service.change("execution_provider", provider);
            self.change(connection, change).await
        };
        self.calls.run(connection, header, work).await
    }

    async fn set_devices(
        &self,
        devices: Vec<String>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let bytes = devices.iter().map(|device| device.len() + ",".len()).sum();
            fits("gpu_device", bytes)?;
            let devices = devices.join(",");
            check(&calls, "gpu_device", &devices)?;
            let action = (CONFIGURE, "change the devices");
            authorize(&calls.budget, header, &caller, action).await?;
            self.change(connection, calls.service.change("gpu_device", devices)).await
        };
        self.calls.run(connection, header, work).await
    }

    async fn reload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let action = (CONFIGURE, "reload the settings");
            authorize(&calls.budget, header, &caller, action).await?;
            self.change(connection, calls.service.reload()).await
        };
        self.calls.run(connection, header, work).await
    }

    async fn warm_up(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let action = (MANAGE_MEMORY, "load the model");
            authorize(&calls.budget, header, &caller, action).await?;
            self.change(connection, calls.service.warm_up()).await
        };
        self.calls.run(connection, header, work).await
    }

    async fn unload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Refusal> {
        let header = &header;
        let work = async move |calls: Calls, caller| {
            let action = (MANAGE_MEMORY, "unload the model");
            authorize(&calls.budget, header, &caller, action).await?;
            self.change(connection, calls.service.unload()).await
        };
        self.calls.run(connection, header, work).await
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

/// Nobody is asked for a password for what can't be done.
fn check(calls: &Calls, key: &str, value: &str) -> Result<(), Error> {
    fits(key, value.len())?;
    let changed = calls.service.now().loaded.with(key, value);
    changed.map(drop).map_err(|error| service::Error::from(error).into())
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
