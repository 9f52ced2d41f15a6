//! AMD's devices, as the kernel's driver `amdgpu` shows them below `/sys`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use op_dbus_daemon::devices::Device;

const PROVIDER: &str = "migraphx";
const VENDOR: &str = "0x1002";

/// Every graphics card of AMD's with memory of its own, by the number of its node; `root` is `/`.
pub fn devices(root: &Path) -> Vec<Device> {
    let folder = root.join("sys/class/drm");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Vec::new(),
        Err(error) => return vec![Device::untold(PROVIDER, sentence(&folder, &error))],
    };
    let number = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        // Connectors have the name of their card, a dash and their own.
        name.to_str()?.strip_prefix("card")?.parse::<u32>().ok()
    };
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    let cards = numbers.into_iter().map(|number| Card(folder.join(format!("card{number}/device"))));
    let amd = cards.filter(|card| card.text("vendor").is_ok_and(|v| v.as_deref() == Some(VENDOR)));
    let with_memory = amd.filter(|card| card.0.join("mem_info_vram_total").exists());
    with_memory.enumerate().map(|(number, card)| device(&card, number)).collect()
}

/// The folder of a card.
struct Card(PathBuf);

fn device(card: &Card, number: usize) -> Device {
    let mut device = Device {
        name: format!("{PROVIDER}:{number}"),
        provider: PROVIDER.to_owned(),
        ..Device::default()
    };
    let read = read(card, &mut device);
    device.problem = read.err();
    device
}

/// Fills in what there is, up to the first error.
fn read(card: &Card, device: &mut Device) -> Result<(), String> {
    let address = fs::canonicalize(&card.0).ok();
    device.pci = address.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let named = card.text("product_name")?.filter(|name| !name.is_empty());
    let numbered = || Ok::<_, String>(card.text("device")?.map(|id| format!("AMD GPU {id}")));
    device.description = named.map_or_else(numbered, |name| Ok(Some(name)))?;
    device.memory_total = card.number("mem_info_vram_total")?;
    device.memory_used = card.number("mem_info_vram_used")?;
    device.memory_free =
        device.memory_total.zip(device.memory_used).map(|(t, u)| t.saturating_sub(u));
    device.utilisation_percent = card.number("gpu_busy_percent")?;
    let Some(sensors) = card.sensors() else { return Ok(()) };
    // Millidegrees, microwatts and microjoules.
    let scaled =
        |file: &str, unit: f64| Ok::<_, String>(sensors.number::<f64>(file)?.map(|n| n / unit));
    device.temperature_celsius = scaled("temp1_input", 1e3)?;
    device.power_watts = match scaled("power1_average", 1e6)? {
        None => scaled("power1_input", 1e6)?,
        average => average,
    };
    device.energy_joules = scaled("energy1_input", 1e6)?;
    Ok(())
}

impl Card {
    /// The folder of its sensors.
    fn sensors(&self) -> Option<Card> {
        let entries = fs::read_dir(self.0.join("hwmon")).ok()?;
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        folders.into_iter().next().map(Card)
    }

    /// What a file says; `None` where this card has no such file, or no such sensor.
    fn text(&self, name: &str) -> Result<Option<String>, String> {
        let path = self.0.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(sentence(&path, &error)),
        }
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let wrong =
            |_| format!("{} says {text:?}, which is no number", self.0.join(name).display());
        text.parse().map(Some).map_err(wrong)
    }
}

/// The kernel answers so for a sensor that a card does not have, and by `EPERM`, from Linux 6.15 on, while the card
/// sleeps. What this user may not read is `EACCES`.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
        || matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPERM))
}

fn sentence(path: &Path, error: &io::Error) -> String {
    format!("{} can't be read ({error})", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_card_that_sleeps_is_no_problem_and_a_file_that_is_not_readable_is_one() {
        assert!(is_absent(&io::Error::from_raw_os_error(libc::EPERM)));
        assert!(!is_absent(&io::Error::from_raw_os_error(libc::EACCES)));
    }

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("sys/class/drm").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn cards_are_numbered_without_connectors_and_without_those_of_others() {
        let root = tree(&[
            ("card0/device/vendor", "0x8086\n"),
            ("card0/device/mem_info_vram_total", "1\n"),
            ("card10/device/vendor", "0x1002\n"),
            ("card10/device/device", "0x744c\n"),
            ("card10/device/mem_info_vram_total", "2000\n"),
            ("card2/device/vendor", "0x1002\n"),
            ("card2/device/product_name", "AMD Instinct MI300X\n"),
            ("card2/device/mem_info_vram_total", "1000\n"),
            ("card2/device/mem_info_vram_used", "300\n"),
            ("card2/device/gpu_busy_percent", "45\n"),
            ("card2/device/hwmon/hwmon3/temp1_input", "61000\n"),
            ("card2/device/hwmon/hwmon3/power1_average", "310500000\n"),
            ("card2-DP-1/status", "connected\n"),
            ("renderD128/device/vendor", "0x1002\n"),
            // Without memory of its own.
            ("card3/device/vendor", "0x1002\n"),
        ]);
        let devices = devices(root.path());
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["migraphx:0", "migraphx:1"]);
        let full = Device {
            name: "migraphx:0".to_owned(),
            provider: PROVIDER.to_owned(),
            description: Some("AMD Instinct MI300X".to_owned()),
            pci: Some("device".to_owned()),
            driver: None,
            memory_total: Some(1000),
            memory_used: Some(300),
            memory_free: Some(700),
            utilisation_percent: Some(45.0),
            temperature_celsius: Some(61.0),
            power_watts: Some(310.5),
            energy_joules: None,
            problem: None,
        };
        assert_eq!(devices[0], full);
        assert_eq!(devices[1].description.as_deref(), Some("AMD GPU 0x744c"));
        assert_eq!((devices[1].memory_used, devices[1].memory_free), (None, None));
    }

    #[test]
    fn the_address_is_that_of_the_folder_behind_the_link() {
        let root = tree(&[("card0/status", "")]);
        let pci = root.path().join("sys/devices/0000:03:00.0");
        fs::create_dir_all(&pci).unwrap();
        fs::write(pci.join("vendor"), VENDOR).unwrap();
        fs::write(pci.join("mem_info_vram_total"), "5").unwrap();
        symlink(&pci, root.path().join("sys/class/drm/card0/device")).unwrap();
        assert_eq!(devices(root.path())[0].pci.as_deref(), Some("0000:03:00.0"));
    }

    #[test]
    fn what_makes_no_sense_is_told_with_the_file() {
        let root = tree(&[
            ("card0/device/vendor", "0x1002"),
            ("card0/device/mem_info_vram_total", "much"),
        ]);
        let devices = devices(root.path());
        let problem = devices[0].problem.as_deref().unwrap();
        assert!(
            problem.ends_with("mem_info_vram_total says \"much\", which is no number"),
            "{problem}"
        );
        assert!(super::devices(&root.path().join("nowhere")).is_empty());
    }
}
