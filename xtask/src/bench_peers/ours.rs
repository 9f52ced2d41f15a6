//! What `op-dbus bench` tells of op-dbus itself: every level, the service, latency, load.

use serde_json::Value;

use super::lineup::{Places, cpu_has_bf16};
use super::statistics::Spread;
use super::texts::Sample;
use crate::shell;

/// One line of the figures.
pub struct Line(Value);

impl Line {
    /// A word of it: `level`, `precision`, `place`, `measure`, `collection`, …
    pub fn word(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// A figure.
    pub fn figure(&self, name: &str) -> Option<Spread> {
        let figure = self.0["figures"].get(name)?;
        let number = |name: &str| figure[name].as_f64();
        Some(Spread { median: number("median")?, min: number("min")?, max: number("max")? })
    }
}

/// One run of `op-dbus bench`.
pub struct Run {
    pub lines: Vec<Line>,
    pub whole: Value,
}

impl Run {
    /// Operations per second that the CPU can do in `precision`.
    pub fn peak(&self, precision: &str) -> Option<f64> {
        self.whole["peak"][precision]["median"].as_f64()
    }

    /// The lines with these words.
    pub fn with<'a>(&'a self, words: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Line> {
        self.lines
            .iter()
            .filter(move |line| words.iter().all(|(name, value)| line.word(name) == *value))
    }
}

/// Runs `op-dbus bench --json` with `words` on the whole corpora.
///
/// # Errors
/// It failed, or printed something else.
pub fn bench(
    places: &Places<'_>,
    samples: &[Sample],
    (engine, words): (&str, &[&str]),
) -> Result<Run, String> {
    let precisions = match (engine, cpu_has_bf16()) {
        ("native", true) => "f32,bf16,int8",
        ("native", false) => "f32,int8",
        _ => "f32",
    };
    let mut command = places.op_dbus(&["bench", "--json", "--spawn", "--engine", engine]);
    command.args(["--precision", precisions]).args(words);
    for sample in samples {
        command.arg("--corpus").arg(format!("{}={}", sample.name, sample.whole.display()));
    }
    let whole = shell::read_json(&mut command)?;
    let lines = whole["figures"].as_array().into_iter().flatten().cloned().map(Line).collect();
    Ok(Run { lines, whole })
}
