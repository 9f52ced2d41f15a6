//! Clients that mean ill on a direct connection, and many of them.

use std::fs;
use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::libc::linger;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use nix::unistd::Uid;
use op_dbus_api::{EMBEDDER_INTERFACE, ErrorName, ROOT_PATH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use zbus::as_variant::Serialize;
use zbus::connection::Builder;
use zbus::message::Flags;
use zbus::{Fd, Message};

use super::{MOST, all_free, ended, line, silent, stream};
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::process::peak;
use crate::harness::random::Random;
use crate::harness::registry::tests;
use crate::harness::users::{OTHER, SERVICE, Users};
use crate::harness::{Outcome, eventually, within};

tests! {
    garbage_ends_one_connection_alone: [Bus],
    a_descriptor_that_comes_late_ends_the_connection: [Bus],
    who_never_reads_is_held_back: [Bus],
    a_thousand_leave_nothing: [Bus],
    a_property_that_is_set_takes_no_more_than_its_call: [Bus],
    a_descriptor_that_hangs_holds_up_no_call_over_the_bus: [Bus],
    a_descriptor_that_hangs_holds_up_no_other_user: [Bus, Root],
    who_hangs_its_lines_gets_no_more_threads: [Bus],
    where_threads_are_short_none_is_left_behind: [Bus, Root],
}

/// What a client says before its first message.
fn authentication() -> String {
    let uid: String = Uid::effective().to_string().bytes().map(|b| format!("{b:02x}")).collect();
    format!("\0AUTH EXTERNAL {uid}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n")
}

/// The socket of a direct connection that takes messages.
pub async fn open(client: &Client) -> Outcome<UnixStream> {
    let mut socket = silent(client).await?;
    socket.write_all(authentication().as_bytes()).await?;
    let mut said = String::new();
    while !said.ends_with("AGREE_UNIX_FD\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).await?;
        said.push(char::from(byte[0]));
    }
    assert!(said.starts_with("OK "), "{said}");
    Ok(socket)
}

/// A call of the embedder, without its arguments.
pub fn call(method: &'static str) -> zbus::message::Builder<'static> {
    Message::method_call(ROOT_PATH, method).interface(EMBEDDER_INTERFACE)
}

/// Sends bytes and descriptors together.
fn pass(line: &UnixStream, bytes: &[u8], descriptors: &[RawFd]) -> Outcome {
    let (bytes, rights) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(descriptors)]);
    sendmsg::<()>(line.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None)?;
    Ok(())
}

async fn garbage_ends_one_connection_alone() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let neighbour = line(daemon.client()).await?;
    let embed = call("Embed").build(&"one")?.data().to_vec();
    let endless = [b"\0", vec![b'x'; 1 << 20].as_slice()].concat();
    let other = b"\0AUTH EXTERNAL 39393939\r\nBEGIN\r\n";
    for said in [b"\n".as_slice(), b"GET / HTTP/1.1\r\n\r\n", b"\0\r\n\n", &endless, other, &embed]
    {
        let mut socket = silent(daemon.client()).await?;
        // It may be closed before all of it is written.
        let _ = socket.write_all(said).await;
        let _ = socket.shutdown().await;
        let answer = String::from_utf8(ended(socket).await?)?;
        assert!(!answer.contains("OK"), "{said:?}: {answer}");
    }
    let mut long = embed.clone();
    long[4..8].copy_from_slice(&(100_u32 << 20).to_ne_bytes());
    let mut more = embed.clone();
    more[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
    for said in [long, more, vec![0; 4096], vec![0xff; 4096]] {
        let mut socket = open(daemon.client()).await?;
        socket.write_all(&said).await?;
        ended(socket).await?;
    }
    // Three descriptors with a message's first byte.
    let socket = open(daemon.client()).await?;
    pass(&socket, &embed[..1], &[0, 1, 2])?;
    ended(socket).await?;
    let mut random = Random::new(7);
    for _ in 0..200 {
        let mut socket = open(daemon.client()).await?;
        let mut said = embed.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(said.len());
            said[at] = random.below(256) as u8;
        }
        let _ = socket.write_all(&said).await;
        let _ = socket.shutdown().await;
        ended(socket).await?;
    }
    neighbour.embedder.embed("one").await?;
    drop(neighbour);
    all_free(daemon.client()).await?;
    // Nobody may fill the log with what asks to be reported.
    assert!(!daemon.process.stderr().contains("panic"));
    daemon.stop().await
}

/// What a call may hold is taken when it begins.
async fn a_descriptor_that_comes_late_ends_the_connection() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (source, _writer) = std::io::pipe()?;
    let call = call("EmbedFromFd").build(&(Fd::from(source.as_fd()), Options::new()))?;
    let mut socket = open(daemon.client()).await?;
    socket.write_all(&call.data()[..16]).await?;
    pass(&socket, &call.data()[16..], &[source.as_raw_fd()])?;
    ended(socket).await?;
    all_free(daemon.client()).await?;
    daemon.stop().await
}

/// Calls are read as their replies are taken, and nothing else is done for a client.
async fn who_never_reads_is_held_back() -> Outcome {
    // What the service reads of small calls at once, and what a socket holds of replies.
    const UNDER_WAY: u64 = 64;
    const REPLIES: u64 = 16;
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let before = client.counter("calls").await?;
    let mut socket = open(client).await?;
    for _ in 0..1000 {
        let silent = call("Embed").with_flags(Flags::NO_REPLY_EXPECTED).build(&"one")?;
        socket.write_all(silent.data()).await?;
    }
    let signal = Message::signal(ROOT_PATH, EMBEDDER_INTERFACE, "Embed").build(&"one")?;
    socket.write_all(signal.data()).await?;
    let workers = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let (mut reader, mut writer) = socket.into_split();
    let writing = tokio::spawn(async move {
        for _ in 0..500 {
            let call = call("EmbedBatch").build(&vec!["one"; 16]).map(|call| call.data().to_vec());
            let Ok(call) = call else { break };
            if writer.write_all(&call).await.is_err() {
                break;
            }
        }
        // Its end would be that of the connection.
        writer
    });
    client.counted("in_flight_calls", UNDER_WAY).await?;
    for _ in 0..100 {
        assert_eq!(client.counter("in_flight_calls").await?, UNDER_WAY);
    }
    for worker in workers {
        nix::sys::signal::kill(worker, Signal::SIGCONT)?;
    }
    client.counted("calls", before + UNDER_WAY).await?;
    for _ in 0..100 {
        let calls = client.counter("calls").await? - before;
        assert!(calls <= UNDER_WAY + REPLIES, "{calls}");
    }
    // It reads: all of its calls are answered.
    let mut replies = 0;
    while replies < 500 {
        let mut header = [0; 16];
        reader.read_exact(&mut header).await?;
        let number = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let rest = number(12).next_multiple_of(8) + number(4);
        reader.read_exact(&mut vec![0; rest as usize]).await?;
        assert_eq!(header[1], 2, "a reply, not an error");
        replies += 1;
    }
    assert_eq!(client.counter("calls").await? - before, 500);
    drop((reader, writing.await?));
    all_free(client).await?;
    daemon.stop().await
}

/// A socket whose last holder waits in `close` for a peer that never reads.
pub fn clogged() -> Outcome<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    let linger = linger { l_onoff: 1, l_linger: 60 };
    setsockopt(&socket, sockopt::Linger, &linger)?;
    Ok((socket, peer))
}

/// Sends a call with a descriptor whose closing hangs until the peer that this returns is closed.
async fn hang(line: &mut UnixStream) -> Outcome<TcpStream> {
    let embed = call("Embed").build(&"one")?.data().to_vec();
    let (socket, peer) = clogged()?;
    pass(line, &embed[..20], &[socket.as_raw_fd()])?;
    // The service has the last copy from here on.
    drop(socket);
    line.write_all(&embed[20..]).await?;
    Ok(peer)
}

/// As many lines as hold up all threads of their user. They are open before the first one hangs.
async fn hang_four(client: &Client) -> Outcome<(Vec<UnixStream>, Vec<TcpStream>)> {
    let (mut lines, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        lines.push(open(client).await?);
    }
    for line in &mut lines {
        peers.push(hang(line).await?);
    }
    Ok((lines, peers))
}

async fn a_descriptor_that_hangs_holds_up_no_call_over_the_bus() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let (lines, peers) = hang_four(client).await?;
    for _ in 0..100 {
        within("an answer over the bus", client.embedder.embed("one")).await??;
    }
    drop((peers, lines));
    all_free(client).await?;
    daemon.stop().await
}

async fn a_descriptor_that_hangs_holds_up_no_other_user() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    let other = Client::new(bus.connect_as(OTHER.id).await?).await?;
    let (lines, peers) = hang_four(daemon.client()).await?;
    let socket = OwnedFd::from(other.embedder.open_direct().await?);
    let others = Builder::unix_stream(std::os::unix::net::UnixStream::from(socket));
    let others = others.p2p().user_id(OTHER.id).build();
    let others = Client::new(within("another user's line", others).await??).await?;
    for _ in 0..100 {
        within("another user's answer", others.embedder.embed("one")).await??;
    }
    drop((peers, lines, others));
    all_free(daemon.client()).await?;
    daemon.stop().await
}

async fn who_hangs_its_lines_gets_no_more_threads() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let threads =
        || Outcome::Ok(fs::read_dir(format!("/proc/{}/task", daemon.process.pid()))?.count());
    let before = threads()?;
    let mut peers = Vec::new();
    // Each line is left at once, and what hangs on it keeps its place.
    let refusal = loop {
        match client.embedder.open_direct().await {
            Ok(socket) => {
                let mut line = stream(socket)?;
                line.write_all(authentication().as_bytes()).await?;
                peers.push(hang(&mut line).await?);
                assert!(peers.len() < 1000, "a thousand lines hang");
            }
            Err(error) => break error,
        }
    };
    refused::<()>(Err(refusal), ErrorName::QuotaExceeded)?;
    // Two for each that was the only one when it was left.
    let now = threads()?;
    assert!(now <= before + 2 * MOST, "{now} threads, {before} before");
    within("an answer over the bus", client.embedder.embed("one")).await??;
    drop(peers);
    all_free(client).await?;
    daemon.stop().await
}

/// At one of these limits the first of two threads can be had, and the second can't.
async fn where_threads_are_short_none_is_left_behind() -> Outcome {
    let (users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.of_the_service()?;
    let daemon = users.serve(&setup, &bus, "").await?;
    assert_eq!(daemon.settled().await?, "ready");
    let process = daemon.process.pid();
    let named = || -> Outcome<usize> {
        let mut count = 0;
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            // One that ends meanwhile is none.
            let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
            count += usize::from(name == "direct\n");
        }
        Ok(count)
    };
    let mut limit = 1;
    let line = loop {
        let mut limited = clean("prlimit");
        limited.arg(format!("--pid={process}")).arg(format!("--nproc={limit}:"));
        finish(SERVICE.runs(&limited), "").await?.success()?;
        match daemon.client().embedder.open_direct().await {
            Ok(line) => break line,
            Err(error) => refused::<()>(Err(error), ErrorName::NoSpace).map(drop)?,
        }
        limit += 1;
        assert!(limit < 500, "{} threads were left behind", named()?);
    };
    eventually("no more threads than two", async || Outcome::Ok(named()? <= 2)).await?;
    drop(line);
    all_free(daemon.client()).await?;
    daemon.stop().await
}

async fn a_thousand_leave_nothing() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let descriptors =
        || Outcome::Ok(fs::read_dir(format!("/proc/{}/fd", daemon.process.pid()))?.count());
    line(client).await?.embedder.embed("one").await?;
    all_free(client).await?;
    let before = within("no connection", async {
        // The last of them may be closing still.
        let mut least = descriptors()?;
        for _ in 0..100 {
            client.embedder.state().await?;
            least = least.min(descriptors()?);
        }
        Outcome::Ok(least)
    })
    .await??;
    let mut done = 0;
    while done < 1000 {
        let opened = match done % 3 {
            0 => silent(client).await.map(drop),
            1 => open(client).await.map(drop),
            _ => match line(client).await {
                Ok(direct) => Ok(direct.embedder.embed("one").await.map(drop)?),
                Err(error) => Err(error),
            },
        };
        // The places of those before may not be free yet.
        done += usize::from(opened.is_ok());
    }
    eventually("as many descriptors as before", async || Ok(descriptors()? <= before)).await?;
    daemon.stop().await
}

/// No policy is in between that would forbid it.
async fn a_property_that_is_set_takes_no_more_than_its_call() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let line = line(daemon.client()).await?;
    let before = peak(daemon.process.pid())?;
    let body = (EMBEDDER_INTERFACE, "Model", Serialize(&vec![0_u8; 10_000_000]));
    let (nobody, of) = (None::<&str>, Some("org.freedesktop.DBus.Properties"));
    let set = line.connection().call_method(nobody, ROOT_PATH, of, "Set", &body);
    let error = within("a refusal", set).await?.err().ok_or("it was set")?;
    assert!(error.to_string().contains("Unknown property"), "{error}");
    let grown = peak(daemon.process.pid())? - before;
    assert!(grown < 100_000_000, "it grew by {grown} bytes");
    line.embedder.embed("one").await?;
    daemon.stop().await
}
