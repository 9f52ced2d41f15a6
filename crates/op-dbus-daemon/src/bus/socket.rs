//! Our end of the connection to the bus, which ends a connection that sends a message beyond its limit. What came with
//! a message is held here, and zbus has stubs; a call that brings too much is refused here.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::warn;
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;
use zbus::connection::Builder;
use zbus::connection::socket::{ReadHalf, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::message::{Flags, Type};
use zbus::{Address, DBusError, Message};

use super::calls::Calls;
use super::descriptors::{Arrived, Descriptors};
use super::wire;
use crate::service::Service;
use crate::settings::Bus;

/// Descriptors of one message at most, by the kernel (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// As many as dbus-daemon lets through with one message on a system bus (`max_message_unix_fds`).
const SPARE: usize = 16;
const LOST: &str = "the service can't take the file descriptors of the call, as it has no room for more or may not have \
                    these; try again later, or send the texts in the call";
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
pub async fn builder(bus: &Bus, calls: &Calls) -> zbus::Result<Builder<'static>> {
    let Some(address) = bus.address() else { return Ok(bus.builder()) };
    let Some(socket) = socket_of(&address)? else { return Ok(bus.builder()) };
    match connect(socket).await {
        Ok(stream) => {
            let (held, service) = (calls.descriptors.clone(), calls.service.clone());
            Ok(Builder::socket(Socket { stream, held, service }))
        }
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
struct Socket {
    stream: UnixStream,
    /// What holds descriptors.
    held: Arc<Descriptors>,
    /// Counts what is refused.
    service: Service,
}

impl zbus::connection::Socket for Socket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let line = Arc::new(Line { stream: self.stream, turn: Mutex::default() });
        let incoming = Incoming::new(line.clone(), self.held);
        Split::new(Reader { incoming, service: self.service }, Writer(line))
    }
}

/// The socket itself, on which one message is sent at a time.
#[derive(Debug)]
struct Line {
    stream: UnixStream,
    turn: Mutex<()>,
}

impl Line {
    async fn send(&self, message: &Message) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        wire::send(&self.stream, message).await
    }
}

/// Reads messages, and refuses calls that bring more descriptors than there may be.
struct Reader {
    incoming: Incoming,
    service: Service,
}

impl fmt::Debug for Reader {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Reader").field("incoming", &self.incoming).finish_non_exhaustive()
    }
}

impl Reader {
    /// Answers a call that nobody is to have.
    fn refuse(&self, message: &Message, error: &Error) {
        let header = message.header();
        match header.message_type() {
            Type::MethodCall => {}
            Type::Signal => return,
            // What was asked has no answer then, and only the service itself has asked.
            _ => return warn!("an answer to the service is lost: {error}"),
        }
        if header.primary().flags().contains(Flags::NO_REPLY_EXPECTED) {
            return;
        }
        self.service.call_failed(error.name());
        let Ok(reply) = error.create_reply(&header) else { return };
        let line = self.incoming.line.clone();
        // What comes meanwhile is read, however long it takes.
        tokio::spawn(async move { line.send(&reply).await.ok() });
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn receive_message(
        &mut self,
        number: u64,
        bytes: &mut Vec<u8>,
        descriptors: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        loop {
            self.incoming.provide();
            let message = self.incoming.receive_message(number, bytes, descriptors).await?;
            if message.data().fds().is_empty() {
                return Ok(message);
            }
            match self.incoming.keep(&message) {
                Ok(()) => return Ok(message),
                Err(error) => self.refuse(&message, &error),
            }
        }
    }

    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.incoming.recvmsg(buffer).await
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// Reads what there is, and hands it on in the pieces that zbus asks for: a message takes two of them.
#[derive(Debug)]
struct Incoming {
    line: Arc<Line>,
    buffer: Vec<u8>,
    /// Where in it lies what was read and not handed on.
    ahead: Range<usize>,
    /// Stubs of what came with that, for the message of its last byte: the kernel reads no further than what descriptors
    /// were sent with, and a bus sends a message that has some by itself. Before it there may be others that have none.
    stubs: Vec<OwnedFd>,
    /// What stubs stand for, of each message that has some and is not whole yet: of the end of one, and of the next one,
    /// which was read with it.
    /// `None` is of one whose descriptors are lost: the service may have no more, or not one of these, as security
    /// modules may forbid it.
    came: VecDeque<Option<Arrived>>,
    /// What holds it.
    held: Arc<Descriptors>,
    /// For a message whose descriptors are lost: zbus makes none without. Nobody gets it, or them.
    spare: Vec<OwnedFd>,
    /// For descriptors to come in.
    space: Box<[MaybeUninit<u8>]>,
}

impl Incoming {
    fn new(line: Arc<Line>, held: Arc<Descriptors>) -> Self {
        let space = Box::new_uninit_slice(rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX)));
        let (buffer, came) = (vec![0; READ_BYTES], VecDeque::new());
        let (stubs, spare) = (Vec::new(), Vec::new());
        Self { line, buffer, ahead: 0..0, stubs, came, held, spare, space }
    }

    /// Has stubs for what came, if anything did.
    fn stand_in(&mut self, descriptors: Vec<OwnedFd>, is_cut: bool) {
        if descriptors.is_empty() && !is_cut {
            return;
        }
        let whole = match is_cut {
            false => self.held.hold(descriptors),
            true => {
                self.held.close(descriptors);
                None
            }
        };
        let came = match whole {
            Some((stubs, arrived)) => {
                self.stubs = stubs;
                Some(arrived)
            }
            None => {
                self.stubs = self.spare.split_off(self.spare.len().saturating_sub(SPARE));
                None
            }
        };
        self.came.push_back(came);
    }

    /// Keeps what came with a message that is whole.
    ///
    /// # Errors
    /// `NoSpace`; those of [`Descriptors::keep`].
    fn keep(&mut self, message: &Message) -> Result<(), Error> {
        match self.came.pop_front() {
            Some(Some(arrived)) => {
                let header = message.header();
                // What the service has asked for is its own.
                let is_asked = matches!(header.message_type(), Type::MethodReturn | Type::Error);
                let sender = header.sender().filter(|_| !is_asked);
                self.held.keep(arrived, sender.map(|sender| sender.as_str()))
            }
            Some(None) => Err(Error::new(ErrorName::NoSpace, LOST)),
            None => Ok(()),
        }
    }

    /// Sees to it that there are spare ones, where there may be: those of the end of one message and of the next, which
    /// are read together, may both be lost.
    fn provide(&mut self) {
        while self.spare.len() < 2 * SPARE {
            let Ok(spare) = self.line.stream.as_fd().try_clone_to_owned() else { return };
            self.spare.push(spare);
        }
    }
}

#[async_trait]
impl ReadHalf for Incoming {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        if self.ahead.is_empty() && buffer.len() >= self.buffer.len() {
            // The rest of one message, and nothing behind it.
            let received = wire::receive(&self.line.stream, buffer, &mut self.space).await?;
            self.stand_in(received.descriptors, received.is_cut);
            return Ok((received.bytes, mem::take(&mut self.stubs)));
        }
        if self.ahead.is_empty() {
            let stream = &self.line.stream;
            let received = wire::receive(stream, &mut self.buffer, &mut self.space).await?;
            self.ahead = 0..received.bytes;
            self.stand_in(received.descriptors, received.is_cut);
        }
        let length = buffer.len().min(self.ahead.len());
        let end = self.ahead.start + length;
        buffer[..length].copy_from_slice(&self.buffer[self.ahead.start..end]);
        self.ahead.start = end;
        let is_last = self.ahead.is_empty();
        let stubs = if is_last { mem::take(&mut self.stubs) } else { Vec::new() };
        Ok((length, stubs))
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// Sends messages one by one.
#[derive(Debug)]
struct Writer(Arc<Line>);

#[async_trait]
impl WriteHalf for Writer {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let short = shortened(message)?;
        Ok(self.0.send(short.as_ref().unwrap_or(message)).await?)
    }

    async fn sendmsg(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        wire::send_some(&self.0.stream, bytes, descriptors).await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.0.stream, rustix::net::Shutdown::Both)?)
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
