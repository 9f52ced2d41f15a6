//! The closed loops: how long one text takes, and how many texts go through. A client sends its
//! next call when it has the answer to its last.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::client::Client;
use super::corpus::Corpus;
use crate::cli::Failure;

/// Times of `calls` calls by one client, each of one of the `texts`, in microseconds, ascending; without texts nothing
/// is asked, which is the way alone.
pub async fn latency(
    client: &Client,
    texts: Option<&[String]>,
    calls: usize,
) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(calls);
    for call in 0..calls {
        let text = texts.map(|texts| texts[call % texts.len()].as_str());
        let start = Instant::now();
        match text {
            Some(text) => drop(client.embed(&[text]).await?),
            None => client.ping().await?,
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// What calls take, in microseconds, ascending.
pub struct Times {
    /// From the first call to the last answer.
    pub took: Duration,
    /// Of each call.
    pub calls: Vec<f64>,
    /// What of each was not the engine's.
    pub beside: Vec<f64>,
}

/// What `calls` calls of `size` texts take, shared by the clients.
pub async fn throughput(
    clients: &[Client],
    corpus: &Corpus,
    (size, calls): (usize, usize),
) -> Result<Times, Failure> {
    let room = || Vec::with_capacity(calls);
    let (next, times) = (Cell::new(0), RefCell::new((room(), room())));
    let start = Instant::now();
    try_join_all(clients.iter().map(|client| async {
        while let Some(call) = take(&next, calls) {
            let texts: Vec<&str> =
                corpus.call(call, size).map(|index| corpus.texts[index].as_str()).collect();
            let sent = Instant::now();
            let answer = client.embed(&texts).await?;
            let took_us = sent.elapsed().as_secs_f64() * 1e6;
            let mut times = times.borrow_mut();
            times.0.push(took_us);
            times.1.push((took_us - answer.engine_us as f64).max(0.0));
        }
        Ok::<_, Failure>(())
    }))
    .await?;
    let (took, (mut calls, mut beside)) = (start.elapsed(), times.into_inner());
    calls.sort_by(f64::total_cmp);
    beside.sort_by(f64::total_cmp);
    Ok(Times { took, calls, beside })
}

/// The next call that nobody has sent yet.
fn take(next: &Cell<usize>, calls: usize) -> Option<usize> {
    let call = next.get();
    next.set(call + 1);
    (call < calls).then_some(call)
}
