//! Direct connections: the same service past the bus, for who opened them and as long as they are there.

pub mod hostile;
mod room;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use op_dbus_api::{EMBEDDER_INTERFACE, ErrorName, MANAGER_INTERFACE, ROOT_PATH, direct};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use zbus::Fd;

use crate::faults::limit_descriptors;
use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::files::content;
use crate::harness::introspection::described;
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, within};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    tests().into_iter().chain(hostile::tests()).chain(room::tests()).collect()
}

tests! {
    it_has_the_same_vectors: [Bus],
    it_is_the_embedder_alone: [Bus],
    it_has_the_same_quota: [Bus],
    it_counts_for_the_same_tokens: [Bus],
    it_finds_what_is_kept: [Bus],
    it_tells_what_changes: [Bus],
    it_ends_with_its_opener: [Bus],
    its_calls_end_with_it: [Bus],
    it_answers_before_the_service_stops: [Bus],
    where_descriptors_are_short_it_is_refused: [Bus],
}

/// Direct connections that one user may have.
const MOST: usize = 16;

/// A direct connection as a client of its own.
async fn line(client: &Client) -> Outcome<Client> {
    Client::new(direct(&client.embedder).await?).await
}

/// The socket of a direct connection on which nothing has been said.
async fn silent(client: &Client) -> Outcome<UnixStream> {
    stream(client.embedder.open_direct().await?)
}

/// The client's end of a direct connection.
fn stream(socket: zbus::OwnedFd) -> Outcome<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(socket));
    socket.set_nonblocking(true)?;
    Ok(UnixStream::from_std(socket)?)
}

/// Waits until the other end is closed; what it said before.
async fn ended(mut socket: UnixStream) -> Outcome<Vec<u8>> {
    let mut said = Vec::new();
    // A reset is an end as well: it had not read everything.
    let _ = within("the end of the connection", socket.read_to_end(&mut said)).await?;
    Ok(said)
}

/// Waits until all places are free again, by taking them.
async fn all_free(client: &Client) -> Outcome {
    within("free places", async {
        let mut open = Vec::new();
        while open.len() < MOST {
            match direct(&client.embedder).await {
                Ok(line) => open.push(line),
                Err(_) => open.clear(),
            }
        }
    })
    .await
}

async fn it_has_the_same_vectors() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let direct = line(daemon.client()).await?;
    let texts = ["one", "two"];
    let expected = daemon.client().vectors(&texts).await?;
    assert_eq!(direct.vectors(&texts).await?, expected);
    let bytes: Vec<u8> = expected.concat().iter().flat_map(|x| x.to_le_bytes()).collect();
    let (to_fd, ..) = direct.embedder.embed_to_fd(&texts, Options::new()).await?;
    fs::write(setup.path("texts"), "one\ntwo\n")?;
    let source = fs::File::open(setup.path("texts"))?;
    let source = Fd::from(source.as_fd());
    let (from_fd, rows, ..) = direct.embedder.embed_from_fd(source, Options::new()).await?;
    assert_eq!(rows, 2);
    for fd in [to_fd, from_fd] {
        assert_eq!(content(fd)?, bytes);
    }
    assert_eq!(
        direct.embedder.vector_space().await?,
        daemon.client().embedder.vector_space().await?
    );
    // Beyond what fits a socket at once, both ways.
    let many: Vec<String> = (0..8000).map(|n| format!("{n} {}", "x".repeat(n % 200))).collect();
    assert_eq!(direct.vectors(&many).await?.len(), 8000);
    daemon.stop().await
}

async fn it_is_the_embedder_alone() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let direct = line(daemon.client()).await?;
    let status = direct.manager.get_status().await;
    assert!(
        matches!(&status, Err(zbus::Error::FDO(error))
        if matches!(**error, zbus::fdo::Error::UnknownInterface(_))),
        "{status:?}"
    );
    let nested = direct.embedder.open_direct().await;
    let message = refused(nested, ErrorName::InvalidArgument)?;
    assert!(message.contains("over the bus"), "{message}");
    // Errors are those of the contract here as well.
    let unknown = Options::from([("colour", "blue".into())]);
    refused(direct.embedder.embed_packed(&["one"], unknown).await, ErrorName::InvalidArgument)?;
    let live = described(direct.connection(), ROOT_PATH).await?;
    assert!(live.contains(EMBEDDER_INTERFACE) && !live.contains(MANAGER_INTERFACE), "{live}");
    daemon.stop().await
}

/// All connections of a user share what that user may have.
async fn it_has_the_same_quota() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (first, second) = (line(daemon.client()).await?, line(daemon.client()).await?);
    let (source, writer) = std::io::pipe()?;
    let stream = |client: &Client| {
        let (embedder, source) = (client.embedder.clone(), source.try_clone());
        Box::pin(
            async move { embedder.embed_from_fd(Fd::from(source?.as_fd()), Options::new()).await },
        )
    };
    let clients = [daemon.client(), &first, &first, &second, &second];
    let calls: Vec<_> = clients.into_iter().map(stream).collect();
    let (refusal, _, rest) = futures_util::future::select_all(calls).await;
    let message = refused(refusal, ErrorName::QuotaExceeded)?;
    assert!(message.contains("4 of 4 streams"), "{message}");
    drop(writer);
    for call in rest {
        assert_eq!(call.await?.1, 0);
    }
    // Two are open; the rest are the user's, whoever of its clients opens them.
    let mut more = Vec::new();
    for _ in 2..MOST {
        more.push(direct(&daemon.client().embedder).await?);
    }
    let message = refused(daemon.client().embedder.open_direct().await, ErrorName::QuotaExceeded)?;
    assert!(message.contains("16 of 16 direct connections"), "{message}");
    drop(more);
    first.embedder.embed("still there").await?;
    drop((first, second));
    all_free(daemon.client()).await?;
    daemon.stop().await
}

/// What is in flight on the bus counts past it, and the other way round: no call is too much by itself.
async fn it_counts_for_the_same_tokens() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.setting("quota_tokens", "200").alone().await?;
    let client = daemon.client();
    let direct = line(client).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    // A token for each byte, and two more.
    let text = |bytes| "x".repeat(bytes);
    let on_the_bus = client.embed_meanwhile(&text(100));
    client.counted("in_flight_calls", 1).await?;
    refused(direct.embedder.embed(&text(150)).await, ErrorName::QuotaExceeded)?;
    let past_it = direct.embed_meanwhile(&text(50));
    client.counted("in_flight_calls", 2).await?;
    refused(client.embedder.embed(&text(50)).await, ErrorName::QuotaExceeded)?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    for call in [on_the_bus, past_it] {
        within("a call that was not refused", call).await???;
    }
    daemon.stop().await
}

/// Whether it was asked for on the bus or past it.
async fn it_finds_what_is_kept() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.setting("cache_bytes", "1000000").alone().await?;
    let direct = line(daemon.client()).await?;
    for (text, first, second) in
        [("one", daemon.client(), &direct), ("two", &direct, daemon.client())]
    {
        first.embedder.embed(text).await?;
        let again = second.packed(&[text], Options::new()).await?;
        assert_eq!(again.info::<u32>("cached")?, 1, "{text}");
    }
    daemon.stop().await
}

async fn it_tells_what_changes() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let direct = line(daemon.client()).await?;
    let properties = zbus::fdo::PropertiesProxy::builder(direct.connection());
    let properties = properties.destination(op_dbus_api::BUS_NAME).path(ROOT_PATH).build().await?;
    let mut changes = properties.receive_properties_changed().await?;
    daemon.client().manager.set_vector_level("none").await?;
    let change = within("PropertiesChanged", changes.next()).await?.ok_or("it has ended")?;
    let change = change.args()?;
    assert!(change.changed_properties.contains_key("VectorLevel"), "{change:?}");
    refused(direct.embedder.embed("one").await, ErrorName::Disabled)?;
    daemon.stop().await
}

/// Also when somebody else keeps the socket, and a call is under way.
async fn it_ends_with_its_opener() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let leaving = Client::on(&bus).await?;
    let (direct, idle) = (line(&leaving).await?, silent(&leaving).await?);
    let (source, _writer) = std::io::pipe()?;
    let call = direct.embedder.embed_from_fd(Fd::from(source.as_fd()), Options::new());
    let leave = async {
        // Calls are dispatched in turn: behind this one the stream is under way.
        direct.embedder.embed("one").await?;
        leaving.connection().clone().close().await
    };
    let (call, left) = tokio::join!(within("the end of the call", call), leave);
    left?;
    assert!(call?.is_err());
    within("the end of the connection", direct.connection().closed()).await?;
    assert!(ended(idle).await?.is_empty());
    all_free(daemon.client()).await?;
    daemon.stop().await
}

/// The places of its streams are free when it is closed.
async fn its_calls_end_with_it() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let direct = line(daemon.client()).await?;
    let (source, _writer) = std::io::pipe()?;
    let stream =
        || Box::pin(direct.embedder.embed_from_fd(Fd::from(source.as_fd()), Options::new()));
    let calls: Vec<_> = (0..5).map(|_| stream()).collect();
    // The fifth is refused while the others wait for the pipe.
    let (first, _, rest) = futures_util::future::select_all(calls).await;
    refused(first, ErrorName::QuotaExceeded)?;
    direct.connection().clone().close().await?;
    fs::write(setup.path("texts"), "one\n")?;
    within("a place for a stream", async {
        loop {
            let source = fs::File::open(setup.path("texts"))?;
            let source = Fd::from(source.as_fd());
            match daemon.client().embedder.embed_from_fd(source, Options::new()).await {
                Ok(_) => return Outcome::Ok(()),
                full => refused(full, ErrorName::QuotaExceeded).map(drop)?,
            }
        }
    })
    .await??;
    for call in rest {
        assert!(within("the end of a call", call).await?.is_err());
    }
    daemon.stop().await
}

/// Its threads end with it while the level is loaded, for which others may wait.
async fn it_answers_before_the_service_stops() -> Outcome {
    let (_bus, _setup, mut daemon) = Setup::sim()?.alone().await?;
    let direct = line(daemon.client()).await?;
    let expected = direct.embedder.embed("in flight").await?;
    let workers = daemon.workers().await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = direct.embed_meanwhile("in flight");
    daemon.client().counted("in_flight_calls", 1).await?;
    daemon.process.signal(Signal::SIGTERM)?;
    daemon.state(|state| state == "draining").await?;
    refused(direct.embedder.embed("too late").await, ErrorName::ShuttingDown)?;
    refused(daemon.client().embedder.open_direct().await, ErrorName::ShuttingDown)?;
    for worker in workers {
        nix::sys::signal::kill(worker, Signal::SIGCONT)?;
    }
    assert_eq!(within("the call in flight", waiting).await???, expected);
    within("the end of the connection", direct.connection().closed()).await?;
    assert!(daemon.process.ended().await?.success());
    Ok(())
}

/// One more at a time: the last that is missing is the reply's own.
async fn where_descriptors_are_short_it_is_refused() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    for files in 3..1000 {
        limit_descriptors(&daemon, &format!("{files}:")).await?;
        match daemon.client().embedder.open_direct().await {
            Ok(_line) => return daemon.stop().await,
            Err(error) => refused::<()>(Err(error), ErrorName::NoSpace).map(drop)?,
        }
    }
    Err("it was always refused".into())
}
