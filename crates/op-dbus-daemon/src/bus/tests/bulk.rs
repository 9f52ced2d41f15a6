//! Encodings, vectors in a memfd, texts from a file descriptor.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use op_dbus_api::{EmbedderProxy, ErrorName, Info, ROOT_PATH};
use zbus::message::Message;
use zbus::{Fd, OwnedFd, Variant};

use super::{ready, refusal};
use crate::bus::caller::Callers;
use crate::bus::calls::Calls;
use crate::bus::descriptors::tests::clogged;
use crate::bus::options::Wanted;

type Options<'a> = HashMap<&'a str, Variant<'a>>;

fn content(fd: OwnedFd) -> Vec<u8> {
    let mut file = File::from(std::os::fd::OwnedFd::from(fd));
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap();
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    assert!(SealFlag::from_bits_retain(seals).contains(all | SealFlag::F_SEAL_SEAL));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

async fn from_bytes(
    embedder: &EmbedderProxy<'_>,
    bytes: &[u8],
    options: Options<'_>,
) -> zbus::Result<(OwnedFd, u32, u32, Info)> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    embedder.embed_from_fd(Fd::from(file.as_file().as_fd()), options).await
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("text {n} {}", "x".repeat(n % 40))).collect()
}

#[tokio::test]
async fn every_way_gives_the_same_vectors() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let texts = texts(5000);
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (encoding, row_bytes) in [("f32", 4 * 384), ("f16", 2 * 384), ("i8", 384), ("b1", 48)] {
        let options = || Options::from([("encoding", Variant::from(encoding))]);
        let (packed, rows, dimensions, _) =
            embedder.embed_packed(&borrowed, options()).await.unwrap();
        assert_eq!((rows, dimensions, packed.len()), (5000, 384, 5000 * row_bytes));
        let (fd, rows, dimensions, info) =
            embedder.embed_to_fd(&borrowed, options()).await.unwrap();
        assert_eq!((rows, dimensions, info.truncated_count), (5000, 384, None));
        assert!(content(fd) == *packed, "{encoding} by EmbedToFd");
        let lines = texts.join("\n");
        let (fd, rows, dimensions, info) =
            from_bytes(&embedder, lines.as_bytes(), options()).await.unwrap();
        assert_eq!((rows, dimensions, info.truncated_count), (5000, 384, Some(0)));
        assert!(content(fd) == *packed, "{encoding} by EmbedFromFd");
    }
}

#[tokio::test]
async fn npy_has_a_header_and_framings_have_the_same_texts() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let raw = content(embedder.embed_to_fd(&["a", "", "b"], Options::new()).await.unwrap().0);
    for (framing, bytes) in [
        ("lines", "a\r\n\nb"),
        ("nul", "a\0\0b\0"),
        ("json-lines", "\"a\"\n\"\"\n{\"text\":\"b\"}"),
    ] {
        let options =
            Options::from([("framing", Variant::from(framing)), ("format", Variant::from("npy"))]);
        let (fd, rows, ..) = from_bytes(&embedder, bytes.as_bytes(), options).await.unwrap();
        let npy = content(fd);
        assert_eq!(rows, 3);
        assert_eq!(npy[..128], crate::npy::header("<f4", 3, 384));
        assert_eq!(npy[128..], raw);
    }
    let npy = || Options::from([("format", Variant::from("npy"))]);
    let (fd, rows, dimensions, _) = from_bytes(&embedder, b"", npy()).await.unwrap();
    assert_eq!((content(fd).len(), rows, dimensions), (128, 0, 384));
    let (fd, rows, ..) = embedder.embed_to_fd(&[], npy()).await.unwrap();
    assert_eq!((content(fd).len(), rows), (128, 0));
}

#[tokio::test]
async fn mistakes_are_told_with_their_place() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let lines = |bad: &str| format!("{}\n{bad}\n", texts(3000).join("\n"));
    let too_long = Options::from([("truncate", Variant::from("error"))]);
    let (name, message) =
        refusal(from_bytes(&embedder, lines(&"x".repeat(600)).as_bytes(), too_long).await);
    assert_eq!(name, ErrorName::TooLong);
    let place = "line 3001 of the source: text 3000 has 602 tokens";
    assert!(message.starts_with(place), "{message}");
    let json = Options::from([("framing", Variant::from("json-lines"))]);
    let (name, message) = refusal(from_bytes(&embedder, b"\"a\"\n{}\n", json).await);
    assert_eq!(name, ErrorName::InvalidArgument);
    assert!(message.starts_with("line 2 "), "{message}");
    for (key, value) in [("framing", "words"), ("format", "csv"), ("expect_space", "0-f32")] {
        let options = Options::from([(key, Variant::from(value))]);
        assert!(from_bytes(&embedder, b"", options).await.is_err(), "{key}");
    }
    let (.., info) =
        from_bytes(&embedder, lines(&"x".repeat(600)).as_bytes(), Options::new()).await.unwrap();
    assert_eq!((info.truncated_count, &*info.truncated), (Some(1), &[3000][..]));
}

/// All of this runs on one thread, which has to stay free.
#[tokio::test]
async fn a_descriptor_that_hangs_holds_up_its_own_call_alone() {
    let pair = ready(&[]).await;
    let callers = Arc::<Callers>::default();
    let calls = Calls::new(pair.service.clone(), callers.clone());
    let call = Message::method_call(ROOT_PATH, "EmbedFromFd").sender(":1.7").build(&()).unwrap();
    let caller = callers.enter(&pair.client, &call.header()).await.unwrap();

    let (socket, _peer) = clogged();
    let mut wanted = Wanted::default();
    wanted.options.deadline = Some(Instant::now() + Duration::from_millis(50));
    let late = calls.embed_from_fd(&caller, socket, wanted).await.unwrap_err();
    assert_eq!(late.name(), ErrorName::DeadlineExceeded);
    assert!(late.message().contains("what the source is"), "{late}");

    let (socket, _peer) = clogged();
    let call = calls.embed_from_fd(&caller, socket, Wanted::default());
    let (left, ()) = tokio::join!(call, async { callers.left(":1.7") });
    assert_eq!(left.unwrap_err().name(), ErrorName::Cancelled);
}
