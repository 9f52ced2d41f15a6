//! What is read of a bus, and what is sent to it, over a socket pair.

use std::array;
use std::collections::BTreeMap;
use std::io::{PipeReader, pipe};
use std::num::NonZeroU32;
use std::sync::LazyLock;

use futures_util::{FutureExt, StreamExt};
use nix::sys::stat::fstat;
use rustix::io::ioctl_fionread;
use tokio::task::yield_now;
use zbus::{Fd, Guid, MessageStream};

use super::super::tests::idle;
use super::*;

/// What holds the descriptors of connections here.
static HELD: LazyLock<Arc<Descriptors>> = LazyLock::new(Arc::default);

/// Both halves of one end.
fn halves(stream: UnixStream, held: &Arc<Descriptors>) -> (Reader, Writer) {
    let socket = Socket { stream, held: held.clone(), service: idle() };
    zbus::connection::Socket::split(socket).take()
}

/// What reads, and the bus's end.
fn ends() -> (Reader, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (halves(ours, &HELD).0, theirs)
}

async fn next(reader: &mut Reader) -> zbus::Result<Message> {
    reader.receive_message(0, &mut Vec::new(), &mut Vec::new()).await
}

/// A message with so many bytes.
fn plain(bytes: usize) -> Message {
    Message::signal("/", "a.b", "C").build(&vec![1_u8; bytes]).unwrap()
}

/// One that has a descriptor beside them.
fn with(sent: &PipeReader, bytes: usize) -> Message {
    let body = (Fd::from(sent.as_fd()), vec![2_u8; bytes]);
    Message::signal("/", "a.b", "D").build(&body).unwrap()
}

/// What the descriptors of a message lead to, or what its stubs stand for.
fn descriptors(message: &Message) -> Vec<u64> {
    let copy = |fd: &Fd<'_>| fd.as_fd().try_clone_to_owned().unwrap();
    let fds = message.data().fds().iter().map(copy);
    fds.map(|fd| fstat(HELD.take(fd)).unwrap().st_ino).collect()
}

fn assert_same(received: &Message, sent: &Message) {
    assert_eq!(received.data()[..], sent.data()[..]);
    assert_eq!(descriptors(received), descriptors(sent));
}

#[tokio::test]
async fn what_came_together_is_read_at_once() {
    let (mut reader, bus) = ends();
    for burst in [1, 20] {
        let sent: Vec<_> = (0..burst).map(plain).collect();
        for message in &sent {
            wire::send(&bus, message).await.unwrap();
        }
        for message in &sent {
            assert_same(&next(&mut reader).await.unwrap(), message);
            assert_eq!(ioctl_fionread(&reader.incoming.line.stream).unwrap(), 0);
        }
        // No other call has to find out that nothing is left.
        assert!(reader.incoming.line.stream.readable().now_or_never().is_none());
    }
}

#[tokio::test]
async fn a_message_may_take_many_reads() {
    let (mut reader, bus) = ends();
    let sent = [plain(1), plain(100), plain(2)];
    let bytes: Vec<u8> = sent.iter().flat_map(|message| message.data().to_vec()).collect();
    let line = reader.incoming.line.clone();
    let sends = async {
        for piece in bytes.chunks(7) {
            wire::send_some(&bus, piece, &[]).await.unwrap();
            // It is read before more comes.
            while ioctl_fionread(&line.stream).unwrap() > 0 {
                yield_now().await;
            }
        }
    };
    let receives = async {
        for message in &sent {
            assert_same(&next(&mut reader).await.unwrap(), message);
        }
    };
    tokio::join!(sends, receives);
}

#[tokio::test]
async fn a_message_may_be_longer_than_a_read() {
    let (mut reader, bus) = ends();
    let long = [READ_BYTES - 100, 1, READ_BYTES, 1 << 20, 2, 3 * READ_BYTES];
    let sent = long.map(plain);
    let sends = async {
        for message in &sent {
            wire::send(&bus, message).await.unwrap();
        }
    };
    let receives = async {
        for message in &sent {
            assert_same(&next(&mut reader).await.unwrap(), message);
        }
    };
    tokio::join!(sends, receives);
}

#[tokio::test]
async fn descriptors_come_with_their_own_message() {
    let (mut reader, bus) = ends();
    let pipes: [_; 3] = array::from_fn(|_| pipe().unwrap());
    let with = |number: usize, bytes| with(&pipes[number].0, bytes);
    // Alone in what is read and the last of it, and beginning or ending there.
    for bytes in [0, READ_BYTES] {
        let sent = [
            with(0, bytes),
            plain(1),
            with(1, bytes),
            plain(2),
            plain(3),
            with(2, bytes),
            plain(4),
        ];
        for message in &sent {
            wire::send(&bus, message).await.unwrap();
        }
        assert_same(&next(&mut reader).await.unwrap(), &sent[0]);
        for message in &sent[1..] {
            // The kernel stops behind descriptors, which does not say that nothing is left.
            let received = next(&mut reader).now_or_never().expect("it is there");
            assert_same(&received.unwrap(), message);
        }
    }
}

#[tokio::test]
async fn a_message_that_comes_in_pieces_has_its_descriptors() {
    let (mut reader, bus) = ends();
    let (sent, _) = pipe().unwrap();
    let (other, message) = (plain(1), with(&sent, 50));
    let bytes = message.data();
    for cut in [1, 15, 16, 60] {
        wire::send(&bus, &other).await.unwrap();
        wire::send_some(&bus, &bytes[..cut], &[sent.as_fd()]).await.unwrap();
        assert_same(&next(&mut reader).await.unwrap(), &other);
        wire::send_some(&bus, &bytes[cut..], &[]).await.unwrap();
        wire::send(&bus, &other).await.unwrap();
        assert_same(&next(&mut reader).await.unwrap(), &message);
        assert_same(&next(&mut reader).await.unwrap(), &other);
    }
}

#[tokio::test]
async fn a_bus_that_goes_within_a_message_is_told() {
    let (mut reader, bus) = ends();
    let message = plain(1);
    wire::send(&bus, &message).await.unwrap();
    wire::send_some(&bus, &message.data()[..20], &[]).await.unwrap();
    drop(bus);
    assert_same(&next(&mut reader).await.unwrap(), &message);
    let end = next(&mut reader).await;
    let Err(zbus::Error::InputOutput(error)) = end else { panic!("half a message was taken") };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_connection_is_made_over_it() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = Builder::unix_stream(theirs.into_std().unwrap()).server(Guid::generate()).p2p();
    let socket = Socket { stream: ours, held: HELD.clone(), service: idle() };
    let ours = Builder::socket(socket).p2p();
    let (ours, theirs) = tokio::try_join!(ours.build(), theirs.build()).unwrap();
    let mut received = MessageStream::from(&ours);
    let (sent, _) = pipe().unwrap();
    for message in [plain(1), with(&sent, 2), plain(3)] {
        theirs.send(&message).await.unwrap();
        assert_same(&received.next().await.unwrap().unwrap(), &message);
    }
}

/// A call with a descriptor and so many bytes.
async fn call(bus: &Writer, bytes: usize) -> NonZeroU32 {
    let (sent, _) = pipe().unwrap();
    let call = Message::method_call("/", "EmbedFromFd").sender(":1.7");
    let call = call.build(&(Fd::from(sent.as_fd()), vec![0_u8; bytes])).unwrap();
    bus.0.send(&call).await.unwrap();
    call.primary_header().serial_num()
}

/// The same, and another message behind it.
async fn call_and_more(bus: &Writer) -> NonZeroU32 {
    let serial = call(bus, 0).await;
    bus.0.send(&plain(1)).await.unwrap();
    serial
}

/// Whether the next message is the refusal of this call, by this name.
async fn is_refused(bus: &mut Reader, call: NonZeroU32, expected: ErrorName) {
    let refusal = next(bus).await.unwrap();
    let header = refusal.header();
    assert_eq!(header.reply_serial(), Some(call));
    assert_eq!(header.destination().map(|name| name.as_str()), Some(":1.7"));
    assert_eq!(header.error_name().map(|name| name.as_str()), Some(expected.as_str()));
}

#[tokio::test]
async fn a_call_that_brings_too_much_is_refused_and_what_follows_is_read() {
    // Of three for a sender, which are those of one call.
    let held = Arc::new(Descriptors::of(Some(8 * 4 * 3)));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ((mut reader, _), (mut answers, bus)) = (halves(ours, &held), halves(theirs, &HELD));
    let taken = call_and_more(&bus).await;
    let kept = next(&mut reader).await.unwrap();
    assert_eq!(kept.primary_header().serial_num(), taken);
    assert_eq!(next(&mut reader).await.unwrap().message_type(), Type::Signal);
    let refused = call_and_more(&bus).await;
    assert_eq!(next(&mut reader).await.unwrap().message_type(), Type::Signal);
    is_refused(&mut answers, refused, ErrorName::QuotaExceeded).await;
    assert_eq!(reader.service.failures(), BTreeMap::from([("quota-exceeded".to_owned(), 1)]));
}

/// As where the service may have no more of them, which would cost it the bus.
#[tokio::test]
async fn a_call_whose_descriptors_are_lost_is_refused_and_what_follows_is_read() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ((mut reader, _), (mut answers, bus)) = (halves(ours, &HELD), halves(theirs, &HELD));
    reader.incoming.space = Box::default();
    for _ in 0..3 {
        // The end of the one is read with the beginning of the other.
        let first = call(&bus, READ_BYTES).await;
        let second = call_and_more(&bus).await;
        assert_eq!(next(&mut reader).await.unwrap().message_type(), Type::Signal);
        is_refused(&mut answers, first, ErrorName::NoSpace).await;
        is_refused(&mut answers, second, ErrorName::NoSpace).await;
    }
}

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
