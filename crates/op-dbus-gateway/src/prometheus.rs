//! The text format of Prometheus, of what the service tells and what the gateway counts.

use std::collections::HashMap;
use std::fmt::{Display, Write};

use serde_json::Value;

use crate::Gateway;
use crate::limits;

/// Numbers of the service: name, kind, help, key in `GetStatistics`.
const NUMBERS: [(&str, &str, &str, &str); 17] = [
    ("calls_total", "counter", "Calls answered with vectors.", "calls"),
    ("embeddings_total", "counter", "Texts answered with a vector.", "texts"),
    (
        "truncated_texts_total",
        "counter",
        "Texts that were longer than the model reads.",
        "truncated",
    ),
    ("cached_texts_total", "counter", "Texts answered from the cache.", "cached"),
    ("batches_total", "counter", "Batches that ran.", "batches"),
    ("batch_rows_total", "counter", "Rows in the batches that ran.", "rows"),
    ("batch_tokens_total", "counter", "Tokens in these batches, without padding.", "tokens"),
    ("batch_padded_tokens_total", "counter", "The same, padding included.", "padded_tokens"),
    ("padding_ratio", "gauge", "Padded tokens over real ones.", "padded_over_tokens"),
    (
        "retried_texts_total",
        "counter",
        "Texts that were put back because their batch failed.",
        "retries",
    ),
    ("worker_restarts_total", "counter", "Workers that were replaced.", "worker_restarts"),
    ("queue_texts", "gauge", "Texts that wait.", "queue_texts"),
    ("queue_tokens", "gauge", "Tokens that wait.", "queue_tokens"),
    ("in_flight_calls", "gauge", "Calls that are not answered yet.", "in_flight_calls"),
    ("in_flight_tokens", "gauge", "Tokens of these calls.", "in_flight_tokens"),
    ("buffer_reuse_ratio", "gauge", "Batches that found their buffers.", "buffer_reuse_ratio"),
    ("zero_copy_ratio", "gauge", "Bytes that a device read or wrote in place.", "zero_copy_ratio"),
];

/// Times of the service: name, help, keys of the buckets and the sum in `GetStatistics`.
const TIMES: [(&str, &str, &str, &str); 2] = [
    (
        "embedding_seconds",
        "From a call's first batch to the end of its last.",
        "compute_us_buckets",
        "compute_us_sum",
    ),
    (
        "queue_seconds",
        "From a call's arrival to its first batch.",
        "queue_us_buckets",
        "queue_us_sum",
    ),
];

/// A number of many that have it: name, kind, help, key, what it is divided by.
type Number = (&'static str, &'static str, &'static str, &'static str, f64);

/// Numbers of each worker in `GetStatus`, those of an arena where it has one.
const WORKERS: [Number; 8] = [
    ("worker_batches_total", "counter", "Batches of a worker.", "batches", 1.0),
    ("worker_tokens_total", "counter", "Tokens in these batches.", "tokens", 1.0),
    ("worker_busy_seconds_total", "counter", "Time that they took.", "busy_us", 1e6),
    ("worker_replaced_total", "counter", "How often it was replaced.", "restarts", 1.0),
    ("worker_arena_bytes", "gauge", "What a worker's arena has of its device.", "arena_bytes", 1.0),
    ("worker_arena_in_use_bytes", "gauge", "What of it is given out.", "arena_bytes_in_use", 1.0),
    ("worker_arena_hits_total", "counter", "Requests that it served itself.", "arena_hits", 1.0),
    ("worker_arena_misses_total", "counter", "Requests that made it grow.", "arena_misses", 1.0),
];

/// Numbers of each device in `ListDevices`, where they are known.
const DEVICES: [Number; 7] = [
    ("device_memory_size_bytes", "gauge", "Memory of a device.", "memory_total", 1.0),
    ("device_memory_used_bytes", "gauge", "Memory in use, by whomever.", "memory_used", 1.0),
    ("device_memory_free_bytes", "gauge", "Memory that can be had.", "memory_free", 1.0),
    ("device_utilisation_ratio", "gauge", "Time in which it computed.", "utilisation_percent", 1e2),
    ("device_temperature_celsius", "gauge", "Temperature.", "temperature_celsius", 1.0),
    ("device_power_watts", "gauge", "What it draws now.", "power_watts", 1.0),
    ("device_energy_joules_total", "counter", "What it has drawn.", "energy_joules", 1.0),
];

/// What the service told.
pub struct Told {
    /// `GetStatus`.
    pub status: Value,
    /// `GetStatistics`.
    pub statistics: Value,
    /// `ListDevices`.
    pub devices: Vec<Value>,
}

/// A text in the format.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String can't fail.
        let _ = writeln!(self.0, "# HELP op_dbus_{name} {help}\n# TYPE op_dbus_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.0, "op_dbus_{name}");
        for (index, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{value}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    /// A histogram whose buckets have their ends in microseconds.
    fn times(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (u64, u64)>,
        (count, sum_s): (u64, f64),
    ) {
        let bucket = format!("{name}_bucket");
        for (end_us, seen) in buckets {
            let end = (end_us as f64 / 1e6).to_string();
            self.sample(&bucket, &[labels, &[("le", &end)]].concat(), seen);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), count);
        self.sample(&format!("{name}_sum"), labels, sum_s);
        self.sample(&format!("{name}_count"), labels, count);
    }
}

/// Everything that is known.
pub fn render(gateway: &Gateway, service: Option<&Told>) -> String {
    let mut text = Text::default();
    text.family("up", "gauge", "Whether the service answers the gateway.");
    text.sample("up", &[], u8::from(service.is_some()));
    if let Some(Told { status, statistics, devices: known }) = service {
        about(&mut text, status);
        numbers(&mut text, statistics);
        workers(&mut text, status);
        devices(&mut text, known);
    }
    own(&mut text, gateway);
    text.0
}

fn about(text: &mut Text, status: &Value) {
    let told = |key: &str| status[key].as_str().unwrap_or_default();
    text.family("info", "gauge", "What runs.");
    let keys = ["version", "level", "model", "provider", "precision", "engine", "isa"];
    let labels = keys.map(|key| (key, told(key)));
    text.sample("info", &labels, 1);
    text.family("state", "gauge", "The state that the service is in.");
    text.sample("state", &[("state", told("state"))], 1);
    if let Some(bytes) = status["cache_bytes"].as_u64() {
        text.family("cache_bytes", "gauge", "Memory of the vectors in the cache.");
        text.sample("cache_bytes", &[], bytes);
    }
    text.family("fallback", "gauge", "Whether another provider runs than was asked for.");
    let labels = [("requested", told("requested_provider")), ("active", told("provider"))];
    text.sample("fallback", &labels, u8::from(!told("fallback_reason").is_empty()));
    if let Some(count) = status["provider_fallbacks"].as_u64() {
        text.family("fallbacks_total", "counter", "How often that came to be.");
        text.sample("fallbacks_total", &[], count);
    }
}

fn numbers(text: &mut Text, statistics: &Value) {
    for (name, kind, help, key) in NUMBERS {
        if let Some(value) = statistics[key].as_f64() {
            text.family(name, kind, help);
            text.sample(name, &[], value);
        }
    }
    if let Some(failures) = statistics["failures"].as_object() {
        text.family("failures_total", "counter", "Calls that were refused or failed, by kind.");
        for (kind, count) in failures {
            text.sample("failures_total", &[("kind", kind)], count);
        }
    }
    for (name, help, buckets, sum) in TIMES {
        let (Some(buckets), Some(sum)) = (statistics[buckets].as_array(), statistics[sum].as_f64())
        else {
            continue;
        };
        let buckets: Vec<(u64, u64)> =
            buckets.iter().filter_map(|b| Some((b[0].as_u64()?, b[1].as_u64()?))).collect();
        let upto = |end: u64| buckets.iter().filter(|(e, _)| *e <= end).map(|(_, n)| n).sum();
        // Powers of two end buckets of the service, so these sums are exact: 64 µs to 67 s.
        let ends = (6..=26).map(|power| 1_u64 << power);
        text.family(name, "histogram", help);
        let total = (upto(u64::MAX), sum / 1e6);
        text.times(name, &[], ends.map(|end| (end, upto(end))), total);
    }
}

fn workers(text: &mut Text, status: &Value) {
    // Numbered within their model, so that no other one that comes or goes renames them.
    let mut of_model = HashMap::<&str, usize>::new();
    let all = status["workers"].as_array().into_iter().flatten();
    let workers: Vec<(String, &Value)> = all
        .map(|worker| {
            let number = of_model.entry(word(worker, "model")).or_default();
            *number += 1;
            ((*number - 1).to_string(), worker)
        })
        .collect();
    let labels = |number, of| [("model", word(of, "model")), ("worker", number)];
    let workers: Vec<_> =
        workers.iter().map(|(number, of)| (labels(number.as_str(), *of), *of)).collect();
    // Apart from their numbers: one of the provider `remote` goes from one endpoint to another, and a counter whose
    // labels change is another counter.
    text.family("worker_info", "gauge", "Which device a worker computes on.");
    for ([model, worker], told) in &workers {
        text.sample("worker_info", &[*model, *worker, ("device", word(told, "device"))], 1);
    }
    each(text, &WORKERS, &workers);
}

fn devices(text: &mut Text, devices: &[Value]) {
    text.family("device_in_use", "gauge", "Whether a device computes for the service.");
    for device in devices {
        let name = ("device", word(device, "name"));
        text.sample("device_in_use", &[name], u8::from(device["in_use"] == true));
    }
    let labels = |of| [("device", word(of, "name")), ("model", word(of, "description"))];
    let devices: Vec<_> = devices.iter().map(|device| (labels(device), device)).collect();
    each(text, &DEVICES, &devices);
}

/// Numbers of those that have them, each with its labels.
fn each(text: &mut Text, numbers: &[Number], all: &[([(&str, &str); 2], &Value)]) {
    for (name, kind, help, key, unit) in numbers {
        let known = all.iter().filter_map(|(labels, told)| Some((labels, told[*key].as_f64()?)));
        let known: Vec<_> = known.collect();
        if !known.is_empty() {
            text.family(name, kind, help);
        }
        for (labels, value) in known {
            text.sample(name, labels, value / unit);
        }
    }
}

fn word<'a>(told: &'a Value, key: &str) -> &'a str {
    told[key].as_str().unwrap_or_default()
}

fn own(text: &mut Text, gateway: &Gateway) {
    text.family("http_requests_in_flight", "gauge", "Requests that are worked on, unanswered.");
    let busy = limits::REQUESTS - gateway.places.requests.available_permits();
    text.sample("http_requests_in_flight", &[], busy);
    text.family("http_requests_waiting", "gauge", "Requests that wait for these to be answered.");
    let waiting = limits::WAITING - gateway.places.waiting.available_permits();
    text.sample("http_requests_waiting", &[], waiting);
    text.family("http_request_seconds", "histogram", "From a request's head to its reply's.");
    for ((route, status), times) in gateway.metrics.read() {
        let labels = [("route", route.as_str()), ("status", &status.to_string())];
        text.times("http_request_seconds", &labels, times.cumulative(), times.total());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is told, with these samples in it.
    fn with(render: impl Fn(&mut Text), samples: &[&str]) -> String {
        let mut text = Text::default();
        render(&mut text);
        for sample in samples {
            assert!(text.0.contains(&format!("\n{sample}\n")), "no {sample} in {}", text.0);
        }
        text.0
    }

    /// What is told before and after a change, without the samples that are there to tell of it.
    fn kept(render: impl Fn(&mut Text), told_by: &str) -> String {
        with(render, &[told_by]).replace(told_by, "")
    }

    #[test]
    fn counters_of_a_worker_go_on_where_it_computes_on_another_device() {
        let [before, after] = ["remote:0", "remote:1"].map(|device| {
            let worker = json!({"model": "m", "device": device, "batches": 7, "arena_hits": 1});
            let told_by =
                format!("op_dbus_worker_info{{model=\"m\",worker=\"0\",device=\"{device}\"}} 1");
            kept(|text| workers(text, &json!({"workers": [worker]})), &told_by)
        });
        assert!(before.contains("op_dbus_worker_batches_total{model=\"m\",worker=\"0\"} 7\n"));
        assert_eq!(before, after);
    }

    #[test]
    fn counters_of_a_device_go_on_where_it_is_used_no_more() {
        let [before, after] = [true, false].map(|in_use| {
            let device = json!({"name": "cuda:0", "in_use": in_use, "energy_joules": 7});
            let told_by =
                format!("op_dbus_device_in_use{{device=\"cuda:0\"}} {}", u8::from(in_use));
            kept(|text| devices(text, std::slice::from_ref(&device)), &told_by)
        });
        let energy = "op_dbus_device_energy_joules_total{device=\"cuda:0\",model=\"\"} 7\n";
        assert!(before.contains(energy), "{before}");
        assert_eq!(before, after);
    }

    #[test]
    fn all_that_is_known_of_a_device_is_told_in_its_unit() {
        let device = json!({
            "name": "cuda:0", "description": "H200", "in_use": true,
            "memory_total": 150_000_000_000_u64, "memory_used": 90_000_000_000_u64,
            "memory_free": 59_000_000_000_u64, "utilisation_percent": 45.0,
            "temperature_celsius": 61.0, "power_watts": 310.5, "energy_joules": 7.25,
        });
        let told: [(&str, &str); DEVICES.len()] = [
            ("memory_size_bytes", "150000000000"),
            ("memory_used_bytes", "90000000000"),
            ("memory_free_bytes", "59000000000"),
            ("utilisation_ratio", "0.45"),
            ("temperature_celsius", "61"),
            ("power_watts", "310.5"),
            ("energy_joules_total", "7.25"),
        ];
        let samples = told.map(|(name, value)| {
            format!("op_dbus_device_{name}{{device=\"cuda:0\",model=\"H200\"}} {value}")
        });
        let samples = samples.each_ref().map(String::as_str);
        with(|text| devices(text, std::slice::from_ref(&device)), &samples);
    }

    #[test]
    fn a_fallback_is_told_and_counted() {
        let status = json!({
            "requested_provider": "cuda", "provider": "cpu", "fallback_reason": "no driver",
            "provider_fallbacks": 2,
        });
        let samples =
            ["op_dbus_fallback{requested=\"cuda\",active=\"cpu\"} 1", "op_dbus_fallbacks_total 2"];
        with(|text| about(text, &status), &samples);
    }

    #[test]
    fn padding_is_told_as_the_service_tells_it() {
        let statistics = json!({"padded_over_tokens": 1.25});
        with(|text| numbers(text, &statistics), &["op_dbus_padding_ratio 1.25"]);
    }
}
