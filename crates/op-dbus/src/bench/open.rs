//! The open loop: texts arrive at a rate, whether or not the last one is answered. Times count from
//! when a text was due, so that a service which stands still can't hide it by holding us up.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use super::client::Client;
use super::corpus::Corpus;
use super::random::Random;
use crate::cli::Failure;

/// Arrivals in one round at most.
const ARRIVALS_MAX: f64 = 1e7;

/// What the open loop saw.
pub struct Arrivals {
    /// From when each text was due to its vector, in microseconds, ascending.
    pub times_us: Vec<f64>,
    /// Texts answered, by the time from the first arrival to the last answer.
    pub answered_per_s: f64,
}

/// Texts that arrive in about `seconds` at `rate` texts per second.
///
/// # Errors
/// None in that time, or more than memory is to be taken for.
pub fn arrivals(rate: f64, seconds: f64) -> Result<usize, Failure> {
    let texts = rate * seconds;
    if !(1.0..=ARRIVALS_MAX).contains(&texts) {
        return Err(Failure::usage(format!(
            "--rate asks for {rate} texts/s, which is {texts} in --seconds {seconds}, and 1 to {ARRIVALS_MAX} can be \
             measured: change one of the two"
        )));
    }
    Ok(texts.ceil() as usize)
}

/// When texts are due, from the start: a Poisson process at `rate` texts per second that lasts for
/// about `time`, stretched so that its last text is due when so many are at that rate.
///
/// # Errors
/// More arrivals than memory is to be taken for.
pub fn schedule(rate: f64, time: Duration, seed: u64) -> Result<Vec<Duration>, Failure> {
    // A share of what was measured just now, which nobody knew before: the round goes on.
    if rate * time.as_secs_f64() < 1.0 {
        return Ok(vec![time]);
    }
    let texts = arrivals(rate, time.as_secs_f64())?;
    let mut random = Random::new(seed);
    let mut last = 0.0;
    let next = |_| {
        last += random.gap(rate);
        last
    };
    let due: Vec<f64> = (0..texts).map(next).collect();
    // By chance they would come some percent faster or slower than is told of them.
    let end = texts as f64 / rate;
    Ok(due.into_iter().map(|due| Duration::from_secs_f64(due / last * end)).collect())
}

/// Sends one text a call at the times of `schedule`, the clients in turn.
pub async fn run(
    clients: &[Client],
    corpus: &Corpus,
    schedule: Vec<Duration>,
) -> Result<Arrivals, Failure> {
    let texts = schedule.len();
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let start = Instant::now();
    // The runtime's own timers have steps of a millisecond, which is longer than a short text takes.
    let clock = thread::Builder::new().name("arrivals".to_owned()).spawn(move || {
        // Not to be woken late on purpose; where the kernel refuses, it is by 50 µs at most.
        nix::sys::prctl::set_timerslack(1).ok();
        for (number, due) in schedule.into_iter().enumerate() {
            let due = start + due;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // Nobody listens after a failed call.
            if sender.send((number, due)).is_err() {
                break;
            }
        }
    });
    clock.map_err(|error| Failure::refused(format!("can't start a thread: {error}")))?;
    let call = async |number: usize, due: Instant| {
        let text = corpus.texts[number % corpus.texts.len()].as_str();
        clients[number % clients.len()].embed(&[text]).await?;
        Ok::<_, Failure>(due.elapsed().as_secs_f64() * 1e6)
    };
    let mut pending = FuturesUnordered::new();
    let mut times_us = Vec::with_capacity(texts);
    let mut arriving = true;
    while arriving || !pending.is_empty() {
        tokio::select! {
            // New texts are sent before answers are looked at.
            biased;
            arrival = arrivals.recv(), if arriving => match arrival {
                Some((number, due)) => pending.push(call(number, due)),
                None => arriving = false,
            },
            Some(time) = pending.next(), if !pending.is_empty() => times_us.push(time?),
        }
    }
    let answered_per_s = times_us.len() as f64 / start.elapsed().as_secs_f64();
    times_us.sort_by(f64::total_cmp);
    Ok(Arrivals { times_us, answered_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_their_rate_and_repeat() {
        let of = |seed| schedule(200.0, Duration::from_secs(20), seed).unwrap();
        let (one, same, other) = (of(1), of(1), of(2));
        assert_eq!((one.len(), &one), (4000, &same));
        assert_ne!(one, other);
        assert!(one.is_sorted());
        // Neither more nor less is offered than is told.
        for all in [one, other] {
            assert_eq!(all.last(), Some(&Duration::from_secs(20)));
        }
    }

    #[test]
    fn arrivals_are_at_least_one_and_not_without_end() {
        assert_eq!(arrivals(100.0, 0.01).ok(), Some(1));
        assert_eq!(arrivals(12.5, 1.0).ok(), Some(13));
        assert_eq!(arrivals(1e7, 1.0).ok(), Some(10_000_000));
        for (rate, seconds) in [(1e-9, 1.0), (99.0, 0.01), (1e12, 1.0), (10_001.0, 1000.0)] {
            let error = arrivals(rate, seconds).unwrap_err().message().to_owned();
            assert!(error.contains("--rate") && error.contains("--seconds"), "{error}");
        }
    }
}
