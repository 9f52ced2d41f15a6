//! A connection to the service that no bus is in between.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use zbus::Connection;
use zbus::connection::Builder;

use crate::{EmbedderProxy, EmbedderProxyBlocking};

/// Opens a direct connection, for `embedder` on a bus: the same interface, in the name of the same user
/// and of the same client, whose calls no bus forwards.
///
/// It ends when either end closes it, when `embedder`'s own connection leaves the bus, and with the
/// service. A message on it has at most
/// [`DIRECT_CALL_BYTES_MAX`](crate::DIRECT_CALL_BYTES_MAX), and it has the object and the interface of
/// [`EmbedderProxy`] alone.
///
/// ```no_run
/// # async fn example() -> zbus::Result<()> {
/// use op_dbus_api::EmbedderProxy;
///
/// let bus = zbus::Connection::system().await?;
/// let line = op_dbus_api::direct(&EmbedderProxy::new(&bus).await?).await?;
/// let vector = EmbedderProxy::new(&line).await?.embed("disk full").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `UnknownMethod` from a service that is older than this; `QuotaExceeded` and `Overloaded` where too
/// many are open; else what stands in the way of the socket.
pub async fn direct(embedder: &EmbedderProxy<'_>) -> zbus::Result<Connection> {
    let socket = OwnedFd::from(embedder.open_direct().await?);
    Builder::unix_stream(UnixStream::from(socket)).p2p().build().await
}

/// [`direct`] for programs without an event loop: a connection for [`EmbedderProxyBlocking::new`].
///
/// # Errors
/// As [`direct`].
pub fn direct_blocking(embedder: &EmbedderProxyBlocking) -> zbus::Result<Connection> {
    zbus::block_on(direct(embedder.proxy()))
}
