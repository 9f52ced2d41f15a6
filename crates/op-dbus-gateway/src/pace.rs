//! Replies whose clients have to take them in time: each holds memory, and may hold a place for work.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_io_timeout::TimeoutStream;
use tracing::info;

/// How fast a reply has to be taken.
#[derive(Clone, Copy)]
pub struct Pace {
    /// How long its client may read nothing, and how long it has for a reply without any bytes.
    pub time: Duration,
    /// Bytes of it for which there is one second more.
    pub bytes_per_s: u64,
}

/// A connection that ends when its client does not keep the pace.
pub struct Paced<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    pace: Pace,
    /// The reply that is on its way.
    reply: Option<Reply>,
}

struct Reply {
    began: Instant,
    /// Bytes that the client's system has taken.
    taken: u64,
    /// How long it may take none, as from the last.
    patience: Duration,
}

impl<S: AsyncRead + AsyncWrite> Paced<S> {
    /// The connection `stream`.
    pub fn new(stream: S, pace: Pace) -> Self {
        let mut stream = Box::pin(TimeoutStream::new(stream));
        stream.as_mut().set_write_timeout_pinned(Some(pace.time));
        Self { stream, pace, reply: None }
    }

    /// What was written, of which this keeps account.
    fn written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Pace { time, bytes_per_s } = self.pace;
        let new = || Reply { began: Instant::now(), taken: 0, patience: time };
        let reply = self.reply.get_or_insert_with(new);
        match &written {
            Poll::Ready(Ok(bytes)) => {
                reply.taken += *bytes as u64;
                let earned = Duration::from_secs_f64(reply.taken as f64 / bytes_per_s as f64);
                let left = (time + earned).saturating_sub(reply.began.elapsed());
                reply.patience = left.min(time);
                self.stream.as_mut().set_write_timeout_pinned(Some(reply.patience));
            }
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::TimedOut => {
                let why = reply.too_slow(self.pace);
                info!("a reply was broken off: {why}");
                return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, why)));
            }
            _ => {}
        }
        written
    }
}

impl Reply {
    fn too_slow(&self, pace: Pace) -> String {
        let time = pace.time.as_secs();
        if self.patience == pace.time {
            // The system takes more only once a good part of what it has is read.
            return format!(
                "for {time} s its client has read nothing of it, or too little for more to be sent"
            );
        }
        let (taken, took) = (self.taken, self.began.elapsed().as_secs());
        let rate = pace.bytes_per_s;
        format!(
            "its client has taken {taken} bytes of it in {took} s; each {rate} bytes may take 1 s, and \
             all of it {time} s more"
        )
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.as_mut().poll_write(context, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.as_mut().poll_write_vectored(context, pieces);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper asks for it when it has written all of a reply.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reply.take().is_some() {
            let time = self.pace.time;
            self.stream.as_mut().set_write_timeout_pinned(Some(time));
        }
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, duplex, sink};

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn a_client_that_does_not_read_is_let_go() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Paced::new(ours, Pace { time: SHORT, bytes_per_s: 1 });
        let error = ours.write_all(b"eight of").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("its client has read nothing of it"), "{error}");
        drop(ours);
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"eigh", "the connection is closed");
    }

    #[tokio::test]
    async fn a_client_that_reads_too_slowly_is_let_go_and_told_from_one_that_does_not_read() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Paced::new(ours, Pace { time: SHORT, bytes_per_s: u64::MAX });
        let endless = async {
            loop {
                if let Err(error) = ours.write_all(b"more of it").await {
                    return error;
                }
            }
        };
        let mut nowhere = sink();
        let error = tokio::select! {
            error = endless => error,
            _ = copy(&mut theirs, &mut nowhere) => panic!("it does not end by itself"),
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("its client has taken "), "{error}");
    }

    #[tokio::test]
    async fn each_reply_has_its_own_time_and_more_where_it_is_long() {
        let (ours, mut theirs) = duplex(4);
        let pace = Pace { time: Duration::from_secs(3600), bytes_per_s: 1 };
        let mut ours = Paced::new(ours, pace);
        ours.write_all(b"four").await.unwrap();
        let reply = ours.reply.as_ref().expect("a reply");
        assert_eq!((reply.taken, reply.patience), (4, pace.time));
        ours.flush().await.unwrap();
        assert!(ours.reply.is_none());
        theirs.read_exact(&mut [0; 4]).await.unwrap();
        ours.write_all(b"more").await.unwrap();
        assert_eq!(ours.reply.as_ref().expect("another reply").taken, 4);
    }
}
