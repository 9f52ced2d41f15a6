//! The standard interfaces of a job's object. Those of the bus library answer everybody.

use std::collections::HashMap;

use zbus::message::Header;
use zbus::object_server::{Interface, SignalEmitter};
use zbus::{Connection, OwnedVariant, fdo, interface};

use super::super::options::Value;
use super::job::Handle;
use super::tree::{document, own, properties, xml};

impl Handle {
    /// The job, for whom it is there.
    async fn seen(&self, connection: &Connection, header: &Header<'_>) -> fdo::Result<&Self> {
        let uid = own(&self.calls, connection, header).await?;
        match self.job.is_of(uid) {
            true => Ok(self),
            false => Err(fdo::Error::UnknownObject(self.job.unknown())),
        }
    }
}

/// `org.freedesktop.DBus.Properties`
pub struct Properties(pub Handle);

impl Properties {
    /// All properties, for whom the job is there.
    async fn all(
        &self,
        interface: &str,
        connection: &Connection,
        header: &Header<'_>,
    ) -> fdo::Result<HashMap<String, OwnedVariant>> {
        let handle = self.0.seen(connection, header).await?;
        if interface != Handle::name().as_str() {
            let message = format!("Unknown interface '{interface}'");
            return Err(fdo::Error::UnknownInterface(message));
        }
        let all = properties(handle, connection).await?;
        // It may be over by now, which is no state.
        self.0.seen(connection, header).await.map(|_| all)
    }
}

#[interface(name = "org.freedesktop.DBus.Properties", introspection_docs = false)]
impl Properties {
    #[zbus(out_args("value"))]
    async fn get(
        &self,
        interface_name: &str,
        property_name: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<OwnedVariant> {
        let mut all = self.all(interface_name, connection, &header).await?;
        let unknown = || fdo::Error::UnknownProperty(format!("Unknown property '{property_name}'"));
        all.remove(property_name).ok_or_else(unknown)
    }

    #[zbus(out_args("properties"))]
    async fn get_all(
        &self,
        interface_name: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<HashMap<String, OwnedVariant>> {
        self.all(interface_name, connection, &header).await
    }

    #[expect(clippy::too_many_arguments, reason = "the bus's three, and two of zbus's own")]
    async fn set(
        &self,
        interface_name: &str,
        property_name: &str,
        _value: Value<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<()> {
        self.all(interface_name, connection, &header).await?;
        Err(fdo::Error::PropertyReadOnly(format!("Property '{property_name}' is read-only")))
    }

    #[zbus(signal)]
    pub async fn properties_changed(
        emitter: &SignalEmitter<'_>,
        interface_name: &str,
        changed_properties: HashMap<&str, &OwnedVariant>,
        invalidated_properties: &[&str],
    ) -> zbus::Result<()>;
}

/// `org.freedesktop.DBus.Introspectable`
pub struct Introspectable(pub Handle);

#[interface(name = "org.freedesktop.DBus.Introspectable", introspection_docs = false)]
impl Introspectable {
    #[zbus(out_args("xml_data"))]
    async fn introspect(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<String> {
        let handle = self.0.seen(connection, &header).await?;
        let properties = Properties(handle.clone());
        Ok(document(&(xml(self) + &xml(&properties) + &xml(handle)), &[]))
    }
}
