//! What batches cost where there is a choice of devices: measured once, kept in the cache together with
//! what was learned since, and measured anew once anything that it depends on is another.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use op_dbus_engine::{BatchCost, Engine, Pool};
use op_dbus_graph::kept::Kind;
use serde::{Deserialize, Serialize};

use super::worker::{self, Blueprint};
use super::{Means, compiled};
use crate::devices::{self, Device, is_same};
use crate::settings::{Provider, Settings};
use crate::text_file::{self, Unusable};

/// Version of the measurement and of its record. A record of another version is not used.
const VERSION: u32 = 2;

/// More sizes of batches than are told apart.
const SIZES_MAX: usize = 64;

/// A batch that takes longer than this, in microseconds, is not waited for.
const US_MAX: u64 = 600_000_000;

/// Costs in the cache: a small file for each device and each model.
const COSTS: Kind = Kind { finished: "json", unfinished: ".costing-", kept: 512 };

/// The file.
#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    key: String,
    costs: Vec<BatchCost>,
}

/// Where it is kept what batches cost on one device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the pool.
    pool: usize,
    /// Name of the device.
    device: String,
    path: PathBuf,
    /// All that the costs depend on.
    key: String,
}

impl Place {
    /// The place for the workers of `pool` on `device` of this machine, whose devices are `known`.
    pub fn of(
        (pool, device): (usize, &str),
        blueprint: &Blueprint,
        settings: &Settings,
        known: &[Device],
    ) -> Self {
        let key = key(device, blueprint, settings, known);
        let name = format!("{}.{}", compiled::name(blueprint, &key), COSTS.finished);
        let path = settings.cache_dir.join("costs").join(name);
        Self { pool, device: device.to_owned(), path, key }
    }

    /// What is known; empty where that is nothing. What can't be used is told in the log.
    pub fn read(&self) -> Vec<BatchCost> {
        let read = || -> Result<Vec<BatchCost>, String> {
            let Some(json) = text_file::read(&self.path).map_err(Unusable::reason)? else {
                return Ok(Vec::new());
            };
            let Record { version, key, costs } =
                serde_json::from_str(&json).map_err(|error| error.to_string())?;
            match version == VERSION && key == self.key && are_possible(&costs) {
                true => Ok(costs),
                false => Err("it is not what this version has measured here".to_owned()),
            }
        };
        read().unwrap_or_else(|error| {
            let place = self.path.display();
            tracing::warn!("measuring anew what batches cost: {place} can't be used ({error})");
            Vec::new()
        })
    }

    /// Keeps what is known by now, whole or not at all. What fails costs measuring once more.
    pub fn save(&self, costs: Vec<BatchCost>) {
        if costs.is_empty() {
            return;
        }
        let record = Record { version: VERSION, key: self.key.clone(), costs };
        let write = || -> io::Result<()> {
            let json = serde_json::to_vec(&record)?;
            COSTS.make(&self.path, |file| file.write_all(&json))
        };
        if let Err(error) = write() {
            let place = self.path.display();
            tracing::warn!("what batches cost can't be kept in {place}: {error}");
        }
    }
}

/// Tells each of the pools, whose workers are made of `blueprints`, what its batches are known to cost on the devices
/// of this machine; returns where that is kept. Nothing where there is but one device.
pub(super) fn read(
    blueprints: &[Blueprint],
    pools: &mut [Pool],
    settings: &Settings,
    means: &Means,
) -> Vec<Place> {
    let is_choice = pools.iter().map(|pool| pool.devices.len()).sum::<usize>() > 1;
    let Some(reader) = means.devices.as_ref().filter(|_| is_choice) else { return Vec::new() };
    let known = match devices::read_blocking(reader) {
        Ok(known) => known,
        Err(error) => {
            tracing::warn!("devices can't be read ({error}); what batches cost is not kept");
            return Vec::new();
        }
    };
    let mut places = Vec::new();
    for (index, (pool, blueprint)) in pools.iter_mut().zip(blueprints).enumerate() {
        for device in &pool.devices {
            let place = Place::of((index, device.as_str()), blueprint, settings, &known);
            let costs = place.read();
            if !costs.is_empty() {
                pool.costs.insert(device.clone(), costs);
            }
            places.push(place);
        }
    }
    places
}

/// Keeps what `engine` knows of each device in its place. Waits for the disk.
pub(super) fn keep(places: &[Place], engine: &Engine) {
    let mut known = engine.known_costs();
    for place in places {
        let costs = known.get_mut(place.pool).and_then(|pool| pool.remove(&place.device));
        place.save(costs.unwrap_or_default());
    }
}

/// Whether it can be decided by them: records come from a file.
fn are_possible(costs: &[BatchCost]) -> bool {
    let plausible = |cost: &BatchCost| cost.tokens > 0 && (1..=US_MAX).contains(&cost.us);
    (1..=SIZES_MAX).contains(&costs.len())
        && costs.iter().all(plausible)
        && costs.is_sorted_by(|a, b| a.tokens < b.tokens)
}

/// All that costs depend on, in words.
fn key(device: &str, blueprint: &Blueprint, settings: &Settings, known: &[Device]) -> String {
    let host = &blueprint.host;
    let mut key = compiled::depends_on(blueprint);
    // Writing to a String can't fail.
    let _ = writeln!(
        key,
        "{:?} {} {} isa {} threads {:?} workers {:?} binding {}",
        blueprint.region,
        host.provider,
        host.cpu_engine,
        settings.cpu_isa,
        settings.threads,
        settings.workers_per_device,
        settings.io_binding,
    );
    // Every device is fed by the CPU.
    let _ = writeln!(key, "cpu {} cores {}", cpu(), worker::cores());
    if host.provider == Provider::Cpu {
        return key;
    }
    let its = known.iter().find(|known| is_same(&known.name, device));
    let Device { description, memory_total, driver, .. } = its.cloned().unwrap_or_default();
    let _ = writeln!(key, "device {device} {description:?} {memory_total:?} driver {driver:?}");
    // Drivers that come with the kernel have its version.
    if let Ok(kernel) = nix::sys::utsname::uname() {
        let _ = writeln!(key, "kernel {:?}", kernel.release());
    }
    key
}

/// The CPU's name by its own account, which no sandbox hides; empty where it has none.
fn cpu() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        const NAME: std::ops::RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;
        if __cpuid(0x8000_0000).eax < *NAME.end() {
            return format!("{:08x}", __cpuid(1).eax);
        }
        let registers = NAME.map(__cpuid).flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx]);
        let bytes: Vec<u8> =
            registers.flat_map(u32::to_le_bytes).filter(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let id = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
        std::fs::read_to_string(id).unwrap_or_default().trim().to_owned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use op_dbus_engine::worker::RegionShape;

    use super::super::provider::Host;
    use super::*;
    use crate::settings::options::Told;
    use crate::settings::{CpuEngine, Precision, Sources};

    pub fn blueprint() -> Blueprint {
        Blueprint {
            model: "m".to_owned(),
            space: "aa".to_owned(),
            max_input_tokens: 8,
            region: RegionShape { tokens_max: 1, rows_max: 1, dimensions: 8 },
            precision: Precision::F32,
            host: Host {
                provider: Provider::Cuda,
                cpu_engine: CpuEngine::Ort,
                runtime: PathBuf::from("/nowhere/libonnxruntime.so"),
                library: None,
                options: Vec::new(),
                devices: vec![0],
                calibrate: false,
            },
        }
    }

    pub fn settings(root: &tempfile::TempDir) -> Settings {
        let mut settings = Settings::load(&Sources::under(root.path())).unwrap().settings;
        settings.cache_dir = root.path().join("cache");
        settings
    }

    fn card(driver: &str) -> Vec<Device> {
        let (name, driver) = ("cuda:0".to_owned(), Some(driver.to_owned()));
        vec![Device { name, driver, ..Device::default() }]
    }

    #[test]
    fn whatever_costs_depend_on_changes_the_place() {
        let root = tempfile::tempdir().unwrap();
        let settings = settings(&root);
        let one = blueprint();
        let on_device = |device: &str, blueprint: &Blueprint, driver: &str| {
            Place::of((0, device), blueprint, &settings, &card(driver))
        };
        let place = |blueprint: &Blueprint| on_device("cuda:0", blueprint, "580");
        assert_eq!(place(&one), place(&one));
        let on = |change: &dyn Fn(&mut Host)| {
            let mut other = one.clone();
            change(&mut other.host);
            other
        };
        let others = [
            Blueprint { space: "bb".to_owned(), ..one.clone() },
            Blueprint { precision: Precision::F16, ..one.clone() },
            on(&|host| host.provider = Provider::TensorRt),
            on(&|host| host.library = Some(PathBuf::from("/nowhere/plugin.so"))),
            on(&|host| host.options = vec![("a".to_owned(), Told::Value("b".to_owned()))]),
        ];
        let mut paths: Vec<_> = others.iter().map(|other| place(other).path).collect();
        paths.push(place(&one).path);
        paths.push(on_device("cuda:0", &one, "590").path);
        paths.push(on_device("cuda:1", &one, "580").path);
        let unique: std::collections::HashSet<_> = paths.iter().collect();
        assert_eq!(unique.len(), paths.len(), "{paths:?}");
        assert!(!cpu().is_empty() || cfg!(not(target_arch = "x86_64")));
    }

    #[test]
    fn what_is_measured_on_many_devices_is_kept_of_each() {
        let root = tempfile::tempdir().unwrap();
        let (blueprint, settings) = (blueprint(), settings(&root));
        let place = |n: usize| {
            let device = format!("cuda:{n}");
            Place::of((0, device.as_str()), &blueprint, &settings, &[])
        };
        let places: Vec<Place> = (0..20).map(place).collect();
        let costs = vec![BatchCost { tokens: 12, us: 90 }];
        for place in &places {
            place.save(costs.clone());
        }
        assert!(places.iter().all(|place| place.read() == costs));
    }

    #[test]
    fn what_is_kept_is_read_again_and_what_is_damaged_is_not() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of((0, "cuda:0"), &blueprint(), &settings(&root), &card("580"));
        assert_eq!(place.read(), []);
        let costs = vec![BatchCost { tokens: 12, us: 90 }, BatchCost { tokens: 700, us: 80 }];
        place.save(costs.clone());
        assert_eq!(place.read(), costs);
        let other = Place { key: "of another machine".to_owned(), ..place.clone() };
        assert_eq!(other.read(), []);
        for wrong in [
            vec![BatchCost { tokens: 0, us: 1 }],
            vec![BatchCost { tokens: 1, us: 0 }],
            vec![BatchCost { tokens: 1, us: US_MAX + 1 }],
            vec![BatchCost { tokens: 2, us: 1 }, BatchCost { tokens: 2, us: 1 }],
        ] {
            place.save(wrong);
            assert_eq!(place.read(), []);
        }
        // Of an earlier version, whose costs were those of all devices of a provider together.
        let Place { path, key, .. } = &place;
        let earlier = Record { version: 1, key: key.clone(), costs: costs.clone() };
        fs::write(path, serde_json::to_vec(&earlier).unwrap()).unwrap();
        assert_eq!(place.read(), []);
        let left = place.path.with_file_name(".costing-left");
        fs::write(&left, "{").unwrap();
        place.save(costs);
        assert!(!left.exists(), "what a killed one has left");
        let whole = fs::read(&place.path).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", b"{}", b"\xff"] {
            fs::write(&place.path, damaged).unwrap();
            assert_eq!(place.read(), []);
        }
    }
}
