//! Mixed lengths for long, and a client that is killed every second: memory stays on a plateau, and vectors stay
//! what they were.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::pipeline::{Answer, Pipeline, Reply, embed_packed};
use super::watch::{descriptors, growth_mib};
use super::{Outcome, Size, figure};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::eventually;
use crate::harness::process::resident;
use crate::harness::random::Random;

const CLIENTS: usize = 4;
const WORDS_MAX: usize = 512;
const GROWTH_MAX_MIB: f64 = 100.0;
/// Texts that are sent again and again.
const TEXTS: usize = 997;
/// No text is cut: what the model can't read at once is embedded in pieces.
const WHOLE: Option<(&str, &str)> = Some(("truncate", "mean"));
/// Texts of a call at most.
const CALL_TEXTS_MAX: usize = 4;

/// What all clients have together.
struct Known {
    texts: Vec<String>,
    /// The bytes of the vector that each text had first.
    vectors: Vec<OnceLock<Vec<u8>>>,
    stop: AtomicBool,
    answered: AtomicU64,
    refused: AtomicU64,
    /// Vectors that were compared with the first of their text, and those that were others.
    compared: AtomicU64,
    wrong: AtomicU64,
}

impl Known {
    fn new(random: &mut Random) -> Self {
        Self {
            texts: (0..TEXTS).map(|_| words(random)).collect(),
            vectors: (0..TEXTS).map(|_| OnceLock::new()).collect(),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    /// The texts of the call of that number: one to four that follow one another.
    fn call(number: usize) -> impl ExactSizeIterator<Item = usize> {
        let (first, more) = (number / CALL_TEXTS_MAX, number % CALL_TEXTS_MAX);
        (first..first + 1 + more).map(|text| text % TEXTS)
    }

    /// Takes what that call was answered.
    fn note(&self, number: usize, bytes: &[u8]) {
        let texts = Self::call(number);
        let dimensions = bytes.len() / texts.len();
        for (text, vector) in texts.zip(bytes.chunks_exact(dimensions)) {
            if let Err(vector) = self.vectors[text].set(vector.to_vec()) {
                let is_other = self.vectors[text].get() != Some(&vector);
                self.compared.fetch_add(1, Ordering::Relaxed);
                self.wrong.fetch_add(u64::from(is_other), Ordering::Relaxed);
            }
        }
    }
}

pub async fn soak(size: Size) -> Outcome {
    let asked = std::env::var("OP_DBUS_SOAK_SECONDS").ok();
    let asked = asked.map(|seconds| seconds.parse::<u64>()).transpose()?;
    let seconds = asked.unwrap_or(size.of(60, 25_000));
    let warm = if seconds < 1800 { seconds / 3 } else { 600 };
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let mut random = Random::new(99);
    let known = Arc::new(Known::new(&mut random));
    let mut clients: Vec<JoinHandle<Result<(), String>>> = Vec::new();
    for number in 0..CLIENTS {
        let pipeline = Pipeline::new(bus.connect().await?);
        let endless = endless(pipeline, Random::new(number as u64), Arc::clone(&known));
        clients.push(tokio::spawn(async move { endless.await.map_err(|e| e.to_string()) }));
    }
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    let mut warm_size = None;
    for second in 0..=seconds {
        clock.tick().await;
        // In the middle of its calls, of which it reads no reply.
        let connection = bus.connect().await?;
        let mut killed = Pipeline::new(connection);
        for _ in 0..4 {
            let text = &known.texts[random.below(TEXTS)];
            killed.send(0, &embed_packed(&[text], None)?).await?;
        }
        drop(killed);
        if second == warm {
            warm_size = Some(taken(&daemon).await?);
        }
    }
    let (memory_before, descriptors_before) = warm_size.ok_or("it never got warm")?;
    known.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let (memory, _busy) = taken(&daemon).await?;
    let Known { answered, refused, compared, wrong, .. } = &*known;
    let [answered, refused, compared, wrong] =
        [answered, refused, compared, wrong].map(|count| count.load(Ordering::Relaxed));
    let growth = growth_mib(memory_before, memory);
    figure(
        growth <= GROWTH_MAX_MIB,
        format_args!(
            "{growth:.1} MiB more after {seconds} s than after {warm} s, {} MiB in all",
            memory >> 20
        ),
    );
    figure(refused == 0, format_args!("{answered} calls answered, {refused} refused"));
    figure(
        wrong == 0 && compared > 0,
        format_args!("{wrong} of {compared} vectors other than the first of their text"),
    );
    settled(&daemon, descriptors_before).await?;
    daemon.stop().await
}

/// The clients that left are gone, and with them their descriptors: none more than when it was warm.
async fn settled(daemon: &Daemon, before: usize) -> Outcome {
    daemon.client().embedder.embed("the last").await?;
    let (mut calls, mut after) = (0, 0);
    // The daemon may be a moment behind them.
    let settles = eventually("the end of the clients", async || {
        calls = daemon.client().counter("in_flight_calls").await?;
        after = descriptors(daemon.process.pid())?;
        Ok(calls == 0 && after <= before)
    });
    let is_settled = settles.await.is_ok();
    figure(
        is_settled,
        format_args!("{calls} calls in flight and {after} descriptors at the end, {before} warm"),
    );
    Ok(())
}

/// Resident memory of the daemon and its workers, and the daemon's descriptors.
async fn taken(daemon: &Daemon) -> Outcome<(u64, usize)> {
    let mut bytes = resident(daemon.process.pid())?;
    for worker in daemon.workers().await? {
        bytes += resident(worker)?;
    }
    Ok((bytes, descriptors(daemon.process.pid())?))
}

fn words(random: &mut Random) -> String {
    const WORDS: [&str; 8] = ["disk", "full", "kernel", "the", "unreachable", "a", "node", "was"];
    let count = 1 + random.below(WORDS_MAX);
    (0..count).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Calls with one to four texts of any length, four at a time.
async fn endless(mut pipeline: Pipeline, mut random: Random, known: Arc<Known>) -> Outcome {
    while !known.stop.load(Ordering::Relaxed) {
        while pipeline.in_flight() < 4 {
            let number = random.below(TEXTS * CALL_TEXTS_MAX);
            let texts: Vec<&str> = Known::call(number).map(|text| &*known.texts[text]).collect();
            pipeline.send(number, &embed_packed(&texts, WHOLE)?).await?;
        }
        match pipeline.answer().await? {
            Some(Answer { number, reply: Reply::Vectors(bytes), .. }) => {
                known.note(number, &bytes);
                known.answered.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                known.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    pipeline.close().await
}
