//! Mixed lengths for long, and a client that is killed every second: memory stays on a plateau.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::pipeline::{Pipeline, Reply, embed_packed};
use super::watch::{descriptors, growth_mib};
use super::{Outcome, Size, figure};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::process::resident;
use crate::harness::random::Random;

const CLIENTS: usize = 4;
const WORDS_MAX: usize = 512;
const GROWTH_MAX_MIB: f64 = 100.0;

pub async fn soak(size: Size) -> Outcome {
    let asked = std::env::var("OP_DBUS_SOAK_SECONDS").ok();
    let asked = asked.map(|seconds| seconds.parse::<u64>()).transpose()?;
    let seconds = asked.unwrap_or(size.of(60, 25_000));
    let warm = if seconds < 1800 { seconds / 3 } else { 600 };
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let mut clients: Vec<JoinHandle<Result<(), String>>> = Vec::new();
    for number in 0..CLIENTS {
        let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
        let pipeline = Pipeline::new(bus.connect().await?);
        let endless = endless(pipeline, Random::new(number as u64), stop, counts);
        clients.push(tokio::spawn(async move { endless.await.map_err(|e| e.to_string()) }));
    }
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    let mut random = Random::new(99);
    let mut warm_size = None;
    for second in 0..=seconds {
        clock.tick().await;
        // In the middle of its calls, of which it reads no reply.
        let connection = bus.connect().await?;
        let mut killed = Pipeline::new(connection);
        for _ in 0..4 {
            killed.send(0, &embed_packed(&[&words(&mut random)], None)?).await?;
        }
        drop(killed);
        if second == warm {
            warm_size = Some(taken(&daemon).await?);
        }
    }
    let (memory_before, descriptors_before) = warm_size.ok_or("it never got warm")?;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let (memory, _busy) = taken(&daemon).await?;
    let [answered, refused] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let growth = growth_mib(memory_before, memory);
    figure(
        growth <= GROWTH_MAX_MIB,
        format_args!(
            "{growth:.1} MiB more after {seconds} s than after {warm} s, {} MiB in all",
            memory >> 20
        ),
    );
    figure(refused == 0, format_args!("{answered} calls answered, {refused} refused"));
    settled(&daemon, descriptors_before).await?;
    daemon.stop().await
}

/// The clients that left are gone, and with them their descriptors: none more than when it was warm.
async fn settled(daemon: &Daemon, before: usize) -> Outcome {
    daemon.client().embedder.embed("the last").await?;
    let calls = daemon.client().counter("in_flight_calls").await?;
    let after = descriptors(daemon.process.pid())?;
    figure(
        calls == 0 && after <= before,
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
async fn endless(
    mut pipeline: Pipeline,
    mut random: Random,
    stop: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 2]>,
) -> Outcome {
    while !stop.load(Ordering::Relaxed) {
        while pipeline.in_flight() < 4 {
            let texts: Vec<String> = (0..=random.below(4)).map(|_| words(&mut random)).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            pipeline.send(0, &embed_packed(&texts, None)?).await?;
        }
        let answered = pipeline.answer().await?.map(|answer| answer.reply);
        let vectors = matches!(answered, Some(Reply::Vectors(_)));
        counts[usize::from(!vectors)].fetch_add(1, Ordering::Relaxed);
    }
    pipeline.close().await
}
