//! The measuring instrument: what it says, not how fast anything is.

mod beside;
mod texts;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish, started_by};
use crate::harness::daemon::Setup;
use crate::harness::needs::{op_dbus, store};
use crate::harness::process::{Process, children, runs};
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, eventually};

/// The tests of this module, and of those below.
pub fn all() -> Vec<Test> {
    [tests(), beside::tests(), texts::tests()].into_iter().flatten().collect()
}

tests! {
    bench_tells_every_figure_of_both_places: [Bus],
    bench_tells_what_each_way_to_the_engine_costs: [Bus],
    bench_compares_variants_and_their_vectors: [],
    bench_measures_the_service_with_the_settings_of_the_engine: [Bus],
    bench_takes_a_percentage_of_what_it_measured: [Bus],
    bench_refuses_what_it_cannot_compare: [Bus],
    bench_tells_a_devices_peak_and_the_times_of_its_clients: [Bus, Low, Ggml],
    bench_leaves_the_services_cache_alone: [Low],
    bench_names_the_flag_that_asks_for_what_this_cpu_has_not: [Low],
    bench_has_a_connection_for_each_client: [Bus],
    bench_can_be_driven: [],
    bench_keeps_its_service_loaded: [Bus],
    bench_that_is_ended_leaves_nothing_behind: [Bus],
    bench_that_is_ended_does_not_wait_for_its_input: [],
}

/// As short as it goes, with the simulator.
fn bench(args: &[&str]) -> Command {
    let mut command = clean(op_dbus());
    command.args(["bench", "--rounds", "2", "--seconds", "0.01"]).args(args);
    command.env("OP_DBUS_CPU_ENGINE", "sim");
    command
}

async fn json(args: &[&str]) -> Outcome<Value> {
    Ok(serde_json::from_str(&finish(bench(args), "").await?.success()?)?)
}

/// Place and figure names of each measurement.
fn measured(report: &Value) -> Vec<(&str, &str, Vec<&str>)> {
    let lines = report["figures"].as_array().into_iter().flatten();
    lines
        .filter_map(|line| {
            let figures = line["figures"].as_object()?.keys().map(String::as_str).collect();
            Some((line["measure"].as_str()?, line["place"].as_str()?, figures))
        })
        .collect()
}

async fn bench_tells_every_figure_of_both_places() -> Outcome {
    let mut command = bench(&["--json", "--spawn", "--rate", "200,50%"]);
    // What is in a cache is not computed, and has no padding.
    command.env("OP_DBUS_CACHE_BYTES", "100000000");
    let report: Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
    let found = measured(&report);
    for place in ["engine", "daemon"] {
        let of = |measure: &'static str| {
            found.iter().filter(move |(m, p, _)| (*m, *p) == (measure, place))
        };
        assert_eq!(of("latency").count(), 2, "15 tokens and the texts: {report}");
        assert_eq!(of("rate").count(), 2, "{report}");
        let (_, _, figures) = of("clients").next().ok_or("clients are missing")?;
        assert!(figures.contains(&"p99_us"), "{figures:?}");
        for measure in ["calls", "clients"] {
            let (_, _, figures) = of(measure).next().ok_or("a measurement is missing")?;
            for name in ["texts_per_s", "tokens_per_s", "padding"] {
                assert!(figures.contains(&name), "{measure} {place}: {figures:?}");
            }
        }
    }
    let daemon = found.iter().find(|(m, p, _)| (*m, *p) == ("calls", "daemon"));
    let (_, _, figures) = daemon.ok_or("the service was not measured")?;
    assert!(figures.contains(&"over_engine"), "{figures:?}");
    // The 99th percentile of two arrivals would be the longer of them.
    let lines = report["figures"].as_array().ok_or("no figures")?;
    let few = lines.iter().find(|line| line["rate"] == "200").ok_or("no arrivals")?;
    assert!(few["figures"]["p50_us"].is_object(), "{few}");
    assert!(few["figures"]["p99_us"].is_null(), "{few}");
    let texts = &report["collections"][1];
    assert_eq!(texts["texts"], 1024);
    assert!(texts["tokens"][0]["p95"].as_f64() > texts["tokens"][0]["p50"].as_f64(), "{texts}");
    Ok(())
}

async fn bench_tells_what_each_way_to_the_engine_costs() -> Outcome {
    let report = json(&["--json", "--spawn", "--only", "lanes"]).await?;
    let found = measured(&report);
    for measure in ["lane calls", "lane clients"] {
        let of: Vec<_> = found.iter().filter(|(m, ..)| *m == measure).collect();
        let places: Vec<_> = of.iter().map(|(_, place, _)| *place).collect();
        let ways = ["engine", "daemon", "memfd", "direct", "direct-memfd"];
        assert_eq!(places, ways, "{measure}: {report}");
        for (_, place, figures) in of {
            let over = figures.contains(&"over_engine_us");
            assert_eq!(over, *place != "engine", "{measure} {place}: {figures:?}");
            assert!(figures.contains(&"beside_p50_us"), "{measure} {place}: {figures:?}");
        }
    }
    Ok(())
}

async fn bench_compares_variants_and_their_vectors() -> Outcome {
    let words = ["--json", "--at", "engine", "--only", "calls,latency", "--batch-tokens", "64,512"];
    let report = json(&[&words[..], &["--quality", "--callers", "4"]].concat()).await?;
    let lines = report["figures"].as_array().ok_or("no figures")?;
    let of = |measure: &str| lines.iter().filter(|line| line["measure"] == measure).collect();
    let (calls, latency): (Vec<_>, Vec<_>) = (of("calls"), of("latency"));
    assert!(calls.iter().all(|line| line["clients"] == 4), "{report}");
    let sizes: Vec<_> = calls.iter().map(|line| line["batch_tokens"].clone()).collect();
    assert_eq!(sizes, [64, 512]);
    // More is better of the one, and worse of the other.
    for (line, name, other) in
        [(calls[1], "over_first", "p50_over_first"), (latency[1], "p50_over_first", "over_first")]
    {
        assert!(line["figures"][name]["median"].is_number(), "{line}");
        assert!(line["figures"][other].is_null(), "{line}");
    }
    let quality = &report["quality"][1]["cosine"][0];
    assert_eq!((&quality["mean"], &quality["min"]), (&1.0.into(), &1.0.into()), "{report}");
    // The page for people has a line for each variant.
    let page = finish(bench(&words[1..]), "").await?.success()?;
    assert!(page.contains("64 tokens") && page.contains("512 tokens"), "{page}");
    Ok(())
}

async fn bench_tells_a_devices_peak_and_the_times_of_its_clients() -> Outcome {
    let mut command = bench(&["--json", "--peak", "--spawn", "--only", "clients"]);
    command.args([
        "--clients",
        "1,8",
        "--level",
        "low",
        "--provider",
        "ggml",
        "--precision",
        "f32",
    ]);
    command.env_remove("OP_DBUS_CPU_ENGINE").env("OP_DBUS_MODEL_DIR", store().join("models"));
    let folder = tempfile::tempdir()?;
    command.env("OP_DBUS_CACHE_DIR", folder.path());
    let report: Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
    assert!(report["peak"]["ggml f32"]["median"].as_f64() > Some(0.0), "{report}");
    // The service's share is one of the same, and not of the CPU's.
    assert_eq!(report["peak"].as_object().map(serde_json::Map::len), Some(1), "{report}");
    let lines = report["figures"].as_array().ok_or("no figures")?;
    let clients: Vec<_> = lines.iter().map(|line| line["clients"].as_u64()).collect();
    assert_eq!(clients, [Some(1), Some(1), Some(8), Some(8)]);
    for line in lines {
        let figure = |name: &str| line["figures"][name]["median"].as_f64();
        let share = figure("share_of_peak").ok_or("no share of the peak")?;
        assert!(share > 0.0, "{line}");
        assert!(figure("p95_us") >= figure("p50_us"), "{line}");
    }
    for wrong in ["0", "65", "many"] {
        let refused = finish(bench(&["--clients", wrong]), "").await?;
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    }
    Ok(())
}

async fn bench_measures_the_service_with_the_settings_of_the_engine() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state.json");
    let changed = r#"{"version":1,"settings":{"vector_level":"low"}}"#;
    fs::write(&state, changed)?;
    // A model in place of the level is none that anybody has; nor has a user's quota room for so many.
    let callers = ["--json", "--spawn", "--only", "calls", "--callers", "4"];
    for (more, model, level) in [(&[][..], "", "low"), (&["--level", "high"], "nope", "high")] {
        let mut command = bench(&callers);
        command.args(more).env("OP_DBUS_STATE_FILE", &state).env("OP_DBUS_MODEL", model);
        command.env("OP_DBUS_QUOTA_TOKENS", "1000").env("OP_DBUS_QUEUE_TOKENS_MAX", "1000");
        let report: Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
        let lines = report["figures"].as_array().ok_or("no figures")?;
        let served: Vec<_> = lines.iter().map(|line| (&line["place"], &line["level"])).collect();
        let level = Value::from(level);
        assert_eq!(served, [(&"engine".into(), &level), (&"daemon".into(), &level)], "{report}");
    }
    assert_eq!(fs::read_to_string(&state)?, changed);
    Ok(())
}

async fn bench_takes_a_percentage_of_what_it_measured() -> Outcome {
    let report = json(&["--json", "--at", "daemon", "--only", "none", "--rate", "50%"]).await?;
    let [calls, rate] = report["figures"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(format!("not calls and arrivals: {report}").into());
    };
    assert_eq!((&calls["measure"], &rate["measure"]), (&"calls".into(), &"rate".into()));
    let offered = rate["figures"]["offered_per_s"]["median"].as_f64().ok_or("no arrivals")?;
    // The first of two rounds is either the best or the worst.
    let is_half = |name: &str| {
        let base = calls["figures"]["texts_per_s"][name].as_f64();
        base.is_some_and(|base| (offered / base - 0.5).abs() < 1e-6)
    };
    assert!(is_half("min") || is_half("max"), "{report}");
    Ok(())
}

async fn bench_refuses_what_it_cannot_compare() -> Outcome {
    let address = "unix:path=/nowhere";
    let beside = finish(bench(&["--bus", address, "--precision", "f32,int8"]), "").await?;
    assert_eq!(beside.code, Some(2), "{}", beside.stderr);
    assert!(beside.stderr.contains("--spawn"), "{}", beside.stderr);
    for level in ["huge", "none"] {
        let wrong = finish(bench(&["--level", level]), "").await?;
        assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
        assert!(wrong.stderr.contains("low, medium, high]"), "{}", wrong.stderr);
    }
    for flag in ["--engine", "--provider", "--isa", "--precision"] {
        let wrong = finish(bench(&[flag, "huge"]), "").await?;
        assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
        assert!(wrong.stderr.contains(&format!("flag {flag}: ")), "{}", wrong.stderr);
    }
    let bus = PrivateBus::start().await?;
    let absent = finish(bench(&["--bus", bus.address()]), "").await?;
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);
    let none = finish(bench(&["--engine", "sim", "--precision", "int8"]), "").await?;
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    let alike = ["--corpus", "/nowhere/log.1", "--corpus", "/nowhere/log.2"];
    let alike = finish(bench(&alike), "").await?;
    assert_eq!(alike.code, Some(2), "{}", alike.stderr);
    assert!(alike.stderr.contains("NAME=FILE"), "{}", alike.stderr);
    let rate = finish(bench(&["--rate", "fast"]), "").await?;
    assert!(rate.stderr.contains("80%"), "{}", rate.stderr);
    for rate in ["1e-9", "1e12", "1e12%"] {
        let refused =
            finish(bench(&["--at", "engine", "--only", "none", "--rate", rate]), "").await?;
        assert_eq!(refused.code, Some(2), "{rate}: {}", refused.stderr);
        assert!(refused.stderr.contains("in --seconds 0.01"), "{rate}: {}", refused.stderr);
    }
    let peak = finish(bench(&["--at", "engine", "--only", "none", "--peak"]), "").await?;
    assert_eq!(peak.code, Some(2), "{}", peak.stderr);
    assert!(peak.stderr.contains("beside calls or clients"), "{}", peak.stderr);
    Ok(())
}

async fn bench_names_the_flag_that_asks_for_what_this_cpu_has_not() -> Outcome {
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let mut command = bench(&["--at", "engine", "--level", "low", "--isa", absent]);
    command.env_remove("OP_DBUS_CPU_ENGINE").env("OP_DBUS_MODEL_DIR", store().join("models"));
    let refused = finish(command, "").await?;
    assert!(refused.code != Some(0) && refused.stderr.contains("flag --isa"), "{}", refused.stderr);
    Ok(())
}

/// What root left there the service could not use, and not replace either.
async fn bench_leaves_the_services_cache_alone() -> Outcome {
    let setup = Setup::real("low")?;
    let cache = setup.path("cache");
    let run = async || {
        let mut command = bench(&["--at", "engine", "--only", "latency", "--level", "low"]);
        command.env_remove("OP_DBUS_CPU_ENGINE").env("OP_DBUS_CACHE_DIR", &cache);
        command
            .env("OP_DBUS_MODEL_DIR", store().join("models"))
            .env("OP_DBUS_BATCH_TOKENS_MAX", "512");
        finish(command, "").await?.success()
    };
    run().await?;
    assert!(!cache.exists());
    // In the user's own it stays.
    fs::create_dir(&cache)?;
    run().await?;
    assert!(setup.cached()?.join("weights").exists());
    Ok(())
}

/// More than a shell may leave it.
async fn bench_has_a_connection_for_each_client() -> Outcome {
    let mut shell = clean("sh");
    shell.args(["-c", "ulimit -S -n 100; exec \"$@\"", "sh"]);
    let places = bench(&["--spawn", "--at", "daemon,memfd", "--only", "latency"]);
    finish(started_by(shell, &places), "").await?.success().map(drop)
}

async fn bench_can_be_driven() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("texts"), "one\n\nthree words here\n")?;
    let questions = [
        serde_json::json!({ "do": "tokens", "texts": path("texts") }),
        serde_json::json!({ "do": "vectors", "texts": path("texts"), "to": path("vectors") }),
        serde_json::json!({ "do": "set", "batch_tokens": 64, "streams": 1, "threads": 1 }),
        serde_json::json!({ "do": "time", "texts": path("texts"), "seconds": 0 }),
        serde_json::json!({ "do": "peak" }),
    ];
    let questions: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let out = finish(bench(&["--driven"]), &questions).await?.success()?;
    let answers: Vec<Value> = out.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(answers.len(), 6, "{out}");
    // One token a byte and two special ones; an empty line is a text.
    assert_eq!(answers[1]["tokens"], serde_json::json!([5, 2, 18]));
    let dimensions = answers[2]["dimensions"].as_u64().ok_or("no dimensions")?;
    assert_ne!(dimensions, 0);
    assert_eq!(fs::metadata(path("vectors"))?.len(), 3 * 4 * dimensions);
    assert_eq!(answers[4]["texts"], 3);
    assert!(answers[5]["int8"].as_f64() > Some(0.0), "{out}");
    Ok(())
}

/// A service on a private bus of its own, for as long as the test wants it, under settings that unload.
fn long_bench(temporary: &Path) -> Outcome<Process> {
    fs::create_dir(temporary)?;
    let mut command = clean(op_dbus());
    command.args(["bench", "--spawn", "--only", "calls", "--rounds", "1000", "--seconds", "60"]);
    command.env("OP_DBUS_CPU_ENGINE", "sim").env("TMPDIR", temporary);
    command.env("OP_DBUS_IDLE_UNLOAD_S", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Process::start("bench", command, &temporary.with_extension("log"))
}

/// Its bus and its service, once the service has started its worker.
async fn spawned(bench: &Process) -> Outcome<Vec<Pid>> {
    let mut found = Vec::new();
    eventually("a service with a worker", async || {
        found = children(bench.pid())?;
        let mut below = 0;
        for child in &found {
            below += children(*child)?.len();
        }
        Ok(found.len() == 2 && below > 0)
    })
    .await?;
    Ok(found)
}

/// A figure would have the load in it of what was unloaded while others were measured.
async fn bench_keeps_its_service_loaded() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut bench = long_bench(&folder.path().join("temporary"))?;
    let started = spawned(&bench).await?.into_iter();
    let words = started.map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")));
    let words = words.collect::<Result<String, _>>()?;
    assert!(words.split('\0').any(|word| word == "--idle-unload-s=0"), "{words}");
    bench.signal(Signal::SIGTERM)?;
    bench.ended().await?;
    Ok(())
}

async fn bench_that_is_ended_leaves_nothing_behind() -> Outcome {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGKILL] {
        let folder = tempfile::tempdir()?;
        let temporary = folder.path().join("temporary");
        let mut bench = long_bench(&temporary)?;
        let spawned = spawned(&bench).await?;
        assert_ne!(fs::read_dir(&temporary)?.count(), 0);
        bench.signal(signal)?;
        // As whoever started it sees it.
        assert_eq!(bench.ended().await?.signal(), Some(signal as i32), "{}", bench.stderr());
        let all_ended = async || Ok(!spawned.iter().any(|pid| runs(*pid)));
        eventually("the end of what it started", all_ended).await?;
        // Nobody is left to clear away after a process that was killed.
        if signal != Signal::SIGKILL {
            assert_eq!(fs::read_dir(&temporary)?.count(), 0, "after {signal}");
        }
    }
    Ok(())
}

async fn bench_that_is_ended_does_not_wait_for_its_input() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut command = bench(&["--driven"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bench = Process::start("bench", command, &folder.path().join("log"))?;
    let stdout = bench.child().stdout.take().ok_or("no output")?;
    // What it says before it waits for the first question.
    let first = BufReader::new(stdout).lines().next_line().await?;
    assert!(first.is_some(), "{}", bench.stderr());
    bench.signal(Signal::SIGTERM)?;
    assert_eq!(bench.ended().await?.signal(), Some(Signal::SIGTERM as i32));
    Ok(())
}
