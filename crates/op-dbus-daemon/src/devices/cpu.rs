//! The CPU, as the kernel's counters show it. A sandbox may hide them: then that much is not known.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Device;
use crate::memory_limit;

/// Over a shorter time the kernel's ticks, of 10 ms, would show.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// The CPU, which tells how busy it was only from one reading to the next.
pub struct Cpu {
    proc: PathBuf,
    before: Option<(Instant, Times)>,
    utilisation_percent: Option<f64>,
}

/// Ticks since the machine was started, of all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    idle: u64,
    all: u64,
}

impl Cpu {
    /// Counts from now on; `proc` is where the kernel shows its counters.
    pub fn new(proc: impl Into<PathBuf>) -> Self {
        let mut cpu = Self { proc: proc.into(), before: None, utilisation_percent: None };
        cpu.before = cpu.times().map(|times| (Instant::now(), times));
        cpu
    }

    /// What the kernel shows now, and how busy the CPU was since the reading before, a second at least.
    pub fn read(&mut self) -> Device {
        self.measure(Instant::now());
        let memory = self.text("meminfo").and_then(|text| {
            Some((kibibytes(&text, "MemTotal:")?, kibibytes(&text, "MemAvailable:")?))
        });
        // The kernel tells the size itself, also where files that would are hidden.
        let size = || memory_limit::of_machine().ok();
        Device {
            name: "cpu:0".to_owned(),
            provider: "cpu".to_owned(),
            description: self.text("cpuinfo").and_then(|text| model(&text)),
            memory_total: memory.map(|(total, _)| total).or_else(size),
            memory_used: memory.map(|(total, free)| total.saturating_sub(free)),
            memory_free: memory.map(|(_, free)| free),
            utilisation_percent: self.utilisation_percent,
            ..Device::default()
        }
    }

    fn measure(&mut self, now: Instant) {
        if self.before.is_some_and(|(before, _)| now.duration_since(before) < SPAN_MIN) {
            return;
        }
        let times = self.times();
        self.utilisation_percent = match (self.before, times) {
            (Some((_, before)), Some(times)) => busy(before, times),
            _ => None,
        };
        self.before = times.map(|times| (now, times));
    }

    fn times(&self) -> Option<Times> {
        times(&self.text("stat")?)
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(name)).ok()
    }
}

fn busy(before: Times, after: Times) -> Option<f64> {
    let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
    let idle = after.idle.saturating_sub(before.idle).min(all);
    Some(100.0 * (all - idle) as f64 / all as f64)
}

/// The first line of `/proc/stat`: user, nice, system, idle, waiting for disks, interrupts, …. Guests
/// are counted in user as well.
fn times(stat: &str) -> Option<Times> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_, _, _, idle, waiting, ..] = ticks[..] else { return None };
    Some(Times { idle: idle + waiting, all: ticks.iter().sum() })
}

/// A line such as `MemTotal:  16303428 kB`, in bytes.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    400 kB\n";

    fn proc(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    #[test]
    fn it_was_busy_for_the_time_it_was_not_idle() {
        let folder = proc(&[
            ("stat", "cpu  100 0 0 300 100 0 0 0 50 0\ncpu0 1 2\n"),
            ("meminfo", MEMINFO),
            ("cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"),
        ]);
        let mut cpu = Cpu::new(folder.path());
        let device = cpu.read();
        assert_eq!(device.utilisation_percent, None, "there was one reading");
        assert_eq!(device.memory_total, Some(1_024_000));
        assert_eq!((device.memory_used, device.memory_free), (Some(614_400), Some(409_600)));
        assert_eq!(device.description.as_deref(), Some("A CPU @ 2 GHz"));
        fs::write(folder.path().join("stat"), "cpu  130 0 0 360 110 0 0 0 90 0\n").unwrap();
        cpu.measure(Instant::now() + SPAN_MIN);
        // 30 of 100 ticks; what guests took is a part of them.
        assert_eq!(cpu.utilisation_percent, Some(30.0));
    }

    #[test]
    fn what_is_hidden_is_not_known_but_for_the_size() {
        let folder = proc(&[]);
        let mut cpu = Cpu::new(folder.path());
        cpu.measure(Instant::now() + SPAN_MIN);
        let device = cpu.read();
        assert!(device.memory_total.is_some_and(|bytes| bytes > 0));
        let unknown = [device.memory_used, device.memory_free];
        assert_eq!(
            (unknown, device.utilisation_percent, device.description),
            ([None; 2], None, None)
        );
    }

    #[test]
    fn counters_that_make_no_sense_tell_nothing() {
        for text in ["", "cpu", "cpu  a b c d e", "cpu  1 2 3", "intr 1 2 3 4 5"] {
            assert_eq!(times(text), None, "{text}");
        }
        let at = |idle, all| Times { idle, all };
        assert_eq!(busy(at(5, 10), at(5, 10)), None);
        assert_eq!(busy(at(5, 10), at(0, 5)), None, "the counters went back");
        assert_eq!(busy(at(5, 10), at(4, 20)), Some(100.0));
        assert_eq!(kibibytes("MemTotal: 18446744073709551615 kB", "MemTotal:"), None);
    }
}
