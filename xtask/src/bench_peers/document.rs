//! What was measured, as tables and plots of `performance.md`.

use std::fs;
use std::path::Path;

use super::competitor::Entry;
use super::ours::Line;
use super::statistics::{Spread, with_range};
use super::texts::Sample;
use super::{Figures, plots};
use crate::shell::Outcome;

const BEGIN: &str = "<!-- figures: `cargo xtask bench-peers` replaces what stands from here -->";
const END: &str = "<!-- figures: to here -->";

/// A plot: its name, what it shows, and how it is drawn.
type Plot = (&'static str, &'static str, fn(&Figures) -> String);

const PLOTS: [Plot; 3] = [
    ("batch-tokens", "Throughput by batch size", plots::batch_tokens),
    ("load", "Latency by offered load", plots::load),
    ("peak", "Share of the CPU's peak by precision", plots::peak),
];

/// Writes the plots and puts the tables into `performance.md` in `folder`.
///
/// # Errors
/// The folder can't be written, or the document has no place for figures.
pub fn write(figures: &Figures, folder: &Path) -> Outcome {
    let images = folder.join("performance");
    fs::create_dir_all(&images).map_err(|e| format!("can't make {}: {e}", images.display()))?;
    for (name, _, draw) in PLOTS {
        let path = images.join(format!("{name}.svg"));
        fs::write(&path, draw(figures)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let path = folder.join("performance.md");
    let before =
        fs::read_to_string(&path).unwrap_or_else(|_| format!("# Performance\n\n{BEGIN}\n{END}\n"));
    let after = put(&before, &section(figures))
        .ok_or_else(|| format!("{} has no lines {BEGIN:?} and {END:?}", path.display()))?;
    fs::write(&path, after).map_err(|e| format!("{}: {e}", path.display()))
}

/// The document with another section between the marks.
fn put(document: &str, section: &str) -> Option<String> {
    let (head, rest) = document.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", section.trim()))
}

fn section(figures: &Figures) -> String {
    let mut out = machine(figures);
    out.push_str(&peers(figures));
    let [batch, load, peak] =
        PLOTS.map(|(name, title, _)| format!("![{title}](performance/{name}.svg)\n\n"));
    out.push_str(&batch);
    out.push_str(&levels(figures));
    out.push_str(&quality(figures));
    out.push_str(&peak);
    out.push_str(&service(figures));
    out.push_str(&latency(figures));
    out.push_str(&load);
    out
}

fn machine(figures: &Figures) -> String {
    let machine = &figures.levels.whole["machine"];
    let word = |name: &str| machine[name].as_str().unwrap_or_default();
    let isa: Vec<&str> =
        machine["isa"].as_array().into_iter().flatten().filter_map(|isa| isa.as_str()).collect();
    let mut out = format!(
        "Machine: {}, {} cores, {} ({}), Linux {}; {} rounds, medians with least and most.\n\n",
        word("cpu"),
        machine["cores"],
        word("architecture"),
        isa.join(" "),
        word("kernel"),
        figures.rounds
    );
    let peaks: Vec<String> = ["f32", "bf16", "int8"]
        .into_iter()
        .filter_map(|p| Some(format!("{p} {:.0}", figures.levels.peak(p)? / 1e9)))
        .collect();
    if !peaks.is_empty() {
        let peaks = peaks.join(", ");
        out.push_str(&format!(
            "What it can do at most, measured beside the figures, in 10⁹ operations a second: \
             {peaks}.\n\n"
        ));
    }
    out.push_str("| texts | timed | tokens each |\n|---|---|---|\n");
    for sample in &figures.samples {
        let (name, texts, tokens) = (&sample.name, sample.texts, sample.tokens_mean);
        out.push_str(&format!("| {name} | {texts} | {tokens:.1} |\n"));
    }
    out + "\n"
}

/// The table of everybody.
fn peers(figures: &Figures) -> String {
    let names: Vec<&str> = figures.samples.iter().map(|sample| sample.name.as_str()).collect();
    let columns: Vec<String> = names.iter().map(|name| format!(" {name}, texts/s |")).collect();
    let mut out = format!(
        "### Beside other libraries, level `{}`\n\n\
         | | precision | setting |{} × sentence-transformers f32 | % of peak | \
         cosine with f32: mean, least | pairs in order × 100 |\n|---|---|---|{}---|---|---|---|\n",
        figures.level,
        columns.concat(),
        "---|".repeat(names.len())
    );
    for competitor in &figures.field.competitors {
        let entry = competitor.entry;
        let Some(rates) = figures.rates.figures.get(&entry.key()) else { continue };
        let cells = rates.iter().map(|rounds| with_range(&Spread::of(rounds.clone()), 0));
        let cells: Vec<String> = cells.map(|cell| format!(" {cell} |")).collect();
        let quality = figures.quality.get(&entry.key());
        let cosine = quality.map_or("–".to_owned(), |quality| {
            format!("{:.6}, {:.6}", quality.cosine.0, quality.cosine.1)
        });
        let spearman = quality.and_then(|quality| quality.spearman);
        let spearman = spearman.map_or("–".to_owned(), |spearman| format!("{spearman:.2}"));
        out.push_str(&format!(
            "| {} | {} | {} |{} {} | {} | {cosine} | {spearman} |\n",
            entry.title,
            entry.precision,
            competitor.setting,
            cells.concat(),
            beside(figures, rates),
            shares(figures, entry, rates),
        ));
    }
    out.push_str(
        "\nSetting: batches at once × threads each, padded tokens of a batch; the fastest of those \
         that were tried.\n\n",
    );
    let mut versions: Vec<&str> =
        figures.field.competitors.iter().map(|one| one.library.as_str()).collect();
    versions.dedup();
    out.push_str(&format!("Versions: {}.\n\n", versions.join("; ")));
    for (entry, reason) in &figures.field.missing {
        let Entry { title, precision, .. } = entry;
        out.push_str(&format!("Not measured: {title} in {precision} ({reason}).\n\n"));
    }
    out
}

/// How many times what sentence-transformers does in f32: the geometric mean of the collections in
/// each round.
fn beside(figures: &Figures, rates: &[Vec<f64>]) -> String {
    let Some(base) = figures.rates.figures.get(&("torch", "f32")) else { return "–".to_owned() };
    let rounds = rates.iter().chain(base).map(Vec::len).min().unwrap_or(0);
    let ratio = |round: usize| {
        let logarithms = rates.iter().zip(base).map(|(a, b)| (a[round] / b[round]).ln());
        (logarithms.sum::<f64>() / rates.len().max(1) as f64).exp()
    };
    with_range(&Spread::of((0..rounds).map(ratio).collect()), 2)
}

/// Percent of the peak in its precision, by collection: medians of the rounds.
fn shares(figures: &Figures, entry: &Entry, rates: &[Vec<f64>]) -> String {
    let share = |(rounds, sample): (&Vec<f64>, &Sample)| {
        let operations = sample.operations? / sample.texts as f64;
        let of_peak = |(rate, peak): (&f64, &serde_json::Value)| {
            Some(100.0 * operations * rate / peak[entry.precision].as_f64()?)
        };
        let shares: Option<Vec<f64>> =
            rounds.iter().zip(&figures.rates.peaks).map(of_peak).collect();
        Some(format!("{:.0}", Spread::of(shares?).median))
    };
    let shares: Option<Vec<String>> = rates.iter().zip(&figures.samples).map(share).collect();
    shares.map_or("–".to_owned(), |shares| shares.join(" / "))
}

fn levels(figures: &Figures) -> String {
    let mut out = "### Every level, engine alone\n\n\
        | level | precision | texts | texts/s | tokens/s | % of peak |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for line in figures.levels.with(&[("measure", "calls")]) {
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            line.word("level"),
            line.word("precision"),
            line.word("collection"),
            shown(line, "texts_per_s", 1.0, 0),
            shown(line, "tokens_per_s", 1.0, 0),
            shown(line, "share_of_peak", 100.0, 1),
        ));
    }
    out + "\n"
}

/// How far the vectors of each level and precision are from f32.
fn quality(figures: &Figures) -> String {
    let lines = figures.levels.whole["quality"].as_array();
    let mut out = "| level | precision | texts | cosine with f32: mean | least | \
        pairs in order × 100 |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for line in lines.into_iter().flatten() {
        let word = |name: &str| line[name].as_str().unwrap_or_default();
        let spearman = line["spearman"].as_f64();
        let spearman = spearman.map_or("–".to_owned(), |spearman| format!("{spearman:.2}"));
        for cosine in line["cosine"].as_array().into_iter().flatten() {
            let number = |name: &str| cosine[name].as_f64().unwrap_or(f64::NAN);
            out.push_str(&format!(
                "| {} | {} | {} | {:.6} | {:.6} | {spearman} |\n",
                word("level"),
                word("precision"),
                cosine["corpus"].as_str().unwrap_or_default(),
                number("mean"),
                number("min"),
            ));
        }
    }
    out + "\n"
}

fn service(figures: &Figures) -> String {
    let mut out = format!(
        "### Through the service, level `{}`\n\n\
         | precision | texts | engine, texts/s | up to 1,000 texts a call, of the engine's | \
         64 clients with one text each, of the engine's |\n|---|---|---|---|---|\n",
        figures.level
    );
    let run = &figures.service;
    for line in run.with(&[("measure", "calls"), ("place", "engine")]) {
        let (precision, collection) = (line.word("precision"), line.word("collection"));
        let over = |measure: &str| {
            let words = [
                ("measure", measure),
                ("place", "daemon"),
                ("precision", precision),
                ("collection", collection),
            ];
            let found = run.with(&words).next();
            found.map_or("–".to_owned(), |line| shown(line, "over_engine", 1.0, 3))
        };
        out.push_str(&format!(
            "| {precision} | {collection} | {} | {} | {} |\n",
            shown(line, "texts_per_s", 1.0, 0),
            over("calls"),
            over("clients"),
        ));
    }
    out + "\n"
}

fn latency(figures: &Figures) -> String {
    let mut out = format!(
        "### One text at a time, level `{}`, milliseconds\n\n\
         | precision | texts | engine p50 | engine p99 | service p50 | service p99 |\n\
         |---|---|---|---|---|---|\n",
        figures.level
    );
    let run = &figures.service;
    for line in run.with(&[("measure", "latency"), ("place", "engine")]) {
        let (precision, collection) = (line.word("precision"), line.word("collection"));
        let words = [
            ("measure", "latency"),
            ("place", "daemon"),
            ("precision", precision),
            ("collection", collection),
        ];
        let service = run.with(&words).next();
        let service = |name| service.map_or("–".to_owned(), |line| shown(line, name, 1e-3, 2));
        out.push_str(&format!(
            "| {precision} | {collection} | {} | {} | {} | {} |\n",
            shown(line, "p50_us", 1e-3, 2),
            shown(line, "p99_us", 1e-3, 2),
            service("p50_us"),
            service("p99_us"),
        ));
    }
    out + "\n"
}

fn shown(line: &Line, name: &str, factor: f64, digits: usize) -> String {
    let Some(Spread { median, min, max }) = line.figure(name) else { return "–".to_owned() };
    let scaled = Spread { median: median * factor, min: min * factor, max: max * factor };
    with_range(&scaled, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let document = format!("# Title\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n");
        let after = put(&document, "new\n").unwrap();
        assert_eq!(after, format!("# Title\n\nbefore\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"));
        assert_eq!(put(&after, "new\n"), Some(after.clone()));
        assert_eq!(put("# Title\n", "new"), None);
    }
}
