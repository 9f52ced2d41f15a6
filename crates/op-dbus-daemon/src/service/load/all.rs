//! Which devices a provider has, where all of them are asked for, and which of those that were named it has not.

use op_dbus_engine::{BackendError, BackendFactory, WorkerState, WorkerStatus};

use crate::devices::{self, Device, Reader, is_same};
use crate::service::Host;
use crate::settings::Provider;

/// The devices of `host`, by their numbers. Where all are asked for, what `factory` makes for the first of them tells
/// how many there are, or else drivers do; none where neither can.
///
/// # Errors
/// What was made for the first one could not be had, and drivers tell of no other.
pub(super) fn devices(
    host: &Host,
    known: impl FnOnce() -> Vec<Device>,
    factory: impl FnOnce(&Host) -> BackendFactory,
) -> Result<Option<Vec<u32>>, BackendError> {
    if !host.devices.is_empty() {
        return Ok(Some(host.devices.clone()));
    }
    let first = Host { devices: vec![0], ..host.clone() };
    let factory = factory(&first);
    match op_dbus_engine::once_more(|| factory(0)) {
        Ok(backend) => Ok(numbers(host.provider, backend.description().devices, known)),
        // Another one may compute; where none does, the workers say so again.
        Err(error) => {
            let several = numbers(host.provider, 0, known).filter(|numbers| numbers.len() > 1);
            several.map(Some).ok_or(error)
        }
    }
}

/// The devices that drivers tell of; none where nobody asks them.
pub(super) fn known(reader: Option<&Reader>) -> Vec<Device> {
    reader.and_then(|reader| devices::read_blocking(reader).ok()).unwrap_or_default()
}

/// The numbers of all devices of `provider`, which tells of so many, or of those that drivers know.
fn numbers(
    provider: Provider,
    told: usize,
    known: impl FnOnce() -> Vec<Device>,
) -> Option<Vec<u32>> {
    if let Ok(told @ 1..) = u32::try_from(told) {
        return Some((0..told).collect());
    }
    let known = known();
    let is_known = |number: &u32| {
        let name = format!("{provider}:{number}");
        known.iter().any(|device| is_same(&device.name, &name))
    };
    let numbers: Vec<u32> = (0..).take_while(is_known).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// Why a worker that could not be loaded, while others were, is more than a device that is ill: its provider tells that
/// it has no device of that number, or, where the workers are to be `whole`, each was asked for just now.
pub(super) fn missing(workers: &[WorkerStatus], whole: bool) -> Option<String> {
    let is_there = |worker: &&WorkerStatus| worker.state != WorkerState::Restarting;
    let told = workers.iter().filter(is_there).map(|worker| worker.description.devices).max();
    let is_missing = |worker: &&WorkerStatus| {
        let number = worker.description.device.rsplit(':').next().and_then(|n| n.parse().ok());
        !is_there(worker)
            && (whole
                || number.zip(told).is_some_and(|(n, told): (usize, _)| 0 < told && told <= n))
    };
    let worker = workers.iter().find(is_missing)?;
    Some(
        worker
            .last_error
            .clone()
            .unwrap_or_else(|| format!("{} does not compute", worker.description.device)),
    )
}

/// Tells the log that devices may be left out.
pub(super) fn warn(provider: Provider) {
    tracing::warn!(
        "gpu_device is all, and neither {provider} nor a driver tells how many devices there are: \
         device 0 computes alone; name the others in gpu_device"
    );
}

#[cfg(test)]
mod tests {
    use op_dbus_engine::sim::SimBackend;
    use op_dbus_engine::{Description, LoadErrorKind};

    use super::*;
    use crate::service::costs;

    #[test]
    fn all_devices_are_those_of_the_driver_where_the_provider_does_not_tell() {
        assert_eq!(numbers(Provider::TensorRt, 0, two_cards), Some(vec![0, 1]));
        assert_eq!(numbers(Provider::Cuda, 3, two_cards), Some(vec![0, 1, 2]));
        assert_eq!(numbers(Provider::WebGpu, 0, two_cards), None);
    }

    fn two_cards() -> Vec<Device> {
        let device = |name: &str| Device { name: name.to_owned(), ..Device::default() };
        ["cpu:0", "cuda:0", "cuda:1"].map(device).to_vec()
    }

    #[test]
    fn a_first_device_that_does_not_load_leaves_the_others_of_the_driver() {
        let all = Host { devices: Vec::new(), ..costs::tests::blueprint().host };
        let error = || BackendError::Load {
            kind: LoadErrorKind::ProviderUnavailable,
            message: "it is ill".to_owned(),
        };
        let ill = |_: &Host| -> BackendFactory { Box::new(move |_| Err(error())) };
        assert_eq!(devices(&all, two_cards, ill), Ok(Some(vec![0, 1])));
        let one_card = || two_cards()[..2].to_vec();
        assert_eq!(devices(&all, one_card, ill), Err(error()));
    }

    #[test]
    fn the_first_device_is_asked_how_many_there_are_where_all_are_to_compute() {
        let named = costs::tests::blueprint().host;
        let factory = |first: &Host| -> BackendFactory {
            assert_eq!(first.devices, [0]);
            Box::new(|_| Ok(Box::new(SimBackend::new(8))))
        };
        let all = Host { devices: Vec::new(), ..named.clone() };
        assert_eq!(devices(&all, Vec::new, factory).unwrap(), Some(vec![0]));
        let named = Host { devices: vec![3, 1], ..named };
        assert_eq!(devices(&named, Vec::new, |_| unreachable!()).unwrap(), Some(vec![3, 1]));
    }

    #[test]
    fn a_device_that_is_not_there_is_not_one_that_is_ill() {
        let worker = |device: &str, devices, error: Option<&str>| WorkerStatus {
            description: Description {
                device: device.to_owned(),
                devices,
                ..Description::default()
            },
            state: if error.is_some() { WorkerState::Restarting } else { WorkerState::Idle },
            last_error: error.map(str::to_owned),
            ..WorkerStatus::default()
        };
        let two = |devices, second| {
            [worker("cuda:0", devices, None), worker(second, devices, Some("it fails"))]
        };
        assert_eq!(missing(&two(2, "cuda:1"), false), None);
        assert_eq!(missing(&two(0, "cuda:9"), false), None, "nobody tells how many there are");
        assert_eq!(missing(&two(2, "cuda:2"), false).as_deref(), Some("it fails"));
        assert_eq!(missing(&two(2, "cuda:1"), true).as_deref(), Some("it fails"));
    }
}
