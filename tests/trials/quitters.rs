//! Clients that leave in the middle of a call, and one that never listens.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::pipeline::embed_packed;
use super::watch::{descriptors, descriptors_left, growth_mib, ms, p99};
use super::{Outcome, Size, figure, timed};
use crate::harness::client::{Options, call};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::process::{peak, resident};
use crate::harness::{eventually, within};

/// Many clients, each gone before its call is answered.
pub async fn quitters(size: Size) -> Outcome {
    const GROWTH_MAX_MIB: f64 = 20.0;
    /// So many are there at once, while the worker stands still.
    const TOGETHER: usize = 50;
    let rounds = size.of(20, 200);
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let process = daemon.process.pid();
    let texts = vec!["nobody will ever read what becomes of this text"; 64];
    let packed = embed_packed(&texts, None)?;
    let to_fd = call("EmbedToFd").build(&(&texts, Options::new()))?;
    let (mut before, mut left) = ((0, 0), 0);
    for round in 0..rounds {
        daemon.signal_workers(Signal::SIGSTOP).await?;
        let mut streams = Vec::new();
        for client in 0..TOGETHER {
            let mut stream = bus.connect_bare()?;
            stream.write_all(if client % 2 == 0 { packed.data() } else { to_fd.data() })?;
            streams.push(stream);
        }
        daemon.client().counted("in_flight_calls", TOGETHER as u64).await?;
        drop(streams);
        left += TOGETHER as u64;
        eventually("the end of their calls", async || {
            Ok(daemon.client().failures("cancelled").await? >= left)
        })
        .await?;
        daemon.signal_workers(Signal::SIGCONT).await?;
        quiet(&daemon).await?;
        if round == 1 {
            before = (resident(process)?, descriptors(process)?);
        }
    }
    let (memory, fds) = (resident(process)?, descriptors_left(process, before.1).await?);
    figure(
        fds <= before.1,
        format_args!("{fds} descriptors after {left} clients, {} before", before.1),
    );
    let growth = growth_mib(before.0, memory);
    figure(growth <= GROWTH_MAX_MIB, format_args!("the daemon grew by {growth:.1} MiB"));
    // What the worker had in hand when it was stopped is computed all the same.
    let tokens = daemon.client().counter("tokens").await?;
    let sent = left * embed_tokens(&daemon, &texts).await?;
    figure(
        tokens * 10 < sent,
        format_args!("{tokens} of {sent} tokens were computed for clients that had left"),
    );
    daemon.client().embedder.embed("somebody who stays").await?;
    daemon.stop().await
}

/// Tokens of these texts.
async fn embed_tokens(daemon: &Daemon, texts: &[&str]) -> Outcome<u64> {
    let counts = daemon.client().embedder.count_tokens(texts).await?;
    Ok(counts.into_iter().map(u64::from).sum())
}

/// Waits until every call that the daemon was sent has ended.
async fn quiet(daemon: &Daemon) -> Outcome {
    within("the end of all calls", async {
        // The bus hands everything on before this answer, and what it handed on may still be begun.
        for _ in 0..3 {
            while daemon.client().counter("in_flight_calls").await? > 0 {}
        }
        Ok(())
    })
    .await?
}

/// A client that sends what it can and reads nothing. Without it and beside it is measured in turn, so that
/// whatever else the machine does befalls both.
pub async fn deaf_client(size: Size) -> Outcome {
    const ROUNDS: usize = 5;
    const GROWTH_MAX_MIB: f64 = 16.0;
    const P99_MAX: f64 = 1.2;
    let calls = size.of(1_000, 10_000);
    // So that no bound but that of the bus holds it back.
    let setup = Setup::sim()?.setting("quota_tokens", "10000000");
    let (bus, _setup, daemon) = setup.setting("queue_tokens_max", "20000000").alone().await?;
    times(&daemon, calls).await?;
    let before = peak(daemon.process.pid())?;

    let (mut alone, mut beside, mut unread) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        alone.extend(times(&daemon, calls).await?);
        let mut deaf = bus.connect_bare()?;
        unread = send_much(&mut deaf)?;
        quiet(&daemon).await?;
        beside.extend(times(&daemon, calls).await?);
        // What follows is not to pay for the bus's clearing up.
        drop(deaf);
        quiet(&daemon).await?;
        times(&daemon, calls / 10).await?;
    }
    let growth = growth_mib(before, peak(daemon.process.pid())?);
    let (alone, beside) = (p99(&mut alone), p99(&mut beside));
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    timed(
        ratio <= P99_MAX,
        format_args!(
            "p99 {:.2} ms beside a client with {unread} calls unread, {:.2} ms without, {ROUNDS} times \
             in turn: {ratio:.2} times",
            ms(beside),
            ms(alone)
        ),
    );
    figure(growth <= GROWTH_MAX_MIB, format_args!("the daemon grew by {growth:.1} MiB"));
    daemon.stop().await
}

/// Sends calls until nobody takes any more; how many.
fn send_much(deaf: &mut UnixStream) -> Outcome<usize> {
    /// Their replies are four times what the bus keeps for the service.
    const CALLS_MAX: usize = 5_000;
    // Longer than the bus ever takes to read what it still wants to have.
    deaf.set_write_timeout(Some(Duration::from_secs(2)))?;
    let texts = vec!["a long reply that nobody takes"; 64];
    let message = embed_packed(&texts, None)?;
    let mut sent = 0;
    while sent < CALLS_MAX && deaf.write_all(message.data()).is_ok() {
        sent += 1;
    }
    if sent == 0 { Err("the bus took no call of it".into()) } else { Ok(sent) }
}

/// How long each of some calls takes.
async fn times(daemon: &Daemon, calls: usize) -> Outcome<Vec<Duration>> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let started = Instant::now();
        daemon.client().embedder.embed("one after the other").await?;
        times.push(started.elapsed());
    }
    Ok(times)
}
