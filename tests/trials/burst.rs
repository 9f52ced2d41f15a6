//! Ten times the capacity: refused fast, and forgotten fast.

use std::time::{Duration, Instant};

use op_dbus_api::ErrorName;

use super::pipeline::{Pipeline, Reply, embed_packed};
use super::watch::{ms, p99};
use super::{Outcome, Size, figure, timed};
use crate::harness::bus::PrivateBus;
use crate::harness::client::Client;
use crate::harness::daemon::{Daemon, Setup};

const CONNECTIONS: usize = 16;
/// Calls of one that wait for a reply: as many as the bus lets it, but a few.
const IN_FLIGHT: usize = 100;
/// Texts in a call at least, so that the bus is not what is overloaded.
const CALL_TEXTS: usize = 16;
/// More than has to have been offered: a client whose calls in flight are as many as may be offers nothing.
const TIMES: f64 = 11.0;
const TIMES_MIN: f64 = 10.0;
/// Seconds of work that the queue holds.
const QUEUE_S: f64 = 2.0;
const REFUSED_MAX: Duration = Duration::from_millis(50);
const RECOVERED_MAX: Duration = Duration::from_secs(5);
/// How many times the p99 of an idle service is normal still.
const NORMAL: u32 = 3;
/// Normal calls, one after another, that show that it is over.
const NORMAL_CALLS: u32 = 20;

pub async fn burst(size: Size) -> Outcome {
    let seconds = size.of(10, 60);
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?.setting("workers_per_device", "1");
    let text = "a text that many want to have embedded at the same time ".repeat(4);
    let texts = vec![text.as_str(); CALL_TEXTS];
    let daemon = setup.ready(&bus).await?;
    let (texts_per_s, tokens_per_text) = capacity(&daemon, &bus, &texts).await?;
    daemon.stop().await?;

    // A fast machine takes larger calls: all that may be in flight has to be twice what the queue holds.
    let call_texts = 2.0 * QUEUE_S * texts_per_s / (CONNECTIONS * IN_FLIGHT) as f64;
    let texts = vec![text.as_str(); CALL_TEXTS.max(call_texts.ceil() as usize)];
    let queue_tokens_max = (QUEUE_S * texts_per_s * tokens_per_text).ceil() as u64;
    let setup = setup.setting("queue_tokens_max", &queue_tokens_max.to_string());
    let setup = setup.setting("quota_tokens", &queue_tokens_max.to_string());
    let daemon = setup.ready(&bus).await?;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(one(&daemon).await?);
    }
    let normal = NORMAL * p99(&mut idle);

    let rate = TIMES * texts_per_s / texts.len() as f64 / CONNECTIONS as f64;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let pipeline = Pipeline::new(bus.connect().await?);
        clients.push(offer(pipeline, &texts, rate, Duration::from_secs(seconds)));
    }
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let (mut refused, mut answered, mut failed) = (Vec::new(), 0, 0);
    let clients = futures_util::future::join_all(clients);
    let (clients, recovered) = tokio::join!(clients, recovery(&daemon, end, normal));
    for client in clients {
        let offered = client?;
        refused.extend(offered.refused);
        answered += offered.answered;
        failed += offered.failed;
    }
    let recovered = recovered?;
    let calls = refused.len() as u64 + answered + failed;
    let times = (calls * texts.len() as u64) as f64 / seconds as f64 / texts_per_s;
    timed(times >= TIMES_MIN, format_args!("{times:.1} times the capacity offered"));
    let most = refused.iter().max().copied().unwrap_or_default();
    let (count, p99) = (refused.len(), p99(&mut refused));
    figure(
        count > 0,
        format_args!(
            "{count} calls refused and {answered} answered, at {texts_per_s:.0} texts/s of capacity"
        ),
    );
    timed(
        most <= REFUSED_MAX,
        format_args!("refused in {:.1} ms (p99), at most {:.1} ms", ms(p99), ms(most)),
    );
    figure(failed == 0, format_args!("{failed} failed otherwise"));
    timed(
        recovered <= RECOVERED_MAX,
        format_args!("within {:.1} ms again after {:.2} s", ms(normal), recovered.as_secs_f64()),
    );
    daemon.stop().await
}

/// Texts that are embedded in a second, and tokens of each.
async fn capacity(daemon: &Daemon, bus: &PrivateBus, texts: &[&str]) -> Outcome<(f64, f64)> {
    const CALLS: usize = 60;
    let tokens = daemon.client().embedder.count_tokens(&texts[..1]).await?[0];
    let mut pipeline = Pipeline::new(bus.connect().await?);
    let started = Instant::now();
    for _ in 0..CALLS {
        if pipeline.in_flight() == 4 {
            pipeline.answer().await?;
        }
        pipeline.send(0, &embed_packed(texts, None)?).await?;
    }
    while pipeline.in_flight() > 0 {
        pipeline.answer().await?;
    }
    let texts_per_s = (CALLS * texts.len()) as f64 / started.elapsed().as_secs_f64();
    pipeline.close().await?;
    Ok((texts_per_s, f64::from(tokens)))
}

/// How long after `end` the last call ends that is not `normal`.
async fn recovery(
    daemon: &Daemon,
    end: tokio::time::Instant,
    normal: Duration,
) -> Outcome<Duration> {
    // The queue is full then.
    tokio::time::interval_at(end, RECOVERED_MAX).tick().await;
    let (mut calls, mut recovered) = (0, Duration::ZERO);
    while calls < NORMAL_CALLS && recovered < 10 * RECOVERED_MAX {
        if one(daemon).await? <= normal {
            calls += 1;
        } else {
            (calls, recovered) = (0, end.elapsed());
        }
    }
    Ok(recovered)
}

/// How long one text takes.
async fn one(daemon: &Daemon) -> Outcome<Duration> {
    let started = Instant::now();
    let client: &Client = daemon.client();
    match client.embedder.embed("is it over").await {
        Ok(_) => Ok(started.elapsed()),
        // The queue is still full, which is not normal.
        Err(error) if op_dbus_api::Error::from_reply(&error).is_some() => Ok(Duration::MAX),
        Err(error) => Err(error.into()),
    }
}

/// What became of what one client offered.
struct Offered {
    refused: Vec<Duration>,
    answered: u64,
    failed: u64,
}

/// Sends `rate` calls in a second, whether or not they are answered.
async fn offer(
    mut pipeline: Pipeline,
    texts: &[&str],
    rate: f64,
    time: Duration,
) -> Outcome<Offered> {
    let mut offered = Offered { refused: Vec::new(), answered: 0, failed: 0 };
    let mut clock = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let started = Instant::now();
    let mut sending = true;
    while sending || pipeline.in_flight() > 0 {
        let answer = tokio::select! {
            biased;
            _ = clock.tick(), if sending => {
                if pipeline.in_flight() < IN_FLIGHT {
                    pipeline.send(0, &embed_packed(texts, None)?).await?;
                }
                sending = started.elapsed() < time;
                continue;
            }
            answer = pipeline.answer(), if pipeline.in_flight() > 0 => answer?,
        };
        let Some(answer) = answer else { continue };
        match answer.reply {
            Reply::Vectors(_) => offered.answered += 1,
            Reply::Refused(name, _)
                if [ErrorName::Overloaded, ErrorName::QuotaExceeded]
                    .iter()
                    .any(|full| full.as_str() == name) =>
            {
                offered.refused.push(answer.took);
            }
            Reply::Refused(..) => offered.failed += 1,
        }
    }
    pipeline.close().await?;
    Ok(offered)
}
