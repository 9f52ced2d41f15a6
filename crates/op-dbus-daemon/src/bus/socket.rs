//! Our end of the connection to the bus, which ends a connection that sends a message beyond its limit.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::net::UnixStream;
use tokio::time::sleep;
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;
use zbus::connection::Builder;
use zbus::connection::socket::{ReadHalf, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::message::Type;
use zbus::{Address, Message};

use super::wire;
use crate::settings::Bus;

/// Descriptors of one message at most, by the kernel (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// An error of ours has a quarter of it; what has more quotes what was asked for. dbus-daemon takes 32 MiB, of a call
/// as of its reply.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// How soon a bus with no room for who wants in is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// A connection to `bus`, not made yet. Anything but a Unix socket is zbus's own: no system bus has another.
///
/// # Errors
/// The socket can't be connected to.
pub async fn builder(bus: &Bus) -> zbus::Result<Builder<'static>> {
    let Some(address) = bus.address() else { return Ok(bus.builder()) };
    let Some(socket) = socket_of(&address)? else { return Ok(bus.builder()) };
    match connect(socket).await {
        Ok(stream) => Ok(Builder::socket(Socket(Arc::new(stream)))),
        Err(error) => Err(zbus::Error::Connection(Arc::new(error), Box::new(address))),
    }
}

fn socket_of(address: &Address) -> io::Result<Option<SocketAddr>> {
    let Transport::Unix(unix) = address.transport() else { return Ok(None) };
    match unix.path() {
        UnixSocket::File(path) => SocketAddr::from_pathname(path).map(Some),
        UnixSocket::Abstract(name) => {
            SocketAddr::from_abstract_name(name.as_encoded_bytes()).map(Some)
        }
        _ => Ok(None),
    }
}

async fn connect(socket: SocketAddr) -> io::Result<UnixStream> {
    let socket = socket.into();
    loop {
        match UnixStream::connect_addr(&socket).await {
            // As many wait to be let in as the bus has room for.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(TRY_AGAIN).await,
            result => return result,
        }
    }
}

/// Both halves of it.
#[derive(Clone, Debug)]
struct Socket(Arc<UnixStream>);

impl zbus::connection::Socket for Socket {
    type ReadHalf = Self;
    type WriteHalf = Self;

    fn split(self) -> Split<Self, Self> {
        Split::new(self.clone(), self)
    }
}

#[async_trait]
impl ReadHalf for Socket {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        // A message without its descriptors, of which the service has too many open, is refused by who reads it.
        let received = wire::receive(&self.0, buffer, &mut space).await?;
        Ok((received.bytes, received.descriptors))
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

#[async_trait]
impl WriteHalf for Socket {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let short = shortened(message)?;
        Ok(wire::send(&self.0, short.as_ref().unwrap_or(message)).await?)
    }

    async fn sendmsg(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        wire::send_some(&self.0, bytes, descriptors).await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both)?)
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// The same error with the ends of its text, where it would be too long. zbus quotes a path that has no object, which
/// may be all of a call that just fits the bus.
fn shortened(message: &Message) -> zbus::Result<Option<Message>> {
    if message.message_type() != Type::Error || message.data().len() <= ERROR_BYTES_MAX {
        return Ok(None);
    }
    let (header, body) = (message.header(), message.body());
    let text: &str = body.deserialize().unwrap_or_default();
    let short = Error::new(ErrorName::Failed, text);
    let name =
        header.error_name().map_or("org.freedesktop.DBus.Error.Failed", |name| name.as_str());
    let mut reply = Message::error(&header, name).reply_serial(header.reply_serial());
    if let Some(caller) = header.destination() {
        reply = reply.destination(caller.to_owned());
    }
    reply.build(&short.message()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_quotes_no_more_than_the_bus_takes() {
        let call = Message::method_call("/a", "B").sender(":1.7").build(&()).unwrap();
        let refused = |text: &str| {
            let name = "org.freedesktop.DBus.Error.UnknownObject";
            Message::error(&call.header(), name).build(&text).unwrap()
        };
        assert!(shortened(&call).unwrap().is_none());
        assert!(shortened(&refused("no such object")).unwrap().is_none());
        let whole = refused(&format!("Unknown object '/{}'", "a".repeat(1 << 20)));
        let short = shortened(&whole).unwrap().unwrap();
        assert!(short.data().len() < ERROR_BYTES_MAX);
        let (is, was) = (short.header(), whole.header());
        assert_eq!(is.reply_serial(), was.reply_serial());
        assert_eq!(is.destination(), was.destination());
        assert_eq!(is.error_name(), was.error_name());
        let body = short.body();
        let text: &str = body.deserialize().unwrap();
        assert!(text.starts_with("Unknown object '/aaa") && text.ends_with("aaa'"), "{text}");
    }
}
