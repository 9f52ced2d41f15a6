//! `op-dbus status`: what the service does, for people and for programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::terminal::{Colour, colour, counted, grouped, milliseconds, paint, printable, since};
use super::{BusArgs, Done, connect, printed, wait};
use op_dbus_api::json_object;

/// Show what the service runs, on what, and how busy it is
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  op-dbus status
  op-dbus status --wait && op-dbus embed 'first text after a start'
  op-dbus status --json | jq -r .properties.VectorSpace")]
pub struct Args {
    /// Wait until the bus and the service are there and its model is loaded, this many seconds at most (120)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "120", value_parser = clap::value_parser!(u32).range(1..))]
    wait: Option<u32>,
    /// One JSON object: properties, status, statistics, devices
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub async fn run(args: Args) -> Done {
    let service = match args.wait {
        Some(seconds) => wait(&args.bus.bus, Duration::from_secs(seconds.into())).await?,
        None => connect(&args.bus.bus).await?,
    };
    let properties = service.properties().await?;
    let manager = service.manager().await?;
    let status = service.told(manager.get_status()).await?;
    let statistics = service.told(manager.get_statistics()).await?;
    let devices = service.told(manager.list_devices()).await?;
    let all = json!({
        "properties": json_object(&properties.0),
        "status": json_object(&status),
        "statistics": json_object(&statistics),
        "devices": devices.iter().map(json_object).collect::<Vec<_>>(),
    });
    let out = match args.json {
        true => format!("{all:#}\n"),
        false => Report { all: &all, coloured: colour(), now: SystemTime::now() }.text(),
    };
    printed(out)
}

/// How well a state of the service is.
pub(super) fn state_colour(state: &str) -> Colour {
    match state {
        "ready" => Colour::Good,
        "failed" => Colour::Bad,
        _ => Colour::Doubtful,
    }
}

/// A provider, the engine and the instruction set if they say more, and the precision.
pub(super) fn computes(provider: &str, engine: [&str; 2], precision: &str) -> String {
    let said = |word: &&str| !word.is_empty() && *word != provider;
    let engine: Vec<&str> = engine.into_iter().filter(said).collect();
    match engine.as_slice() {
        [] => format!("{provider}, {precision}"),
        words => format!("{provider} ({}), {precision}", words.join(", ")),
    }
}

/// A level, its model and what that takes and gives.
pub(super) fn serves(level: &str, model: &str, dimensions: u64, max_input_tokens: u64) -> String {
    let level = if level.is_empty() { "imported" } else { level };
    format!("{level} ({model}: {dimensions} dimensions, {max_input_tokens} tokens a text)")
}

/// The page for people. What the service does not tell is left out.
struct Report<'a> {
    all: &'a Value,
    coloured: bool,
    now: SystemTime,
}

impl Report<'_> {
    fn status(&self, key: &str) -> &str {
        self.all["status"][key].as_str().unwrap_or_default()
    }

    fn number(&self, part: &str, key: &str) -> u64 {
        self.all[part][key].as_u64().unwrap_or(0)
    }

    fn text(&self) -> String {
        let state = self.status("state");
        let state = paint(state, state_colour(state), self.coloured);
        let mut out = format!("op-dbus {}: {state}\n", self.status("version"));
        out.push_str(&format!("{}\n\n", printable(self.status("status"), 400)));
        let lines = [
            ("Level", self.level()),
            ("Computes", self.computes()),
            ("Space", self.status("vector_space").to_owned()),
            ("Since", self.since()),
            ("Queue", self.queue()),
            ("Done", self.done()),
            ("Cache", self.cache()),
            ("Times", self.times()),
            ("Memory", self.memory()),
            ("Refused", self.refused()),
        ];
        for (name, line) in lines.into_iter().filter(|(_, line)| !line.is_empty()) {
            out.push_str(&self.line(name, &line));
        }
        for line in self.all["devices"].as_array().into_iter().flatten().filter_map(device_line) {
            out.push_str(&self.line("Device", &line));
        }
        for worker in self.all["status"]["workers"].as_array().into_iter().flatten() {
            out.push_str(&self.line("Worker", &worker_line(worker, &self.all["status"]["model"])));
        }
        out
    }

    fn line(&self, name: &str, line: &str) -> String {
        format!("{} {line}\n", paint(format!("{name:<9}"), Colour::Faint, self.coloured))
    }

    fn level(&self) -> String {
        let (level, model) = (self.status("level"), self.status("model"));
        if model.is_empty() {
            return level.to_owned();
        }
        let number = |key| self.number("status", key);
        serves(level, model, number("dimensions"), number("max_input_tokens"))
    }

    fn computes(&self) -> String {
        let said = |key| printable(self.status(key), 200);
        let provider = said("provider");
        if provider.is_empty() {
            return String::new();
        }
        let engine = [said("engine"), said("isa")];
        let mut line =
            computes(&provider, engine.each_ref().map(String::as_str), &said("precision"));
        let reason = self.status("fallback_reason");
        if !reason.is_empty() {
            let asked = self.status("requested_provider");
            let reason = format!("; {asked} was asked for: {}", printable(reason, 400));
            line.push_str(&paint(reason, Colour::Doubtful, self.coloured));
        }
        line
    }

    fn since(&self) -> String {
        let start = UNIX_EPOCH + Duration::from_micros(self.number("status", "since"));
        match self.now.duration_since(start) {
            Ok(passed) => since(passed.as_secs()),
            Err(_) => String::new(),
        }
    }

    fn queue(&self) -> String {
        let calls = self.number("status", "in_flight_calls");
        format!(
            "{} in flight ({} tokens, {} of them waiting)",
            counted(calls, "call", "calls"),
            grouped(self.number("status", "in_flight_tokens")),
            grouped(self.number("status", "queue_tokens")),
        )
    }

    fn done(&self) -> String {
        let number = |key| self.number("statistics", key);
        let mut line = format!(
            "{}, {}, {} tokens in {}",
            counted(number("calls"), "call", "calls"),
            counted(number("texts"), "text", "texts"),
            grouped(number("tokens")),
            counted(number("batches"), "batch", "batches"),
        );
        if let Some(padding) = self.all["statistics"]["padded_over_tokens"].as_f64()
            && padding >= 1.0
        {
            line.push_str(&format!("; padding {:.1} %", (padding - 1.0) * 100.0));
        }
        if number("truncated") > 0 {
            line.push_str(&format!("; {} cut", counted(number("truncated"), "text", "texts")));
        }
        line
    }

    fn cache(&self) -> String {
        let (vectors, bytes) =
            (self.number("status", "cache_vectors"), self.number("status", "cache_bytes"));
        let hits = self.number("statistics", "cached");
        if vectors == 0 && hits == 0 {
            return String::new();
        }
        format!(
            "{} in {:.1} MiB; {} answered from it",
            counted(vectors, "vector", "vectors"),
            bytes as f64 / f64::from(1 << 20),
            counted(hits, "text", "texts"),
        )
    }

    fn times(&self) -> String {
        if self.number("statistics", "calls") == 0 {
            return String::new();
        }
        let times = |what: &str| {
            ["p50", "p95", "p99"]
                .map(|part| milliseconds(self.number("statistics", &format!("{what}_us_{part}"))))
                .join(" / ")
        };
        format!("queue {}, compute {} ms (p50 / p95 / p99)", times("queue"), times("compute"))
    }

    /// What became of the memory that is kept for batches, as far as that is told.
    fn memory(&self) -> String {
        let told = |key: &str| self.all["statistics"][key].as_f64();
        let mut parts = Vec::new();
        if let Some(ratio) = told("buffer_reuse_ratio") {
            parts.push(format!("buffers found for {:.1} % of batches", ratio * 100.0));
        }
        if let Some(batches) = told("graph_replays") {
            parts.push(format!("{} replayed", counted(batches as u64, "batch", "batches")));
        }
        if let Some(ratio) = told("zero_copy_ratio") {
            parts.push(format!("{:.1} % of bytes in place", ratio * 100.0));
        }
        if let (Some(bytes), Some(hits), Some(misses)) =
            (told("arena_bytes"), told("arena_hits"), told("arena_misses"))
        {
            let mib = bytes / f64::from(1 << 20);
            let share = hits / (hits + misses).max(1.0) * 100.0;
            parts.push(format!("arena of {mib:.0} MiB, {share:.1} % of requests served from it"));
        }
        parts.join("; ")
    }

    fn refused(&self) -> String {
        let failures = self.all["statistics"]["failures"].as_object().into_iter().flatten();
        failures.map(|(kind, number)| format!("{kind} {number}")).collect::<Vec<_>>().join(", ")
    }
}

/// What is known of a device that computes for the service: nothing where that is but its name.
pub(super) fn device_line(device: &Value) -> Option<String> {
    if device["in_use"] != true {
        return None;
    }
    let number = |key: &str| device[key].as_f64();
    let mut parts = Vec::new();
    if let (Some(used), Some(total)) = (number("memory_used"), number("memory_total")) {
        let gib = f64::from(1 << 30);
        parts.push(format!("{:.1} of {:.1} GiB in use", used / gib, total / gib));
    }
    parts.extend(number("utilisation_percent").map(|percent| format!("{percent:.0} % busy")));
    parts.extend(number("temperature_celsius").map(|celsius| format!("{celsius:.0} °C")));
    parts.extend(number("power_watts").map(|watts| format!("{watts:.0} W")));
    parts.extend(number("energy_joules").map(|joules| format!("{:.1} kWh", joules / 3.6e6)));
    parts.extend(device["problem"].as_str().map(|problem| printable(problem, 200)));
    if parts.is_empty() {
        return None;
    }
    let text = |key: &str| printable(device[key].as_str().unwrap_or_default(), 60);
    let name = match text("description").as_str() {
        "" => text("name"),
        description => format!("{} ({description})", text("name")),
    };
    Some(format!("{name}: {}", parts.join(", ")))
}

/// A worker's line; the model in force needs no mention.
fn worker_line(worker: &Value, in_force: &Value) -> String {
    let text = |key: &str| printable(worker[key].as_str().unwrap_or_default(), 200);
    let number = |key: &str| worker[key].as_u64().unwrap_or(0);
    // One that is unloaded has no process.
    let process = match number("pid") {
        0 => String::new(),
        pid => format!("process {pid}, "),
    };
    let mut line = format!(
        "{}, {process}{}, {}",
        text("device"),
        text("state"),
        counted(number("batches"), "batch", "batches"),
    );
    if let Some(model) = worker["model"].as_str().filter(|_| worker["model"] != *in_force) {
        line.push_str(&format!("; of {}", printable(model, 200)));
    }
    if worker["reserved"] == true {
        line.push_str("; for interactive calls beside bulk");
    }
    let reason = text("last_error");
    match number("restarts") {
        0 if reason.is_empty() => {}
        // It could not be loaded yet, or was in the end.
        0 => line.push_str(&format!("; last error: {reason}")),
        restarts => {
            let times = counted(restarts, "time", "times");
            line.push_str(&format!("; replaced {times}, last because {reason}"));
        }
    }
    let sandbox = text("sandbox");
    if !sandbox.is_empty() {
        line.push_str(&format!("; confined by {sandbox}"));
    }
    line
}

#[cfg(test)]
mod tests;
