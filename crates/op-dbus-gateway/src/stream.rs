//! A connection's socket. It can be watched for its client's leaving while somebody else reads from it.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The socket; clones are the same one.
#[derive(Clone)]
pub struct Stream(Arc<Socket>);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What both kinds do by the same name.
macro_rules! of_either {
    ($stream:expr, $socket:ident => $does:expr) => {
        match &*$stream.0 {
            Socket::Tcp($socket) => $does,
            Socket::Unix($socket) => $does,
        }
    };
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self(Arc::new(Socket::Tcp(socket)))
    }
}

impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Self {
        Self(Arc::new(Socket::Unix(socket)))
    }
}

impl Stream {
    /// Returns when the client has closed its connection, or its sending side. hyper looks for neither while
    /// it waits for a reply.
    pub async fn left(&self) {
        // There is no interest in that alone: this one is also in urgent bytes, which tokio never asks
        // the system for, and not in others, which may lie there unread.
        let _ = of_either!(self, socket => socket.ready(Interest::PRIORITY).await);
    }

    /// Writes by `write` when there is room.
    fn poll_when_writable(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&Self) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(of_either!(self, socket => socket.poll_write_ready(context)))?;
            match write(self) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(of_either!(self, socket => socket.poll_read_ready(context)))?;
            match of_either!(self, socket => socket.try_read_buf(into)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = |stream: &Self| of_either!(stream, socket => socket.try_write(bytes));
        self.poll_when_writable(context, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |stream: &Self| of_either!(stream, socket => socket.try_write_vectored(pieces));
        self.poll_when_writable(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = of_either!(self, socket => shutdown(socket.as_fd(), Shutdown::Write));
        Poll::Ready(ended.map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_is_seen_to_leave_behind_bytes_that_nobody_has_read() {
        let (unix, far_unix) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far_tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let tcp = Stream::from(listener.accept().await.unwrap().0);
        seen_to_leave(tcp, far_tcp).await;
        seen_to_leave(unix.into(), far_unix).await;
    }

    async fn seen_to_leave(near: Stream, mut far: impl AsyncWrite + Unpin) {
        far.write_all(b"unread").await.unwrap();
        of_either!(near, socket => socket.readable().await).unwrap();
        assert!(near.left().now_or_never().is_none(), "it is still there");
        far.shutdown().await.unwrap();
        near.left().await;
    }
}
