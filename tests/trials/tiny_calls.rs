//! A million tiny calls: none lost, none doubled, each with its own vector.

use std::sync::Arc;

use super::pipeline::{Pipeline, Reply, embed_packed};
use super::watch::growth_mib;
use super::{Outcome, Size, figure};
use crate::harness::client::Client;
use crate::harness::daemon::Setup;
use crate::harness::process::resident;

const CLIENTS: usize = 32;
/// Calls of one client that wait for their replies.
const DEPTH: usize = 16;
/// Calls before memory is looked at for the first time.
const WARM: usize = 10_000;
/// Texts that differ; each client begins with another one.
const TEXTS: usize = 997;
const GROWTH_MAX_MIB: f64 = 20.0;

/// What one client saw.
#[derive(Default)]
struct Seen {
    answered: usize,
    unasked: usize,
    refused: usize,
    wrong: usize,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.unasked += other.unasked;
        self.refused += other.refused;
        self.wrong += other.wrong;
    }
}

pub async fn tiny_calls(size: Size) -> Outcome {
    let calls = size.of(100_000, 1_000_000);
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let texts: Vec<String> = (0..TEXTS).map(|number| format!("tiny {number}")).collect();
    // What each text has when it is asked for alone.
    let client = Client::on(&bus).await?;
    let mut expected = Vec::new();
    for text in &texts {
        let numbers = client.vectors(&[text]).await?.concat();
        expected.push(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
    }
    let (texts, expected) = (Arc::new(texts), Arc::new(expected));
    let (process, worker) = (daemon.process.pid(), daemon.workers().await?[0]);
    let mut seen = Seen::default();
    let mut memory = Vec::new();
    let started = std::time::Instant::now();
    for calls in [WARM, calls - WARM] {
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let share = calls / CLIENTS + usize::from(number < calls % CLIENTS);
            let pipeline = Pipeline::new(bus.connect().await?);
            let (texts, expected) = (Arc::clone(&texts), Arc::clone(&expected));
            let first = number * TEXTS / CLIENTS;
            clients.push(tokio::spawn(async move {
                drive(pipeline, first, share, &texts, &expected).await.map_err(|e| e.to_string())
            }));
        }
        for client in clients {
            seen.add(&client.await??);
        }
        memory.push((resident(process)?, resident(worker)?));
    }
    let rate = calls as f64 / started.elapsed().as_secs_f64();
    let lost = calls - seen.answered;
    figure(lost == 0, format_args!("{lost} of {calls} lost ({rate:.0} calls/s)"));
    figure(seen.unasked == 0, format_args!("{} doubled", seen.unasked));
    figure(seen.refused == 0, format_args!("{} refused", seen.refused));
    figure(seen.wrong == 0, format_args!("{} with another text's vector", seen.wrong));
    let daemon_mib = growth_mib(memory[0].0, memory[1].0);
    let worker_mib = growth_mib(memory[0].1, memory[1].1);
    figure(
        daemon_mib <= GROWTH_MAX_MIB && worker_mib <= GROWTH_MAX_MIB,
        format_args!("the daemon grew by {daemon_mib:.1} MiB, its worker by {worker_mib:.1} MiB"),
    );
    daemon.stop().await
}

/// Keeps `DEPTH` calls in flight until `calls` are answered.
async fn drive(
    mut pipeline: Pipeline,
    first: usize,
    calls: usize,
    texts: &[String],
    expected: &[Vec<u8>],
) -> Outcome<Seen> {
    let mut seen = Seen::default();
    let mut sent = 0;
    while seen.answered < calls {
        while sent < calls && pipeline.in_flight() < DEPTH {
            let text = (first + sent) % texts.len();
            pipeline.send(text, &embed_packed(&[&texts[text]], None)?).await?;
            sent += 1;
        }
        match pipeline.answer().await? {
            None => seen.unasked += 1,
            Some(answer) => {
                seen.answered += 1;
                match answer.reply {
                    Reply::Refused(..) => seen.refused += 1,
                    Reply::Vectors(bytes) => {
                        seen.wrong += usize::from(bytes != expected[answer.number]);
                    }
                }
            }
        }
    }
    // Whatever was sent twice comes before the answer to one more.
    pipeline.send(0, &embed_packed(&[&texts[0]], None)?).await?;
    while pipeline.answer().await?.is_none() {
        seen.unasked += 1;
    }
    pipeline.close().await?;
    Ok(seen)
}
