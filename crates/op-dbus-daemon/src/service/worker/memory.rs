//! How much memory each worker may ask for.

use crate::settings::{Provider, Settings};

/// Least memory that a worker of the CPU may have where nobody has set it, if there is as much for the service:
/// ONNX Runtime needs between 1 and 1.5 GiB to load the largest level, our own kernels less than 1.
const AUTO_MIN: u64 = 2 << 30;

/// Bytes of its own that each of `workers` may ask for, where there are `memory` bytes for the service; `None` is
/// no limit.
///
/// A quarter is left to the service and what they share: in a container the kernel may end all processes
/// together at its limit, where a worker that ends at its own costs one batch.
pub(super) fn max(
    settings: &Settings,
    provider: Provider,
    workers: usize,
    memory: Option<u64>,
) -> Option<u64> {
    match (settings.worker_memory_max, provider) {
        (Some(bytes), _) => Some(bytes as u64),
        (None, Provider::Cpu | Provider::Remote) => {
            let shared = memory? / 4 * 3;
            Some((shared / workers.max(1) as u64).max(AUTO_MIN.min(shared)))
        }
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn settings(flags: &[(&str, &str)]) -> Settings {
        Settings::load(&Sources::under("/nowhere").with_flags(flags)).unwrap().settings
    }

    #[test]
    fn workers_without_a_device_share_three_quarters_of_what_there_is() {
        const GIB: u64 = 1 << 30;
        let auto = settings(&[]);
        let of = |settings, provider, workers| max(settings, provider, workers, Some(64 * GIB));
        assert_eq!(of(&auto, Provider::Cpu, 1), Some(48 * GIB));
        assert_eq!(of(&auto, Provider::Cpu, 8), Some(6 * GIB));
        assert_eq!(of(&auto, Provider::Cpu, 256), Some(2 * GIB));
        assert_eq!(max(&auto, Provider::Cpu, 8, Some(2 * GIB)), Some(3 * GIB / 2));
        assert_eq!(of(&auto, Provider::Remote, 8), Some(6 * GIB));
        assert_eq!(of(&auto, Provider::Cuda, 1), None);
        assert_eq!(max(&auto, Provider::Cpu, 1, None), None);
        let own = settings(&[("worker_memory_max", "2GiB")]);
        assert_eq!(of(&own, Provider::Cpu, 8), Some(2 * GIB));
        assert_eq!(of(&own, Provider::Cuda, 1), Some(2 * GIB));
    }
}
