//! The trial of quality: whether pairs of texts stay in the order that people put them in.

use std::path::Path;
use std::process::Stdio;

use super::{Conditions, Figure, Size};
use crate::bench_peers;
use crate::shell::{self, cargo, program};
use crate::test;

/// Points of Spearman's rank correlation × 100 that a precision may lose.
const LOSS_MAX: f64 = 0.5;

/// STS-B's English test set, as text, text and score.
const STSB_SHA256: &str = "d1b61cb1e2d60cba0e7f78bf63ffa653181d7f6231bd9576e0c5a29d1c587aae";
/// What sentence-transformers has on it, in f32.
const STSB: [(&str, f64); 3] = [("low", 82.41), ("medium", 82.03), ("high", 83.42)];

/// Puts the pairs in order with every level, in every precision that this CPU computes in.
///
/// # Errors
/// `op-dbus bench` failed, or printed something else.
pub fn try_out(conditions: &Conditions) -> Result<Vec<Figure>, String> {
    let Some(pairs) = &conditions.pairs else {
        let why = "give it pairs of texts with scores: --pairs FILE; STS-B's are not ours to ship";
        return Ok(vec![Figure::skipped(why)]);
    };
    shell::run(&mut cargo(&["build", "--workspace", "--bin", "op-dbus"]))?;
    let known = sha256(pairs)? == STSB_SHA256;
    let mut figures = Vec::new();
    for (level, published) in STSB {
        let found = measured(conditions, pairs, level)?;
        let own = found.iter().find(|found| found.0 == "native f32");
        let own = own.ok_or_else(|| format!("{level} was not measured in f32"))?.1;
        let (reference, whose) =
            if known { (published, "sentence-transformers") } else { (own, "our own f32") };
        for (label, spearman) in found {
            figures.push(Figure::new(
                spearman >= reference - LOSS_MAX,
                format!("{level} {label} {spearman:.2}, {whose} {reference:.2}"),
            ));
        }
    }
    Ok(figures)
}

/// Engine with precision, and the rank correlation × 100 of its cosines with the scores.
fn measured(
    conditions: &Conditions,
    pairs: &Path,
    level: &str,
) -> Result<Vec<(String, f64)>, String> {
    let (engines, precisions) = match (conditions.size, bench_peers::cpu_has_bf16()) {
        (Size::Quick, true) => ("native", "f32,bf16,int8"),
        (Size::Quick, false) => ("native", "f32,int8"),
        (Size::Full, true) => ("native,ort", "f32,f16,bf16,int8"),
        (Size::Full, false) => ("native,ort", "f32,f16,int8"),
    };
    let mut bench = program(
        shell::root().join("target/debug/op-dbus"),
        &["bench", "--json", "--at", "engine", "--only", "none", "--level", level],
    );
    bench.args(["--engine", engines, "--precision", precisions, "--quality"]).arg(pairs);
    bench.env("OP_DBUS_MODEL_DIR", test::fetch_store().join("models"));
    let report = shell::read_json(bench.stdin(Stdio::null()))?;
    let lines = report["quality"].as_array().into_iter().flatten();
    let found = lines.filter_map(|line| {
        let (engine, precision) = (line["engine"].as_str()?, line["precision"].as_str()?);
        Some((format!("{engine} {precision}"), line["spearman"].as_f64()?))
    });
    Ok(found.collect())
}

fn sha256(path: &Path) -> Result<String, String> {
    let line = shell::read(program("sha256sum", &[]).arg(path))?;
    // A name that has to be escaped puts a backslash before the digest.
    let digest = line.trim_start_matches('\\').split_whitespace().next();
    Ok(digest.unwrap_or_default().to_owned())
}
