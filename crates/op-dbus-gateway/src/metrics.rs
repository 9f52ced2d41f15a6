//! Counts of the gateway's own: how many requests were answered, how, and how long they took.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// Times up to 2^10 µs have the first bucket, each further one reaches twice as far.
const FIRST: u32 = 10;
/// The last bucket that has an end holds 268 s: what waits for its place may take nearly three minutes.
const BUCKETS: usize = 19;

/// Times of requests, counted by bucket.
#[derive(Clone, Default)]
pub struct Times {
    counts: [u64; BUCKETS],
    count: u64,
    sum: Duration,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = (0..BUCKETS).find(|bucket| us <= end_us(*bucket)) {
            self.counts[bucket] += 1;
        }
        self.count += 1;
        self.sum += time;
    }

    /// The end of each bucket in microseconds, and the requests that took no longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen = 0;
        self.counts.iter().enumerate().map(move |(bucket, count)| {
            seen += count;
            (end_us(bucket), seen)
        })
    }

    /// Requests, and seconds that they took together.
    pub fn total(&self) -> (u64, f64) {
        (self.count, self.sum.as_secs_f64())
    }
}

fn end_us(bucket: usize) -> u64 {
    1 << (bucket as u32 + FIRST)
}

/// Requests by route and status.
#[derive(Default)]
pub struct Metrics(Mutex<BTreeMap<(String, u16), Times>>);

impl Metrics {
    /// Counts a request. Routes are those of the router, so there are few.
    pub fn answered(&self, route: String, status: u16, time: Duration) {
        self.0.lock().entry((route, status)).or_default().add(time);
    }

    /// The counts now.
    pub fn read(&self) -> BTreeMap<(String, u16), Times> {
        self.0.lock().clone()
    }
}
