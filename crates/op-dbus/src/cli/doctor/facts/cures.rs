//! What to do about what is missing or has failed, by the words that tell of it.

use op_dbus_daemon::settings::Provider;

use super::{NO_DEVICE, OTHER_DEVICE, SETTINGS};

/// Shared libraries by how their names begin, and what brings them.
const BROUGHT: &[(&str, &str)] = &[
    ("libcuda.so", "install NVIDIA's driver, version 580 or newer, which brings it"),
    ("libcudart.", CUDA_13),
    ("libcublas", CUDA_13),
    ("libcurand.", CUDA_13),
    ("libcufft.", CUDA_13),
    ("libnvrtc", CUDA_13),
    (
        "libcudnn",
        "install cuDNN 9 for CUDA 13 where the loader finds it (a line in /etc/ld.so.conf.d/, then `ldconfig`)",
    ),
    ("libnvinfer", TENSORRT),
    ("libnvonnxparser", TENSORRT),
    ("libvulkan.", "install the Vulkan loader (Debian: apt install libvulkan1)"),
    (
        "libOpenCL.",
        "install the OpenCL loader and Intel's compute runtime (Debian: apt install intel-opencl-icd)",
    ),
    ("libamdhip64", ROCM),
    ("libhip", ROCM),
    ("libroc", ROCM),
    ("libmigraphx", ROCM),
];
const CUDA_13: &str =
    "install CUDA 13 where the loader finds it (a line in /etc/ld.so.conf.d/, then `ldconfig`)";
const TENSORRT: &str =
    "install TensorRT 10 where the loader finds it (a line in /etc/ld.so.conf.d/, then `ldconfig`)";
const ROCM: &str = "install ROCm with MIGraphX where the loader finds it (a line in /etc/ld.so.conf.d/, then `ldconfig`)";

/// How to get a shared library.
pub fn brings(library: &str) -> String {
    let known = BROUGHT.iter().find(|(prefix, _)| library.starts_with(prefix));
    known.map_or_else(
        || format!("install the package that has {library}, where the loader finds it"),
        |(_, next)| (*next).to_owned(),
    )
}

/// Words in the reason of a failed proof, and what to do about it. The first that is found counts.
const REASONS: &[(&str, &str)] = &[
    (
        "expect_dimensions",
        "serve a model that has as many dimensions, or set expect_dimensions to any",
    ),
    ("default_prompt", "name a prompt that the model has as default_prompt, or leave it out"),
    ("quota in tokens", "raise quota_tokens"),
    ("queue in tokens", "raise queue_tokens_max"),
    ("TasksMax", "set threads lower, or raise the limit of tasks (TasksMax) or worker_memory_max"),
    ("worker_memory_max", "raise worker_memory_max, or take a lower vector_level"),
    (
        "where memory runs out",
        "raise the unit's or the container's limit of memory, or take a lower vector_level",
    ),
    // An arena's, of which a session has to have room for the weights.
    ("is smaller than requested bytes of", "raise gpu_memory_limit, or take a lower vector_level"),
    ("out of memory", MEMORY),
    ("OutOfMemory", MEMORY),
    ("ailed to allocate", MEMORY),
    ("adapter", "install or update the Vulkan driver of the card"),
    ("insufficient for CUDA", "update NVIDIA's driver to version 580 or newer"),
    ("unsupported display driver", "restart the machine, whose driver was updated while it ran"),
    ("system not yet initialized", "start nvidia-fabricmanager, which cards behind NVSwitch need"),
    (
        "no CUDA-capable device",
        "have `nvidia-smi` list the card where the service runs; a container has to be handed it",
    ),
    (
        "CUDA failure 999",
        "type `rmmod nvidia_uvm && modprobe nvidia_uvm`, or restart the machine: its driver did not \
         survive a sleep",
    ),
    // Also of the endpoints of a fleet, and of OpenVINO's devices of the kind that it names.
    ("gpu_device names", OTHER_DEVICE),
    (
        "device_type",
        "name a device that is there as device_type in [providers.openvino], and its number as gpu_device, or install its driver",
    ),
    ("invalid device ordinal", OTHER_DEVICE),
    (
        "no kernel image",
        "take a GPU of compute capability 7.5 or newer, or set execution_provider to auto",
    ),
    (
        "remote: ",
        "mend the table [providers.remote], or what answers at its endpoints; `curl` shows what that says",
    ),
    // By faults on purpose.
    ("it was told to ", "leave faults out of the provider's table, as they are on purpose"),
    ("load_config", SETTINGS),
    ("set precision to", "set precision as the proof says"),
    (
        "not load: it said nothing for",
        "raise load_timeout_s, as a first load compiles for the device",
    ),
    ("said nothing for", "raise batch_timeout_s, or set batch_tokens_max lower"),
];
const MEMORY: &str = "end what else uses the device's memory, take a lower vector_level, or set batch_tokens_max lower";

/// What to do about a provider that was started and failed.
pub fn cure(provider: Provider, reason: &str) -> String {
    let other = if provider == Provider::Cpu { SETTINGS } else { NO_DEVICE };
    known(reason).unwrap_or(other).to_owned()
}

/// The same advice where the settings have `auto` already.
pub fn under_auto(next: String) -> String {
    next.replace("set execution_provider to auto", "leave execution_provider at auto")
}

/// What to do about a reason, if it is one of those that are known.
pub fn known(reason: &str) -> Option<&'static str> {
    REASONS.iter().find(|(words, _)| reason.contains(words)).map(|(_, next)| *next)
}

#[cfg(test)]
mod tests {
    use op_dbus_engine::Excess;

    use super::*;

    #[test]
    fn reasons_and_libraries_have_their_own_cures() {
        let cuda = |reason: &str| cure(Provider::Cuda, reason);
        assert!(cuda("CUDA failure 2: out of memory").contains("vector_level"));
        assert!(cure(Provider::WebGpu, "Failed to get a WebGPU adapter").contains("Vulkan"));
        let openvino = cure(Provider::OpenVino, "with device_type GPU: it failed");
        assert!(openvino.contains("as device_type in"), "{openvino}");
        let at_its_limit =
            "out of memory: Available memory of 9 is smaller than requested bytes of 99";
        assert!(cuda(at_its_limit).contains("gpu_memory_limit"));
        for absent in [
            "ggml has one device here, 0, and gpu_device names 1",
            "device_type CPU has one device, 0, and gpu_device names 1",
            "101: invalid device ordinal",
            "remote: remote has 1 endpoints, and gpu_device names number 1",
        ] {
            assert_eq!(cuda(absent), OTHER_DEVICE, "{absent}");
        }
        assert!(cuda("it did not load: it said nothing for 9 s").contains("load_timeout_s"));
        assert!(cuda("it was lost: it said nothing for 9 s").contains("batch_timeout_s"));
        assert_eq!(cuda("who knows"), NO_DEVICE);
        let left = under_auto(cuda("who knows"));
        assert!(left.starts_with("leave execution_provider at auto, which takes cuda"), "{left}");
        assert!(cuda("it was told to die on batch 1").contains("leave faults out"));
        // It is the provider that works everywhere.
        assert_eq!(cure(Provider::Cpu, "who knows"), SETTINGS);
        let threads = "raise the limit of tasks (TasksMax); worker_memory_max is 8 bytes";
        assert!(cure(Provider::Cpu, threads).contains("set threads lower"));
        let killed = "(SIGKILL), as the kernel has it where memory runs out";
        assert!(cure(Provider::Cpu, killed).contains("limit of memory"));
        for setting in ["expect_dimensions", "default_prompt", "worker_memory_max"] {
            assert!(cuda(&format!("it is not what {setting} demands")).contains(setting));
        }
        let excess = |excess: Excess| {
            cuda(&op_dbus_engine::Error::TooLarge { excess, found: 3, limit: 1 }.to_string())
        };
        assert!(excess(Excess::QuotaTokens).contains("quota_tokens"));
        assert!(excess(Excess::QueueTokens).contains("queue_tokens_max"));
        assert!(brings("libcudart.so.13").contains("CUDA 13"));
        assert!(brings("libnvinfer.so.10").contains("TensorRT"));
        assert!(brings("libx.so.1").contains("libx.so.1"));
    }
}
