//! Hardware, kernel drivers and their descriptions, as files of the system show them.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use op_dbus_daemon::settings::Devices;
use tokio::process::Command;
use tokio::time::timeout;

use super::check::Check;
use super::facts::{Descriptions, Driver, Facts, Hardware, OTHER_DEVICE};

/// How long NVIDIA's own program may take: where the driver hangs it never ends.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What that program says where it has nothing to list, which it calls an error.
const NOTHING_TO_LIST: &str = "No devices were found";

/// What to do where that program fails, which asks the driver as CUDA does.
const SMI_FAILS: &str = "have `nvidia-smi` list the card first: restart the machine if its driver was updated, or \
     install the driver anew";

/// PCI devices of this class are displays and what computes like one.
const DISPLAY_CLASSES: [&str; 2] = ["0x03", "0x12"];

/// The system's files, below `/` or below the root of a tree in a test.
pub struct Root(PathBuf);

impl Root {
    /// The system itself.
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    #[cfg(test)]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The file that stands for the absolute `path`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The names in a folder, sorted; none when it can't be read.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }
}

/// What the machine has of what the provider computes on.
pub fn checks(root: &Root, facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(facts.hardware.map(|hardware| self::hardware(root, hardware)));
    checks.extend(facts.driver.map(|driver| self::driver(root, driver)));
    checks.extend(facts.drivers.map(|drivers| descriptions(root, drivers)));
    checks
}

fn hardware(root: &Root, hardware: &Hardware) -> Check {
    let Hardware { name, folder, prefix, vendor, .. } = hardware;
    let is_it = |entry: &&String| {
        let number = entry.strip_prefix(prefix);
        let named = number.is_some_and(|number| {
            prefix.is_empty() || number.bytes().all(|byte| byte.is_ascii_digit())
        });
        let file = |file: &str| root.text(&format!("{folder}/{entry}/{file}"));
        named
            && file(hardware.vendor_file).is_some_and(|found| found.starts_with(vendor))
            && file(hardware.class_file)
                .is_some_and(|class| DISPLAY_CLASSES.iter().any(|known| class.starts_with(known)))
    };
    let entries = root.names(folder);
    let found: Vec<&str> = entries.iter().filter(is_it).map(String::as_str).collect();
    match found.is_empty() {
        true => Check::missing(
            "device",
            format!("the kernel shows no {name} in {folder}"),
            hardware.next,
        ),
        false => Check::ok("device", format!("{name}: {}", found.join(", "))),
    }
}

fn driver(root: &Root, driver: &Driver) -> Check {
    let Driver { name, file, major_min, needed_by, next, .. } = driver;
    let Some(text) = root.text(file) else {
        return Check::missing(
            "driver",
            format!("{name} is not loaded: there is no {file}"),
            *next,
        );
    };
    match version(&text) {
        Some((version, major)) if major >= *major_min => {
            Check::ok("driver", format!("{name} {version}"))
        }
        Some((version, _)) => Check::wrong(
            "driver",
            format!("{name} is {version}, and {needed_by} needs {major_min} or newer"),
            *next,
        ),
        None => Check::unchecked("driver", format!("{file} tells no version")),
    }
}

/// The first word that is numbers with points between, and its first number.
fn version(text: &str) -> Option<(&str, u32)> {
    text.split_whitespace().find_map(|word| {
        let (major, rest) = word.split_once('.')?;
        let numbers = rest.split('.').all(|part| part.parse::<u32>().is_ok());
        major.parse().ok().filter(|_| numbers).map(|major| (word, major))
    })
}

fn descriptions(root: &Root, drivers: &Descriptions) -> Check {
    let Descriptions { name, folders, next } = drivers;
    let found: Vec<String> = folders
        .iter()
        .flat_map(|folder| root.names(folder))
        .filter(|file| file.ends_with(".json"))
        .collect();
    match found.is_empty() {
        true => Check::missing("driver", format!("no {name} in {}", folders.join(", ")), *next),
        false => Check::ok("driver", format!("{name}: {}", found.join(", "))),
    }
}

/// What NVIDIA's own program has told of the devices, or what stands in the way of that.
pub type Listed = Result<String, Check>;

/// What it tells; nothing where it is not there.
pub async fn listed() -> Option<Listed> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=index,name,compute_cap", "--format=csv,noheader"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let Ok(output) = timeout(LIST_TIMEOUT, command.output()).await else {
        let seconds = LIST_TIMEOUT.as_secs();
        let found = format!("`nvidia-smi` did not answer within {seconds} s");
        return Some(Err(Check::unchecked("capability", found)));
    };
    output.ok().map(|output| told(&output))
}

/// What it has told. Where it fails it says so in place of a list, and nothing computes on its driver; beside a list
/// an error is a warning of a card, as that its infoROM is corrupted.
fn told(output: &Output) -> Listed {
    let (list, complaint) = (&output.stdout, &output.stderr);
    let said = String::from_utf8_lossy(list) + String::from_utf8_lossy(complaint);
    let has_list = said.lines().any(|line| card(line).is_some()) || said.contains(NOTHING_TO_LIST);
    if output.status.success() || has_list {
        return Ok(said.into_owned());
    }
    let said = said.lines().map(str::trim).find(|line| !line.is_empty());
    let why = said.map_or_else(|| output.status.to_string(), str::to_owned);
    Err(Check::wrong("driver", format!("`nvidia-smi` fails: {why}"), SMI_FAILS))
}

/// The number of the card that a line is about, where it is one of the list.
fn card(line: &str) -> Option<u32> {
    line.split_once(',')?.0.trim().parse().ok()
}

/// Whether the devices are there and new enough, of which those that are `named` are to compute.
pub fn capability(driver: &Driver, listed: &Listed, named: &Devices) -> Check {
    match listed {
        Ok(listed) => capabilities(listed, driver.capability_min, named),
        Err(check) => check.clone(),
    }
}

fn capabilities(listed: &str, least: f32, named: &Devices) -> Check {
    let is_old = |line: &&str| {
        let capability = line.rsplit(',').next().and_then(|word| word.trim().parse::<f32>().ok());
        capability.is_some_and(|found| found < least)
    };
    // Of all of them, those that can't compute are left alone.
    let named: &[u32] = match named {
        Devices::All => &[],
        Devices::List(numbers) => numbers,
    };
    // Warnings stand between them.
    let lines = listed.lines().map(str::trim).filter(|line| card(line).is_some());
    let known: Vec<u32> = lines.clone().filter_map(card).collect();
    if known.is_empty() {
        return Check::unchecked("capability", "`nvidia-smi` tells of no device");
    }
    let absent: Vec<u32> = named.iter().filter(|one| !known.contains(one)).copied().collect();
    if !absent.is_empty() {
        let (absent, known) = (Devices::List(absent), Devices::List(known));
        let found = format!("gpu_device names {absent}, and `nvidia-smi` tells of {known} alone");
        return Check::wrong("device", found, OTHER_DEVICE);
    }
    let is_named = |line: &&str| card(line).is_some_and(|number| named.contains(&number));
    let (old, new): (Vec<&str>, Vec<&str>) = lines.partition(is_old);
    let below = format!("compute capability is below {least:.1}: {}", old.join("; "));
    match (new.first(), old.iter().any(is_named)) {
        (Some(new), true) => {
            let other = card(new).unwrap_or_default();
            let next = format!(
                "take another card by gpu_device, such as {other} (a fallback has the first)"
            );
            Check::wrong("capability", below, next)
        }
        (None, _) => Check::wrong(
            "capability",
            below,
            format!(
                "take a GPU of compute capability {least:.1} or newer, or set execution_provider to \
                 auto"
            ),
        ),
        (Some(_), false) if old.is_empty() => Check::ok("capability", new.join("; ")),
        (Some(_), false) => Check::ok("capability", format!("{}; {below}", new.join("; "))),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use op_dbus_daemon::settings::Provider;

    use super::super::check::State;
    use super::super::facts::of;
    use super::*;

    pub fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    fn states(root: &Root, provider: Provider) -> Vec<State> {
        checks(root, of(provider)).iter().map(|check| check.state).collect()
    }

    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release \
                        Build\nGCC version: gcc 13.3.0\n";

    #[test]
    fn an_empty_machine_lacks_everything() {
        let (_folder, root) = tree(&[]);
        assert_eq!(states(&root, Provider::Cuda), [State::Missing; 2]);
        assert_eq!(states(&root, Provider::WebGpu), [State::Missing; 2]);
        assert_eq!(states(&root, Provider::MiGraphX), [State::Missing]);
        assert!(states(&root, Provider::Ggml).is_empty());
    }

    #[test]
    fn a_machine_with_an_nvidia_gpu_and_its_driver() {
        let pci = "sys/bus/pci/devices/0000:01:00.0";
        let (_folder, root) = tree(&[
            (&format!("{pci}/vendor"), "0x10de\n"),
            (&format!("{pci}/class"), "0x030200\n"),
            ("proc/driver/nvidia/version", OPEN),
        ]);
        assert_eq!(states(&root, Provider::Cuda), [State::Ok; 2]);
        assert_eq!(states(&root, Provider::MiGraphX), [State::Missing]);
    }

    #[test]
    fn an_old_driver_is_told_with_both_versions() {
        let old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12";
        let (_folder, root) = tree(&[("proc/driver/nvidia/version", old)]);
        let checks = checks(&root, of(Provider::Cuda));
        let found = &checks[1].found;
        assert!(found.contains("535.183.01") && found.contains("580"), "{found}");
        assert_eq!(checks[1].state, State::Wrong);
    }

    #[test]
    fn cards_are_counted_without_their_connectors() {
        let (_folder, root) = tree(&[
            ("sys/class/drm/card0/device/vendor", "0x8086"),
            ("sys/class/drm/card0/device/class", "0x030000"),
            ("sys/class/drm/card0-DP-1/status", "connected"),
            ("usr/share/vulkan/icd.d/intel_icd.json", "{}"),
        ]);
        let checks = checks(&root, of(Provider::WebGpu));
        assert_eq!(checks[0].found, "graphics card: card0");
        assert_eq!(checks[1].found, "Vulkan driver: intel_icd.json");
    }

    #[test]
    fn a_program_of_the_driver_that_fails_says_why() {
        let told = |code: i32, said: &str| {
            let (status, stdout) = (ExitStatus::from_raw(code << 8), said.into());
            told(&Output { status, stdout, stderr: Vec::new() })
        };
        assert_eq!(told(0, "0, A GPU, 9.0\n"), Ok("0, A GPU, 9.0\n".to_owned()));
        let said =
            "Failed to initialize NVML: Driver/library version mismatch\nNVML version: 580.95";
        let driver = of(Provider::Cuda).driver.unwrap();
        let check = capability(driver, &told(18, said), &Devices::All);
        let found =
            "`nvidia-smi` fails: Failed to initialize NVML: Driver/library version mismatch";
        assert_eq!((check.state, check.found.as_str()), (State::Wrong, found));
        assert!(check.next.unwrap().contains("restart the machine"));
        // With codes of their own.
        let warned = "0, A GPU, 9.0\nWARNING: infoROM is corrupted at gpu 0000:3B:00.0\n";
        let check = capability(driver, &told(14, warned), &Devices::All);
        assert_eq!(check, Check::ok("capability", "0, A GPU, 9.0"));
        let check = capability(driver, &told(6, "No devices were found\n"), &Devices::All);
        assert_eq!(check.state, State::Unchecked, "{}", check.found);
    }

    #[test]
    fn devices_that_are_not_there_are_named() {
        let check = |listed: &str, named: &str| capabilities(listed, 7.5, &named.parse().unwrap());
        let both = "0, NVIDIA H100, 9.0\n1, NVIDIA H100, 9.0\n";
        for (named, absent) in [("2", "2"), ("0,7", "7"), ("3,1,4", "3,4")] {
            let check = check(both, named);
            let found = format!("gpu_device names {absent}, and `nvidia-smi` tells of 0,1 alone");
            assert_eq!((check.state, check.found), (State::Wrong, found), "{named}");
        }
        for named in ["1,0", "all"] {
            assert_eq!(check(both, named).state, State::Ok, "{named}");
        }
        assert_eq!(check("No devices were found\n", "0").state, State::Unchecked);
    }

    #[test]
    fn old_devices_are_named() {
        let check = |listed: &str, named: &str| capabilities(listed, 7.5, &named.parse().unwrap());
        let new = "0, NVIDIA H100, 9.0";
        assert_eq!(check(new, "0"), Check::ok("capability", new));
        let both = "0, Tesla P100, 6.0\n1, NVIDIA H100, 9.0\n";
        for named in ["0", "1,0"] {
            let check = check(both, named);
            assert_eq!(check.state, State::Wrong, "{named}");
            assert!(check.found.ends_with("0, Tesla P100, 6.0"), "{}", check.found);
            assert!(check.next.unwrap().contains("gpu_device, such as 1 "));
        }
        for named in ["1", "all"] {
            let check = check(both, named);
            assert_eq!(check.state, State::Ok, "{named}");
            assert!(check.found.contains("below 7.5: 0, Tesla P100"), "{}", check.found);
        }
        for named in ["0", "all"] {
            let check = check("0, Tesla P100, 6.0\n", named);
            assert_eq!(check.state, State::Wrong, "{named}");
            assert!(check.next.unwrap().contains("7.5 or newer"), "{named}");
        }
    }
}
