//! The closed loops: how long one text takes, and how many texts go through. A client sends its
//! next call when it has the answer to its last.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::client::Client;
use super::corpus::Corpus;
use crate::cli::Failure;

/// A call whose time is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Nothing is asked: the way alone.
    Ping,
    /// One text.
    Text,
}

/// Times of `calls` calls by one client, in microseconds, ascending.
pub async fn latency(
    client: &Client,
    texts: &[String],
    (probe, calls): (Probe, usize),
) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(calls);
    for call in 0..calls {
        let text = texts[call % texts.len()].as_str();
        let start = Instant::now();
        match probe {
            Probe::Ping => client.ping().await?,
            Probe::Text => drop(client.embed(&[text]).await?),
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// How long `calls` calls of `size` texts take altogether, shared by the clients, and how long each took:
/// the latter in microseconds, ascending.
pub async fn throughput(
    clients: &[Client],
    corpus: &Corpus,
    (size, calls): (usize, usize),
) -> Result<(Duration, Vec<f64>), Failure> {
    let (next, times) = (Cell::new(0), RefCell::new(Vec::with_capacity(calls)));
    let start = Instant::now();
    try_join_all(clients.iter().map(|client| async {
        while let Some(call) = take(&next, calls) {
            let texts: Vec<&str> =
                corpus.call(call, size).map(|index| corpus.texts[index].as_str()).collect();
            let sent = Instant::now();
            client.embed(&texts).await?;
            times.borrow_mut().push(sent.elapsed().as_secs_f64() * 1e6);
        }
        Ok::<_, Failure>(())
    }))
    .await?;
    let (took, mut times) = (start.elapsed(), times.into_inner());
    times.sort_by(f64::total_cmp);
    Ok((took, times))
}

/// Times of `calls` calls of `size` texts, shared by the clients, and what of each was not the
/// engine's: both in microseconds, ascending.
pub async fn beside(
    clients: &[Client],
    corpus: &Corpus,
    (size, calls): (usize, usize),
) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let (next, times) = (Cell::new(0), RefCell::new((Vec::new(), Vec::new())));
    try_join_all(clients.iter().map(|client| async {
        while let Some(call) = take(&next, calls) {
            let texts: Vec<&str> =
                corpus.call(call, size).map(|index| corpus.texts[index].as_str()).collect();
            let start = Instant::now();
            let answer = client.embed(&texts).await?;
            let took_us = start.elapsed().as_secs_f64() * 1e6;
            let mut times = times.borrow_mut();
            times.0.push(took_us);
            times.1.push((took_us - answer.engine_us as f64).max(0.0));
        }
        Ok::<_, Failure>(())
    }))
    .await?;
    let (mut took, mut beside) = times.into_inner();
    took.sort_by(f64::total_cmp);
    beside.sort_by(f64::total_cmp);
    Ok((took, beside))
}

/// The next call that nobody has sent yet.
fn take(next: &Cell<usize>, calls: usize) -> Option<usize> {
    let call = next.get();
    next.set(call + 1);
    (call < calls).then_some(call)
}
