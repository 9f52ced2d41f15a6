//! The sections of the page as lines, whether a terminal or plain text takes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::status::{computes, serves, state_colour};
use super::super::terminal::{
    Colour, counted, grouped, milliseconds, paint, printable, since as passed,
};
use super::interval::{Interval, Percentiles, WorkerInterval};
use super::reading::{Reading, Worker};

/// Longest sentence of the service that is shown.
const SENTENCE_CHARS: usize = 400;
/// Width of the names on the left.
const NAME_CHARS: usize = 11;

/// One number of an interval.
pub type Measure = fn(&Interval) -> f64;
/// Those that have a chart, with their names.
pub const RATES: [(&str, Measure); 2] = [
    ("texts/s", |interval: &Interval| interval.rows_per_s),
    ("tokens/s", |interval: &Interval| interval.tokens_per_s),
];

/// What is shown, at one moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The newest reading; none while the service is away.
    pub reading: Option<&'a Reading>,
    /// What happened since the one before; none until there are two of one engine.
    pub interval: Option<&'a Interval>,
    /// Why there is no reading.
    pub absent: Option<&'a str>,
    pub coloured: bool,
    pub now: SystemTime,
}

/// The page as text, for a pipe.
pub fn plain(view: &View<'_>) -> String {
    let sections = [
        view.about(),
        RATES.map(|(name, of)| view.named(name, rate_label(view.interval, of))).to_vec(),
        view.counts().into_iter().chain(view.devices()).collect(),
        view.times(),
        view.workers(usize::MAX),
    ];
    let filled = sections.into_iter().filter(|section| !section.is_empty());
    let texts = filled.map(|section| {
        let lines = section.iter().map(|line| painted(line, view.coloured));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// One line for a terminal that gets no drawing.
fn painted(line: &Line<'_>, coloured: bool) -> String {
    let span = |span: &Span<'_>| match shade_of(span.style) {
        Some(colour) => paint(&span.content, colour, coloured),
        None => span.content.to_string(),
    };
    line.spans.iter().map(span).collect::<String>().trim_end().to_owned()
}

impl View<'_> {
    /// What runs and since when, or why nothing is known.
    pub fn about(&self) -> Vec<Line<'static>> {
        let Some(Reading { status, .. }) = self.reading else {
            let reason = printable(self.absent.unwrap_or("asking the service"), SENTENCE_CHARS);
            return vec![Line::from(vec!["op-dbus: ".into(), self.span(reason, Colour::Bad)])];
        };
        let start = UNIX_EPOCH + Duration::from_micros(status.since);
        let time = self.now.duration_since(start).unwrap_or_default();
        let state = printable(&status.state, NAME_CHARS);
        let shade = state_colour(&state);
        let mut lines = vec![Line::from(vec![
            Span::raw(format!("op-dbus {}: ", printable(&status.version, NAME_CHARS))),
            self.span(state, shade),
            Span::raw(format!(" for {}, process {}", passed(time.as_secs()), status.pid)),
        ])];
        if status.model.is_empty() {
            lines.push(Line::from(printable(&status.status, SENTENCE_CHARS)));
            return lines;
        }
        let line = serves(&status.level, &status.model, status.dimensions, status.max_input_tokens);
        lines.push(Line::from(printable(&line, SENTENCE_CHARS)));
        let engine = [status.engine.as_str(), status.isa.as_str()];
        let line = computes(&status.provider, engine, &status.precision);
        lines.push(Line::from(printable(&line, SENTENCE_CHARS)));
        if !status.fallback_reason.is_empty() {
            let asked = &status.requested_provider;
            let line = format!("{asked} was asked for: {}", status.fallback_reason);
            lines.push(Line::from(self.span(printable(&line, SENTENCE_CHARS), Colour::Doubtful)));
        }
        if !status.unloaded.is_empty() || status.state == "failed" {
            let line = printable(&status.status, SENTENCE_CHARS);
            lines.push(Line::from(self.span(line, shade)));
        }
        lines
    }

    /// What is known of the devices that compute.
    pub fn devices(&self) -> Vec<Line<'static>> {
        let devices = self.reading.map_or(&[][..], |reading| &reading.devices);
        devices.iter().map(|line| self.named("Device", line.clone())).collect()
    }

    /// What is in the queue, how full batches are, and what did not go well.
    pub fn counts(&self) -> Vec<Line<'static>> {
        let Some(Reading { statistics, .. }) = self.reading else { return Vec::new() };
        let mut lines = vec![
            self.named(
                "In flight",
                format!(
                    "{}, {} tokens; waiting {}, {} tokens",
                    counted(statistics.in_flight_calls, "call", "calls"),
                    grouped(statistics.in_flight_tokens),
                    counted(statistics.queue_texts, "text", "texts"),
                    grouped(statistics.queue_tokens),
                ),
            ),
            self.named("Batches", self.interval.map_or_else(String::new, batches)),
            self.named(
                "Since start",
                format!(
                    "{}, {}, {} tokens in {}",
                    counted(statistics.calls, "call", "calls"),
                    counted(statistics.texts, "text", "texts"),
                    grouped(statistics.tokens),
                    counted(statistics.batches, "batch", "batches"),
                ),
            ),
        ];
        let truncated = self.interval.map_or(0, |interval| interval.truncated);
        let retries = self.interval.map_or(0, |interval| interval.retries);
        let cut = with_growth(statistics.truncated, truncated);
        let again = with_growth(statistics.retries, retries);
        lines.push(self.named("Texts", format!("{cut} cut, {again} computed again")));
        let new = |kind: &String| {
            self.interval.and_then(|interval| interval.failures.get(kind)).copied().unwrap_or(0)
        };
        let failures: Vec<String> = statistics
            .failures
            .iter()
            .map(|(kind, count)| format!("{kind} {}", with_growth(*count, new(kind))))
            .collect();
        let (failures, shade) = match failures.is_empty() {
            true => ("none".to_owned(), Colour::Faint),
            false => (printable(&failures.join(", "), SENTENCE_CHARS), Colour::Doubtful),
        };
        lines.push(self.named("Failures", self.span(failures, shade)));
        lines
    }

    /// How long the calls took that were answered in the interval.
    pub fn times(&self) -> Vec<Line<'static>> {
        if self.reading.is_none() {
            return Vec::new();
        }
        let heading =
            format!("{:<NAME_CHARS$} {:>10} {:>10} {:>10}", "Calls, ms", "p50", "p90", "p99");
        let row = |name: &str, times: Option<Percentiles>| {
            let Some(Percentiles { p50, p90, p99 }) = times else {
                return self.named(name, format!("{:>10} {:>10} {:>10}", "-", "-", "-"));
            };
            let [p50, p90, p99] = [p50, p90, p99].map(milliseconds);
            self.named(name, format!("{p50:>10} {p90:>10} {p99:>10}"))
        };
        vec![
            Line::from(self.span(heading, Colour::Faint)),
            row("queue", self.interval.and_then(|interval| interval.queue_us)),
            row("compute", self.interval.and_then(|interval| interval.compute_us)),
        ]
    }

    /// A heading and a line for each worker, in `lines_max` lines.
    pub fn workers(&self, lines_max: usize) -> Vec<Line<'static>> {
        let workers = self.reading.map_or(&[][..], |reading| &reading.status.workers);
        if workers.is_empty() || lines_max < 2 {
            return Vec::new();
        }
        let heading = format!(
            "{:>7}  {:<10} {:<10} {:>5} {:>9} {:>9} {:>9} {:>8}",
            "Worker", "device", "does", "busy", "batches", "texts/s", "tokens/s", "restarts"
        );
        let mut lines = vec![Line::from(self.span(heading, Colour::Faint))];
        let replaced = |worker: &&Worker| worker.restarts > 0 && !worker.last_error.is_empty();
        let with_reasons = workers.len() + workers.iter().filter(replaced).count() < lines_max;
        // The last line says how many there was no room for.
        let shown = if workers.len() < lines_max { workers.len() } else { lines_max - 2 };
        for worker in workers.iter().take(shown) {
            let known = self.interval.map_or(&[][..], |interval| &interval.workers);
            let interval = known.iter().find(|known| known.pid == worker.pid);
            lines.push(worker_line(worker, interval));
            if with_reasons && replaced(&worker) {
                let reason = printable(&worker.last_error, SENTENCE_CHARS);
                let reason = format!("{:>7}  replaced because {reason}", "");
                lines.push(Line::from(self.span(reason, Colour::Doubtful)));
            }
        }
        if shown < workers.len() {
            let more = format!("and {} more", workers.len() - shown);
            lines.push(Line::from(self.span(more, Colour::Faint)));
        }
        lines
    }

    fn named(&self, name: &str, rest: impl Into<Span<'static>>) -> Line<'static> {
        Line::from(vec![self.span(format!("{name:<NAME_CHARS$} "), Colour::Faint), rest.into()])
    }

    pub fn span(&self, text: String, colour: Colour) -> Span<'static> {
        Span::styled(text, if self.coloured { style(colour) } else { Style::new() })
    }
}

/// A rate as the chart beside it is labelled; empty until one is measured.
pub fn rate_label(interval: Option<&Interval>, of: Measure) -> String {
    interval.map_or_else(String::new, |interval| rate(of(interval)))
}

fn worker_line(worker: &Worker, interval: Option<&WorkerInterval>) -> Line<'static> {
    let busy = interval.map_or_else(String::new, |i| format!("{:.0} %", i.busy * 100.0));
    let texts = interval.map_or_else(String::new, |i| rate(i.rows_per_s));
    let tokens = interval.map_or_else(String::new, |i| rate(i.tokens_per_s));
    let (device, state) = (printable(&worker.device, 10), printable(&worker.state, 10));
    let batches = grouped(worker.batches);
    Line::from(format!(
        "{:>7}  {device:<10} {state:<10} {busy:>5} {batches:>9} {texts:>9} {tokens:>9} {:>8}",
        worker.pid, worker.restarts
    ))
}

/// How many, and how full.
fn batches(interval: &Interval) -> String {
    let mut line = format!("{}/s", rate(interval.batches_per_s));
    if let (Some(rows), Some(tokens)) = (interval.rows_per_batch, interval.tokens_per_batch) {
        line.push_str(&format!(", each {rows:.1} texts, {} tokens", rate(tokens)));
    }
    if let Some(padding) = interval.padded_over_tokens {
        line.push_str(&format!("; padding {:.1} %", (padding - 1.0).max(0.0) * 100.0));
    }
    line
}

/// A count, and by how much it has just grown.
fn with_growth(count: u64, new: u64) -> String {
    match new {
        0 => grouped(count),
        new => format!("{} (+{})", grouped(count), grouped(new)),
    }
}

/// A number that is small or large: a decimal where it says something.
pub fn rate(number: f64) -> String {
    match number {
        ..100.0 => format!("{number:.1}"),
        _ => grouped(number.round() as u64),
    }
}

/// A colour of the other commands, for a drawing.
pub fn style(colour: Colour) -> Style {
    match colour {
        Colour::Good => Style::new().fg(Color::Green),
        Colour::Doubtful => Style::new().fg(Color::Yellow),
        Colour::Bad => Style::new().fg(Color::Red),
        Colour::Faint => Style::new().add_modifier(Modifier::DIM),
    }
}

fn shade_of(wanted: Style) -> Option<Colour> {
    let all = [Colour::Good, Colour::Doubtful, Colour::Bad, Colour::Faint];
    all.into_iter().find(|colour| style(*colour) == wanted)
}
