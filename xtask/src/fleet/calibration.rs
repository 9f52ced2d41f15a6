//! What a node does with a batch: fitted to a report of `op-dbus bench --json`.

use serde_json::Value;

/// Seconds of a batch: `batch_s + token_s × tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// What was measured, in a few words.
    pub label: String,
    pub batch_s: f64,
    pub token_s: f64,
}

impl Calibration {
    /// The fit of the report's variant `label`, the first one if none is named: a token takes what it
    /// takes in calls of 1,000 texts, and a batch what one short text takes longer than its tokens.
    ///
    /// # Errors
    /// A measurement that the report lacks.
    pub fn of(report: &Value, label: Option<&str>) -> Result<Self, String> {
        let lines = || report["figures"].as_array().into_iter().flatten();
        let named = |line: &&Value| label.is_none_or(|label| line["label"] == label);
        // The service where it was measured, else the engine alone.
        let of = |measure: &str| {
            let of = |place| {
                let is = move |line: &&Value| line["measure"] == *measure && line["place"] == place;
                lines().filter(named).filter(is).collect::<Vec<_>>()
            };
            Some(of("daemon")).filter(|lines| !lines.is_empty()).unwrap_or_else(|| of("engine"))
        };
        let lacks = |what: &str| {
            let of = label.map_or(String::new(), |label| format!(" of {label:?}"));
            format!("the report has no {what}{of}; run `op-dbus bench --json --only latency,calls`")
        };
        let calls = *of("calls").first().ok_or_else(|| lacks("calls"))?;
        let per_s = calls["figures"]["tokens_per_s"]["median"].as_f64();
        let token_s =
            1.0 / per_s.filter(|per_s| *per_s > 0.0).ok_or_else(|| lacks("tokens_per_s"))?;
        let single = |line: &&Value| -> Option<(f64, f64)> {
            let mut collections = report["collections"].as_array().into_iter().flatten();
            let texts = collections.find(|texts| texts["name"] == line["collection"])?;
            let p50_us = line["figures"]["p50_us"]["median"].as_f64()?;
            Some((texts["tokens"][0]["p50"].as_f64()?, p50_us / 1e6))
        };
        let singles = of("latency").iter().filter_map(single).collect::<Vec<_>>();
        let shortest = singles.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (tokens, took) = shortest.ok_or_else(|| lacks("latency"))?;
        let batch_s = (took - tokens * token_s).max(0.0);
        Ok(Self { label: calls["label"].as_str().unwrap_or_default().to_owned(), batch_s, token_s })
    }

    /// Seconds of one request with nothing else to do.
    pub fn alone_s(&self, tokens: f64) -> f64 {
        self.batch_s + self.token_s * tokens
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_of_a_line_gives_the_line() {
        let line = |collection: &str, measure: &str, place: &str, figures: Value| {
            json!({"collection": collection, "measure": measure, "place": place,
                   "label": "low native f32", "figures": figures})
        };
        let p50 = |tokens: f64| json!({"p50_us": {"median": 1e6 * (0.001 + tokens / 8000.0)}});
        let texts = |name: &str, p50: f64| json!({"name": name, "tokens": [{"p50": p50}]});
        let report = json!({
            "collections": [texts("long", 80.0), texts("short", 16.0)],
            "figures": [
                line("long", "latency", "daemon", p50(80.0)),
                line("short", "latency", "daemon", p50(16.0)),
                line("short", "latency", "engine", p50(0.0)),
                line("long", "calls", "daemon", json!({"tokens_per_s": {"median": 8000.0}})),
            ],
        });
        let found = Calibration::of(&report, None).unwrap();
        assert!(
            (found.batch_s - 0.001).abs() < 1e-12 && found.token_s == 1.0 / 8000.0,
            "{found:?}"
        );
        assert!((found.alone_s(80.0) - 0.011).abs() < 1e-12);
        assert!(Calibration::of(&report, Some("high")).unwrap_err().contains("\"high\""));
        assert!(Calibration::of(&json!({}), None).is_err());
    }
}
