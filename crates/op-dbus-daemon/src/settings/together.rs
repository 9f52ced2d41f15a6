//! Settings that are right alone and contradict each other.

use std::collections::BTreeMap;

use super::Settings;
use super::mistakes::{Mistake, Origin};
use super::types::{CpuEngine, Precision};

/// What of the settings can't be had together; each mistake is told of the setting that asks for
/// more than the other one gives.
pub(super) fn check(settings: &Settings, origins: &BTreeMap<&'static str, Origin>) -> Vec<Mistake> {
    let Settings { cpu_engine, cpu_isa, precision, .. } = settings;
    // The simulator ignores everything about computing, and says what it does.
    if *cpu_engine != CpuEngine::Ort {
        return Vec::new();
    }
    let origin = |key| origins.get(key).cloned().unwrap_or(Origin::Default);
    let engine = format!("cpu_engine is {cpu_engine} ({})", origin("cpu_engine"));
    let mut mistakes = Vec::new();
    let mut add = |key, message| mistakes.push(Mistake { origin: origin(key), message });
    if !matches!(precision, Precision::Auto | Precision::F32 | Precision::F16) {
        add(
            "precision",
            format!(
                "precision is {precision}, but {engine}, which computes in f32 and f16 alone; set \
                 cpu_engine to native, or precision to auto, f32 or f16"
            ),
        );
    }
    if cpu_isa != "auto" {
        add(
            "cpu_isa",
            format!(
                "cpu_isa is {cpu_isa}, but {engine}, which chooses its instructions itself; set \
                 cpu_engine to native, or cpu_isa to auto"
            ),
        );
    }
    mistakes
}
