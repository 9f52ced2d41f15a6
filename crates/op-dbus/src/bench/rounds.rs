//! All measurements, round after round, everything that is compared in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::ProgressBar;
use op_dbus_embedder::backend::CPU;

use super::args::{Args, Rate, What};
use super::collection::{Collection, collections, percentile};
use super::corpus::Corpus;
use super::measure::{latency, throughput};
use super::open;
use super::peak::{self, Products};
use super::stage::{Stage, Target};
use super::variant::{Facts, Place};
use crate::cli::Failure;

/// Texts of one call when as many are to go through as can.
const CALL_TEXTS: usize = 1000;
/// What is told of the times of calls, and of what was not the engine's of them: a name, and percent.
const CALL: [(&str, f64); 3] = [("p50_us", 50.0), ("p95_us", 95.0), ("p99_us", 99.0)];
const BESIDE: [(&str, f64); 2] = [("beside_p50_us", 50.0), ("beside_p95_us", 95.0)];
/// Calls of one latency measurement: enough to tell a 95th percentile from a median, and an end.
const LATENCY_CALLS: (usize, usize) = (50, 10_000);
/// Texts of one call, and clients with one text each, where the ways to the engine are compared.
const LANE_TEXTS: usize = 1024;
const LANE_CLIENTS: usize = 8;
/// Calls of such a measurement at least.
const LANE_CALLS_MIN: usize = 5;
/// Texts of each client at least.
const CLIENT_TEXTS_MIN: usize = 2;

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// An empty call.
    Ping,
    /// One text at a time.
    Latency,
    /// Many texts a call, by so many clients.
    Calls(usize),
    /// So many clients with one text a call.
    Clients(usize),
    /// Large calls, and what each way to the engine costs beside it.
    LaneCalls,
    /// The same of a few clients with one text a call.
    LaneClients,
    /// Texts that arrive at a rate.
    Rate(Rate),
}

/// Figures of one round, by name.
pub type Figures = BTreeMap<&'static str, f64>;

/// One measurement of one target.
pub struct Row {
    /// Number of the target in the stage.
    pub target: usize,
    /// Number of the collection.
    pub collection: usize,
    pub measure: Measure,
    /// Texts in a call.
    pub size: usize,
    /// Calls in one round.
    pub calls: usize,
    /// Texts per second that the variant does, roughly.
    pub texts_per_s: f64,
    pub rounds: Vec<Figures>,
}

/// Everything that was measured.
pub struct Results {
    pub collections: Vec<Collection>,
    pub rows: Vec<Row>,
    /// Operations per second that the CPU, or another provider, can do, by precision, one beside each
    /// throughput.
    pub peaks: BTreeMap<String, Vec<f64>>,
}

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: u32,
    /// Time that one measurement should take.
    pub target: Duration,
    pub seed: u64,
}

impl Plan {
    pub fn of(args: &Args) -> Self {
        let target = Duration::from_secs_f64(args.seconds);
        Self { rounds: args.rounds, target, seed: args.seed }
    }
}

/// Measures everything that `args` ask for.
///
/// # Errors
/// The first call that failed.
pub async fn run(
    stage: &Stage,
    corpora: Vec<Corpus>,
    args: &Args,
    progress: &ProgressBar,
) -> Result<Results, Failure> {
    let plan = Plan::of(args);
    let collections = collections(stage, corpora).await?;
    let mut rows = Vec::new();
    for (number, collection) in collections.iter().enumerate() {
        rows.extend(rows_of(stage, (number, collection), args, plan).await?);
    }
    progress.set_length(rows.len() as u64 * u64::from(plan.rounds));
    let peaks = args.peak.then(BTreeMap::new);
    let products = BTreeMap::new();
    let mut bench = Bench { stage, collections: &collections, plan, rows, peaks, products };
    for round in 0..plan.rounds {
        for number in bench.order(round) {
            progress.inc(1);
            bench.row(number, round).await?;
        }
    }
    let Bench { rows, peaks, .. } = bench;
    Ok(Results { collections, rows, peaks: peaks.unwrap_or_default() })
}

/// What is to be measured with one collection, with as many calls as fill the time.
async fn rows_of(
    stage: &Stage,
    (number, collection): (usize, &Collection),
    args: &Args,
    plan: Plan,
) -> Result<Vec<Row>, Failure> {
    let mut measures = Vec::new();
    if collection.latency_alone {
        measures.extend(
            [Measure::Ping, Measure::Latency].into_iter().filter(|_| args.wants(What::Latency)),
        );
    } else {
        measures.extend(args.wants(What::Latency).then_some(Measure::Latency));
        let callers = args.callers.iter().map(|callers| Measure::Calls(usize::from(*callers)));
        measures.extend(callers.filter(|_| args.wants_calls()));
        let clients = args.clients.iter().map(|clients| Measure::Clients(usize::from(*clients)));
        measures.extend(clients.filter(|_| args.wants(What::Clients)));
        if args.only.contains(&What::Lanes) {
            measures.extend([Measure::LaneCalls, Measure::LaneClients]);
        }
        measures.extend(args.rate.iter().map(|rate| Measure::Rate(*rate)));
    }
    if measures.is_empty() {
        return Ok(Vec::new());
    }
    let mut speeds: BTreeMap<usize, Speed> = BTreeMap::new();
    for target in &stage.targets {
        // The other place of a variant is measured with the same calls.
        let speed = Speed::of(target, &collection.corpus, plan).await?;
        speeds.entry(target.variant).or_insert(speed);
    }
    let mut rows = Vec::new();
    for measure in measures {
        for (target, Target { variant, place, .. }) in stage.targets.iter().enumerate() {
            if measure == Measure::Ping && *place == Place::Engine {
                continue;
            }
            let speed = speeds[variant];
            let (size, calls) = speed.calls(measure, plan, &collection.corpus);
            rows.push(Row {
                target,
                collection: number,
                measure,
                size,
                calls,
                texts_per_s: speed.texts_per_s,
                rounds: Vec::new(),
            });
        }
    }
    Ok(rows)
}

/// How fast a target is, roughly.
#[derive(Clone, Copy)]
struct Speed {
    texts_per_s: f64,
    /// One text.
    call_s: f64,
}

impl Speed {
    /// Finds out, and warms up on the way.
    async fn of(target: &Target, corpus: &Corpus, plan: Plan) -> Result<Self, Failure> {
        let client = &target.clients[..1];
        let times = latency(&client[0], Some(&corpus.texts), 3).await?;
        let call_s = percentile(&times, 50.0) / 1e6;
        let enough = plan.target.as_secs_f64() / 5.0;
        let most = corpus.call_texts(CALL_TEXTS);
        let mut size = most.min(8);
        loop {
            let took = throughput(client, corpus, (size, 1)).await?.took.as_secs_f64();
            if took >= enough || size == most {
                return Ok(Self { texts_per_s: size as f64 / took, call_s });
            }
            size = most.min(2 * size);
        }
    }

    /// Texts a call, and calls, that fill the time.
    fn calls(self, measure: Measure, plan: Plan, corpus: &Corpus) -> (usize, usize) {
        let time = plan.target.as_secs_f64();
        let texts = (self.texts_per_s * time).ceil() as usize;
        let (least, most) = LATENCY_CALLS;
        match measure {
            Measure::Ping => (0, ((time / 1e-3) as usize).clamp(least, most)),
            Measure::Latency => (1, ((time / self.call_s) as usize).clamp(least, most)),
            Measure::Calls(callers) => {
                let size = corpus.call_texts(texts.clamp(1, CALL_TEXTS));
                (size, texts.div_ceil(size).max(2 * callers - 1))
            }
            Measure::Clients(clients) => {
                // Few clients wait for their answers, and many for each other.
                let texts = texts.min((clients as f64 * time / self.call_s).ceil() as usize);
                (1, texts.max(CLIENT_TEXTS_MIN * clients).max(least))
            }
            Measure::LaneCalls => {
                let size = corpus.call_texts(LANE_TEXTS);
                (size, (texts / size).max(LANE_CALLS_MIN))
            }
            Measure::LaneClients => (1, texts.max(LANE_CALLS_MIN * LANE_CLIENTS)),
            Measure::Rate(_) => (1, 0),
        }
    }
}

/// What every measurement needs, and what it adds to.
struct Bench<'a> {
    stage: &'a Stage,
    collections: &'a [Collection],
    plan: Plan,
    rows: Vec<Row>,
    /// `None` when nobody asked for them.
    peaks: Option<BTreeMap<String, Vec<f64>>>,
    /// What measures the peak of a variant's device; nothing where that failed.
    products: BTreeMap<usize, Option<Products>>,
}

impl Bench<'_> {
    /// The rows, in every second round the last target of each measurement first.
    fn order(&self, round: u32) -> Vec<usize> {
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let key = |number: usize| (self.rows[number].collection, self.rows[number].measure);
        let groups = all.chunk_by(|a, b| key(*a) == key(*b));
        groups
            .flat_map(|group| {
                let mut group = group.to_vec();
                if !round.is_multiple_of(2) {
                    group.reverse();
                }
                group
            })
            .collect()
    }

    async fn row(&mut self, number: usize, round: u32) -> Result<(), Failure> {
        let before = self.peak(number);
        let row = &self.rows[number];
        let target = &self.stage.targets[row.target];
        let mut figures = match row.measure {
            Measure::Ping | Measure::Latency => self.latency(row, target).await?,
            Measure::Calls(callers) => self.throughput(row, target, callers).await?,
            Measure::Clients(clients) => self.throughput(row, target, clients).await?,
            Measure::LaneCalls => self.lane(row, target, 1).await?,
            Measure::LaneClients => self.lane(row, target, LANE_CLIENTS).await?,
            Measure::Rate(rate) => self.open(row, target, (rate, round)).await?,
        };
        let around = before.and_then(|before| Some((before + self.peak(number)?) / 2.0));
        let operations = figures.get("operations_per_s").copied();
        if let Some((peak, operations)) = around.zip(operations) {
            figures.insert("share_of_peak", operations / peak);
            let Facts { provider, precision, .. } = &target.facts;
            let of = match provider.as_str() {
                CPU => precision.clone(),
                provider => format!("{provider} {precision}"),
            };
            self.peaks.get_or_insert_default().entry(of).or_default().push(peak);
        }
        self.rows[number].rounds.push(figures);
        Ok(())
    }

    /// The peak now, where `row` can have a share of it. It is measured before and after each
    /// throughput: neighbours on the same hardware change within seconds what there is to reach.
    fn peak(&mut self, row: usize) -> Option<f64> {
        self.peaks.as_ref()?;
        let Row { target: number, measure, .. } = self.rows[row];
        let target = &self.stage.targets[number];
        if target.work.is_none() || !matches!(measure, Measure::Calls(_) | Measure::Clients(_)) {
            return None;
        }
        let Facts { provider, precision, .. } = &target.facts;
        if provider == CPU {
            return peak::measure(precision);
        }
        // Of a device and the CPU beside it there is none: they don't multiply one matrix together.
        let device = target.device.as_ref().filter(|device| device.provider == *provider)?;
        let of_variant = self.products.entry(target.variant);
        of_variant.or_insert_with(|| Products::on(device)).as_mut()?.measure()
    }

    async fn latency(&self, row: &Row, target: &Target) -> Result<Figures, Failure> {
        let texts = self.collections[row.collection].corpus.texts.as_slice();
        let texts = Some(texts).filter(|_| row.measure == Measure::Latency);
        let times = latency(&target.clients[0], texts, row.calls).await?;
        Ok(percentiles(CALL, &times))
    }

    async fn throughput(
        &self,
        row: &Row,
        target: &Target,
        clients: usize,
    ) -> Result<Figures, Failure> {
        let collection = &self.collections[row.collection];
        let before = target.tokens().await?;
        let calls = (row.size, row.calls);
        let times = throughput(&target.clients[..clients], &collection.corpus, calls).await?;
        let took = times.took.as_secs_f64();
        let padding = target.tokens().await?.padding_since(before);
        let texts = row.size * row.calls;
        let all = &collection.lengths(&target.facts.model).tokens;
        let tokens = || (0..texts).map(|position| all[position % all.len()]);
        let mut figures = Figures::from([
            ("texts_per_s", texts as f64 / took),
            ("tokens_per_s", tokens().sum::<usize>() as f64 / took),
        ]);
        figures.extend(padding.map(|padding| ("padding", padding)));
        if matches!(row.measure, Measure::Clients(_)) {
            figures.extend(percentiles(CALL, &times.calls));
        }
        if let Some(work) = target.work {
            figures.insert("operations_per_s", work.operations(tokens()) / took);
        }
        Ok(figures)
    }

    async fn lane(&self, row: &Row, target: &Target, clients: usize) -> Result<Figures, Failure> {
        let corpus = &self.collections[row.collection].corpus;
        let (clients, calls) = (&target.clients[..clients], (row.size, row.calls));
        let times = throughput(clients, corpus, calls).await?;
        let mut figures = percentiles(CALL, &times.calls);
        figures.extend(percentiles(BESIDE, &times.beside));
        Ok(figures)
    }

    async fn open(
        &self,
        row: &Row,
        target: &Target,
        (rate, round): (Rate, u32),
    ) -> Result<Figures, Failure> {
        let corpus = &self.collections[row.collection].corpus;
        let rate = match rate {
            Rate::Texts(rate) => rate,
            Rate::Percent(percent) => percent / 100.0 * self.first_speed(row, target),
        };
        let schedule = open::schedule(rate, self.plan.target, self.plan.seed + u64::from(round))?;
        let arrivals = open::run(&target.clients, corpus, schedule).await?;
        let mut figures = percentiles(CALL, &arrivals.times_us);
        figures.insert("offered_per_s", rate);
        figures.insert("answered_per_s", arrivals.answered_per_s);
        Ok(figures)
    }

    /// Texts per second that this variant did at its first place, the engine where that is measured, in the first
    /// round: the same base in all rounds, so that the offered load is, too.
    fn first_speed(&self, row: &Row, target: &Target) -> f64 {
        let base = self.rows.iter().find(|other| {
            matches!(other.measure, Measure::Calls(_))
                && other.collection == row.collection
                && self.stage.targets[other.target].variant == target.variant
        });
        let measured = base.and_then(|base| base.rounds.first()?.get("texts_per_s"));
        measured.copied().unwrap_or(row.texts_per_s)
    }
}

/// The median, and the percentiles that are not the longest of so few times themselves.
fn percentiles<const N: usize>(names: [(&'static str, f64); N], times_us: &[f64]) -> Figures {
    let enough =
        |percent: f64| percent <= 50.0 || times_us.len() as f64 * (100.0 - percent) >= 100.0;
    let names = names.into_iter().filter(|(_, percent)| enough(*percent));
    names.map(|(name, percent)| (name, percentile(times_us, percent))).collect()
}
