//! Which devices a provider has, where all of them are asked for.

use op_dbus_engine::{BackendError, BackendFactory};

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

/// Tells the log that devices may be left out.
pub(super) fn warn(provider: Provider) {
    tracing::warn!(
        "gpu_device is all, and neither {provider} nor a driver tells how many devices there are: \
         device 0 computes alone; name the others in gpu_device"
    );
}

#[cfg(test)]
mod tests {
    use op_dbus_engine::LoadErrorKind;
    use op_dbus_engine::sim::SimBackend;

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
}
