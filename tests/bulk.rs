//! Texts and vectors through file descriptors: well meant, hostile, and many.

mod command;
mod counted;
mod pipes;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use futures_util::StreamExt;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use op_dbus_api::{ErrorName, Info};
use zbus::message::Flags;
use zbus::{Fd, Message, MessageStream, Variant};

use crate::direct::hostile::clogged;
use crate::harness::client::{Client, Options, call, refused};
use crate::harness::command::cli;
use crate::harness::daemon::Setup;
use crate::harness::files::content;
use crate::harness::golden::cosine;
use crate::harness::process::peak;
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, eventually, within};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    [tests(), command::tests(), counted::tests(), pipes::tests()].into_iter().flatten().collect()
}

tests! {
    a_sealed_memfd_is_read_and_answered_in_one: [Bus],
    hostile_descriptors_are_refused: [Bus],
    what_nothing_takes_is_refused: [Bus],
    descriptors_whose_closing_hangs_hold_up_nobody: [Bus],
    files_without_a_size_are_read_to_their_end: [Bus],
    a_caller_that_leaves_ends_its_streams: [Bus],
    a_small_queue_takes_any_number_of_texts: [Bus],
    real_vectors_come_in_every_encoding: [Bus, Low],
    memory_does_not_grow_with_the_texts: [Bus],
}

/// What `EmbedFromFd` answers.
type Reply = (zbus::OwnedFd, u32, u32, Info);

async fn embed(client: &Client, fd: impl AsFd, options: Options<'_>) -> zbus::Result<Reply> {
    client.embedder.embed_from_fd(Fd::from(fd.as_fd()), options).await
}

/// A file in memory with these seals.
pub fn memfd(bytes: &[u8], seals: SealFlag) -> Outcome<File> {
    let mut file = File::from(memfd_create(c"texts", MFdFlags::MFD_ALLOW_SEALING)?);
    file.write_all(bytes)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

async fn a_sealed_memfd_is_read_and_answered_in_one() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let source = memfd(b"one\ntwo", SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)?;
    let (fd, rows, dimensions, _) = embed(client, &source, Options::new()).await?;
    assert_eq!((rows, dimensions), (2, 384));
    let file = File::from(OwnedFd::from(fd));
    let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS)?);
    for seal in [SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_WRITE] {
        assert!(seals.contains(seal | SealFlag::F_SEAL_SEAL), "{seals:?}");
    }
    let expected = client.vectors(&["one", "two"]).await?.concat();
    let expected: Vec<u8> = expected.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(content(zbus::OwnedFd::from(OwnedFd::from(file)))?, expected);
    daemon.stop().await
}

/// Each is refused with a sentence, at once, and the service goes on.
async fn hostile_descriptors_are_refused() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let (socket, _other) = UnixStream::pair()?;
    let sparse = File::create_new(setup.path("sparse"))?;
    sparse.set_len(1 << 40)?;
    // Small enough to be begun, and without a line's end: refused before it is read whole.
    let endless = File::create_new(setup.path("endless"))?;
    endless.set_len(1 << 32)?;
    let (_reader, write_end) = std::io::pipe()?;
    let open = |path: &Path| -> Outcome<OwnedFd> { Ok(File::open(path)?.into()) };
    let path_only = nix::fcntl::open("/etc/passwd", OFlag::O_PATH, Mode::empty())?;
    let hostile: [(&str, OwnedFd, ErrorName); 11] = [
        ("unsealed", memfd(b"x\n", SealFlag::empty())?.into(), ErrorName::InvalidArgument),
        ("may shrink", memfd(b"x\n", SealFlag::F_SEAL_WRITE)?.into(), ErrorName::InvalidArgument),
        (
            "may be written",
            memfd(b"x\n", SealFlag::F_SEAL_SHRINK)?.into(),
            ErrorName::InvalidArgument,
        ),
        ("directory", open(Path::new("/"))?, ErrorName::InvalidArgument),
        ("socket", socket.into(), ErrorName::InvalidArgument),
        ("/dev/zero", open(Path::new("/dev/zero"))?, ErrorName::InvalidArgument),
        ("terabyte", open(&setup.path("sparse"))?, ErrorName::TooLarge),
        ("endless line", open(&setup.path("endless"))?, ErrorName::TooLarge),
        ("write end", write_end.into(), ErrorName::InvalidArgument),
        ("path alone", path_only, ErrorName::InvalidArgument),
        ("directory of the kernel", open(Path::new("/proc/self"))?, ErrorName::InvalidArgument),
    ];
    for (what, fd, expected) in hostile {
        let answer = within(what, embed(daemon.client(), fd, Options::new())).await?;
        refused(answer, expected).map_err(|error| format!("{what}: {error}"))?;
    }
    // A file that is cut while it is read: only a little of it is read ahead of the work, which stands still, so
    // the cut comes before its end was read.
    let path = setup.path("shrinking");
    std::fs::write(&path, "a line of the file that is cut\n".repeat(1 << 20))?;
    let cut = File::options().write(true).open(&path)?;
    let source = File::open(&path)?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let call = embed(daemon.client(), &source, Options::new());
    let shrink = async {
        daemon.client().counted("in_flight_calls", 2).await?;
        cut.set_len(0)?;
        daemon.signal_workers(Signal::SIGCONT).await
    };
    let (answer, shrunk) = tokio::join!(within("the shrinking file", call), shrink);
    shrunk?;
    let message = refused(answer?, ErrorName::InvalidArgument)?;
    assert!(message.contains("ends at byte"), "{message}");
    daemon.client().embedder.embed("still there").await?;
    daemon.stop().await
}

/// The answer to a method's call with the body of `like`, as of this signature and with these descriptors.
async fn answer(
    client: &Client,
    method: &'static str,
    like: &Message,
    (signature, descriptors): (&str, Vec<zbus::OwnedFd>),
) -> Outcome<zbus::Error> {
    // SAFETY: the bytes are of a body that is laid out by the signature.
    let call = unsafe { call(method).build_raw_body(like.body().data(), signature, descriptors)? };
    let mut said = MessageStream::from(client.connection());
    client.connection().send(&call).await?;
    within("the answer", async {
        let serial = Some(call.primary_header().serial_num());
        while let Some(message) = said.next().await.transpose()? {
            if message.header().reply_serial() == serial {
                return Outcome::Ok(message.into());
            }
        }
        Err("no answer".into())
    })
    .await?
}

/// It would be held for as long as the call waits, beside all that is counted.
async fn what_nothing_takes_is_refused() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let (source, _writer) = std::io::pipe()?;
    let options = Options::from([("level", Fd::from(source.as_fd()).into())]);
    let told = refused(embed(client, &source, options).await, ErrorName::InvalidArgument)?;
    assert!(told.contains("has 2 file descriptors"), "{told}");
    let descriptors = vec![OwnedFd::from(source).into()];
    let error = answer(client, "Embed", &call("Embed").build(&"one")?, ("s", descriptors)).await?;
    refused::<()>(Err(error), ErrorName::InvalidArgument)?;
    // Entries of a dictionary are laid out as structures.
    let twice = vec![("level", Variant::from("low")), ("level", Variant::from("low"))];
    let twice = call("EmbedPacked").build(&(vec!["one"], twice))?;
    let error = answer(client, "EmbedPacked", &twice, ("asa{sv}", Vec::new())).await?;
    assert!(error.to_string().contains("an option is given twice"), "{error}");
    for _ in 0..100 {
        let silent = call("Embed").with_flags(Flags::NO_REPLY_EXPECTED).build(&"one")?;
        client.connection().send(&silent).await?;
    }
    client.embedder.embed("two").await?;
    // With the two calls that had descriptors.
    let all_are_counted = async || Ok(client.failures("invalid-argument").await? >= 102);
    eventually("an end of each call", all_are_counted).await?;
    assert_eq!(client.failures("invalid-argument").await?, 102);
    assert_eq!(client.counter("texts").await?, 1, "of calls that want no reply");
    daemon.stop().await
}

/// Of calls that the service refuses, that zbus refuses, and of one that takes a descriptor: more of each than the service
/// has threads.
async fn descriptors_whose_closing_hangs_hold_up_nobody() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let hostile = bus.connect().await?;
    let one = call("Embed").build(&"one")?;
    let source = call("EmbedFromFd").build(&(0_u32, Options::new()))?;
    let other = call("Embed").build(&1_u32)?;
    let calls = [("Embed", &one, "s"), ("Embed", &other, "u"), ("EmbedFromFd", &source, "ha{sv}")];
    let mut peers = Vec::new();
    for (method, like, signature) in calls.repeat(thread::available_parallelism()?.get().max(4)) {
        let (socket, peer) = clogged()?;
        let descriptors = vec![OwnedFd::from(socket).into()];
        // SAFETY: the bytes are of a body that is laid out by the signature.
        let call =
            unsafe { call(method).build_raw_body(like.body().data(), signature, descriptors)? };
        hostile.send(&call).await?;
        // The bus has let it go by the time the service does.
        drop(call);
        peers.push(peer);
    }
    for _ in 0..100 {
        within("an answer", daemon.client().embedder.embed("one")).await??;
    }
    drop(peers);
    daemon.stop().await
}

/// Those that the kernel writes while they are read, and one that is in no directory any more.
async fn files_without_a_size_are_read_to_their_end() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let mut unlinked = tempfile::tempfile_in("/dev/shm")?;
    unlinked.write_all(b"one\ntwo\n")?;
    assert_eq!(embed(daemon.client(), &unlinked, Options::new()).await?.1, 2);
    for path in ["/proc/filesystems", "/sys/devices/system/cpu/online"] {
        let lines = std::fs::read_to_string(path)?.lines().count();
        let rows = embed(daemon.client(), File::open(path)?, Options::new()).await?.1;
        assert_eq!(rows as usize, lines, "{path}");
        assert!(rows > 0, "{path}");
    }
    daemon.stop().await
}

async fn a_caller_that_leaves_ends_its_streams() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (source, mut writer) = std::io::pipe()?;
    writer.write_all(b"one\ntwo\n")?;
    let leaving = Client::on(&bus).await?;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (embedder, source) = (leaving.embedder.clone(), source.try_clone()?);
        streams.push(tokio::spawn(async move {
            loop {
                let answer = embedder.embed_from_fd(Fd::from(source.as_fd()), Options::new()).await;
                // The probe below may hold the place that is wanted.
                let refusal = answer.as_ref().err().and_then(op_dbus_api::Error::from_reply);
                if refusal.is_none_or(|refusal| refusal.name() != ErrorName::QuotaExceeded) {
                    return answer;
                }
            }
        }));
    }
    let short = memfd(b"short", SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)?;
    let is_full = async || match embed(daemon.client(), &short, Options::new()).await {
        Ok(_) => Ok(false),
        full => refused(full, ErrorName::QuotaExceeded).map(|_| true),
    };
    eventually("four streams", async || is_full().await).await?;
    leaving.connection().clone().close().await?;
    eventually("the places of a caller that left", async || Ok(!is_full().await?)).await?;
    for stream in streams {
        assert!(stream.await?.is_err());
    }
    daemon.stop().await
}

async fn a_small_queue_takes_any_number_of_texts() -> Outcome {
    let setup = Setup::sim()?.setting("queue_tokens_max", "500").setting("quota_tokens", "400");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let sealed = |texts: &str| memfd(texts.as_bytes(), SealFlag::all());
    let many = sealed(&"some words\n".repeat(3000))?;
    assert_eq!(embed(daemon.client(), &many, Options::new()).await?.1, 3000);
    let long = sealed(&("one\n".to_owned() + &"x".repeat(20_000)))?;
    let told = refused(embed(daemon.client(), &long, Options::new()).await, ErrorName::TooLarge)?;
    assert!(told.starts_with("line 2 of the source: "), "{told}");
    daemon.stop().await
}

async fn real_vectors_come_in_every_encoding() -> Outcome {
    let (_bus, setup, daemon) = Setup::real("low")?.alone().await?;
    let client = daemon.client();
    let texts = ["the disk is full", "no space left on device", "a cat sat on the mat"];
    let exact = client.vectors(&texts).await?;
    let file = setup.path("texts");
    std::fs::write(&file, texts.join("\n"))?;
    let embedded = async |encoding: &'static str| -> Outcome<Vec<u8>> {
        let options = Options::from([("encoding", Variant::from(encoding))]);
        content(embed(client, File::open(&file)?, options).await?.0)
    };
    let bytes = embedded("i8").await?;
    for (row, exact) in bytes.chunks(384).zip(&exact) {
        let row: Vec<f32> = row.iter().map(|byte| f32::from(byte.cast_signed())).collect();
        assert!(cosine(&row, exact) > 0.9995, "{}", cosine(&row, exact));
    }
    let bits = embedded("b1").await?;
    for (row, exact) in bits.chunks(48).zip(&exact) {
        let signs = (0..384).map(|n| row[n / 8] >> (7 - n % 8) & 1 == 1);
        assert!(signs.eq(exact.iter().map(|x| *x > 0.0)));
    }
    assert_eq!(embedded("f16").await?.len(), 3 * 384 * 2);
    daemon.stop().await
}

/// Enough texts that holding them, or their vectors, would show.
async fn memory_does_not_grow_with_the_texts() -> Outcome {
    const LINES: usize = 200_000;
    // Buffers and caches have their size by then.
    const WARM: usize = 50_000;
    // Holding what is more than that would take 230,000 KiB for vectors, and 11,000 for texts.
    const GROWTH_MAX: u64 = 8 << 20;
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let (short, path) = (setup.path("short"), setup.path("lines"));
    for (path, lines) in [(&short, WARM), (&path, LINES)] {
        let line = |line| {
            format!(
                "line {line} of a log that is long enough to be seen in memory, if it is held\n"
            )
        };
        std::fs::write(path, (0..lines).map(line).collect::<String>())?;
    }
    embed(daemon.client(), File::open(&short)?, Options::new()).await?;
    let before = peak(daemon.process.pid())?;
    let (fd, rows, ..) = embed(daemon.client(), File::open(&path)?, Options::new()).await?;
    assert_eq!(rows as usize, LINES);
    assert_eq!(File::from(OwnedFd::from(fd)).metadata()?.len(), (LINES * 384 * 4) as u64);
    let streamed = peak(daemon.process.pid())?;
    let output = setup.path("vectors.npy").display().to_string();
    let arguments = ["embed", "--npy", "--output", &output, "--file", &path.display().to_string()];
    cli(&bus, &arguments).await?.success()?;
    assert_eq!(std::fs::metadata(&output)?.len(), 128 + (LINES * 384 * 4) as u64);
    let called = peak(daemon.process.pid())?;
    println!("{before} bytes, {streamed} after the stream, {called} after the command");
    assert!(streamed - before < GROWTH_MAX, "{before} bytes and then {streamed}");
    // The command has three calls under way, whose batches take turns.
    assert!(called - streamed < GROWTH_MAX, "{streamed} bytes and then {called}");
    daemon.stop().await
}
