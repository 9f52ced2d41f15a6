//! Whether memory stays what it is while batches of ever new shapes are computed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shell::{self, program};

/// Between two readings.
const INTERVAL: Duration = Duration::from_millis(500);

/// Rounds of everything, so that shapes come again and again.
const ROUNDS: f64 = 10.0;

/// Readings beyond which every second one is dropped.
const READINGS_MAX: usize = 4096;

/// Runs `bench` for about so many seconds, and reads the memory of the card and of the
/// process meanwhile. Tells the most of the first fifth and the most of all.
///
/// # Errors
/// It failed, took longer than `most`, or was over before anything was read.
pub fn plateau(
    mut bench: Command,
    (total_s, most): (u64, Duration),
    folder: &Path,
) -> Result<Value, String> {
    let log = folder.join("memory.json");
    let out = fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    // Two collections, each measured in two ways in every round.
    let seconds = (total_s as f64 / (4.0 * ROUNDS)).to_string();
    bench.args(["--only", "calls,clients", "--rounds", &ROUNDS.to_string(), "--seconds", &seconds]);
    let mut child = bench
        .stdin(Stdio::null())
        .stdout(out)
        .spawn()
        .map_err(|error| format!("can't run op-dbus bench: {error}"))?;
    let (began, mut readings) = (Instant::now(), Vec::new());
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break status;
        }
        if began.elapsed() > most {
            child.kill().map_err(|error| error.to_string())?;
            child.wait().map_err(|error| error.to_string())?;
            return Err(format!("did not end within {} minutes", most.as_secs() / 60));
        }
        readings.push((card(), resident(child.id())));
        if readings.len() > READINGS_MAX {
            readings = readings.into_iter().step_by(2).collect();
        }
        thread::sleep(INTERVAL);
    };
    if !status.success() {
        return Err(format!("op-dbus bench failed ({status}); see {}", log.display()));
    }
    let most = |readings: &[(Option<u64>, u64)]| {
        let card = readings.iter().filter_map(|(card, _)| *card).max();
        json!({ "card_mib": card, "process_mib": readings.iter().map(|(_, own)| own >> 20).max() })
    };
    if readings.len() < 5 {
        return Err("it was over before memory was read five times; raise --memory-s".to_owned());
    }
    // Loading takes memory that is given back; it is part of the first fifth.
    let first = readings.len() / 5;
    Ok(json!({
        "readings": readings.len(),
        "first_fifth": most(&readings[..first.max(1)]),
        "all": most(&readings),
    }))
}

/// MiB of the first card in use; nothing where there is no tool of NVIDIA's.
fn card() -> Option<u64> {
    let words = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"];
    if !shell::exists("nvidia-smi") {
        return None;
    }
    let text = shell::read(&mut program("nvidia-smi", &words)).ok()?;
    text.lines().next()?.trim().parse().ok()
}

/// Bytes of a process in memory; 0 once it is gone.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
