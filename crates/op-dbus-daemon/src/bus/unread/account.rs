//! What dbus-daemon says of a connection's accounts (`org.freedesktop.DBus.Debug.Stats`).

use std::collections::HashMap;

use zbus::{Connection, Variant};

use super::super::caller::BUS;
use super::DESCRIPTOR_BYTES;

/// Which of a connection's accounts is asked for.
pub enum Side {
    /// What it has sent and others have not taken.
    Sent,
    /// What it has not taken, from whomever.
    Received,
}

/// What dbus-daemon keeps of a connection or for it: bytes, or its descriptors where they count as more.
///
/// # Errors
/// The bus does not tell, or has no such connection.
pub async fn lying(connection: &Connection, side: Side, name: &str) -> zbus::Result<u64> {
    let (path, interface) = ("/org/freedesktop/DBus", "org.freedesktop.DBus.Debug.Stats");
    let reply =
        connection.call_method(Some(BUS), path, Some(interface), "GetConnectionStats", &name);
    let body = reply.await?.body();
    let stats: HashMap<&str, Variant<'_>> = body.deserialize()?;
    let (bytes, descriptors) = match side {
        Side::Sent => ("IncomingBytes", "IncomingFDs"),
        Side::Received => ("OutgoingBytes", "OutgoingFDs"),
    };
    let count = |name| match stats.get(name) {
        Some(Variant::U32(count)) => Some(u64::from(*count)),
        _ => None,
    };
    let bytes = count(bytes).ok_or(zbus::Error::MissingField)?;
    let descriptors = count(descriptors).unwrap_or_default();
    Ok(bytes.max(descriptors * DESCRIPTOR_BYTES))
}

/// The connection's own name on the bus.
pub fn own_name(connection: &Connection) -> String {
    connection.unique_name().map(ToString::to_string).unwrap_or_default()
}
