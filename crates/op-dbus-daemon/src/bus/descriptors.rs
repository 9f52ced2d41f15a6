//! File descriptors that came over the bus, in whose place zbus has stubs. The close of the last copy of one takes as
//! long as who sent it likes, as where a socket lingers, or a pipe's writer stands still. zbus closes what a message
//! brought where it lets go of that: on the threads that serve everybody. A stub closes at once.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::fcntl::OFlag;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

/// Threads that may hang while they close what others sent. Behind them what is to be closed waits, and stays open.
const THREADS_MAX: usize = 64;

/// What is held until its stub is gone or somebody takes it.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// By the pipe that the stub is an end of.
    held: Mutex<HashMap<Pipe, OwnedFd>>,
    closing: Arc<Mutex<Closing>>,
}

/// Device and inode, which no two pipes have at a time.
type Pipe = (u64, u64);

/// What waits to be closed, and the threads that do it.
#[derive(Debug, Default)]
struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Whether the journal has that there are no more.
    is_told: bool,
}

impl Descriptors {
    /// Stubs of what came with one message, as many. No method takes more than one descriptor, so that none of several
    /// is held. Where the service may have no more open there are none, and who reads the message refuses it. Has to be
    /// called within a Tokio runtime.
    pub fn hold(self: &Arc<Self>, mut came: Vec<OwnedFd>) -> Vec<OwnedFd> {
        if came.is_empty() {
            return came;
        }
        let Ok((pipe, ours, stubs)) = stubs(came.len()) else {
            self.close(came);
            return Vec::new();
        };
        let alone = if came.len() == 1 { came.pop() } else { None };
        if let Some(alone) = alone {
            held(&self.held).insert(pipe, alone);
            let all = Arc::clone(self);
            tokio::spawn(async move {
                // Nobody writes into it: it is readable once all ends for that are closed.
                let _gone = ours.readable().await;
                let left = held(&all.held).remove(&pipe);
                all.close(left);
            });
        }
        self.close(came);
        stubs
    }

    /// What came in the place of this stub; itself, if nothing did.
    pub fn take(&self, stub: OwnedFd) -> OwnedFd {
        let came = identity(&stub).ok().and_then(|pipe| held(&self.held).remove(&pipe));
        came.unwrap_or(stub)
    }

    /// Closes them on threads that nobody waits for.
    fn close(&self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        let mut closing = held(&self.closing);
        closing.waiting.extend(descriptors);
        if closing.waiting.is_empty() || closing.threads == THREADS_MAX {
            return;
        }
        closing.threads += 1;
        if closing.threads == THREADS_MAX && !closing.is_told {
            closing.is_told = true;
            warn!(
                "{THREADS_MAX} descriptors that callers have sent hang while they are closed; what else is to be closed \
                 stays open until one of them is"
            );
        }
        let all = Arc::clone(&self.closing);
        let work = move || {
            loop {
                let mut closing = held(&all);
                let Some(next) = closing.waiting.pop_front() else {
                    closing.threads -= 1;
                    return;
                };
                drop(closing);
                close(next);
            }
        };
        if thread::Builder::new().name("close".to_owned()).spawn(work).is_err() {
            // The next one to be closed has the thread that there is none for now.
            closing.threads -= 1;
        }
    }
}

/// Closes what may hang, on a thread that nobody waits for. No socket lingers: the bus has it as well, may be the last to
/// close it, and would hang then. No method takes one, so nobody misses that.
pub fn close(descriptor: OwnedFd) {
    // What is no socket does not linger.
    setsockopt(&descriptor, sockopt::Linger, &linger { l_onoff: 0, l_linger: 0 }).ok();
    drop(descriptor);
}

/// Ends of a new pipe for so many descriptors, which pipe it is, and its other end.
fn stubs(count: usize) -> io::Result<(Pipe, AsyncFd<OwnedFd>, Vec<OwnedFd>)> {
    let (ours, first) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let pipe = identity(&first)?;
    let more = (1..count).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
    // SAFETY: an `OwnedFd` is the same open file until it is dropped, and the `AsyncFd`, which owns it, is the only
    // one that can drop it.
    let ours = unsafe { AsyncFd::register_with_interest(ours, Interest::READABLE)? };
    Ok((pipe, ours, more.into_iter().chain([first]).collect()))
}

fn identity(fd: impl AsFd) -> io::Result<Pipe> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    use super::*;

    /// The end for writing of a pipe, and one for reading.
    fn pipe() -> (OwnedFd, io::PipeReader) {
        let (theirs, sent) = io::pipe().unwrap();
        (sent.into(), theirs)
    }

    /// Waits until all ends for writing are closed.
    async fn is_closed(mut reader: io::PipeReader) -> Vec<u8> {
        let read = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap().unwrap()
    }

    #[tokio::test]
    async fn what_was_sent_is_taken_by_its_stub_or_closed_with_it() {
        let descriptors = Arc::<Descriptors>::default();
        let (sent, reader) = pipe();
        let stubs = descriptors.hold(vec![sent]);
        let copy = stubs[0].try_clone().unwrap();
        drop(stubs);
        let mut taken = io::PipeWriter::from(descriptors.take(copy));
        taken.write_all(b"sent").unwrap();
        drop(taken);
        assert_eq!(is_closed(reader).await, b"sent");
        let (sent, reader) = pipe();
        drop(descriptors.hold(vec![sent]));
        assert_eq!(is_closed(reader).await, b"");
        assert!(held(&descriptors.held).is_empty());
    }

    /// A socket whose last holder waits in `close` for a peer that never reads, on its way in another one: of which nobody
    /// can change that.
    pub fn clogged() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        setsockopt(&socket, sockopt::Linger, &linger { l_onoff: 1, l_linger: 3600 }).unwrap();
        let (outer, other) = UnixStream::pair().unwrap();
        let inner = [socket.as_raw_fd()];
        let with = [ControlMessage::ScmRights(&inner)];
        let flags = MsgFlags::empty();
        sendmsg::<()>(other.as_raw_fd(), &[IoSlice::new(b"x")], &with, flags, None).unwrap();
        (outer.into(), peer)
    }

    /// Else this hangs for an hour.
    #[tokio::test]
    async fn what_hangs_when_it_is_closed_does_so_elsewhere() {
        let descriptors = Arc::<Descriptors>::default();
        let mut peers = Vec::new();
        for _ in 0..4 {
            let (outer, peer) = clogged();
            drop(descriptors.hold(vec![outer]));
            peers.push(peer);
            let ((first, one), (second, other)) = (clogged(), clogged());
            drop(descriptors.hold(vec![first, second]));
            peers.extend([one, other]);
        }
        while !held(&descriptors.held).is_empty() {
            tokio::task::yield_now().await;
        }
        let (sent, reader) = pipe();
        drop(descriptors.hold(vec![sent]));
        assert_eq!(is_closed(reader).await, b"");
        drop(peers);
    }

    #[tokio::test]
    async fn of_several_there_are_stubs_alone() {
        let descriptors = Arc::<Descriptors>::default();
        let (first, reader) = pipe();
        let (second, other) = pipe();
        let stubs = descriptors.hold(vec![first, second]);
        assert_eq!((stubs.len(), descriptors.hold(Vec::new()).len()), (2, 0));
        assert_eq!((is_closed(reader).await, is_closed(other).await), (Vec::new(), Vec::new()));
        let before = identity(&stubs[0]).unwrap();
        let stub = descriptors.take(stubs.into_iter().next().unwrap());
        assert_eq!(identity(&stub).unwrap(), before, "nothing was held for it");
    }
}
