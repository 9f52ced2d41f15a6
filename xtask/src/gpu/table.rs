//! The report as a table.

use serde_json::Value;

/// A line for each level and precision, then what failed. Short texts have 25 tokens.
pub fn of(report: &Value) -> String {
    let mut out = format!(
        "{:<8} {:<6} {:>9} {:>9} {:>9} {:>13} {:>11} {:>9} {:>9}\n",
        "level", "", "cosine", "least", "pairs", "short texts/s", "mixed/s", "p50 ms", "p99 ms"
    );
    let mut failures = String::new();
    for level in report["levels"].as_array().into_iter().flatten() {
        let name = level["level"].as_str().unwrap_or_default();
        for precision in ["f32", "f16"] {
            let found = &level["op-dbus"][precision];
            match found["failed"].as_str() {
                Some(error) => failures.push_str(&format!("{name} {precision}: {error}\n")),
                None => out.push_str(&line(name, precision, found, report)),
            }
        }
        let peer = &level["sentence-transformers"];
        match peer["failed"].as_str() {
            Some(error) => failures.push_str(&format!("{name} sentence-transformers: {error}\n")),
            None => {
                let rate = |file: &str| number(&peer["figures"][file]["texts_per_s"], 0);
                let (short, mixed) = (rate("25-tokens"), rate("mixed"));
                out.push_str(&format!("{name:<8} {:<36} {short:>13} {mixed:>11}\n", "peer fp16"));
            }
        }
        let memory = &level["memory"];
        match memory["failed"].as_str() {
            Some(error) => failures.push_str(&format!("{name} memory: {error}\n")),
            None => out.push_str(&format!(
                "{name:<8} memory, MiB: {} at first, {} in all\n",
                memory["first_fifth"], memory["all"]
            )),
        }
    }
    out + &failures
}

fn line(level: &str, precision: &str, found: &Value, report: &Value) -> String {
    let is_ours =
        |entry: &&Value| entry["provider"] == report["provider"] && entry["precision"] == precision;
    let empty = Vec::new();
    let quality = found["quality"].as_array().unwrap_or(&empty).iter().find(is_ours);
    let quality = quality.unwrap_or(&Value::Null);
    let cosines = quality["cosine"].as_array().unwrap_or(&empty);
    let least = |key: &str| {
        let values = cosines.iter().filter_map(|of| of[key].as_f64());
        values.reduce(f64::min).map_or("–".to_owned(), |value| format!("{value:.6}"))
    };
    let figure = |measure: &str, collection: &str, name: &str| -> Value {
        let lines = found["figures"].as_array().unwrap_or(&empty).iter();
        let mut of =
            lines.filter(|line| line["measure"] == measure && line["collection"] == collection);
        of.next().map_or(Value::Null, |line| line["figures"][name]["median"].clone())
    };
    let rate = |collection| number(&figure("calls", collection, "texts_per_s"), 0);
    let time = |name| {
        let value = figure("latency", "25 tokens", name);
        value.as_f64().map_or("–".to_owned(), |us| format!("{:.2}", us / 1e3))
    };
    format!(
        "{level:<8} {precision:<6} {:>9} {:>9} {:>9} {:>13} {:>11} {:>9} {:>9}\n",
        least("mean"),
        least("min"),
        number(&quality["spearman"], 2),
        rate("25 tokens"),
        rate("mixed"),
        time("p50_us"),
        time("p99_us"),
    )
}

fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}
