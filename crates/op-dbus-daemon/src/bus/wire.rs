//! Messages and their descriptors on a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::coop::consume_budget;
use zbus::Message;

/// Descriptors of one of our messages; no reply has more.
const DESCRIPTORS_MAX: usize = 1;

/// What one system call brings.
pub struct Received {
    pub bytes: usize,
    pub descriptors: Vec<OwnedFd>,
    /// More descriptors came than there was room for, or than the service may have open.
    pub is_cut: bool,
}

impl Received {
    /// Whether nothing was left behind it, with room for so many bytes. The kernel stops behind descriptors, those
    /// that were lost as well, whatever follows.
    fn is_all(&self, room: usize) -> bool {
        (1..room).contains(&self.bytes) && self.descriptors.is_empty() && !self.is_cut
    }
}

/// Waits until something comes, and takes it; `space` is for its descriptors.
///
/// # Errors
/// Those of `recvmsg`(2).
pub async fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Received> {
    loop {
        stream.readable().await?;
        // A peer that always has more does not keep the thread: as `async_io` would.
        consume_budget().await;
        let mut all = None;
        let result = stream.try_io(Interest::READABLE, || {
            let received = receive_once(stream, buffer, space)?;
            if !received.is_all(buffer.len()) {
                return Ok(received);
            }
            // No other call has to find out: Tokio then waits until more comes, as its own reading does.
            all = Some(received);
            Err(io::ErrorKind::WouldBlock.into())
        });
        match (all, result) {
            (Some(received), _) => return Ok(received),
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            (None, result) => return result,
        }
    }
}

fn receive_once(
    stream: &UnixStream,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Received> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, descriptors, is_cut })
}

/// Sends all of a message; its descriptors go with its first bytes.
///
/// # Errors
/// Those of [`send_some`]; part of it may be out then.
pub async fn send(stream: &UnixStream, message: &Message) -> io::Result<()> {
    let (bytes, mut sent) = (message.data(), 0);
    while sent < bytes.len() {
        let descriptors: Vec<BorrowedFd<'_>> = match sent {
            0 => bytes.fds().iter().map(AsFd::as_fd).collect(),
            _ => Vec::new(),
        };
        sent += send_some(stream, &bytes[sent..], &descriptors).await?;
    }
    Ok(())
}

/// Waits until there is room, and tells how many bytes it took.
///
/// # Errors
/// Those of `sendmsg`(2), and more than one descriptor.
pub async fn send_some(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    stream.async_io(Interest::WRITABLE, || send_once(stream, bytes, descriptors)).await
}

fn send_once(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, flags)?)
}

#[cfg(test)]
mod tests {
    use std::io::pipe;

    use futures_util::FutureExt;

    use super::*;

    /// They are where the service may have no more of them.
    #[tokio::test]
    async fn what_waits_behind_lost_descriptors_is_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (sent, _) = pipe().unwrap();
        send_some(&theirs, b"first", &[sent.as_fd()]).await.unwrap();
        send_some(&theirs, b"second", &[]).await.unwrap();
        let mut buffer = [0; 64];
        let first = receive(&ours, &mut buffer, &mut []).await.unwrap();
        assert!(first.bytes == 5 && first.is_cut && first.descriptors.is_empty());
        let second = receive(&ours, &mut buffer, &mut []).now_or_never();
        assert_eq!(second.expect("it is there").unwrap().bytes, 6);
        assert!(ours.readable().now_or_never().is_none(), "it is known that nothing is left");
    }
}
