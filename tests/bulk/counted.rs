//! More calls at once than a user may have, of which none ends.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::fcntl::SealFlag;
use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;

use super::{Reply, embed, memfd};
use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    files_that_are_read_at_once_are_counted: [Bus],
    results_in_the_making_are_counted: [Bus],
}

/// So many calls must be refused with these words while the others wait.
async fn refusals(
    calls: &mut FuturesUnordered<impl Future<Output = zbus::Result<Reply>>>,
    count: usize,
    words: &str,
) -> Outcome {
    within(words, async {
        for _ in 0..count {
            let answer = calls.next().await.ok_or("no call is left")?;
            let message = refused(answer, ErrorName::QuotaExceeded)?;
            assert!(message.contains(words), "{message}");
        }
        Ok(())
    })
    .await?
}

async fn files_that_are_read_at_once_are_counted() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = Client::on(&bus).await?;
    let source = memfd(b"one\n", SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let call = || embed(&client, &source, Options::new());
    let mut calls = FuturesUnordered::new();
    for count in 1..=4 {
        calls.push(call());
        // It is read whole by then.
        tokio::select! {
            answer = calls.next() => return Err(format!("an answer: {answer:?}").into()),
            counted = daemon.client().counted("in_flight_calls", count) => counted?,
        }
    }
    calls.extend((0..16).map(|_| call()));
    refusals(&mut calls, 16, "4 of 4 streams").await?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    while let Some(answer) = calls.next().await {
        assert_eq!(answer?.1, 1);
    }
    // Their places are free again.
    for answer in futures_util::future::join_all((0..4).map(|_| call())).await {
        assert_eq!(answer?.1, 1);
    }
    daemon.stop().await
}

async fn results_in_the_making_are_counted() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    // A bus lets a connection wait for 128 replies.
    let clients = [Client::on(&bus).await?, Client::on(&bus).await?, Client::on(&bus).await?];
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let calls = clients
        .iter()
        .flat_map(|client| (0..90).map(|_| client.embedder.embed_to_fd(&["one"], Options::new())));
    let mut calls: FuturesUnordered<_> = calls.collect();
    refusals(&mut calls, 14, "256 of 256 results").await?;
    daemon.signal_workers(Signal::SIGCONT).await?;
    while let Some(answer) = calls.next().await {
        assert_eq!(answer?.1, 1);
    }
    daemon.stop().await
}
