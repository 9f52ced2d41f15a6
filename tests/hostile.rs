//! Arguments and texts that no well-meaning client sends.

mod malformed;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use nix::fcntl::SealFlag;
use op_dbus_api::{BUS_NAME, EMBEDDER_INTERFACE, ErrorName, ROOT_PATH};
use zbus::as_variant::Serialize;
use zbus::{Fd, Message};

use crate::bulk::memfd;
use crate::faults::limit_descriptors;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, started_by};
use crate::harness::daemon::Setup;
use crate::harness::process::peak;
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, within};
use crate::unread::fill_up;

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    [tests(), malformed::tests()].into_iter().flatten().collect()
}

tests! {
    awkward_texts_have_a_vector_or_a_refusal: [Bus, Low],
    a_refusal_does_not_grow_with_what_was_asked: [Bus],
    an_option_of_a_wrong_type_takes_no_more_than_its_call: [Bus],
    tokens_are_made_for_one_call_of_a_user_at_a_time: [Bus],
    who_reads_nothing_silences_nobody: [Bus],
    descriptors_of_calls_that_wait_have_a_bound: [Bus],
    without_descriptors_the_service_keeps_its_bus: [Bus],
}

/// What `EmbedFromFd` makes of bytes.
async fn refusal_of(client: &Client, bytes: &[u8], framing: &str) -> Outcome<String> {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW;
    let file = memfd(bytes, seals)?;
    let options = Options::from([("framing", framing.into())]);
    let answer = client.embedder.embed_from_fd(Fd::from(OwnedFd::from(file)), options);
    refused(within("an answer", answer).await?, ErrorName::InvalidArgument)
}

async fn awkward_texts_have_a_vector_or_a_refusal() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let client = daemon.client();
    let texts = [
        String::new(),
        " \t\r\n".to_owned(),
        (1..32_u8).chain([127]).map(char::from).collect(),
        "\u{feff}text after a mark of byte order".to_owned(),
        "\u{202e}from right to left\u{202c} and back".to_owned(),
        "\u{200b}".repeat(100_000),
        format!("e{}", "\u{301}".repeat(100_000)),
        "\u{10ffff}\u{e000}\u{fffd}\u{ffff}".to_owned(),
        "x".repeat(1 << 20),
        "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s>".to_owned(),
        "\u{1f469}\u{200d}".repeat(10_000),
        "'; -- %s %n ${HOME} $(reboot) ../../etc/passwd".to_owned(),
    ];
    let together = client.vectors(&texts).await?;
    for (number, (text, vector)) in texts.iter().zip(&together).enumerate() {
        assert!(vector.iter().all(|x| x.is_finite()), "text {number}: {vector:?}");
        let alone = client.vectors(&[text]).await?.remove(0);
        assert_eq!(&alone, vector, "text {number} has another vector alone");
    }
    let bytes: [(&str, &[u8], &str, &str); 6] = [
        ("an overlong form", b"good\nb\xc0\x80d\n", "lines", "line 2 of"),
        ("a lone surrogate", b"good\n\xed\xa0\x80\n", "lines", "line 2 of"),
        ("a cut character", b"good\nb\xf0\x9f\x91", "lines", "line 2 of"),
        ("beyond the last character", b"good\0\xf4\x90\x80\x80\0", "nul", "record 2 of"),
        ("an escaped surrogate", b"\"good\"\n\"\\ud800\"\n", "json-lines", "line 2 of"),
        ("no string", b"\"good\"\n{\"a\": [1]}\n", "json-lines", "line 2 of"),
    ];
    for (what, bytes, framing, place) in bytes {
        let message = refusal_of(client, bytes, framing).await;
        let message = message.map_err(|error| format!("{what}: {error}"))?;
        assert!(message.starts_with(place), "{what}, without its place: {message}");
    }
    println!("figure: {} texts with a vector, {} refused", texts.len(), bytes.len());
    daemon.stop().await
}

/// dbus-daemon ends the connection of a service that answers with more than 32 MiB, for all its callers.
async fn a_refusal_does_not_grow_with_what_was_asked() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    // Five times as long where it is written as Rust writes it.
    let long = "\u{1}".repeat(10 << 20);
    for key in ["level", "prompt", "device", "expect_space", "truncate"] {
        let options = Options::from([(key, long.as_str().into())]);
        let answer = within("a refusal", client.embedder.embed_packed(&["one"], options)).await?;
        let message = refused(answer, ErrorName::InvalidArgument)?;
        assert!(message.contains(key) && message.len() < 1000, "{key}: {} bytes", message.len());
    }
    // As long as the bus takes a call: it would end who sends more in reply.
    let connection = client.connection();
    let us = connection.unique_name().ok_or("we have no name")?;
    let shortest = Message::method_call("/", "Embed").sender(us.clone()).destination(BUS_NAME);
    let shortest = shortest.interface(EMBEDDER_INTERFACE).build(&())?;
    let path = format!("/{}", "a".repeat((32 << 20) - shortest.data().len()));
    let call = connection.call_method(Some(BUS_NAME), path, Some(EMBEDDER_INTERFACE), "Embed", &());
    let error =
        within("a refusal", call).await?.err().ok_or("there is such an object")?.to_string();
    assert!(
        error.contains("Unknown object '/aaa") && error.len() < 20_000,
        "{} bytes",
        error.len()
    );
    client.embedder.embed("goes on").await?;
    daemon.stop().await
}

/// What is in an array takes sixty times as much where it is read without being asked for.
async fn an_option_of_a_wrong_type_takes_no_more_than_its_call() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (connection, process) = (daemon.client().connection(), daemon.process.pid());
    let before = peak(process)?;
    let bytes = vec![0_u8; 30_000_000];
    let call = async |_| {
        let body = (Vec::<&str>::new(), HashMap::from([("level", Serialize(&bytes))]));
        let (to, of) = (Some(BUS_NAME), Some(EMBEDDER_INTERFACE));
        connection.call_method(to, ROOT_PATH, of, "EmbedPacked", &body).await
    };
    for answer in within("refusals", join_all((0..3).map(call))).await? {
        let message = refused(answer, ErrorName::InvalidArgument)?;
        assert_eq!(message, "option level has the type ay; it must be a string (s)");
    }
    let grown = peak(process)? - before;
    assert!(grown < 200_000_000, "it grew by {grown} bytes");
    daemon.stop().await
}

/// A token takes a hundred times what its byte does, until it is in a reply.
async fn tokens_are_made_for_one_call_of_a_user_at_a_time() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (connection, process) = (daemon.client().connection(), daemon.process.pid());
    let before = peak(process)?;
    let texts = vec!["!".repeat(1 << 10); 256];
    let call = async |_| {
        let body = (&texts, Options::new());
        let (to, of) = (Some(BUS_NAME), Some(EMBEDDER_INTERFACE));
        connection.call_method(to, ROOT_PATH, of, "Tokenize", &body).await
    };
    let mut answered = 0;
    for answer in within("tokens", join_all((0..32).map(call))).await? {
        match answer {
            Ok(_) => answered += 1,
            refusal => drop(refused(refusal, ErrorName::Overloaded)?),
        }
    }
    let grown = peak(process)? - before;
    assert!(answered > 0 && grown < 300_000_000, "{answered} answered; it grew by {grown} bytes");
    daemon.stop().await
}

/// Its replies lie in the bus on the account of the service, of which the bus takes nothing more when that is full.
async fn who_reads_nothing_silences_nobody() -> Outcome {
    let (bus, setup, mut daemon) = Setup::sim()?.alone().await?;
    let deaf = fill_up(&bus, &daemon).await?;
    assert_eq!(daemon.process.ended().await?.code(), Some(1));
    let next = setup.start(&bus).await?;
    next.process.says("calls are answered").await?;
    within("a call beside it", next.client().embedder.embed("x")).await??;
    drop(deaf);
    next.stop().await
}

/// Of 256 a connection has eight, and a call takes three of the service's: what it sent, and what stands for that.
async fn descriptors_of_calls_that_wait_have_a_bound() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::sim()?);
    let mut few = clean("prlimit");
    few.arg("--nofile=256:256");
    let daemon = setup.start_command(started_by(few, &setup.command(&bus)?), &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let (greedy, other) = (Client::on(&bus).await?, Client::on(&bus).await?);
    let (source, writer) = std::io::pipe()?;
    let call = |_| greedy.embedder.embed_from_fd(Fd::from(source.as_fd()), Options::new());
    let mut calls: FuturesUnordered<_> = (0..3).map(call).collect();
    let refusal = within("a refusal", calls.next()).await?.ok_or("no call is left")?;
    let told = refused(refusal, ErrorName::QuotaExceeded)?;
    assert!(told.contains("6 of 8 file descriptors of the service"), "{told}");
    let file = memfd(b"one", SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)?;
    let beside = other.embedder.embed_from_fd(Fd::from(file.as_fd()), Options::new());
    assert_eq!(within("a call beside it", beside).await??.1, 1);
    drop(writer);
    while let Some(answer) = calls.next().await {
        assert_eq!(answer?.1, 0);
    }
    daemon.stop().await
}

/// Whoever has them: a message whose descriptors are lost would end its connection.
async fn without_descriptors_the_service_keeps_its_bus() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let embedder = &daemon.client().embedder;
    let device = File::open("/dev/null")?;
    let call = || embedder.embed_from_fd(Fd::from(device.as_fd()), Options::new());
    for _ in 0..3 {
        limit_descriptors(&daemon, "3:").await?;
        let told = refused(within("a refusal", call()).await?, ErrorName::NoSpace)?;
        assert!(told.contains("can't take the file descriptors"), "{told}");
        embedder.embed("goes on").await?;
        limit_descriptors(&daemon, "1024:").await?;
        refused(within("a refusal", call()).await?, ErrorName::InvalidArgument)?;
        // By then it has spare ones again.
        embedder.embed("goes on").await?;
    }
    daemon.stop().await
}
