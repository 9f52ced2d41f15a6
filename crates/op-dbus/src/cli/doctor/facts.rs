//! What each provider needs of a machine besides its library: one table, read by all checks.

use op_dbus_daemon::settings::Provider;

/// What a provider needs of a machine.
pub struct Facts {
    /// The provider.
    pub provider: Provider,
    /// The file beside ONNX Runtime that brings the provider, of one that is built into it.
    pub beside: Option<&'static str>,
    /// Libraries that it opens by name while it starts, so that no file lists them.
    pub opens: &'static [&'static str],
    /// The hardware without which there is nothing to compute on.
    pub hardware: Option<&'static Hardware>,
    /// The kernel driver that tells its version.
    pub driver: Option<&'static Driver>,
    /// Folders with descriptions of user-space drivers, of which one must have one.
    pub drivers: Option<&'static Descriptions>,
    /// Device nodes.
    pub nodes: &'static [Node],
    /// Directives of the service's unit that block it.
    pub directives: &'static [Directive],
    /// The profile that takes these directives back.
    pub profile: &'static str,
}

/// Where the kernel shows hardware: folders with a file each that holds the vendor's number.
pub struct Hardware {
    /// What it is, for people.
    pub name: &'static str,
    /// The folder that has a folder for each.
    pub folder: &'static str,
    /// What the folder's name begins with; digits follow, unless it is empty.
    pub prefix: &'static str,
    /// The file with the vendor's number in it.
    pub vendor_file: &'static str,
    /// The vendor's number; empty for any.
    pub vendor: &'static str,
    /// The file with the class of device, beside the vendor's.
    pub class_file: &'static str,
    /// What is to be done where there is none.
    pub next: &'static str,
}

/// A kernel driver that tells its version in a file.
pub struct Driver {
    /// What it is, for people.
    pub name: &'static str,
    /// The file.
    pub file: &'static str,
    /// The first number of the oldest version that will do.
    pub major_min: u32,
    /// What needs this version.
    pub needed_by: &'static str,
    /// The least compute capability of a device, as the driver's own program tells it.
    pub capability_min: f32,
    /// How to get it.
    pub next: &'static str,
}

/// Files that describe drivers to a loader.
pub struct Descriptions {
    /// What they are, for people.
    pub name: &'static str,
    /// Where they may lie.
    pub folders: &'static [&'static str],
    /// How to get one.
    pub next: &'static str,
}

/// A device node, or several that differ in a number.
pub struct Node {
    /// The path; `#` stands for a number.
    pub path: &'static str,
    /// Whether nothing computes without it.
    pub needed: bool,
    /// How it comes to be.
    pub next: &'static str,
}

/// A directive of the unit that blocks a provider.
pub struct Directive {
    /// The property, as `systemctl show` calls it.
    pub property: &'static str,
    /// What of it blocks.
    pub blocks: Blocks,
    /// What it keeps from the provider.
    pub why: &'static str,
}

/// When a directive blocks.
pub enum Blocks {
    /// When it has this value.
    When(&'static str),
    /// When it lists something, and this is not in it.
    Unless(&'static str),
}

const NO_DEVICE: &str = "set execution_provider to auto, which takes what this machine has";
/// Of the CPU, which every machine has: it is never the device that stands in the way.
const SETTINGS: &str =
    "mend what the proof names; `op-dbus config show` tells where each setting comes from";

const NVIDIA: Hardware = Hardware {
    name: "NVIDIA GPU",
    folder: "/sys/bus/pci/devices",
    prefix: "",
    vendor_file: "vendor",
    vendor: "0x10de",
    class_file: "class",
    next: NO_DEVICE,
};

const AMD: Hardware = Hardware { name: "AMD GPU", vendor: "0x1002", ..NVIDIA };

/// ONNX Runtime looks for graphics cards here and nowhere else.
const ANY_CARD: Hardware = Hardware {
    name: "graphics card",
    folder: "/sys/class/drm",
    prefix: "card",
    vendor_file: "device/vendor",
    vendor: "",
    class_file: "device/class",
    next: NO_DEVICE,
};

const NVIDIA_DRIVER: Driver = Driver {
    name: "NVIDIA's kernel driver",
    file: "/proc/driver/nvidia/version",
    major_min: 580,
    needed_by: "CUDA 13",
    capability_min: 7.5,
    next: "install NVIDIA's driver, version 580 or newer, from your distribution and restart the machine",
};

const VULKAN: Descriptions = Descriptions {
    name: "Vulkan driver",
    folders: &[
        "/etc/vulkan/icd.d",
        "/usr/local/etc/vulkan/icd.d",
        "/usr/local/share/vulkan/icd.d",
        "/usr/share/vulkan/icd.d",
    ],
    next: "install the Vulkan driver of your card (Debian: apt install mesa-vulkan-drivers)",
};

const MODPROBE: &str =
    "start nvidia-persistenced, or type `nvidia-modprobe -u -c 0`, which makes it";
const RENDER: &str = "load the card's kernel driver (amdgpu, i915, xe, nouveau), which makes it";
const NVIDIA_NODES: &[Node] = &[
    Node { path: "/dev/nvidiactl", needed: true, next: MODPROBE },
    Node { path: "/dev/nvidia#", needed: true, next: MODPROBE },
    Node { path: "/dev/nvidia-uvm", needed: true, next: MODPROBE },
];

const NO_NODES: Directive = Directive {
    property: "PrivateDevices",
    blocks: Blocks::When("yes"),
    why: "hides the device nodes",
};
const NO_CODE: Directive = Directive {
    property: "MemoryDenyWriteExecute",
    blocks: Blocks::When("yes"),
    why: "forbids the code that the driver makes for the device",
};
const NO_PROC: Directive = Directive {
    property: "ProcSubset",
    blocks: Blocks::When("pid"),
    why: "hides what the library reads of /proc",
};
const NO_BINDING: Directive = Directive {
    property: "SystemCallFilter",
    blocks: Blocks::Unless("mbind"),
    why: "forbids the driver to bind memory to the device",
};
const fn closed(device: &'static str) -> Directive {
    let why = "keeps the device nodes closed";
    Directive { property: "DeviceAllow", blocks: Blocks::Unless(device), why }
}

const NO_NETWORK: Directive =
    Directive { property: "PrivateNetwork", blocks: Blocks::When("yes"), why: "hides the network" };
const NO_ADDRESSES: Directive = Directive {
    property: "RestrictAddressFamilies",
    blocks: Blocks::Unless("AF_INET"),
    why: "forbids sockets of a network",
};

const ON_NVIDIA: &[Directive] = &[NO_NODES, closed("char-nvidia"), NO_CODE, NO_PROC, NO_BINDING];
const ON_AMD: &[Directive] =
    &[NO_NODES, closed("char-kfd"), closed("char-drm"), NO_CODE, NO_PROC, NO_BINDING];
const ON_CARD: &[Directive] = &[NO_NODES, closed("char-drm"), NO_CODE, NO_PROC];
const ON_CPU: &[Directive] = &[NO_PROC];
const ELSEWHERE: &[Directive] = &[NO_NETWORK, NO_ADDRESSES];

const PLAIN: Facts = Facts {
    provider: Provider::Cpu,
    beside: None,
    opens: &[],
    hardware: None,
    driver: None,
    drivers: None,
    nodes: &[],
    directives: &[],
    profile: "",
};

const CUDA: Facts = Facts {
    provider: Provider::Cuda,
    beside: Some("libonnxruntime_providers_cuda.so"),
    opens: &["libcuda.so.1", "libcudnn.so.9"],
    hardware: Some(&NVIDIA),
    driver: Some(&NVIDIA_DRIVER),
    nodes: NVIDIA_NODES,
    directives: ON_NVIDIA,
    profile: "gpu",
    ..PLAIN
};

/// Every provider that a worker of this version could start here.
pub const FACTS: &[Facts] = &[
    PLAIN,
    CUDA,
    Facts {
        provider: Provider::TensorRt,
        beside: Some("libonnxruntime_providers_tensorrt.so"),
        opens: &["libcuda.so.1"],
        ..CUDA
    },
    Facts {
        provider: Provider::WebGpu,
        opens: &["libvulkan.so.1"],
        hardware: Some(&ANY_CARD),
        drivers: Some(&VULKAN),
        nodes: &[Node { path: "/dev/dri/renderD#", needed: true, next: RENDER }],
        directives: ON_CARD,
        profile: "gpu",
        ..PLAIN
    },
    Facts { provider: Provider::Ggml, directives: ON_CPU, profile: "onnx-runtime", ..PLAIN },
    Facts {
        provider: Provider::OpenVino,
        beside: Some("libonnxruntime_providers_openvino.so"),
        nodes: &[
            Node { path: "/dev/dri/renderD#", needed: false, next: RENDER },
            Node { path: "/dev/accel/accel#", needed: false, next: RENDER },
        ],
        directives: ON_CPU,
        profile: "onnx-runtime",
        ..PLAIN
    },
    Facts {
        provider: Provider::MiGraphX,
        beside: Some("libonnxruntime_providers_migraphx.so"),
        hardware: Some(&AMD),
        nodes: &[
            Node { path: "/dev/kfd", needed: true, next: "load the kernel driver amdgpu" },
            Node { path: "/dev/dri/renderD#", needed: true, next: RENDER },
        ],
        directives: ON_AMD,
        profile: "gpu",
        ..PLAIN
    },
    Facts { provider: Provider::Remote, directives: ELSEWHERE, profile: "remote", ..PLAIN },
];

/// The CPU, computed on by ONNX Runtime and not by our own kernels.
pub const CPU_BY_RUNTIME: Facts = Facts { directives: ON_CPU, profile: "onnx-runtime", ..PLAIN };

/// What is known of a provider; nothing special of one that the table does not have.
pub fn of(provider: Provider) -> &'static Facts {
    FACTS.iter().find(|facts| facts.provider == provider).unwrap_or(&PLAIN)
}

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
    ("worker_memory_max", "raise worker_memory_max, or take a lower vector_level"),
    (
        "where memory runs out",
        "raise the unit's or the container's limit of memory, or take a lower vector_level",
    ),
    ("out of memory", MEMORY),
    ("OutOfMemory", MEMORY),
    ("failed to allocate", MEMORY),
    ("adapter", "install or update the Vulkan driver of the card"),
    ("insufficient for CUDA", "update NVIDIA's driver to version 580 or newer"),
    (
        "no kernel image",
        "take a GPU of compute capability 7.5 or newer, or set execution_provider to auto",
    ),
    (
        "remote: ",
        "mend the table [providers.remote], or what answers at its endpoints; `curl` shows what that says",
    ),
    (
        "device_type",
        "name a device that is there as device_type in [providers.openvino], and its number as gpu_device, or install its driver",
    ),
    ("load_config", SETTINGS),
    ("set precision to", "set precision as the proof says"),
    ("said nothing for", "raise load_timeout_s, as a first load compiles for the device"),
];
const MEMORY: &str = "end what else uses the device's memory, take a lower vector_level, or set batch_tokens_max lower";

/// What to do about a provider that was started and failed.
pub fn cure(provider: Provider, reason: &str) -> String {
    let other = if provider == Provider::Cpu { SETTINGS } else { NO_DEVICE };
    known(reason).unwrap_or(other).to_owned()
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
        assert!(cure(Provider::OpenVino, "with device_type GPU: it failed").contains("driver"));
        assert_eq!(cuda("who knows"), NO_DEVICE);
        // It is the provider that works everywhere.
        assert_eq!(cure(Provider::Cpu, "who knows"), SETTINGS);
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

    #[test]
    fn each_provider_is_in_the_table_once() {
        for (position, facts) in FACTS.iter().enumerate() {
            assert!(FACTS[..position].iter().all(|other| other.provider != facts.provider));
        }
    }
}
