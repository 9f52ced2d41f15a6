//! Our end of the connection to the bus, which ends a connection that sends a message beyond its limit. What came with
//! a message is held here, and zbus has stubs.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
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

use super::descriptors::Descriptors;
use super::wire;
use crate::settings::Bus;

/// Descriptors of one message at most, by the kernel (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// What is read at once: some fifty small calls, which come together from clients that have many under way.
const READ_BYTES: usize = 16 << 10;
/// An error of ours has a quarter of it; what has more quotes what was asked for. dbus-daemon takes 32 MiB, of a call
/// as of its reply.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// How soon a bus with no room for who wants in is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// A connection to `bus`, not made yet. Anything but a Unix socket is zbus's own: no system bus has another.
///
/// # Errors
/// The socket can't be connected to.
pub async fn builder(bus: &Bus, descriptors: &Arc<Descriptors>) -> zbus::Result<Builder<'static>> {
    let Some(address) = bus.address() else { return Ok(bus.builder()) };
    let Some(socket) = socket_of(&address)? else { return Ok(bus.builder()) };
    match connect(socket).await {
        Ok(stream) => Ok(Builder::socket(Socket(stream, descriptors.clone()))),
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

/// Both halves of it, and what holds descriptors.
struct Socket(UnixStream, Arc<Descriptors>);

impl zbus::connection::Socket for Socket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let stream = Arc::new(self.0);
        Split::new(Reader::new(stream.clone(), self.1), Writer(stream))
    }
}

/// Reads what there is, and hands it on in the pieces that zbus asks for: a message takes two of them.
#[derive(Debug)]
struct Reader {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// Where in it lies what was read and not handed on.
    ahead: Range<usize>,
    /// What came with that, for the message of its last byte: the kernel reads no further than what descriptors were
    /// sent with, and a bus sends a message that has some by itself. Before it there may be others that have none.
    descriptors: Vec<OwnedFd>,
    /// What holds them.
    held: Arc<Descriptors>,
    /// For descriptors to come in.
    space: Box<[MaybeUninit<u8>]>,
}

impl Reader {
    fn new(stream: Arc<UnixStream>, held: Arc<Descriptors>) -> Self {
        let space = Box::new_uninit_slice(rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX)));
        let buffer = vec![0; READ_BYTES];
        Self { stream, buffer, ahead: 0..0, descriptors: Vec::new(), held, space }
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        // A message without its descriptors, of which the service has too many open, is refused by who reads it.
        if self.ahead.is_empty() && buffer.len() >= self.buffer.len() {
            // The rest of one message, and nothing behind it.
            let received = wire::receive(&self.stream, buffer, &mut self.space).await?;
            return Ok((received.bytes, self.held.hold(received.descriptors)));
        }
        if self.ahead.is_empty() {
            let received = wire::receive(&self.stream, &mut self.buffer, &mut self.space).await?;
            self.ahead = 0..received.bytes;
            self.descriptors = self.held.hold(received.descriptors);
        }
        let length = buffer.len().min(self.ahead.len());
        let end = self.ahead.start + length;
        buffer[..length].copy_from_slice(&self.buffer[self.ahead.start..end]);
        self.ahead.start = end;
        let is_last = self.ahead.is_empty();
        let descriptors = if is_last { mem::take(&mut self.descriptors) } else { Vec::new() };
        Ok((length, descriptors))
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// Sends messages one by one.
#[derive(Debug)]
struct Writer(Arc<UnixStream>);

#[async_trait]
impl WriteHalf for Writer {
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
mod tests;
