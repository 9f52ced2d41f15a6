//! NVIDIA's devices, as its management library (NVML) tells of them. It comes with the driver.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use op_dbus_daemon::devices::Device;

/// The name under which every driver has it.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

const PROVIDER: &str = "cuda";

/// Every device, in the order of the PCI bus, which workers are told to number them in as well. None
/// without the library.
pub fn devices(library: &OsStr) -> Vec<Device> {
    let refused = |error| vec![Device::untold(PROVIDER, sentence(error))];
    let nvml = match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(error)) if is_absent(library, &error.to_string()) => {
            return Vec::new();
        }
        Err(error) => return refused(error),
    };
    match nvml.device_count() {
        Ok(count) => {
            // Told by the device's own entry, if it can't be asked for anything.
            let driver = known(nvml.sys_driver_version()).unwrap_or_default();
            let device = |number| Device { driver: driver.clone(), ..device(&nvml, number) };
            (0..count).map(device).collect()
        }
        Err(error) => refused(error),
    }
}

/// Whether the library itself is what the loader did not find, and not another that it needs.
fn is_absent(library: &OsStr, error: &str) -> bool {
    error.contains(&format!("{}: cannot open shared object file", library.to_string_lossy()))
}

fn sentence(error: NvmlError) -> String {
    format!("NVIDIA's management library: {error}")
}

fn device(nvml: &Nvml, number: u32) -> Device {
    let mut device = Device {
        name: format!("{PROVIDER}:{number}"),
        provider: PROVIDER.to_owned(),
        ..Device::default()
    };
    let read = read(nvml, number, &mut device);
    device.problem = read.err().map(sentence);
    device
}

/// Fills in what there is, up to the first error.
fn read(nvml: &Nvml, number: u32, device: &mut Device) -> Result<(), NvmlError> {
    let gpu = nvml.device_by_index(number)?;
    device.description = known(gpu.name())?;
    device.pci = known(gpu.pci_info())?.map(|pci| pci.bus_id);
    if let Some(memory) = known(gpu.memory_info())? {
        device.memory_total = Some(memory.total);
        device.memory_used = Some(memory.used);
        device.memory_free = Some(memory.free);
    }
    device.utilisation_percent = known(gpu.utilization_rates())?.map(|rates| rates.gpu.into());
    let temperature = known(gpu.temperature(TemperatureSensor::Gpu))?;
    device.temperature_celsius = temperature.map(f64::from);
    device.power_watts = known(gpu.power_usage())?.map(|milliwatts| f64::from(milliwatts) / 1e3);
    let energy = known(gpu.total_energy_consumption())?;
    device.energy_joules = energy.map(|millijoules| millijoules as f64 / 1e3);
    Ok(())
}

/// What the device does not have, or this version of the library does not ask for, is no error.
fn known<T>(told: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match told {
        Ok(value) => Ok(Some(value)),
        Err(
            NvmlError::NotSupported
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_there_is_no_device_and_a_damaged_one_is_told() {
        assert_eq!(devices(OsStr::new("libnvidia-ml-of-nobody.so.1")), []);
        let folder = tempfile::tempdir().unwrap();
        let damaged = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&damaged, "no library").unwrap();
        let devices = devices(damaged.as_os_str());
        assert_eq!((devices.len(), devices[0].name.as_str()), (1, ""));
        let problem = devices[0].problem.as_deref().unwrap();
        assert!(problem.contains("NVIDIA") && problem.contains("too short"), "{problem}");
    }

    #[test]
    fn a_library_that_lacks_another_is_not_absent() {
        let library = OsStr::new(LIBRARY);
        let lacks = "libother.so: cannot open shared object file: No such file or directory";
        assert!(!is_absent(library, lacks));
        assert!(is_absent(library, &lacks.replace("libother.so", LIBRARY)));
    }
}
