//! What happened between two readings: differences of counters, as rates and quantiles.

use std::collections::BTreeMap;

use op_dbus_engine::Times;
use serde::Serialize;

use super::reading::{Reading, Worker};

/// What happened between two readings of one engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub seconds: f64,
    /// Calls that were answered.
    pub calls_per_s: f64,
    /// Texts that were answered. Those of a large call count at its end.
    pub texts_per_s: f64,
    /// Rows that were computed. A text that is embedded in windows has several.
    pub rows_per_s: f64,
    pub tokens_per_s: f64,
    pub batches_per_s: f64,
    /// None without a batch, as the two after it.
    pub rows_per_batch: Option<f64>,
    pub tokens_per_batch: Option<f64>,
    /// Tokens computed, padding included, over those asked for.
    pub padded_over_tokens: Option<f64>,
    pub queue_us: Option<Percentiles>,
    pub compute_us: Option<Percentiles>,
    /// Texts that were cut.
    pub truncated: u64,
    /// Texts that were computed again.
    pub retries: u64,
    /// Calls that failed, by kind; those kinds only that did.
    pub failures: BTreeMap<String, u64>,
    /// Those that were there at its beginning.
    pub workers: Vec<WorkerInterval>,
}

/// Microseconds that calls took at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
}

/// What one worker did between two readings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerInterval {
    pub pid: u32,
    /// Part of the time in which it computed, 0 to 1.
    pub busy: f64,
    pub rows_per_s: f64,
    pub tokens_per_s: f64,
    pub batches_per_s: f64,
}

impl Interval {
    /// None when the counters may have begun anew in between: with another process, another model,
    /// or another state of the same.
    pub fn between(earlier: &Reading, later: &Reading) -> Option<Self> {
        let seconds = later.at.saturating_duration_since(earlier.at).as_secs_f64();
        let (before, after) = (&earlier.statistics, &later.statistics);
        let restarted = earlier.status.pid != later.status.pid
            || earlier.status.since != later.status.since
            || after.batches < before.batches
            || after.calls < before.calls;
        if restarted || seconds <= 0.0 {
            return None;
        }
        let grown = |before: u64, after: u64| after.saturating_sub(before);
        let (rows, tokens) = (grown(before.rows, after.rows), grown(before.tokens, after.tokens));
        let batches = grown(before.batches, after.batches);
        let padded_tokens = grown(before.padded_tokens, after.padded_tokens);
        let rate = |count: u64| count as f64 / seconds;
        let per = |count: u64, of: u64| (of > 0).then(|| count as f64 / of as f64);
        let failed = |(kind, count): (&String, &u64)| {
            let new = grown(before.failures.get(kind).copied().unwrap_or(0), *count);
            (new > 0).then(|| (kind.clone(), new))
        };
        Some(Self {
            seconds,
            calls_per_s: rate(grown(before.calls, after.calls)),
            texts_per_s: rate(grown(before.texts, after.texts)),
            rows_per_s: rate(rows),
            tokens_per_s: rate(tokens),
            batches_per_s: rate(batches),
            rows_per_batch: per(rows, batches),
            tokens_per_batch: per(tokens, batches),
            padded_over_tokens: per(padded_tokens, tokens),
            queue_us: Percentiles::of(&before.queue_us_buckets, &after.queue_us_buckets),
            compute_us: Percentiles::of(&before.compute_us_buckets, &after.compute_us_buckets),
            truncated: grown(before.truncated, after.truncated),
            retries: grown(before.retries, after.retries),
            failures: after.failures.iter().filter_map(failed).collect(),
            workers: workers(earlier, later, seconds),
        })
    }
}

impl Percentiles {
    /// Of the calls that were counted between these; none without one.
    fn of(before: &[(u64, u64)], after: &[(u64, u64)]) -> Option<Self> {
        let [before, after] = [before, after]
            .map(|buckets| Times { sum_us: 0, buckets: buckets.iter().copied().collect() });
        let times = after.since(&before);
        let [p50, p90, p99] = [50, 90, 99].map(|percent| times.quantile(percent));
        (times.count() > 0).then_some(Self { p50, p90, p99 })
    }
}

/// By process; one that was replaced goes on counting in its place. One that was not there before has no figures:
/// where it is one in reserve, it has come back with the counts of earlier times. Nor has one that is unloaded, of
/// which there may be several without a process.
fn workers(earlier: &Reading, later: &Reading, seconds: f64) -> Vec<WorkerInterval> {
    let has = |of: &Reading, pid: u32| of.status.workers.iter().any(|worker| worker.pid == pid);
    let is_gone = |one: &Worker| one.pid == 0 || !has(later, one.pid);
    let mut replaced: Vec<_> = earlier.status.workers.iter().filter(|one| is_gone(one)).collect();
    let mut found = Vec::new();
    for after in &later.status.workers {
        let is_same = |before: &&Worker| after.pid != 0 && before.pid == after.pid;
        let in_its_place = || {
            let position = replaced.iter().position(|before| place(before) == place(after))?;
            Some(replaced.remove(position))
        };
        let before = earlier.status.workers.iter().find(is_same).or_else(in_its_place);
        // Without a process it has no figures, and keeps its place.
        let Some(before) = before.filter(|_| after.pid != 0) else { continue };
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        found.push(WorkerInterval {
            pid: after.pid,
            // A batch counts at its end, so a long one may count for more than the interval.
            busy: (rate(before.busy_us, after.busy_us) / 1e6).min(1.0),
            rows_per_s: rate(before.rows, after.rows),
            tokens_per_s: rate(before.tokens, after.tokens),
            batches_per_s: rate(before.batches, after.batches),
        });
    }
    found
}

/// What another process in the place of a worker has as well.
fn place(worker: &Worker) -> (&str, &str, bool) {
    (&worker.model, &worker.device, worker.reserved)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn reading(seconds: u64, pid: u32, calls: u64) -> Reading {
        let status = json!({
            "pid": pid, "since": 5,
            "workers": [{ "pid": 7, "rows": 2 * calls, "busy_us": 400_000 * calls }],
        });
        let statistics = json!({
            "calls": calls, "texts": 2 * calls, "rows": 2 * calls, "tokens": 40 * calls,
            "padded_tokens": 50 * calls, "batches": calls / 2, "truncated": calls,
            "failures": { "overloaded": calls, "too-large": 3 },
            "queue_us_buckets": [[16, 100], [1024, calls]],
        });
        let at = *START + Duration::from_secs(seconds);
        Reading::new(at, status, statistics, json!([])).unwrap()
    }

    #[test]
    fn rates_are_differences_over_time() {
        let first = reading(0, 1, 10);
        let second = reading(2, 1, 14);
        let interval = Interval::between(&first, &second).unwrap();
        assert_eq!((interval.calls_per_s, interval.rows_per_s), (2.0, 4.0));
        assert_eq!((interval.tokens_per_s, interval.batches_per_s), (80.0, 1.0));
        assert_eq!((interval.rows_per_batch, interval.tokens_per_batch), (Some(4.0), Some(80.0)));
        assert_eq!(interval.padded_over_tokens, Some(1.25));
        assert_eq!(interval.failures, BTreeMap::from([("overloaded".to_owned(), 4)]));
        assert_eq!((interval.workers[0].busy, interval.workers[0].rows_per_s), (0.8, 4.0));
    }

    /// Pid, device, whether it is in reserve, and milliseconds that it has computed.
    type Told = (u32, &'static str, bool, u64);

    #[test]
    fn workers_are_compared_with_themselves() {
        let at = |seconds: u64, workers: &[Told]| {
            let worker = |(pid, device, reserved, busy): &Told| {
                json!({ "pid": pid, "model": "m", "device": device, "reserved": reserved,
                    "busy_us": 1_000 * busy })
            };
            let workers: Vec<_> = workers.iter().map(worker).collect();
            let status = json!({ "pid": 1, "since": 5, "workers": workers });
            let at = *START + Duration::from_secs(seconds);
            Reading::new(at, status, json!({}), json!([])).unwrap()
        };
        let busy = |before: &[Told], after: &[Told]| -> Vec<(u32, f64)> {
            let workers = Interval::between(&at(0, before), &at(1, after)).unwrap().workers;
            workers.iter().map(|worker| (worker.pid, worker.busy)).collect()
        };
        let cpu = |pid, busy| (pid, "cpu:0", false, busy);
        let reserve = |pid, busy| (pid, "cpu:0", true, busy);
        // One in reserve goes, which others come behind.
        let before = [cpu(7, 100), reserve(8, 900), (9, "ggml:0", false, 1_000)];
        let after = [cpu(7, 200), (9, "ggml:0", false, 1_000)];
        assert_eq!(busy(&before, &after), [(7, 0.1), (9, 0.0)]);
        // One that comes back may have computed at any time.
        assert_eq!(busy(&after, &before), [(7, 0.0), (9, 0.0)]);
        // Those that are replaced go on counting, each in its place.
        let before = [cpu(7, 100), cpu(8, 200), reserve(9, 300)];
        let after = [cpu(10, 200), cpu(11, 500), reserve(12, 700)];
        assert_eq!(busy(&before, &after), [(10, 0.1), (11, 0.3), (12, 0.4)]);
        // The unloaded have no process.
        let unloaded = [cpu(0, 100), cpu(0, 900)];
        assert_eq!(busy(&unloaded, &unloaded), []);
        assert_eq!(busy(&unloaded, &[cpu(7, 200), cpu(0, 900)]), [(7, 0.1)]);
        assert_eq!(busy(&unloaded, &[cpu(0, 100), cpu(7, 950)]), [(7, 0.05)]);
    }

    #[test]
    fn percentiles_are_those_of_the_interval_alone() {
        let interval = Interval::between(&reading(0, 1, 10), &reading(2, 1, 14)).unwrap();
        assert_eq!(interval.queue_us, Some(Percentiles { p50: 1024, p90: 1024, p99: 1024 }));
        assert_eq!(interval.compute_us, None);
    }

    #[test]
    fn an_idle_interval_has_no_fill() {
        let interval = Interval::between(&reading(0, 1, 10), &reading(2, 1, 10)).unwrap();
        assert_eq!((interval.rows_per_s, interval.rows_per_batch), (0.0, None));
        assert_eq!((interval.padded_over_tokens, interval.queue_us), (None, None));
        assert!(interval.failures.is_empty());
    }

    #[test]
    fn counters_that_began_anew_are_not_compared() {
        assert_eq!(Interval::between(&reading(0, 1, 10), &reading(2, 2, 14)), None);
        assert_eq!(Interval::between(&reading(0, 1, 10), &reading(2, 1, 2)), None);
    }
}
