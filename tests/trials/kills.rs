//! Workers and daemons that are killed under load, again and again.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::watch::ms;
use super::{Outcome, Size, figure, timed};
use crate::harness::bus::PrivateBus;
use crate::harness::client::Client;
use crate::harness::daemon::Setup;
use crate::harness::eventually;
use crate::harness::golden::distance;
use crate::harness::process::runs;

/// Clients that keep calling.
const CLIENTS: usize = 4;

/// Kills every worker while clients call; each call must be answered, and rightly.
pub async fn worker_killed(size: Size) -> Outcome {
    const BACK_MAX: Duration = Duration::from_secs(5);
    let kills = size.of(10, 200);
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let text = "a text that outlives the worker that has it in hand";
    let expected = daemon.client().vectors(&[text]).await?.remove(0);
    let stop = Arc::new(AtomicBool::new(false));
    // Of each client, how many calls have ended.
    let ended: [Arc<AtomicU64>; CLIENTS] = Default::default();
    let mut clients = Vec::new();
    for ended in &ended {
        let (client, stop, expected) = (Client::on(&bus).await?, stop.clone(), expected.clone());
        let ended = Arc::clone(ended);
        clients.push(tokio::spawn(async move {
            let (mut failed, mut wrong) = (0_u64, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                match client.vectors(&[text]).await.map_err(|error| error.to_string()) {
                    Ok(found) => wrong += u64::from(distance(&found[0], &expected) > 1e-6),
                    Err(sentence) => {
                        eprintln!("{sentence}");
                        failed += 1;
                    }
                }
                ended.fetch_add(1, Ordering::Relaxed);
            }
            (failed, wrong)
        }));
    }
    let all_ended = || ended.each_ref().map(|ended| ended.load(Ordering::Relaxed));
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        let restarts = daemon.client().counter("worker_restarts").await?;
        let workers = daemon.workers().await?.len() as u64;
        daemon.signal_workers(Signal::SIGKILL).await?;
        let (killed, before) = (Instant::now(), all_ended());
        daemon.client().embedder.embed(&format!("the first after kill {kill}")).await?;
        longest = longest.max(killed.elapsed());
        daemon.client().counted("worker_restarts", restarts + workers).await?;
        // A call is promised to outlive one kill, and may still be under way on a machine that has much to do.
        eventually("an answer to each client", async || {
            Ok(all_ended().iter().zip(before).all(|(now, before)| *now > before))
        })
        .await?;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut failed, mut wrong) = (0, 0);
    for client in clients {
        let (client_failed, client_wrong) = client.await?;
        failed += client_failed;
        wrong += client_wrong;
    }
    let calls: u64 = all_ended().iter().sum();
    figure(
        failed == 0 && wrong == 0,
        format_args!("{failed} of {calls} calls lost and {wrong} wrong in {kills} kills"),
    );
    timed(longest <= BACK_MAX, format_args!("a vector again after {:.0} ms at most", ms(longest)));
    daemon.stop().await
}

/// Kills the daemon while clients call and the level changes; the next one has what was kept.
pub async fn daemon_killed(size: Size) -> Outcome {
    const READY_MAX: Duration = Duration::from_secs(1);
    let kills = size.of(20, 200);
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (client, stop) = (Client::on(&bus).await?, Arc::clone(&stop));
        let answered = Arc::clone(&answered);
        clients.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                match client.embedder.embed("under load").await {
                    Ok(_) => {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    // The bus is there all the time: it was waited for in vain.
                    Err(error @ zbus::Error::InputOutput(_)) => return Err(error),
                    // The daemon is not.
                    Err(_) => tokio::task::yield_now().await,
                }
            }
            Ok(())
        }));
    }
    let (mut kept, mut lost, mut left) = ("low", 0, 0);
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        let started = Instant::now();
        let mut daemon = setup.ready(&bus).await?;
        longest = longest.max(started.elapsed());
        lost += usize::from(daemon.client().embedder.vector_level().await? != kept);
        kept = if kill % 2 == 0 { "medium" } else { "low" };
        daemon.client().manager.set_vector_level(kept).await?;
        let before = answered.load(Ordering::Relaxed);
        eventually("calls of others", async || Ok(answered.load(Ordering::Relaxed) >= before + 20))
            .await?;
        let workers = daemon.workers().await?;
        daemon.process.signal(Signal::SIGKILL)?;
        daemon.process.ended().await?;
        eventually("the end of the workers", async || Ok(!workers.iter().any(|pid| runs(*pid))))
            .await?;
        let state = setup.state_file();
        left += entries(&setup.path("state").display().to_string()) - usize::from(state.exists());
    }
    stop.store(true, Ordering::Relaxed);
    let daemon = setup.ready(&bus).await?;
    lost += usize::from(daemon.client().embedder.vector_level().await? != kept);
    for client in clients {
        client.await??;
    }
    daemon.stop().await?;
    let calls = answered.load(Ordering::Relaxed);
    figure(
        lost == 0,
        format_args!("{lost} of {kills} changes lost, {calls} calls answered between"),
    );
    figure(left == 0, format_args!("{left} files left over"));
    timed(longest <= READY_MAX, format_args!("ready after {:.0} ms at most", ms(longest)));
    Ok(())
}

/// How many entries a folder has.
fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}
