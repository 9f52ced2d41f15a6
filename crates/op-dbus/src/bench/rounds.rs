//! All measurements, round after round, both sides in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::ProgressBar;

use super::Stage;
use super::client::{Client, Side, Tokens};
use super::corpus::Corpus;
use super::measure::{Probe, latency, throughput};
use super::spread::percentile;
use crate::cli::Failure;

/// What is called and by how many clients at once, in the latency measurements.
const LATENCY: [(Probe, usize); 3] = [(Probe::Ping, 1), (Probe::Text, 1), (Probe::Text, 8)];
/// Texts a call and clients at once, in the throughput measurements: always enough texts at once
/// for every worker to be busy.
const THROUGHPUT_CALLS: [(usize, usize); 3] = [(1, 32), (32, 4), (256, 2)];
/// Clients that a side needs at most.
const CLIENTS_MAX: usize = 32;
/// Calls of one latency measurement: enough for a 99th percentile, and an end to it.
const LATENCY_CALLS: (usize, usize) = (100, 10_000);
/// Texts whose vectors are compared between the sides.
const COMPARED_TEXTS: usize = 16;
/// Texts in one call that asks for token counts.
const COUNT_CALL_TEXTS: usize = 256;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: u32,
    /// Time that one measurement should take.
    pub target: Duration,
}

/// Figures of each side, one for each round.
pub type PerSide<T> = BTreeMap<Side, Vec<T>>;

/// One call at a time.
pub struct Latency {
    pub probe: Probe,
    pub clients: usize,
    pub calls: usize,
    pub rounds: PerSide<Percentiles>,
}

/// Microseconds.
#[derive(Clone, Copy)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// As many texts as go through.
pub struct Throughput {
    pub texts_per_call: usize,
    pub clients: usize,
    pub calls: usize,
    pub rounds: PerSide<Rates>,
}

#[derive(Clone, Copy)]
pub struct Rates {
    pub texts_per_s: f64,
    pub tokens_per_s: f64,
    /// Padded over real tokens.
    pub padding: Option<f64>,
}

/// Everything that was measured.
pub struct Results {
    /// Tokens of each text as the model reads it.
    pub tokens: Vec<usize>,
    /// Texts longer than the model reads.
    pub truncated: usize,
    /// Mean tokens of the short texts.
    pub short_tokens: f64,
    pub latency: Vec<Latency>,
    pub throughput: Vec<Throughput>,
    /// Largest difference between the vectors of the two sides.
    pub deviation: Option<f32>,
}

/// Measures everything that `plan` asks for.
pub async fn run(
    stage: &mut Stage,
    corpus: &Corpus,
    plan: Plan,
    progress: &ProgressBar,
) -> Result<Results, Failure> {
    let tokens_max = stage.served.max_input_tokens;
    let tokens = count_tokens(stage, &corpus.texts).await?;
    let short = count_tokens(stage, &corpus.short).await?;
    let clients = clients(stage).await?;
    let deviation = deviation(&clients, corpus).await?;
    let (mut latency, mut throughput) = calibrate(&clients, corpus, plan).await?;
    let measurements = (latency.len() + throughput.len()) * clients.len();
    progress.set_length(measurements as u64 * u64::from(plan.rounds));
    let used: Vec<usize> = tokens.iter().map(|tokens| *tokens.min(&tokens_max)).collect();
    let bench = Bench { stage, corpus, clients, tokens: &used, progress };
    for round in 0..plan.rounds {
        for measurement in &mut latency {
            bench.latency(measurement, round).await?;
        }
        for measurement in &mut throughput {
            bench.throughput(measurement, round).await?;
        }
    }
    Ok(Results {
        truncated: tokens.iter().filter(|tokens| **tokens > tokens_max).count(),
        tokens: used,
        short_tokens: short.iter().sum::<usize>() as f64 / short.len().max(1) as f64,
        latency,
        throughput,
        deviation,
    })
}

async fn clients(stage: &Stage) -> Result<BTreeMap<Side, Vec<Client>>, Failure> {
    let mut clients = BTreeMap::new();
    if let Some(engine) = &stage.engine {
        clients.insert(Side::Engine, (0..CLIENTS_MAX).map(|_| engine.client()).collect());
    }
    if let Some(bus) = &stage.bus {
        let mut connected = Vec::new();
        for _ in 0..CLIENTS_MAX {
            connected.push(bus.client().await?);
        }
        clients.insert(Side::Bus, connected);
    }
    Ok(clients)
}

async fn count_tokens(stage: &Stage, texts: &[String]) -> Result<Vec<usize>, Failure> {
    let mut tokens = Vec::with_capacity(texts.len());
    for texts in texts.chunks(COUNT_CALL_TEXTS) {
        let counts = match (&stage.engine, &stage.bus) {
            (Some(engine), _) => engine.count_tokens(texts).await?,
            (None, Some(bus)) => bus.count_tokens(texts).await?,
            (None, None) => Vec::new(),
        };
        tokens.extend(counts.into_iter().map(|count| count as usize));
    }
    Ok(tokens)
}

/// How far apart the two sides are for the same texts; they should not be.
async fn deviation(
    clients: &BTreeMap<Side, Vec<Client>>,
    corpus: &Corpus,
) -> Result<Option<f32>, Failure> {
    let texts: Vec<&str> = corpus.texts.iter().take(COMPARED_TEXTS).map(String::as_str).collect();
    let (Some([engine, ..]), Some([bus, ..])) =
        (clients.get(&Side::Engine).map(Vec::as_slice), clients.get(&Side::Bus).map(Vec::as_slice))
    else {
        return Ok(None);
    };
    let (engine, bus) = (engine.embed(&texts).await?, bus.embed(&texts).await?);
    if engine.len() != bus.len() {
        return Err(Failure::refused("the two sides gave vectors of different lengths"));
    }
    Ok(Some(engine.iter().zip(&bus).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)))
}

/// Warms both sides up, and finds how many calls make a measurement of the length asked for. Both
/// sides get the same calls.
async fn calibrate(
    clients: &BTreeMap<Side, Vec<Client>>,
    corpus: &Corpus,
    plan: Plan,
) -> Result<(Vec<Latency>, Vec<Throughput>), Failure> {
    let target = plan.target.as_secs_f64();
    let (mut call_s, mut texts_per_s) = (f64::INFINITY, 0.0_f64);
    for clients in clients.values() {
        let times = latency(&clients[..1], corpus, (Probe::Text, 20)).await?;
        call_s = call_s.min(percentile(&times, 50.0) / 1e6);
        let (size, calls) = (32, 8);
        let took = throughput(&clients[..4], corpus, size, calls).await?;
        texts_per_s = texts_per_s.max((size * calls) as f64 / took.as_secs_f64());
    }
    let (least, most) = LATENCY_CALLS;
    let latency_calls = ((target / call_s) as usize).clamp(least, most);
    let latency = LATENCY.map(|(probe, clients)| Latency {
        probe,
        clients,
        calls: latency_calls,
        rounds: PerSide::new(),
    });
    let throughput = THROUGHPUT_CALLS.map(|(texts_per_call, clients)| {
        let calls = (target * texts_per_s / texts_per_call as f64).ceil() as usize;
        let calls = calls.next_multiple_of(clients).max(2 * clients);
        Throughput { texts_per_call, clients, calls, rounds: PerSide::new() }
    });
    Ok((latency.into(), throughput.into()))
}

/// What every measurement needs.
struct Bench<'a> {
    stage: &'a Stage,
    corpus: &'a Corpus,
    clients: BTreeMap<Side, Vec<Client>>,
    tokens: &'a [usize],
    progress: &'a ProgressBar,
}

impl Bench<'_> {
    /// The sides, the other one first in every second round.
    fn sides(&self, round: u32) -> Vec<(Side, &[Client])> {
        let mut sides: Vec<_> =
            self.clients.iter().map(|(side, clients)| (*side, clients.as_slice())).collect();
        if !round.is_multiple_of(2) {
            sides.reverse();
        }
        sides
    }

    async fn latency(&self, measurement: &mut Latency, round: u32) -> Result<(), Failure> {
        let Latency { probe, clients: at_once, calls, .. } = *measurement;
        for (side, clients) in self.sides(round) {
            self.progress.inc(1);
            if (probe, side) == (Probe::Ping, Side::Engine) {
                continue;
            }
            self.progress.set_message(format!("latency, {at_once} clients"));
            let times = latency(&clients[..at_once], self.corpus, (probe, calls)).await?;
            let [p50, p95, p99] = [50.0, 95.0, 99.0].map(|percent| percentile(&times, percent));
            measurement.rounds.entry(side).or_default().push(Percentiles { p50, p95, p99 });
        }
        Ok(())
    }

    async fn throughput(&self, measurement: &mut Throughput, round: u32) -> Result<(), Failure> {
        let (size, calls) = (measurement.texts_per_call, measurement.calls);
        let texts = size * calls;
        let tokens: usize =
            (0..texts).map(|position| self.tokens[position % self.tokens.len()]).sum();
        for (side, clients) in self.sides(round) {
            self.progress.set_message(format!("throughput, {size} texts a call"));
            let clients = &clients[..measurement.clients];
            let before = self.counters(side).await?;
            let took = throughput(clients, self.corpus, size, calls).await?.as_secs_f64();
            let rates = Rates {
                texts_per_s: texts as f64 / took,
                tokens_per_s: tokens as f64 / took,
                padding: self.counters(side).await?.padding_since(before),
            };
            measurement.rounds.entry(side).or_default().push(rates);
            self.progress.inc(1);
        }
        Ok(())
    }

    async fn counters(&self, side: Side) -> Result<Tokens, Failure> {
        match (side, &self.stage.engine, &self.stage.bus) {
            (Side::Engine, Some(engine), _) => Ok(engine.tokens()),
            (Side::Bus, _, Some(bus)) => bus.tokens().await,
            _ => Ok(Tokens::default()),
        }
    }
}
