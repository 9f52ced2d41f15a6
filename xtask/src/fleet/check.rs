//! The simulation beside what a real fleet did: the trial `fleet-cut-off` leaves both its calibration and
//! its times.

use serde_json::Value;

use super::calibration::Calibration;
use super::simulation::{Figures, Fleet, Load, Node, simulate};

/// How far apart a measured and a simulated time may be, by percentile. What is not simulated (cores that
/// nodes share with each other and with the client) shows at the end of the times.
const FACTORS: [(f64, f64); 2] = [(50.0, 1.25), (99.0, 2.5)];
/// Requests that are simulated for each phase.
const REQUESTS: usize = 20_000;

/// A percentile of one phase.
#[derive(Clone, Debug)]
pub struct Compared {
    pub phase: String,
    pub nodes: usize,
    pub percent: f64,
    /// How far apart both may be.
    pub factor: f64,
    /// In seconds.
    pub measured: f64,
    pub simulated: f64,
}

impl Compared {
    /// By how much the larger one is larger.
    pub fn apart(&self) -> f64 {
        (self.measured / self.simulated).max(self.simulated / self.measured)
    }

    /// Whether that is too much.
    pub fn is_far(&self) -> bool {
        self.apart() > self.factor
    }
}

/// Simulates the phases in which nothing changed.
///
/// # Errors
/// What the report lacks.
pub fn compare(report: &Value) -> Result<Vec<Compared>, String> {
    let lacks = |what: &str| format!("the report has no {what}: it is none of fleet-cut-off");
    let number = |value: &Value, what: &str| value.as_f64().ok_or_else(|| lacks(what));
    let alone = &report["alone"];
    let calibration = Calibration::of(&alone["bench"], None)?;
    let tokens = number(&alone["single"]["tokens"], "tokens")?;
    let single_s = number(&alone["single"]["p50_ms"], "p50_ms")? / 1e3;
    let nodes = match number(&report["nodes"], "nodes")? {
        nodes if nodes >= 2.0 => nodes as usize,
        few => return Err(format!("the report has nodes {few}, and one is cut off: 2 or more")),
    };
    let rate = number(&report["rate"], "rate")?;
    let texts_max = number(&report["texts_max"], "texts_max")? as u64;
    let node = Node {
        way_s: (single_s - calibration.alone_s(tokens)).max(0.0),
        ..super::node(&calibration)
    };
    let mut compared = Vec::new();
    for (phase, nodes) in [("all nodes", nodes), ("without it", nodes - 1)] {
        let mut phases = report["phases"].as_array().into_iter().flatten();
        let found = phases.find(|found| found["name"] == phase).ok_or_else(|| lacks(phase))?;
        let fleet = Fleet { nodes, node, outage: None };
        let load = Load {
            rate,
            requests: REQUESTS,
            tokens: &|random| super::between(random, 1, texts_max) * tokens as u64,
        };
        let figures: Figures = simulate(&fleet, &load, 1);
        for (percent, factor) in FACTORS {
            let key = format!("p{percent}_ms");
            let measured = number(&found[&key], &key)? / 1e3;
            let simulated = figures.percentile(percent);
            let phase = phase.to_owned();
            compared.push(Compared { phase, nodes, percent, factor, measured, simulated });
        }
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_run_is_met_within_the_factors() {
        let path = crate::shell::root().join("docs/performance/fleet-cut-off.json");
        let report = std::fs::read_to_string(path).unwrap();
        let compared = compare(&serde_json::from_str(&report).unwrap()).unwrap();
        assert_eq!(compared.len(), 4);
        for found in compared {
            assert!(!found.is_far(), "{found:?}");
        }
    }

    #[test]
    fn a_fleet_of_which_nothing_is_left_is_refused() {
        let path = crate::shell::root().join("docs/performance/fleet-cut-off.json");
        let mut report: Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for nodes in [0, 1] {
            report["nodes"] = nodes.into();
            assert!(compare(&report).unwrap_err().contains(&format!("nodes {nodes}, and one")));
        }
    }

    #[test]
    fn another_report_is_refused() {
        assert!(compare(&serde_json::json!({})).unwrap_err().contains("bench"));
    }
}
