//! Our end of a direct connection's socket: what comes is bounded before it is read, and a peer that
//! does not take its replies is left. On a bus the bus does both.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Unregistered;
use std::sync::Arc;
use std::time::Duration;

use nix::libc::{TIOCOUTQ, c_int};
use op_dbus_api::DIRECT_CALL_BYTES_MAX;
use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;
use zbus::Message;
use zbus::connection::socket::{ReadHalf, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::message::{Flags, Type};

use super::super::wire;
use super::gate::{Gate, UserRoom};
use super::setting::without_value;

/// What every message begins with.
const HEADER_BYTES: usize = 16;
/// Authentication takes some two hundred bytes. What comes behind it is read with it.
const BEFORE_MESSAGES_BYTES_MAX: usize = 16 << 10;
/// File descriptors of one call; no method takes more.
const DESCRIPTORS_MAX: usize = 1;
/// Behind so many bytes that a peer has not read, no reply with a descriptor is sent. As the kernel counts, one takes
/// 700 to 1,300, and it lets the service have as many unread of all its clients as the service may have open.
const UNREAD_BYTES_MAX: usize = 16 << 10;
/// How long a peer may take to read a reply, and to send a call that it has begun.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// The socket itself, which both halves share.
#[derive(Clone, Debug)]
pub struct Socket {
    stream: Arc<UnixStream>,
    gate: Arc<Gate>,
}

impl Socket {
    /// Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the runtime does not take it.
    pub fn new(stream: Unregistered, user: UserRoom) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = Arc::new(UnixStream::from_std(stream)?);
        Ok(Self { stream, gate: Arc::new(Gate::new(user)) })
    }

    /// What the calls under way hold.
    pub fn gate(&self) -> Arc<Gate> {
        self.gate.clone()
    }

    /// Returns once the peer has closed its end, also while nothing is read.
    pub async fn hung_up(&self) {
        // No urgent data exists on such a socket; what is left of this interest is the peer's end.
        let _ = self.stream.ready(Interest::PRIORITY).await;
    }

    /// Ends all reading and writing.
    pub fn shut_down(&self) {
        // An error says that it has ended.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }
}

impl zbus::connection::Socket for Socket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let incoming = Incoming {
            stream: self.stream.clone(),
            ahead: Vec::new(),
            descriptors: Vec::new(),
            received: 0,
            received_max: BEFORE_MESSAGES_BYTES_MAX,
            descriptors_seen: 0,
            line_ended: true,
        };
        Split::new(Reader { incoming, gate: self.gate.clone() }, Writer { socket: self })
    }
}

/// Reads calls, as long as there is room for them.
#[derive(Debug)]
pub struct Reader {
    incoming: Incoming,
    gate: Arc<Gate>,
}

/// Bytes and descriptors of one message at a time.
#[derive(Debug)]
struct Incoming {
    stream: Arc<UnixStream>,
    /// Read, but not handed on.
    ahead: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Bytes of the current message, of `received_max` that it may have.
    received: usize,
    received_max: usize,
    descriptors_seen: usize,
    /// Nothing of the next line of the authentication was handed on.
    line_ended: bool,
}

#[async_trait]
impl ReadHalf for Reader {
    /// The next call that wants a reply. Anything else that a peer may send would be work which
    /// nothing holds back, and is passed over.
    async fn receive_message(
        &mut self,
        number: u64,
        bytes: &mut Vec<u8>,
        descriptors: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        // What came with the end of the authentication.
        self.incoming.ahead.append(bytes);
        self.incoming.descriptors.append(descriptors);
        loop {
            let length = self.incoming.begin().await?;
            let room = self.gate.room(length, self.incoming.descriptors.len()).await?;
            let (mut none, mut nothing) = (Vec::new(), Vec::new());
            let rest = self.incoming.receive_message(number, &mut none, &mut nothing);
            // Half of it holds as much as all of it.
            let message = timeout(MESSAGE_TIME_MAX, rest).await;
            let message = message.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            let header = message.primary_header();
            if header.msg_type() == Type::MethodCall
                && !header.flags().contains(Flags::NO_REPLY_EXPECTED)
            {
                self.gate.enter(header.serial_num(), room)?;
                return without_value(message);
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

impl Incoming {
    /// Reads the start of the next message, and tells how long the whole of it is.
    async fn begin(&mut self) -> io::Result<usize> {
        (self.received, self.received_max) = (self.ahead.len(), usize::MAX);
        self.descriptors_seen = self.descriptors.len();
        while self.ahead.len() < HEADER_BYTES {
            let mut buffer = [0; HEADER_BYTES];
            let wanted = HEADER_BYTES - self.ahead.len();
            let (length, descriptors) = self.receive(&mut buffer[..wanted]).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.ahead.extend_from_slice(&buffer[..length]);
            self.descriptors.extend(descriptors);
        }
        let length = message_bytes(&self.ahead);
        if length > u64::from(DIRECT_CALL_BYTES_MAX) {
            return Err(invalid(format!(
                "a message has {length} bytes, the limit is {DIRECT_CALL_BYTES_MAX}"
            )));
        }
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// How many of the first `length` bytes read ahead are of the current line of the authentication. zbus panics
    /// where a line is empty, and gets one at a time.
    fn line(&mut self, length: usize) -> io::Result<usize> {
        let end = self.ahead[..length].iter().position(|byte| *byte == b'\n');
        if end == Some(0) && self.line_ended {
            return Err(invalid("a line of the authentication is empty".to_owned()));
        }
        self.line_ended = end.is_some();
        Ok(end.map_or(length, |end| end + 1))
    }

    /// Bytes from the socket itself.
    async fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let wire::Received { bytes: length, descriptors, is_cut } =
            wire::receive(&self.stream, buffer, &mut space).await?;
        self.received = self.received.saturating_add(length);
        self.descriptors_seen += descriptors.len();
        if self.received > self.received_max {
            return Err(invalid("there is no end to the authentication".to_owned()));
        }
        if is_cut || self.descriptors_seen > DESCRIPTORS_MAX {
            return Err(too_many_descriptors());
        }
        Ok((length, descriptors))
    }
}

#[async_trait]
impl ReadHalf for Incoming {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let authenticates = self.received_max == BEFORE_MESSAGES_BYTES_MAX;
        if self.ahead.is_empty() {
            let (length, descriptors) = self.receive(buffer).await?;
            if !authenticates {
                // Room was taken for those that came with the start of the message.
                return match descriptors.is_empty() {
                    true => Ok((length, descriptors)),
                    false => Err(invalid("a file descriptor comes late in its message".to_owned())),
                };
            }
            self.ahead.extend_from_slice(&buffer[..length]);
            self.descriptors.extend(descriptors);
        }
        let mut length = self.ahead.len().min(buffer.len());
        if authenticates {
            length = self.line(length)?;
        }
        buffer[..length].copy_from_slice(&self.ahead[..length]);
        self.ahead.drain(..length);
        Ok((length, std::mem::take(&mut self.descriptors)))
    }
}

/// Bytes of the message that begins with `header`.
fn message_bytes(header: &[u8]) -> u64 {
    let number = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let little = header[0] == b'l';
        u64::from(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let (body, fields) = (number(4), number(12));
    HEADER_BYTES as u64 + fields.next_multiple_of(8) + body
}

fn too_many_descriptors() -> io::Error {
    invalid(format!("a message has more than {DESCRIPTORS_MAX} file descriptor"))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sends replies, to who reads them.
#[derive(Debug)]
pub struct Writer {
    socket: Socket,
}

impl Writer {
    /// Waits until the peer has read almost all of what it has, or the connection ends.
    async fn little_is_unread(&self) -> io::Result<()> {
        let stream = &self.socket.stream;
        // Whatever the peer reads makes the socket writable anew.
        let look = || match unread(stream)? > UNREAD_BYTES_MAX {
            true => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            false => Ok(()),
        };
        loop {
            if stream.ready(Interest::WRITABLE).await?.is_write_closed() {
                return Ok(());
            }
            match stream.try_io(Interest::WRITABLE, look) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let result = async {
            if !message.data().fds().is_empty() {
                self.little_is_unread().await?;
            }
            wire::send(&self.socket.stream, message).await
        };
        let result = match timeout(MESSAGE_TIME_MAX, result).await {
            Ok(result) => result,
            Err(_) => {
                // Half a message may be out: nothing that follows would make sense.
                self.socket.shut_down();
                Err(io::ErrorKind::TimedOut.into())
            }
        };
        if let Some(serial) = message.header().reply_serial() {
            self.socket.gate.answered(serial);
        }
        Ok(result?)
    }

    async fn sendmsg(
        &mut self,
        buffer: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        wire::send_some(&self.socket.stream, buffer, descriptors).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.socket.shut_down();
        Ok(())
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// What was sent and not read by the peer, in bytes of the kernel's memory.
fn unread(stream: &UnixStream) -> io::Result<usize> {
    // SAFETY: the kernel writes an int, which is all that it does.
    let bytes = unsafe { ioctl(stream, Getter::<{ TIOCOUTQ as Opcode }, c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use futures_util::FutureExt;
    use zbus::OwnedFd as Sent;

    use super::*;

    #[tokio::test]
    async fn few_descriptors_are_left_unread() {
        let (ours, mut theirs) = Unregistered::pair().unwrap();
        let file = OwnedFd::from(theirs.try_clone().unwrap());
        let socket = Socket::new(ours, UserRoom::of(None)).unwrap();
        let stream = socket.stream.clone();
        let mut writer = Writer { socket };
        let message = Message::signal("/", "a.b", "c");
        let message = message.build(&Sent::from(file)).unwrap();
        stream.writable().await.unwrap();
        let sent = (0..).take_while(|_| writer.send_message(&message).now_or_never().is_some());
        let sent = sent.count();
        assert!((4..32).contains(&sent), "{sent}");
        // The next one is sent once the peer has read.
        let (result, ()) = tokio::join!(writer.send_message(&message), async {
            let mut read = vec![0; sent * message.data().len()];
            theirs.read_exact(&mut read).unwrap();
        });
        result.unwrap();
        while writer.send_message(&message).now_or_never().is_some() {}
        writer.socket.shut_down();
        writer.send_message(&message).await.unwrap_err();
    }
}
