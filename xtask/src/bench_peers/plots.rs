//! The three plots of the document.

use super::Figures;
use super::competitor::Entry;
use crate::svg::{self, Axis, COLOURS, Group, Series};

/// The libraries in the order of their colours.
const LIBRARIES: [&str; 6] = ["native", "ort", "torch", "onnxruntime", "openvino", "fastembed"];

/// Texts per second of everybody by the tokens of a batch.
pub fn batch_tokens(figures: &Figures) -> String {
    let mut series = Vec::new();
    let mut most = 1.0_f64;
    let mut sizes: Vec<f64> = Vec::new();
    for entry in super::lineup::ENTRIES {
        let Some(curve) = figures.curves.get(&entry.key()) else { continue };
        let mut points: Vec<(f64, f64)> =
            curve.iter().map(|(tokens, rate)| (*tokens as f64, *rate)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        most = points.iter().map(|point| point.1).fold(most, f64::max);
        sizes.extend(points.iter().map(|point| point.0));
        let colour = LIBRARIES.iter().position(|name| *name == entry.library).unwrap_or(0);
        let (colour, dashed) = (COLOURS[colour], entry.precision != "f32");
        series.push(Series { name: name(entry), colour, dashed, points });
    }
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let x = Axis::doubling("tokens of one batch", sizes);
    let y = Axis::linear("texts per second", most);
    let corpus = figures.samples.first().map_or("", |sample| &sample.name);
    svg::lines(&format!("Throughput by batch size, {corpus}"), (&x, &y), &series)
}

fn name(entry: &Entry) -> String {
    let title = match entry.library {
        "ort" => "op-dbus, ort",
        "openvino" => "OpenVINO",
        _ => entry.title,
    };
    format!("{title} {}", entry.precision)
}

/// Time of one text through the service by the rate at which texts arrive.
pub fn load(figures: &Figures) -> String {
    let mut series = Vec::new();
    let (mut least_ms, mut most_ms, mut most_rate) = (f64::INFINITY, 0.01_f64, 1.0_f64);
    for (number, precision) in ["f32", "bf16", "int8"].into_iter().enumerate() {
        for (figure, dashed) in [("p50_us", false), ("p99_us", true)] {
            let words = [("measure", "rate"), ("precision", precision)];
            let points: Vec<(f64, f64)> = figures
                .load
                .with(&words)
                .filter_map(|line| {
                    let rate = line.figure("offered_per_s")?.median;
                    Some((rate, line.figure(figure)?.median / 1e3))
                })
                .collect();
            if points.is_empty() {
                continue;
            }
            for (rate, ms) in &points {
                least_ms = least_ms.min(*ms);
                most_ms = most_ms.max(*ms);
                most_rate = most_rate.max(*rate);
            }
            let name = format!("{precision}, {}", figure.trim_end_matches("_us"));
            series.push(Series { name, colour: COLOURS[number], dashed, points });
        }
    }
    let x = Axis::linear("texts that arrive per second", most_rate);
    let y =
        Axis::logarithmic("milliseconds from arrival to vector", least_ms.min(most_ms), most_ms);
    let corpus = figures.samples.first().map_or("", |sample| &sample.name);
    svg::lines(&format!("Latency by offered load, {corpus}, {}", figures.level), (&x, &y), &series)
}

/// Share of the CPU's peak by level, corpus and precision.
pub fn peak(figures: &Figures) -> String {
    let precisions = ["f32", "bf16", "int8"];
    let mut groups = Vec::new();
    let mut most = 1.0_f64;
    for level in ["low", "medium", "high"] {
        for sample in &figures.samples {
            let value = |precision: &str| {
                let words = [
                    ("level", level),
                    ("collection", sample.name.as_str()),
                    ("precision", precision),
                ];
                let share = figures.levels.with(&words).next()?.figure("share_of_peak")?;
                Some(100.0 * share.median)
            };
            let values: Vec<Option<f64>> = precisions.into_iter().map(value).collect();
            most = values.iter().flatten().copied().fold(most, f64::max);
            if values.iter().any(Option::is_some) {
                groups.push(Group { name: format!("{level} {}", sample.name), values });
            }
        }
    }
    let y = Axis::linear("% of the CPU's peak in this precision", most);
    let kinds = precisions.map(str::to_owned);
    svg::bars("Share of the CPU's own peak, engine alone", &y, &kinds, &groups)
}
