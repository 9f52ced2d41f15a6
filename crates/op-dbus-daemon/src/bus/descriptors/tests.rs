//! What is held for whom, and that nobody waits where one is closed.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::runtime::Builder;

use super::*;

/// The end for writing of a pipe, and one for reading.
fn pipe() -> (OwnedFd, io::PipeReader) {
    let (theirs, sent) = io::pipe().unwrap();
    (sent.into(), theirs)
}

/// The stubs of a message that brought these.
fn kept(descriptors: &Arc<Descriptors>, came: Vec<OwnedFd>) -> Vec<OwnedFd> {
    let (stubs, arrived) = descriptors.hold(came).unwrap();
    descriptors.keep(arrived, Some(":1.7")).unwrap();
    stubs
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
    let stubs = kept(&descriptors, vec![sent]);
    let copy = stubs[0].try_clone().unwrap();
    drop(stubs);
    let mut taken = io::PipeWriter::from(descriptors.take(copy));
    taken.write_all(b"sent").unwrap();
    drop(taken);
    assert_eq!(is_closed(reader).await, b"sent");
    let (sent, reader) = pipe();
    drop(kept(&descriptors, vec![sent]));
    assert_eq!(is_closed(reader).await, b"");
    assert!(descriptors.held.lock().came.is_empty());
    // As where its message was never whole.
    let (sent, reader) = pipe();
    drop(descriptors.hold(vec![sent]));
    assert_eq!(is_closed(reader).await, b"");
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
        drop(kept(&descriptors, vec![outer]));
        peers.push(peer);
        let ((first, one), (second, other)) = (clogged(), clogged());
        drop(kept(&descriptors, vec![first, second]));
        peers.extend([one, other]);
    }
    while !descriptors.held.lock().came.is_empty() {
        tokio::task::yield_now().await;
    }
    let (sent, reader) = pipe();
    drop(kept(&descriptors, vec![sent]));
    assert_eq!(is_closed(reader).await, b"");
    drop(peers);
}

/// As above.
#[test]
fn what_is_held_at_the_end_of_the_service_does_not_hold_it_up() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let descriptors = Arc::<Descriptors>::default();
    let (outer, peer) = clogged();
    let stubs = runtime.block_on(async { kept(&descriptors, vec![outer]) });
    drop(runtime);
    drop(Arc::into_inner(descriptors).expect("nobody else has it"));
    drop((stubs, peer));
}

#[tokio::test]
async fn of_several_there_are_stubs_alone() {
    let descriptors = Arc::<Descriptors>::default();
    let (first, reader) = pipe();
    let (second, other) = pipe();
    let stubs = kept(&descriptors, vec![first, second]);
    assert_eq!(stubs.len(), 2);
    assert_eq!((is_closed(reader).await, is_closed(other).await), (Vec::new(), Vec::new()));
    let before = identity(&stubs[0]).unwrap();
    let stub = descriptors.take(stubs.into_iter().next().unwrap());
    assert_eq!(identity(&stub).unwrap(), before, "nothing was held for it");
}

#[tokio::test]
async fn one_sender_and_all_have_so_many_at_a_time() {
    // With its stub and the other end of that each is three: four of a sender, sixteen of all.
    let descriptors = Arc::new(Descriptors::of(Some(8 * 48)));
    let keep = |sender: Option<&str>| {
        let (sent, reader) = pipe();
        let (stubs, arrived) = descriptors.hold(vec![sent]).unwrap();
        let end = descriptors.keep(arrived, sender);
        end.map(|()| stubs).map_err(|error| (error.name(), reader))
    };
    let mut all = Vec::new();
    for sender in [":1.1", ":1.2", ":1.3", ":1.4"] {
        let own: Vec<_> = (0..4).map(|_| keep(Some(sender)).unwrap()).collect();
        let (name, reader) = keep(Some(sender)).unwrap_err();
        assert_eq!(name, ErrorName::QuotaExceeded);
        assert_eq!(is_closed(reader).await, b"");
        all.push(own);
    }
    assert_eq!(keep(Some(":1.5")).unwrap_err().0, ErrorName::Overloaded);
    keep(None).expect("what nobody has sent is not counted");
    drop(all.pop());
    while keep(Some(":1.5")).is_err() {
        tokio::task::yield_now().await;
    }
    drop(all);
    while descriptors.held.lock().all > 0 {
        tokio::task::yield_now().await;
    }
    assert!(descriptors.held.lock().senders.is_empty(), "a sender without any is forgotten");
}
