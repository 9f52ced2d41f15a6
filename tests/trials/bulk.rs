//! A full queue of bulk texts, and an interactive caller beside it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::watch::{ms, p99};
use super::{Outcome, Size, figure, timed};
use crate::harness::bus::PrivateBus;
use crate::harness::client::Client;
use crate::harness::daemon::{Daemon, Setup};

/// Calls that keep the queue full, with 5,000 or 1,000 texts each.
const CALLS: usize = 20;
/// One text of the interactive caller in this time.
const PERIOD: Duration = Duration::from_millis(100);
const P99_MAX: f64 = 3.0;
const LOSS_MAX: f64 = 0.1;

pub async fn bulk_beside(size: Size) -> Outcome {
    let texts_each = size.of(1_000, 5_000);
    let seconds = size.of(10, 60);
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?.setting("workers_per_device", "1");
    // Before they are tokenized texts count as what they may become.
    let setup = setup.setting("queue_tokens_max", "67108864").setting("quota_tokens", "33554432");
    let daemon = setup.ready(&bus).await?;
    let mut idle = interactive(&daemon, seconds).await?;
    let idle_p99 = p99(&mut idle);

    let stop = Arc::new(AtomicBool::new(false));
    let mut bulk: Vec<JoinHandle<zbus::Result<()>>> = Vec::new();
    for number in 0..CALLS {
        let (client, stop) = (Client::on(&bus).await?, Arc::clone(&stop));
        bulk.push(tokio::spawn(async move {
            let text = |line| format!("line {line} of log {number}: nothing out of the ordinary");
            let texts: Vec<String> = (0..texts_each).map(text).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            while !stop.load(Ordering::Relaxed) {
                let options = HashMap::from([("priority", "bulk".into())]);
                client.embedder.embed_to_fd(&texts, options).await?;
            }
            Ok(())
        }));
    }
    let full = (CALLS * texts_each) as u64;
    daemon.client().counted("queue_texts", full / 10 * 9).await?;
    let alone = throughput(&daemon, async {
        let mut clock = tokio::time::interval(Duration::from_secs(seconds));
        clock.tick().await;
        clock.tick().await;
        Ok(())
    })
    .await?;
    let queued = daemon.client().counter("queue_texts").await?;
    let mut beside = Vec::new();
    let with = throughput(&daemon, async {
        beside = interactive(&daemon, 2 * seconds).await?;
        Ok(())
    })
    .await?;
    let left = daemon.client().counter("queue_texts").await?;
    stop.store(true, Ordering::Relaxed);
    for call in bulk {
        call.await??;
    }
    figure(
        queued.min(left) >= full / 2,
        format_args!("{queued} of {full} texts wait when the caller comes, {left} when it leaves"),
    );
    let beside_p99 = p99(&mut beside);
    let ratio = beside_p99.as_secs_f64() / idle_p99.as_secs_f64();
    timed(
        ratio <= P99_MAX,
        format_args!(
            "p99 {:.1} ms beside texts that wait, {:.1} ms idle: {ratio:.1} times",
            ms(beside_p99),
            ms(idle_p99)
        ),
    );
    let loss = 1.0 - with / alone;
    timed(
        loss <= LOSS_MAX,
        format_args!(
            "bulk {alone:.0} tokens/s alone, {with:.0} beside: {:.0} % less",
            100.0 * loss
        ),
    );
    daemon.stop().await
}

/// One text every `PERIOD`, each sent when it is due and timed from then.
async fn interactive(daemon: &Daemon, seconds: u64) -> Outcome<Vec<Duration>> {
    let texts = Duration::from_secs(seconds).as_millis() / PERIOD.as_millis();
    let mut clock = tokio::time::interval(PERIOD);
    let mut calls = Vec::new();
    for number in 0..texts {
        let due = clock.tick().await;
        let embedder = daemon.client().embedder.clone();
        calls.push(tokio::spawn(async move {
            embedder.embed(&format!("somebody waits for text {number}")).await?;
            zbus::Result::Ok(due.elapsed())
        }));
    }
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await??);
    }
    Ok(times)
}

/// Tokens computed in a second while something lasts.
async fn throughput(daemon: &Daemon, meanwhile: impl Future<Output = Outcome>) -> Outcome<f64> {
    let (before, started) = (daemon.client().counter("tokens").await?, Instant::now());
    meanwhile.await?;
    let tokens = daemon.client().counter("tokens").await? - before;
    Ok(tokens as f64 / started.elapsed().as_secs_f64())
}
