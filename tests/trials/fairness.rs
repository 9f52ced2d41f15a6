//! Many users at once: nobody is lost, nobody is pushed aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use tokio::task::JoinHandle;

use super::pipeline::{Pipeline, Reply, embed_packed};
use super::{Outcome, Size, figure, timed};
use crate::harness::daemon::Setup;
use crate::harness::users::{MEMBER, OTHER, REFUSED, Users};

/// Users who call; the first floods.
const UIDS: [u32; 4] = [0, MEMBER.id, OTHER.id, REFUSED.id];

/// 200 clients with 25 texts each in flight, in a queue that holds less than all of them.
pub async fn crowd(size: Size) -> Outcome {
    const CLIENTS: usize = 200;
    const DEPTH: usize = 25;
    const QUEUE_TOKENS_MAX: u64 = 60_000;
    let calls_each = size.of(50, 1000);
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.setting("queue_tokens_max", &QUEUE_TOKENS_MAX.to_string());
    let setup = setup.setting("quota_tokens", &(QUEUE_TOKENS_MAX / 3).to_string());
    let daemon = setup.ready(&bus).await?;
    let text = "a text of the crowd that waits for its turn";
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut pipeline = Pipeline::new(bus.connect_as(UIDS[number % UIDS.len()]).await?);
        clients.push(async move {
            let mut sent = Crowded::default();
            while sent.answered < calls_each {
                while sent.calls < calls_each && pipeline.in_flight() < DEPTH {
                    pipeline.send(0, &embed_packed(&[text], None)?).await?;
                    sent.calls += 1;
                }
                sent.note(pipeline.answer().await?.map(|answer| answer.reply));
            }
            pipeline.close().await?;
            Outcome::Ok((sent.again, sent.failed))
        });
    }
    let done = AtomicBool::new(false);
    let work = async {
        let answers = futures_util::future::join_all(clients).await;
        done.store(true, Ordering::Relaxed);
        answers
    };
    let watch = async {
        let (mut most, mut readings, mut stopped) = (0, 0, true);
        while !done.load(Ordering::Relaxed) {
            most = daemon.client().counter("in_flight_tokens").await?.max(most);
            readings += 1;
            // Once there is room for no more: four leave a fifth.
            if stopped && 10 * most >= 7 * QUEUE_TOKENS_MAX {
                daemon.signal_workers(Signal::SIGCONT).await?;
                stopped = false;
            }
        }
        Outcome::Ok((most, readings))
    };
    let (answers, watched) = tokio::join!(work, watch);
    let (most, readings) = watched?;
    let (mut again, mut failed) = (0, 0);
    for answer in answers {
        let (client_again, client_failed) = answer?;
        again += client_again;
        failed += client_failed;
    }
    let calls = CLIENTS * calls_each;
    figure(failed == 0, format_args!("{failed} of {calls} failed, {again} refused with a hint"));
    figure(
        most <= QUEUE_TOKENS_MAX,
        format_args!(
            "at most {most} of {QUEUE_TOKENS_MAX} tokens in flight in {readings} readings"
        ),
    );
    daemon.stop().await
}

/// What became of the calls of one client.
#[derive(Default)]
struct Crowded {
    calls: usize,
    answered: usize,
    again: u64,
    failed: u64,
}

impl Crowded {
    fn note(&mut self, reply: Option<Reply>) {
        match reply {
            Some(Reply::Vectors(_)) => self.answered += 1,
            Some(Reply::Refused(name, sentence)) if is_hint(&name, &sentence) => {
                self.again += 1;
                self.calls -= 1;
            }
            Some(Reply::Refused(..)) => {
                self.failed += 1;
                self.answered += 1;
            }
            None => self.failed += 1,
        }
    }
}

/// Whether a refusal is one that says when to come back.
fn is_hint(name: &str, sentence: &str) -> bool {
    let full = [ErrorName::Overloaded, ErrorName::QuotaExceeded];
    let hint = sentence.rsplit_once("try again in ").and_then(|(_, time)| time.strip_suffix(" ms"));
    full.iter().any(|full| full.as_str() == name)
        && hint.is_some_and(|ms| ms.parse::<u64>().is_ok())
}

/// One user with 64 connections, three with one each, all with more to do than can be done; that of one is bulk.
pub async fn fair_share(size: Size) -> Outcome {
    const FLOOD: usize = 64;
    const DEPTH: usize = 16;
    const SHARE_MIN: f64 = 0.8;
    const OPTIONS: [Option<(&str, &str)>; UIDS.len()] =
        [None, None, None, Some(("priority", "bulk"))];
    let window = Duration::from_secs(size.of(10, 60));
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::real("low")?.setting("workers_per_device", "1");
    let daemon = setup.ready(&bus).await?;
    let text = "every user sends the same text of some length over and over ".repeat(6);
    let answered: Arc<[AtomicU64; 4]> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients: Vec<JoinHandle<Result<(), String>>> = Vec::new();
    for (user, uid) in UIDS.into_iter().enumerate() {
        for _ in 0..if user == 0 { FLOOD } else { 1 } {
            let mut pipeline = Pipeline::new(bus.connect_as(uid).await?);
            let (text, answered, stop) = (text.clone(), Arc::clone(&answered), Arc::clone(&stop));
            let endless = async move {
                while !stop.load(Ordering::Relaxed) {
                    while pipeline.in_flight() < DEPTH {
                        pipeline.send(0, &embed_packed(&[&text], OPTIONS[user])?).await?;
                    }
                    if let Some(Reply::Vectors(_)) = pipeline.answer().await?.map(|a| a.reply) {
                        answered[user].fetch_add(1, Ordering::Relaxed);
                    }
                }
                Outcome::Ok(())
            };
            clients.push(tokio::spawn(async move { endless.await.map_err(|e| e.to_string()) }));
        }
    }
    let counts = || answered.each_ref().map(|count| count.load(Ordering::Relaxed));
    // Until the queue is as deep as the clients make it.
    let mut clock = tokio::time::interval(window);
    clock.tick().await;
    clock.tick().await;
    let (before, started) = (counts(), Instant::now());
    clock.tick().await;
    let (after, took) = (counts(), started.elapsed());
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let served: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let all: u64 = served.iter().sum();
    let equal = all as f64 / UIDS.len() as f64;
    let least = *served.iter().skip(1).min().unwrap_or(&0) as f64;
    // A machine that stands still for seconds takes some of the ten from those who have less in flight.
    figure(
        least > 0.0 && least >= SHARE_MIN / 2.0 * equal,
        format_args!("texts of each user: {served:?}"),
    );
    timed(
        least >= SHARE_MIN * equal,
        format_args!(
            "the least of three others had {:.0} % of an equal share; {:.0} texts/s",
            100.0 * least / equal.max(1.0),
            all as f64 / took.as_secs_f64()
        ),
    );
    daemon.stop().await
}
