//! The figures as a page for people and as one JSON object.

use serde::Serialize;

use super::Stage;
use super::client::Side;
use super::corpus::Corpus;
use super::machine::Machine;
use super::measure::Probe;
use super::rounds::{PerSide, Plan, Results};
use super::spread::{Spread, percentile};

/// Everything that is told about a run.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    machine: Machine,
    served: Served,
    texts: Texts,
    rounds: u32,
    sides: Vec<Side>,
    /// Largest difference between the vectors of the two sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    deviation: Option<f32>,
    figures: Vec<Figure>,
}

#[derive(Serialize)]
struct Served {
    level: String,
    model: String,
    provider: String,
    precision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<usize>,
}

/// The lengths in tokens, as the model reads them.
#[derive(Serialize)]
struct Texts {
    source: String,
    texts: usize,
    truncated: usize,
    tokens_mean: f64,
    tokens_p50: f64,
    tokens_p95: f64,
    tokens_max: f64,
    short_tokens_mean: f64,
}

/// One line: a quantity on each side, and what one side is to the other.
#[derive(Serialize)]
struct Figure {
    /// What was measured, for example `latency, 8 clients`.
    group: String,
    name: &'static str,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<Spread>,
    /// Bus less engine for times, bus over engine for rates, round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    bus_less_engine: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus_over_engine: Option<Spread>,
}

/// How the two sides are compared.
#[derive(Clone, Copy, PartialEq)]
enum Compare {
    Difference,
    Ratio,
    Not,
}

impl Report {
    /// The report on one run.
    pub fn new(
        machine: Machine,
        stage: &Stage,
        corpus: &Corpus,
        plan: Plan,
        results: Results,
    ) -> Self {
        let served = &stage.served;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            served: Served {
                level: served.level.clone(),
                model: served.model.clone(),
                provider: served.provider.clone(),
                precision: served.precision.clone(),
                workers: served.workers,
            },
            texts: Texts::new(corpus, &results),
            rounds: plan.rounds,
            sides: stage.sides(),
            deviation: results.deviation,
            figures: figures(&results),
        }
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        // Only a map with keys that are not text could fail, and there is none.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The page for people.
    pub fn text(&self) -> String {
        let (served, texts) = (&self.served, &self.texts);
        let level = if served.level.is_empty() { "imported" } else { &served.level };
        let workers = served.workers.map_or(String::new(), |n| format!(", {n} workers"));
        let mut out = format!(
            "op-dbus {}: {} (level {level}), {}, {}{workers}\n",
            self.version, served.model, served.provider, served.precision
        );
        out.push_str(&format!("machine: {}\n", self.machine.line()));
        out.push_str(&format!(
            "texts:   {} ({}), tokens mean {:.1}, p50 {}, p95 {}, max {}, {} cut; short ones {:.1}\n",
            texts.texts, texts.source, texts.tokens_mean, texts.tokens_p50, texts.tokens_p95,
            texts.tokens_max, texts.truncated, texts.short_tokens_mean
        ));
        out.push_str(&format!("rounds:  {}; median (least to most)\n", self.rounds));
        if let Some(deviation) = self.deviation {
            out.push_str(&format!("vectors: bus and engine differ by {deviation:e} at most\n"));
        }
        let mut group = "";
        for figure in &self.figures {
            if figure.group != group {
                group = &figure.group;
                out.push_str(&format!("\n{group}\n"));
            }
            out.push_str(&figure.line());
        }
        out
    }
}

impl Texts {
    fn new(corpus: &Corpus, results: &Results) -> Self {
        let mut tokens: Vec<f64> = results.tokens.iter().map(|tokens| *tokens as f64).collect();
        tokens.sort_by(f64::total_cmp);
        Self {
            source: corpus.source.clone(),
            texts: tokens.len(),
            truncated: results.truncated,
            tokens_mean: tokens.iter().sum::<f64>() / tokens.len().max(1) as f64,
            tokens_p50: percentile(&tokens, 50.0),
            tokens_p95: percentile(&tokens, 95.0),
            tokens_max: percentile(&tokens, 100.0),
            short_tokens_mean: results.short_tokens,
        }
    }
}

fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for latency in &results.latency {
        let clients = if latency.clients == 1 { "client" } else { "clients" };
        let call = match latency.probe {
            Probe::Ping => "empty call",
            Probe::Text => "one short text",
        };
        let group = format!("{call}, {} {clients}", latency.clients);
        let rounds = &latency.rounds;
        let mut add = |name, of: fn(&super::rounds::Percentiles) -> f64| {
            let figure = Figure::new(&group, (name, "µs"), Compare::Difference);
            figures.push(figure.filled(rounds, of));
        };
        add("p50", |times| times.p50);
        add("p95", |times| times.p95);
        add("p99", |times| times.p99);
    }
    for throughput in &results.throughput {
        let (size, clients) = (throughput.texts_per_call, throughput.clients);
        let texts = if size == 1 { "text" } else { "texts" };
        let group = format!("{size} {texts} a call, {clients} clients");
        let rounds = &throughput.rounds;
        let mut add = |name, compare, of: fn(&super::rounds::Rates) -> f64| {
            figures.push(Figure::new(&group, (name, ""), compare).filled(rounds, of));
        };
        add("texts/s", Compare::Ratio, |rates| rates.texts_per_s);
        add("tokens/s", Compare::Ratio, |rates| rates.tokens_per_s);
        let padding = |rates: &super::rounds::Rates| rates.padding.unwrap_or(f64::NAN);
        add("padded/real", Compare::Not, padding);
    }
    figures
}

impl Figure {
    fn new(group: &str, (name, unit): (&'static str, &'static str), compare: Compare) -> Self {
        let unset = (compare != Compare::Not).then(Spread::default);
        Self {
            group: group.to_owned(),
            name,
            unit,
            engine: None,
            bus: None,
            bus_less_engine: unset.filter(|_| compare == Compare::Difference),
            bus_over_engine: unset.filter(|_| compare == Compare::Ratio),
        }
    }

    fn filled<T>(mut self, rounds: &PerSide<T>, of: fn(&T) -> f64) -> Self {
        let values = |side| rounds.get(&side).map(|rounds| rounds.iter().map(of).collect());
        let engine: Option<Vec<f64>> = values(Side::Engine);
        let bus: Option<Vec<f64>> = values(Side::Bus);
        let compared = |compare: fn((&f64, &f64)) -> f64| {
            let (engine, bus) = (engine.as_ref()?, bus.as_ref()?);
            Some(Spread::of(bus.iter().zip(engine).map(compare).collect()))
        };
        self.bus_less_engine = self.bus_less_engine.and_then(|_| compared(|(b, e)| b - e));
        self.bus_over_engine = self.bus_over_engine.and_then(|_| compared(|(b, e)| b / e));
        self.engine = engine.map(Spread::of);
        self.bus = bus.map(Spread::of);
        self
    }

    fn line(&self) -> String {
        let spread = |spread: &Spread, digits: usize| {
            let Spread { median, min, max } = spread;
            format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
        };
        let digits = match self.engine.or(self.bus) {
            Some(Spread { median, .. }) if median < 10.0 => 3,
            _ => 0,
        };
        let side = |name: &str, figure: &Option<Spread>| match figure {
            Some(figure) => format!("  {name} {:<30}", spread(figure, digits)),
            None => String::new(),
        };
        let mut line = format!("  {:<14}", format!("{} {}", self.name, self.unit));
        line.push_str(&side("engine", &self.engine));
        line.push_str(&side("bus", &self.bus));
        if let Some(difference) = &self.bus_less_engine {
            line.push_str(&format!("  bus − engine {}", spread(difference, 0)));
        }
        if let Some(ratio) = &self.bus_over_engine {
            line.push_str(&format!("  bus / engine {}", spread(ratio, 3)));
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(compare: Compare) -> Figure {
        let rounds = PerSide::from([
            (Side::Engine, vec![100.0, 200.0, 300.0]),
            (Side::Bus, vec![150.0, 220.0, 330.0]),
        ]);
        Figure::new("group", ("p50", "µs"), compare).filled(&rounds, |value| *value)
    }

    #[test]
    fn sides_are_compared_round_by_round() {
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(figure(Compare::Difference).bus_less_engine, spread(30.0, 20.0, 50.0));
        assert_eq!(figure(Compare::Ratio).bus_over_engine, spread(1.1, 1.1, 1.5));
        assert_eq!(figure(Compare::Not).bus_over_engine, None);
    }

    #[test]
    fn a_line_tells_both_sides_and_the_comparison() {
        let line = figure(Compare::Difference).line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected =
            "p50 µs engine 200 (100 to 300) bus 220 (150 to 330) bus − engine 30 (20 to 50)";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn one_side_alone_is_not_compared() {
        let rounds = PerSide::from([(Side::Bus, vec![5.0])]);
        let figure = Figure::new("g", ("x", ""), Compare::Ratio).filled(&rounds, |value| *value);
        assert_eq!(figure.bus_over_engine, None);
        assert!(figure.line().ends_with("  bus 5.000 (5.000 to 5.000)\n"), "{}", figure.line());
    }
}
