//! The page at two sizes and as text, of readings that are made up.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::interval::Interval;
use super::lines::{View, plain, rate};
use super::period;
use super::reading::Reading;
use super::screen::{History, draw};

fn worker(pid: u32, batches: u64, restarts: u64) -> Value {
    json!({
        "pid": pid, "device": "cpu:0", "state": "busy", "batches": batches, "rows": 16 * batches,
        "tokens": 500 * batches, "busy_us": 8_000 * batches, "restarts": restarts,
        "last_error": "it was \u{1b}killed",
    })
}

fn reading(seconds: u64, status: &Value) -> Reading {
    let count = 100 * seconds;
    let statistics = json!({
        "calls": 4 * count, "texts": 16 * count, "rows": 16 * count, "tokens": 500 * count,
        "padded_tokens": 550 * count, "batches": count, "truncated": seconds, "retries": 0,
        "failures": { "overloaded": 2 * seconds }, "queue_texts": 24, "queue_tokens": 2048,
        "in_flight_calls": 12, "in_flight_tokens": 4096,
        "queue_us_buckets": [[1536, 300 * count], [2048, 95 * count], [3072, 5 * count]],
        "compute_us_buckets": [[8192, 400 * count]],
    });
    let devices = json!([
        { "name": "cpu:0", "in_use": true, "memory_total": 8_589_934_592_u64,
          "memory_used": 2_147_483_648_u64, "utilisation_percent": 61.4 },
        { "name": "cuda:0", "in_use": false, "utilisation_percent": 1.0 },
    ]);
    // Exactly seconds apart, however long this takes.
    let at = *START + Duration::from_secs(seconds);
    Reading::new(at, status.clone(), statistics, devices).unwrap()
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn status(workers: &[Value]) -> Value {
    json!({
        "version": "1.2.3", "state": "degraded", "level": "medium", "model": "all-MiniLM-L6-v2",
        "dimensions": 384, "max_input_tokens": 256, "provider": "cpu", "engine": "native",
        "isa": "avx2", "precision": "f32", "requested_provider": "cuda",
        "fallback_reason": "there is no driver", "since": 5_000_000, "pid": 99,
        "workers": workers,
    })
}

fn readings() -> (Reading, Reading) {
    let before = reading(70, &status(&[worker(41, 500, 0), worker(42, 600, 1)]));
    (before, reading(71, &status(&[worker(41, 550, 0), worker(43, 650, 2)])))
}

fn view<'a>(reading: Option<&'a Reading>, interval: Option<&'a Interval>) -> View<'a> {
    let absent = reading.is_none().then_some("the service is not on the bus");
    let now: SystemTime = UNIX_EPOCH + Duration::from_secs(70);
    View { reading, interval, absent, coloured: false, now }
}

fn drawn((columns, lines): (u16, u16), view: &View<'_>, history: &History) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, view, history, Duration::from_secs(1))).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let rows = buffer.content().chunks(columns.into());
    let row = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    rows.map(row).collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
}

fn history(interval: &Interval) -> History {
    let mut history = History::default();
    for texts in [0.0, 400.0, 800.0, 1600.0] {
        history.push(Some(Interval { rows_per_s: texts, ..interval.clone() }));
    }
    history
}

const USUAL: &str = "\
op-dbus 1.2.3: degraded for 1 min 5 s, process 99
medium (all-MiniLM-L6-v2: 384 dimensions, 256 tokens a text)
cpu (native, avx2), f32
cuda was asked for: there is no driver

every 1 s           the last 1 min                                        q ends
texts/s   1,600                                                              ▂▄█
tokens/s  50,000                                                            ████

In flight   12 calls, 4,096 tokens; waiting 24 texts, 2,048 tokens
Batches     100/s, each 16.0 texts, 500 tokens; padding 10.0 %
Since start 28,400 calls, 113,600 texts, 3,550,000 tokens in 7,100 batches
Texts       71 (+1) cut, 0 computed again
Failures    overloaded 142 (+2)
Device      cpu:0: 2.0 of 8.0 GiB in use, 61 % busy

Calls, ms          p50        p90        p99
queue              1.5        2.0        3.1
compute            8.2        8.2        8.2

 Worker  device     does        busy   batches   texts/s  tokens/s restarts
     41  cpu:0      busy        40 %       550       800    25,000        0
     43  cpu:0      busy        40 %       650       800    25,000        2
         replaced because it was ·killed
";

#[test]
fn everything_has_its_place_on_the_usual_terminal() {
    let (before, after) = readings();
    let interval = Interval::between(&before, &after).unwrap();
    let page = drawn((80, 24), &view(Some(&after), Some(&interval)), &history(&interval));
    assert_eq!(page, USUAL, "\n{page}");
}

#[test]
fn a_large_terminal_shows_more_of_the_past() {
    let (before, after) = readings();
    let interval = Interval::between(&before, &after).unwrap();
    let mut history = History::default();
    (0..150).for_each(|_| history.push(Some(interval.clone())));
    let page = drawn((200, 60), &view(Some(&after), Some(&interval)), &history);
    assert!(page.contains("the last 3 min  "), "{page}");
    assert!(page.lines().filter(|line| line.contains(&"█".repeat(150))).count() > 20, "{page}");
    assert!(page.contains("     43  cpu:0      busy"), "{page}");
    assert!(page.contains("\n         replaced because it was ·killed"), "{page}");
}

#[test]
fn a_small_terminal_says_what_it_leaves_out() {
    let workers: Vec<Value> = (1..=9).map(|pid| worker(pid, 1, 0)).collect();
    let reading = reading(1, &status(&workers));
    let page = drawn((80, 20), &view(Some(&reading), None), &History::default());
    assert!(page.contains("\nFailures") && page.ends_with("\nand 7 more\n"), "{page}");
    for (columns, is_told) in [(40, true), (39, false)] {
        let page = drawn((columns, 20), &view(Some(&reading), None), &History::default());
        assert!(page.contains("q ends\n"), "{page}");
        assert_eq!(page.contains("the last"), is_told, "{page}");
    }
    // Nothing is too small to be drawn on.
    for size in [(1, 1), (20, 3), (80, 1)] {
        drawn(size, &view(Some(&reading), None), &History::default());
    }
}

/// A model that no worker can be had for is still told.
#[test]
fn a_service_that_has_failed_says_why() {
    let mut status = status(&[]);
    status["state"] = "failed".into();
    status["status"] = "Not embedding: no worker of all-MiniLM-L6-v2 can be had".into();
    let text = plain(&view(Some(&reading(1, &status)), None));
    assert!(text.contains("\nmedium (all-MiniLM-L6-v2: "), "{text}");
    assert!(text.contains("\nNot embedding: no worker of all-MiniLM-L6-v2 can be had\n"), "{text}");
}

/// However many lines that takes.
#[test]
fn reasons_are_shown_to_their_ends() {
    let reason = |end: &str| Value::from("one reason of many, ".repeat(9) + end);
    let mut status = status(&[]);
    status["state"] = "failed".into();
    status["fallback_reason"] = reason("end-of-the-fallback");
    status["status"] = reason("end-of-the-failure");
    let page = drawn((80, 24), &view(Some(&reading(1, &status)), None), &History::default());
    for told in ["end-of-the-fallback", "end-of-the-failure", "q ends", "\nFailures"] {
        assert!(page.contains(told), "{told}: {page}");
    }
    // Where there is room for no more, they are what is left.
    let page = drawn((80, 9), &view(Some(&reading(1, &status)), None), &History::default());
    assert!(page.ends_with("end-of-the-failure\n"), "{page}");
}

#[test]
fn an_absent_service_is_said_to_be_absent() {
    let mut history = History::default();
    history.push(None);
    let page = drawn((80, 24), &view(None, None), &history);
    assert!(page.starts_with("op-dbus: the service is not on the bus\n"), "{page}");
    assert!(!page.contains("Worker") && page.contains("q ends"), "{page}");
}

#[test]
fn text_for_a_pipe_has_no_charts_and_no_colour() {
    let (before, after) = readings();
    let interval = Interval::between(&before, &after).unwrap();
    let text = plain(&view(Some(&after), Some(&interval)));
    assert!(text.contains("\n\ntexts/s     1,600\ntokens/s    50,000\n\n"), "{text}");
    assert!(text.contains("\nqueue              1.5        2.0        3.1\n"), "{text}");
    assert!(!text.contains('█') && !text.contains('\u{1b}'), "{text:?}");
    let coloured = plain(&View { coloured: true, ..view(Some(&after), Some(&interval)) });
    assert!(coloured.contains("\u{1b}[33mdegraded\u{1b}[0m"), "{coloured:?}");
}

#[test]
fn intervals_are_seconds_within_reason() {
    assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
    for wrong in ["0", "-1", "3601", "NaN", "1s", ""] {
        assert!(period(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn rates_have_a_decimal_where_it_says_something() {
    assert_eq!([0.0, 0.26, 99.5, 1234.5].map(rate), ["0.0", "0.3", "99.5", "1,235"]);
}
