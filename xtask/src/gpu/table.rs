//! The report as a table.

use serde_json::Value;

use super::{WAYS, Way};

/// The collections, as op-dbus and the peer call them.
const TEXTS: [(&str, &str); 2] = [("25 tokens", "25-tokens"), ("mixed", "mixed")];
const CLIENTS: [u64; 3] = [1, 8, 64];

/// Speed, a line for each level, precision and collection; then vectors, memory, and what failed.
pub fn of(report: &Value) -> String {
    let mut speed = format!(
        "{:<7} {:<9} {:<9} {:>9} {:>10} {:>9}  p50 / p99 ms with {} clients\n",
        "level",
        "",
        "texts",
        "texts/s",
        "tokens/s",
        "% of peak",
        CLIENTS.map(|clients| clients.to_string()).join(", "),
    );
    let (mut rest, mut failures) = (String::new(), String::new());
    for level in report["levels"].as_array().into_iter().flatten() {
        let name = level["level"].as_str().unwrap_or_default();
        let mut sound = |what: &str, found: &Value| match found["failed"].as_str() {
            Some(error) => {
                failures.push_str(&format!("{name} {what}: {error}\n"));
                false
            }
            None => true,
        };
        for way in &WAYS {
            let found = &level["op-dbus"][way.name];
            if found.is_null() {
                continue;
            }
            sound(&format!("{} share of the peak", way.name), &found["peak"]);
            if sound(way.name, &found["speed"]) {
                speed.push_str(&ours((name, way.name), &found["speed"], &found["peak"]));
            }
            if sound(&format!("{} vectors", way.name), &found["quality"]) {
                rest.push_str(&vectors(name, way, &found["quality"], report));
            }
        }
        let peer = &level["sentence-transformers"];
        if sound("sentence-transformers", peer) {
            speed.push_str(&theirs(name, peer, &level["op-dbus"]));
        }
        let memory = &level["memory"];
        if sound("memory", memory) {
            rest.push_str(&format!(
                "{name:<7} memory, MiB: {} at first, {} in all\n",
                memory["first_fifth"], memory["all"]
            ));
        }
    }
    speed + &rest + &failures
}

/// The median of a figure of a measurement, of so many clients.
fn figure(
    speed: &Value,
    (measure, clients): (&str, Option<u64>),
    texts: &str,
    name: &str,
) -> Value {
    let mut lines = speed["figures"].as_array().into_iter().flatten();
    let found = lines.find(|line| {
        line["measure"] == measure
            && line["collection"] == texts
            && clients.is_none_or(|clients| line["clients"] == clients)
    });
    found.map_or(Value::Null, |line| line["figures"][name]["median"].clone())
}

fn ours((level, way): (&str, &str), speed: &Value, peak: &Value) -> String {
    let mut out = String::new();
    for (texts, _) in TEXTS {
        let calls = |name| figure(speed, ("calls", None), texts, name);
        let share = figure(peak, ("calls", None), texts, "share_of_peak");
        let times = CLIENTS.map(|clients| {
            let ms =
                |name| number(&figure(speed, ("clients", Some(clients)), texts, name), 1e-3, 2);
            format!("{} / {}", ms("p50_us"), ms("p99_us"))
        });
        out.push_str(&format!(
            "{level:<7} {way:<9} {texts:<9} {:>9} {:>10} {:>9}  {}\n",
            number(&calls("texts_per_s"), 1.0, 0),
            number(&calls("tokens_per_s"), 1.0, 0),
            number(&share, 100.0, 1),
            times.join("   "),
        ));
    }
    for (of, peak) in peak["peak"].as_object().into_iter().flatten() {
        let peak = number(&peak["median"], 1e-12, 2);
        out.push_str(&format!("{level:<7} {way:<9} peak: {of} {peak} × 10¹² operations/s\n"));
    }
    out
}

/// The peer computes the same for a text, and so has a share of the peak by how many times as fast it is.
fn theirs(level: &str, peer: &Value, ours: &Value) -> String {
    let precision = peer["precision"].as_str().unwrap_or_default();
    let by = format!("peer {precision}");
    let mut out = String::new();
    for (texts, file) in TEXTS {
        let found = &peer["figures"][file];
        let of_ours =
            |name| figure(&ours[precision]["peak"], ("calls", None), texts, name).as_f64();
        let share = || {
            let times = found["texts_per_s"].as_f64()? / of_ours("texts_per_s")?;
            Some(Value::from(times * of_ours("share_of_peak")?))
        };
        out.push_str(&format!(
            "{level:<7} {by:<9} {texts:<9} {:>9} {:>10} {:>9}  {} / {}, {} in batches of {}\n",
            number(&found["texts_per_s"], 1.0, 0),
            number(&found["tokens_per_s"], 1.0, 0),
            number(&share().unwrap_or_default(), 100.0, 1),
            number(&found["p50_ms"], 1.0, 2),
            number(&found["p99_ms"], 1.0, 2),
            found["attention"].as_str().unwrap_or_default(),
            found["batch"],
        ));
    }
    let peak = number(&peer["product_per_s"], 1e-12, 2);
    out + &format!("{level:<7} {by:<9} peak: torch {peak} × 10¹² operations/s\n")
}

fn vectors(level: &str, way: &Way, quality: &Value, report: &Value) -> String {
    let is_ours = |entry: &&Value| {
        entry["provider"] == report["provider"] && entry["precision"] == way.precision
    };
    let found = quality.as_array().into_iter().flatten().find(is_ours).unwrap_or(&Value::Null);
    let least = |key: &str| {
        let values = found["cosine"].as_array().into_iter().flatten();
        let least = values.filter_map(|of| of[key].as_f64()).reduce(f64::min);
        number(&least.into(), 1.0, 6)
    };
    format!(
        "{level:<7} {:<9} cosine with the CPU's f32: mean {}, least {}; pairs in order × 100: {}\n",
        way.name,
        least("mean"),
        least("min"),
        number(&found["spearman"], 1.0, 2),
    )
}

fn number(value: &Value, factor: f64, digits: usize) -> String {
    value.as_f64().map_or("–".to_owned(), |value| format!("{:.digits$}", value * factor))
}
