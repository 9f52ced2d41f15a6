//! The figures as one JSON object: medians with the least and the most, and ratios round by round.

use std::collections::BTreeMap;

use serde::Serialize;

use super::args::Rate;
use super::collection::{Collection, Distribution};
use super::crossover::Crossover;
use super::machine::Machine;
use super::quality::Quality;
use super::rounds::{Measure, Plan, Results, Row};
use super::spread::Spread;
use super::stage::{Stage, Target};
use super::variant::{Facts, Place};

/// Everything that is told about a run.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    pub machine: Machine,
    pub rounds: u32,
    pub seconds: f64,
    pub collections: Vec<Texts>,
    /// Operations per second that the CPU can do, by precision, and another provider, by its name and the
    /// precision.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peak: BTreeMap<String, Spread>,
    pub figures: Vec<Line>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crossovers: Vec<Crossover>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quality: Vec<Quality>,
}

/// One collection.
#[derive(Serialize)]
pub struct Texts {
    pub name: String,
    pub source: String,
    pub texts: usize,
    /// Lengths in tokens, as each model reads them.
    pub tokens: Vec<Distribution>,
}

/// What one variant did, at one place, with one collection.
#[derive(Serialize)]
pub struct Line {
    pub collection: String,
    /// `ping`, `latency`, `calls`, `clients`, `lane calls`, `lane clients` or `rate`.
    pub measure: &'static str,
    /// The rate that was asked for, as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Clients of the measurements `calls` and `clients`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<usize>,
    pub place: Place,
    /// A few words for the variant.
    pub label: String,
    #[serde(flatten)]
    pub facts: Facts,
    pub texts_per_call: usize,
    pub figures: BTreeMap<&'static str, Spread>,
}

impl Measure {
    const fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Latency => "latency",
            Self::Calls(_) => "calls",
            Self::Clients(_) => "clients",
            Self::LaneCalls => "lane calls",
            Self::LaneClients => "lane clients",
            Self::Rate(_) => "rate",
        }
    }

    fn rate(self) -> Option<String> {
        match self {
            Self::Rate(Rate::Texts(rate)) => Some(format!("{rate}")),
            Self::Rate(Rate::Percent(percent)) => Some(format!("{percent}%")),
            _ => None,
        }
    }

    const fn clients(self) -> Option<usize> {
        match self {
            Self::Calls(clients) | Self::Clients(clients) => Some(clients),
            _ => None,
        }
    }
}

impl Report {
    /// The report on one run.
    pub fn new(
        machine: Machine,
        stage: &Stage,
        plan: Plan,
        (results, quality): (&Results, Vec<Quality>),
    ) -> Self {
        let facts: Vec<&Facts> = stage.targets.iter().map(|target| &target.facts).collect();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            rounds: plan.rounds,
            seconds: plan.target.as_secs_f64(),
            collections: results.collections.iter().map(Texts::of).collect(),
            peak: results
                .peaks
                .iter()
                .map(|(p, all)| (p.clone(), Spread::of(all.clone())))
                .collect(),
            figures: results.rows.iter().map(|row| line(row, results, stage, &facts)).collect(),
            crossovers: Crossover::of(stage),
            quality,
        }
    }
}

impl Texts {
    fn of(collection: &Collection) -> Self {
        Self {
            name: collection.corpus.name.clone(),
            source: collection.corpus.source.clone(),
            texts: collection.corpus.texts.len(),
            tokens: collection
                .lengths
                .iter()
                .map(super::collection::Lengths::distribution)
                .collect(),
        }
    }
}

fn line(row: &Row, results: &Results, stage: &Stage, facts: &[&Facts]) -> Line {
    let target = &stage.targets[row.target];
    let mut figures: BTreeMap<&'static str, Spread> = BTreeMap::new();
    let names = row.rounds.first().into_iter().flat_map(|round| round.keys());
    for name in names {
        let values = row.rounds.iter().filter_map(|round| round.get(name)).copied();
        figures.insert(name, Spread::of(values.collect()));
    }
    // With what does the engine keep up its rate, and how do variants compare?
    let base = |is_it: &dyn Fn(&Row, &Target) -> bool| {
        let is_it = |other: &&Row| is_it(other, &stage.targets[other.target]);
        results.rows.iter().filter(|other| other.collection == row.collection).find(is_it)
    };
    let is_engine = |of: &Target| of.variant == target.variant && of.place == Place::Engine;
    let is_calls = |row: &Row| matches!(row.measure, Measure::Calls(_));
    if let Some(engine) = base(&|other, of| {
        is_engine(of) && is_calls(other) && (!is_calls(row) || other.measure == row.measure)
    }) {
        figures.extend(ratio(row, engine, "texts_per_s").map(|r| ("over_engine", r)));
    }
    if matches!(row.measure, Measure::LaneCalls | Measure::LaneClients)
        && let Some(engine) = base(&|other, of| is_engine(of) && other.measure == row.measure)
    {
        let over = pairwise(row, engine, "p50_us", |row, engine| row - engine);
        figures.extend(over.map(|over| ("over_engine_us", over)));
    }
    if let Some(first) = base(&|other, of| {
        other.measure == row.measure
            && of.place == target.place
            && of.facts.model == target.facts.model
    }) {
        // More of the one is better, of the other worse: no one name for both.
        let (by, name) = match figures.contains_key("texts_per_s") {
            true => ("texts_per_s", "over_first"),
            false => ("p50_us", "p50_over_first"),
        };
        figures.extend(ratio(row, first, by).map(|r| (name, r)));
    }
    Line {
        collection: results.collections[row.collection].corpus.name.clone(),
        measure: row.measure.name(),
        rate: row.measure.rate(),
        clients: row.measure.clients(),
        place: target.place,
        label: target.facts.label(facts),
        facts: target.facts.clone(),
        texts_per_call: row.size,
        figures,
    }
}

/// `row` over `base`, round by round; none for a row over itself.
fn ratio(row: &Row, base: &Row, name: &str) -> Option<Spread> {
    pairwise(row, base, name, |row, base| row / base)
}

/// What `row` is beside `base`, round by round; none for a row beside itself.
fn pairwise(row: &Row, base: &Row, name: &str, beside: fn(f64, f64) -> f64) -> Option<Spread> {
    if std::ptr::eq(row, base) {
        return None;
    }
    let pairs = row.rounds.iter().zip(&base.rounds);
    let all: Option<Vec<f64>> =
        pairs.map(|(row, base)| Some(beside(*row.get(name)?, *base.get(name)?))).collect();
    all.map(Spread::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rounds::Figures;

    fn row(values: &[f64]) -> Row {
        let rounds = values.iter().map(|value| Figures::from([("x", *value)])).collect();
        let (size, calls, texts_per_s) = (1, 1, 1.0);
        Row {
            target: 0,
            collection: 0,
            measure: Measure::Calls(1),
            size,
            calls,
            texts_per_s,
            rounds,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let (one, other) = (row(&[150.0, 220.0, 330.0]), row(&[100.0, 200.0, 300.0]));
        let expected = Spread { median: 1.1, min: 1.1, max: 1.5 };
        assert_eq!(ratio(&one, &other, "x"), Some(expected));
        let over = pairwise(&one, &other, "x", |row, base| row - base);
        assert_eq!(over, Some(Spread { median: 30.0, min: 20.0, max: 50.0 }));
        assert_eq!(ratio(&one, &one, "x"), None, "one is not compared with itself");
        assert_eq!(ratio(&one, &other, "y"), None);
    }

    #[test]
    fn a_rate_is_told_as_it_was_asked_for() {
        assert_eq!(Measure::Rate(Rate::Percent(80.0)).rate().as_deref(), Some("80%"));
        assert_eq!(Measure::Rate(Rate::Texts(12.5)).rate().as_deref(), Some("12.5"));
        assert_eq!(Measure::Calls(1).rate(), None);
    }
}
