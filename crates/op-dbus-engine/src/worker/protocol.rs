//! The messages between engine and worker, and how they travel.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RegionShape;
use crate::backend::{BackendError, Description, LoadErrorKind};
use crate::usage::MemoryUse;

/// Engine and worker are the same program; this guards against an upgrade between the two starts.
pub(super) const VERSION: u32 = 8;

/// Bytes of the largest message.
pub(super) const MESSAGE_BYTES_MAX: usize = 8192;

/// Characters of an error's text in a message: even if JSON needs six bytes for each, it fits.
pub(super) const TEXT_CHARS_MAX: usize = 1024;

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// The first message; carries the shared memory.
    Hello { version: u32, shape: RegionShape },
    /// A batch lies in a slot of the shared memory. The next one may be asked for before this one is
    /// answered, in the other slot.
    Run { number: u64, slot: usize, rows: usize, tokens: usize },
    /// Memory is to be given back; numbered as batches are.
    Trim { number: u64 },
}

/// What a worker says: `Ready` or `Unloadable` once, then one answer to each `Run` and `Trim`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Ready {
        description: Description,
    },
    Unloadable {
        kind: LoadErrorKind,
        message: String,
    },
    Done {
        number: u64,
        /// The device that computed it, if that is another than before.
        device: Option<String>,
        memory: MemoryUse,
    },
    /// Bytes of the worker's own memory.
    Trimmed {
        number: u64,
        given_back: u64,
        resident: u64,
        memory: MemoryUse,
    },
    Failed {
        number: u64,
        failure: Failure,
        message: String,
    },
}

/// [`BackendError`] of a batch, without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Failure {
    Lost,
    OutOfMemory,
    Failed,
}

impl Answer {
    pub fn unloadable(error: &BackendError) -> Self {
        let kind = match error {
            BackendError::Load { kind, .. } => *kind,
            _ => LoadErrorKind::Other,
        };
        Self::Unloadable { kind, message: bounded(&error.to_string()) }
    }

    pub fn failed(number: u64, error: BackendError) -> Self {
        let (failure, message) = match error {
            BackendError::OutOfMemory(message) => (Failure::OutOfMemory, message),
            BackendError::Failed(message) => (Failure::Failed, message),
            BackendError::Lost(message)
            | BackendError::Killed(message)
            | BackendError::Load { message, .. } => (Failure::Lost, message),
        };
        Self::Failed { number, failure, message: bounded(&message) }
    }
}

impl Failure {
    pub fn error(self, message: String) -> BackendError {
        match self {
            Self::Lost => BackendError::Lost(message),
            Self::OutOfMemory => BackendError::OutOfMemory(message),
            Self::Failed => BackendError::Failed(message),
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Why a message could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("it closed its socket")]
    Closed,
    /// unix(7) sockets tell it from [`Closed`](Self::Closed), at the end that has sent something.
    #[error("it closed its socket with a message in it that it had not read")]
    Unread,
    #[error("it said nothing for {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    #[error("it sent a message of {0} bytes, the limit is {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    #[error("it sent a message that can't be read")]
    Garbage(#[source] serde_json::Error),
    #[error("its socket failed")]
    Socket(#[source] Errno),
}

/// Sends one message; never waits: one that does not fit means that the other end does not read.
pub(super) fn send_message(socket: impl AsFd, message: &impl Serialize) -> io::Result<()> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let length = write(message, &mut buffer)?;
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    retry(|| send(socket.as_fd().as_raw_fd(), &buffer[..length], flags))?;
    Ok(())
}

/// Writes a message and says how long it is; nothing is allocated, as this is done for each batch.
pub(super) fn write(
    message: &impl Serialize,
    buffer: &mut [u8; MESSAGE_BYTES_MAX],
) -> io::Result<usize> {
    let mut rest = &mut buffer[..];
    serde_json::to_writer(&mut rest, message)?;
    let left = rest.len();
    Ok(MESSAGE_BYTES_MAX - left)
}

/// Receives one message within `timeout`, or waits for ever.
pub(super) fn receive_message<M: DeserializeOwned>(
    socket: impl AsFd,
    timeout: Option<Duration>,
) -> Result<M, ReceiveError> {
    if let Some(timeout) = timeout {
        wait_readable(&socket, timeout)?;
    }
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    // With MSG_TRUNC the kernel says how long the message was, also if the buffer was too short.
    let mut receive = |flags| {
        retry(|| recv(socket.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC | flags))
    };
    let length = match receive(MsgFlags::empty()) {
        // Told before what the other end has said last.
        Err(Errno::ECONNRESET) => match receive(MsgFlags::MSG_DONTWAIT) {
            Ok(length) if length > 0 => length,
            _ => return Err(ReceiveError::Unread),
        },
        result => result.map_err(ReceiveError::Socket)?,
    };
    parse(&buffer, length)
}

/// Reads the message of `length` bytes that was received into `buffer`.
pub(super) fn parse<M: DeserializeOwned>(buffer: &[u8], length: usize) -> Result<M, ReceiveError> {
    match buffer.get(..length) {
        // The end of the stream; an empty message, which looks the same, is none of ours.
        Some([]) => Err(ReceiveError::Closed),
        Some(message) => serde_json::from_slice(message).map_err(ReceiveError::Garbage),
        None => Err(ReceiveError::TooLong(length)),
    }
}

fn wait_readable(socket: &impl AsFd, timeout: Duration) -> Result<(), ReceiveError> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        // Rounded up, so that the last millisecond is waited for and not spun through.
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, wait) {
            Ok(0) if left.is_zero() => return Err(ReceiveError::TimedOut(timeout)),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(ReceiveError::Socket(errno)),
        }
    }
}

/// Repeats a system call that a signal has interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_error_fits_a_message() {
        let error = BackendError::Failed("\u{1}".repeat(100_000));
        let answer = Answer::failed(u64::MAX, error);
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let length = write(&answer, &mut buffer).unwrap();
        assert_eq!(parse::<Answer>(&buffer, length).unwrap(), answer);
        assert!(write(&"x".repeat(MESSAGE_BYTES_MAX), &mut buffer).is_err());
    }
}
