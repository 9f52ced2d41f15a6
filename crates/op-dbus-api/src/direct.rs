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
/// many are open; `NoSpace` where the service has no file descriptor or thread for it; `ShuttingDown`;
/// `InvalidArgument` where `embedder` is on a direct connection itself; else what stands in the way of
/// the socket.
pub async fn direct(embedder: &EmbedderProxy<'_>) -> zbus::Result<Connection> {
    let socket = OwnedFd::from(embedder.open_direct().await?);
    let builder = Builder::unix_stream(UnixStream::from(socket)).p2p();
    let builder = match embedder.inner().connection().method_timeout() {
        Some(time) => builder.method_timeout(time),
        None => builder,
    };
    builder.build().await
}

/// [`direct`] for programs without an event loop: a connection for [`EmbedderProxyBlocking::new`].
///
/// # Errors
/// As [`direct`].
pub fn direct_blocking(embedder: &EmbedderProxyBlocking) -> zbus::Result<Connection> {
    zbus::block_on(direct(embedder.proxy()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use zbus::{Guid, interface};

    use super::*;
    use crate::ROOT_PATH;

    /// Opens one connection.
    struct Opener(Mutex<Option<UnixStream>>);

    #[interface(name = "org.opdbus.Embedding1.Embedder")]
    impl Opener {
        fn open_direct(&self) -> zbus::OwnedFd {
            OwnedFd::from(self.0.lock().unwrap().take().unwrap()).into()
        }
    }

    #[tokio::test]
    async fn a_call_waits_no_longer_than_on_the_bus() {
        const TIME: Duration = Duration::from_secs(300);
        let (near, far) = UnixStream::pair().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let service = |socket| Builder::unix_stream(socket).server(Guid::generate()).p2p();
        let opener = Opener(Mutex::new(Some(theirs)));
        let bus = Builder::unix_stream(near).p2p().method_timeout(TIME);
        let (_service, bus) =
            tokio::try_join!(service(far).serve_at(ROOT_PATH, opener).build(), bus.build())
                .unwrap();
        let embedder = EmbedderProxy::new(&bus).await.unwrap();
        let (line, _other_end) =
            tokio::try_join!(direct(&embedder), service(ours).build()).unwrap();
        assert_eq!(line.method_timeout(), Some(TIME));
    }
}
