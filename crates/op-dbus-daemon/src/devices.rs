//! The devices of the machine that a provider could compute on, and how busy each is.
//!
//! What drivers tell is asked for by a process of its own, `op-dbus devices`, which lives for one
//! reading: a driver's library may crash or never return, and the daemon holds no native library.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::warn;

use crate::memory_limit;

/// A reading is this old at most. A driver that is asked takes milliseconds, one that has to wake a
/// device first takes a second or more.
const KEPT: Duration = Duration::from_secs(1);
/// Where there is no accelerator, or its driver fails twice in a row, it is asked again after this time: the first
/// failure may be of a machine that is busy.
const KEPT_QUIET: Duration = Duration::from_secs(60);
/// A driver that has not answered by then hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// The process that asked it has ended by then once it is killed, unless the kernel keeps it.
const END_TIME: Duration = Duration::from_secs(1);
/// More than any machine's devices need.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Providers by which the same devices are reached, under the same numbers. The first is the one that
/// a device which nobody uses is named after.
const SAME_DEVICES: [&[&str]; 1] = [&["cuda", "tensorrt"]];

/// One device. What is not known is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// As replies name it, for example `cuda:0`; empty when a driver tells of no device.
    pub name: String,
    /// The provider that computes on it, or could.
    pub provider: String,
    /// The model's name.
    pub description: Option<String>,
    /// Address on the PCI bus.
    pub pci: Option<String>,
    /// Version of its driver.
    pub driver: Option<String>,
    /// Bytes of its own memory; for the CPU that of the machine.
    pub memory_total: Option<u64>,
    /// Bytes in use, by whomever.
    pub memory_used: Option<u64>,
    /// Bytes that can be had.
    pub memory_free: Option<u64>,
    /// Share of the time in which it computed, for whomever.
    pub utilisation_percent: Option<f64>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<f64>,
    /// What it draws now.
    pub power_watts: Option<f64>,
    /// What it has drawn since its driver was loaded.
    pub energy_joules: Option<f64>,
    /// Why something that should be known is not.
    pub problem: Option<String>,
}

impl Device {
    /// The CPU, of which no more is known than the size of its memory: a sandbox hides the rest.
    fn cpu() -> Self {
        let (name, provider) = ("cpu:0".to_owned(), "cpu".to_owned());
        Self { name, provider, memory_total: memory_limit::of_machine().ok(), ..Self::default() }
    }

    /// Something that a driver did not tell, of no device in particular.
    pub fn untold(provider: &str, problem: String) -> Self {
        Self { provider: provider.to_owned(), problem: Some(problem), ..Self::default() }
    }
}

/// Who reads the devices. One reading at a time, which all who ask meanwhile share.
pub struct Reader {
    program: PathBuf,
    /// How long a driver may take to answer.
    limit: Duration,
    state: Mutex<State>,
}

struct State {
    /// The process that asked last.
    asking: Option<Child>,
    accelerators: Vec<Device>,
    /// When the accelerators are asked again.
    until: Instant,
    /// Whether the last reading failed.
    has_failed: bool,
    /// What was warned of last.
    told: Vec<String>,
}

impl Reader {
    /// A reader that asks drivers by starting `program`, the `op-dbus` binary.
    pub fn new(program: PathBuf) -> Self {
        let state = State {
            asking: None,
            accelerators: Vec::new(),
            until: Instant::now(),
            has_failed: false,
            told: Vec::new(),
        };
        Self { program, limit: ANSWER_TIMEOUT, state: Mutex::new(state) }
    }

    /// Every device, the CPU first. What can't be read is told in the entries, and in the log when it
    /// is new.
    pub async fn read(&self) -> Vec<Device> {
        let mut state = self.state.lock().await;
        if Instant::now() >= state.until {
            let asked = ask(&self.program, self.limit, &mut state.asking).await;
            state.take(asked);
        }
        [Device::cpu()].into_iter().chain(state.accelerators.iter().cloned()).collect()
    }
}

/// [`Reader::read`] for a thread that may wait, outside of any runtime. Where no driver told of a device, all are asked
/// anew: a model that is loaded may be so because one is there now.
///
/// # Errors
/// There is no room for what waits.
pub fn read_blocking(reader: &Reader) -> std::io::Result<Vec<Device>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let mut state = reader.state.lock().await;
        // One that has just hung would do so again.
        if !state.has_failed && state.accelerators.iter().all(|device| device.name.is_empty()) {
            state.until = Instant::now();
        }
        drop(state);
        reader.read().await
    }))
}

impl State {
    fn take(&mut self, asked: Result<Vec<Device>, String>) {
        let fails_first = asked.is_err() && !self.has_failed;
        self.has_failed = asked.is_err();
        let accelerators = asked.unwrap_or_else(|problem| vec![Device::untold("", problem)]);
        let problems: Vec<String> = accelerators.iter().filter_map(told).collect();
        for problem in problems.iter().filter(|problem| !self.told.contains(problem)) {
            warn!("what a device does can't be read: {problem}");
        }
        let quiet = !fails_first && accelerators.iter().all(|device| device.name.is_empty());
        self.until = Instant::now() + if quiet { KEPT_QUIET } else { KEPT };
        (self.accelerators, self.told) = (accelerators, problems);
    }
}

fn told(device: &Device) -> Option<String> {
    let problem = device.problem.as_ref()?;
    let of = if device.name.is_empty() { &device.provider } else { &device.name };
    Some(if of.is_empty() { problem.clone() } else { format!("{of}: {problem}") })
}

/// What a new process of `program` reads from the drivers.
///
/// # Errors
/// One sentence: it could not be started, did not answer in time, failed, or answered something else; or the one
/// before it, which is `asking`, has not ended.
async fn ask(
    program: &Path,
    limit: Duration,
    asking: &mut Option<Child>,
) -> Result<Vec<Device>, String> {
    // A driver that hangs in the kernel keeps also who is killed, and would keep the next one, too.
    if let Some(before) = asking
        && let (Ok(None), Some(id)) = (before.try_wait(), before.id())
    {
        let _ = before.start_kill();
        return Err(format!(
            "process {id}, which has asked a driver, is killed and has not ended; no other asks before it has"
        ));
    }
    let mut command = Command::new(program);
    command.arg0("op-dbus").arg("devices").env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child =
        command.spawn().map_err(|error| format!("no process could be started for it ({error})"))?;
    let child = asking.insert(child);
    let answer = async {
        let mut answer = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        }
        Ok::<_, std::io::Error>((answer, child.wait().await?))
    };
    let (answer, status) = match timeout(limit, answer).await {
        Ok(answered) => answered.map_err(|error| format!("the reading was lost ({error})"))?,
        Err(_) => {
            // It may be none of those that end.
            let _ = timeout(END_TIME, child.kill()).await;
            return Err(format!("a driver has not answered for {} s", limit.as_secs()));
        }
    };
    if !status.success() {
        return Err(format!("a driver ended the process that asked it ({status})"));
    }
    serde_json::from_slice(&answer).map_err(|error| format!("the reading is damaged ({error})"))
}

/// The devices with whether they compute now, under the names that they have in replies. `computing`
/// are provider and device of each worker; what of these no driver tells of is added.
pub fn with_use(known: Vec<Device>, computing: &[(String, String)]) -> Vec<(Device, bool)> {
    let mut devices: Vec<(Device, bool)> = known.into_iter().map(|one| (one, false)).collect();
    for (provider, name) in computing {
        let same = devices.iter_mut().find(|(device, _)| is_same(&device.name, name));
        match same {
            Some((device, in_use)) => {
                (device.name, device.provider) = (name.clone(), provider.clone());
                *in_use = true;
            }
            None => {
                let (name, provider) = (name.clone(), provider.clone());
                devices.push((Device { name, provider, ..Device::default() }, true));
            }
        }
    }
    devices
}

/// Whether two names, such as `cuda:0` and `tensorrt:0`, are of one device.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let parts = (one.split_once(':'), other.split_once(':'));
    let (Some((a, number)), Some((b, other_number))) = parts else { return one == other };
    let together = || SAME_DEVICES.iter().any(|group| group.contains(&a) && group.contains(&b));
    number == other_number && (a == b || together())
}
