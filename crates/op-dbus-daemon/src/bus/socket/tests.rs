//! What is read of a bus, and what is sent to it, over a socket pair.

use std::array;
use std::io::{PipeReader, pipe};
use std::os::fd::AsFd;
use std::sync::LazyLock;

use futures_util::{FutureExt, StreamExt};
use nix::sys::stat::fstat;
use rustix::io::ioctl_fionread;
use tokio::task::yield_now;
use zbus::{Fd, Guid, MessageStream};

use super::*;

/// What holds the descriptors of all connections here.
static HELD: LazyLock<Arc<Descriptors>> = LazyLock::new(Arc::default);

/// What reads, and the bus's end.
fn ends() -> (Reader, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Reader::new(Arc::new(ours), HELD.clone()), theirs)
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
            assert_eq!(ioctl_fionread(&reader.stream).unwrap(), 0);
        }
        // No other call has to find out that nothing is left.
        assert!(reader.stream.readable().now_or_never().is_none());
    }
}

#[tokio::test]
async fn a_message_may_take_many_reads() {
    let (mut reader, bus) = ends();
    let sent = [plain(1), plain(100), plain(2)];
    let bytes: Vec<u8> = sent.iter().flat_map(|message| message.data().to_vec()).collect();
    let stream = reader.stream.clone();
    let sends = async {
        for piece in bytes.chunks(7) {
            wire::send_some(&bus, piece, &[]).await.unwrap();
            // It is read before more comes.
            while ioctl_fionread(&stream).unwrap() > 0 {
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
    let ours = Builder::socket(Socket(ours, HELD.clone())).p2p();
    let (ours, theirs) = tokio::try_join!(ours.build(), theirs.build()).unwrap();
    let mut received = MessageStream::from(&ours);
    let (sent, _) = pipe().unwrap();
    for message in [plain(1), with(&sent, 2), plain(3)] {
        theirs.send(&message).await.unwrap();
        assert_same(&received.next().await.unwrap().unwrap(), &message);
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
