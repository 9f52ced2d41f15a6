//! The figures as a page for people.

use op_dbus_embedder::backend::CPU;

use super::crossover::Crossover;
use super::quality::Quality;
use super::report::{Line, Report, Texts};
use super::spread::Spread;
use crate::cli::name_of;

/// A column: its title, the figure, what it is multiplied by, digits after the point.
type Column = (&'static str, &'static str, f64, usize);

const TIMES: &[Column] =
    &[("p50 ms", "p50_us", 1e-3, 2), ("p95 ms", "p95_us", 1e-3, 2), ("p99 ms", "p99_us", 1e-3, 2)];
const LANES: &[Column] = &[
    ("p50 ms", "p50_us", 1e-3, 2),
    ("over the engine: p50 µs", "over_engine_us", 1.0, 0),
    ("saturated, not the engine's: p50 µs", "beside_p50_us", 1.0, 0),
    ("p95 µs", "beside_p95_us", 1.0, 0),
];
const RATES: &[Column] = &[
    ("texts/s", "texts_per_s", 1.0, 0),
    ("tokens/s", "tokens_per_s", 1.0, 0),
    ("padded/real", "padding", 1.0, 3),
    ("% of peak", "share_of_peak", 100.0, 1),
    ("of the engine", "over_engine", 1.0, 3),
    ("of the first", "over_first", 1.0, 3),
    ("p50 ms", "p50_us", 1e-3, 2),
    ("p99 ms", "p99_us", 1e-3, 2),
];
const ARRIVALS: &[Column] = &[
    ("offered/s", "offered_per_s", 1.0, 1),
    ("answered/s", "answered_per_s", 1.0, 1),
    ("p50 ms", "p50_us", 1e-3, 2),
    ("p99 ms", "p99_us", 1e-3, 2),
];

/// The whole page. With `offload` it also says why it has no crossover.
pub fn page(report: &Report, offload: bool) -> String {
    let mut out = format!("machine: {}\n", report.machine.line());
    out.push_str(&format!(
        "rounds:  {} of {} s for each figure; median (least to most)\n",
        report.rounds, report.seconds
    ));
    for (precision, peak) in &report.peak {
        let peak = spread(peak, 1e-9, 0);
        out.push_str(&format!("peak:    {precision} {peak} × 10⁹ operations/s\n"));
    }
    for texts in &report.collections {
        let lines: Vec<&Line> =
            report.figures.iter().filter(|line| line.collection == texts.name).collect();
        if lines.is_empty() {
            continue;
        }
        out.push_str(&heading(texts));
        for group in lines
            .chunk_by(|a, b| (a.measure, &a.rate, a.clients) == (b.measure, &b.rate, b.clients))
        {
            out.push_str(&block(group));
        }
    }
    out.push_str(&report.crossovers.iter().map(crossover).collect::<String>());
    if offload && report.crossovers.is_empty() {
        let providers = report.figures.iter().map(|line| line.facts.provider.as_str());
        out.push_str(&format!("\ncrossover: {}\n", no_choice(providers)));
    }
    out.push_str(&quality(&report.quality));
    out
}

fn heading(texts: &Texts) -> String {
    let mut out = format!("\n{}: {} texts, {}\n", texts.name, texts.texts, texts.source);
    for tokens in &texts.tokens {
        out.push_str(&format!(
            "  tokens under {}: mean {:.1}, p50 {}, p95 {}, max {}, {} texts cut\n",
            tokens.model, tokens.mean, tokens.p50, tokens.p95, tokens.max, tokens.truncated
        ));
    }
    out
}

/// One measurement: a line for each target.
fn block(lines: &[&Line]) -> String {
    let first = lines[0];
    let (title, columns) = match first.measure {
        "ping" => ("an empty call".to_owned(), TIMES),
        "latency" => ("one text at a time".to_owned(), TIMES),
        "calls" => (format!("many texts a call, {}", clients(first)), RATES),
        "lane calls" => (format!("{} texts a call, 1 client", first.texts_per_call), LANES),
        "lane clients" => ("1 text a call, 8 clients".to_owned(), LANES),
        "clients" => (format!("1 text a call, {}", clients(first)), RATES),
        _ => (format!("arriving at {}", first.rate.as_deref().unwrap_or_default()), ARRIVALS),
    };
    let columns: Vec<&Column> = columns
        .iter()
        .filter(|(_, name, ..)| lines.iter().any(|line| line.figures.contains_key(name)))
        .collect();
    let mut rows = vec![vec![title, String::new()]];
    rows[0].extend(columns.iter().map(|(title, ..)| (*title).to_owned()));
    for line in lines {
        let mut place = name_of(line.place);
        if line.measure == "calls" {
            place.push_str(&format!(", {} a call", line.texts_per_call));
        }
        let mut row = vec![line.label.clone(), place];
        row.extend(columns.iter().map(|(_, name, factor, digits)| {
            let figure = line.figures.get(name);
            figure.map_or("–".to_owned(), |figure| spread(figure, *factor, *digits))
        }));
        rows.push(row);
    }
    format!("\n{}", aligned(&rows))
}

fn clients(line: &Line) -> String {
    match line.clients {
        Some(1) => "1 client".to_owned(),
        clients => format!("{} clients", clients.unwrap_or_default()),
    }
}

/// What batches cost where there was a choice.
fn crossover(of: &Crossover) -> String {
    let mut rows = vec![vec!["ms for a batch of tokens".to_owned()]];
    rows[0].extend(of.tokens.iter().map(usize::to_string));
    for device in &of.devices {
        let ms = device.batch_us.iter().map(|us| format!("{:.1}", *us as f64 * 1e-3));
        rows.push(std::iter::once(device.device.clone()).chain(ms).collect());
    }
    format!("\ncrossover of {}: {}\n\n{}", of.label, of.sentence(), aligned(&rows))
}

/// Why nothing had a choice of where these providers computed.
fn no_choice<'a>(mut providers: impl Iterator<Item = &'a str>) -> &'static str {
    match providers.all(|provider| provider == CPU) {
        true => "none, as the CPU computes alone; name an accelerator with --provider",
        // A service does not tell what batches cost.
        false => "none, as the engine here is not measured; name it with --at",
    }
}

fn quality(lines: &[Quality]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut rows = vec![vec!["cosine with f32: mean, least".to_owned()]];
    rows[0].extend(lines[0].cosine.iter().map(|cosine| cosine.corpus.clone()));
    if lines[0].spearman.is_some() {
        rows[0].push("rank correlation of pairs × 100".to_owned());
    }
    for line in lines {
        let mut row = vec![line.label.clone()];
        row.extend(line.cosine.iter().map(|c| format!("{:.6}, {:.6}", c.mean, c.min)));
        row.extend(line.spearman.map(|spearman| format!("{spearman:.2}")));
        rows.push(row);
    }
    format!("\nquality\n\n{}", aligned(&rows))
}

/// `median (least to most)`.
fn spread(figure: &Spread, factor: f64, digits: usize) -> String {
    let [median, min, max] = [figure.median, figure.min, figure.max].map(|value| value * factor);
    let digits = if digits == 0 && median < 10.0 { 1 } else { digits };
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

/// Columns below each other.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(&format!("  {}\n", line.trim_end()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect();
        let text = aligned(&[row(&["a", "b"]), row(&["long", "µ", "x"])]);
        assert_eq!(text, "  a     b\n  long  µ  x\n");
    }

    #[test]
    fn where_there_is_no_choice_the_page_says_why() {
        let alone = no_choice(["cpu", "cpu"].into_iter());
        assert_eq!(alone, "none, as the CPU computes alone; name an accelerator with --provider");
        assert!(no_choice(["cpu", "cuda+cpu"].into_iter()).ends_with("with --at"));
    }

    #[test]
    fn small_figures_keep_a_digit() {
        let figure = |median| Spread { median, min: median / 2.0, max: median * 2.0 };
        assert_eq!(spread(&figure(120.0), 1.0, 0), "120 (60 to 240)");
        assert_eq!(spread(&figure(4.0), 1.0, 0), "4.0 (2.0 to 8.0)");
        assert_eq!(spread(&figure(2_500.0), 1e-3, 2), "2.50 (1.25 to 5.00)");
    }
}
