//! What each provider needs of a machine besides its library: one table, read by all checks.

mod cures;

use op_dbus_daemon::settings::options::{Told, told};
use op_dbus_daemon::settings::{CpuEngine, Provider, Settings};

pub use cures::{brings, cure, known, under_auto};

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
    /// When it has neither this group of devices, nor these nodes, in which `#` stands for a number.
    Closed(&'static str, &'static [&'static str]),
}

const NO_DEVICE: &str =
    "set execution_provider to auto, which takes cuda where that works, and else the CPU";
/// Of a device that is not there, beside others.
pub const OTHER_DEVICE: &str = "set gpu_device to the number of a device that is there, or to all";
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

const MODPROBE: &str = "start nvidia-persistenced, or type `nvidia-modprobe -u -c 0`, which makes it, then type \
     `systemctl restart op-dbus`";
const KFD: &str = "load the kernel driver amdgpu, then type `systemctl restart op-dbus`";
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
const fn closed(device: &'static str, nodes: &'static [&'static str]) -> Directive {
    let why = "keeps the device nodes closed";
    Directive { property: "DeviceAllow", blocks: Blocks::Closed(device, nodes), why }
}
const NVIDIA_CLOSED: Directive = closed("char-nvidia", &["/dev/nvidiactl", "/dev/nvidia#"]);
/// The driver's node for memory, which is of a group of its own.
const UVM_CLOSED: Directive = closed("char-nvidia-uvm", &["/dev/nvidia-uvm"]);
const KFD_CLOSED: Directive = closed("char-kfd", &["/dev/kfd"]);
const CARD_CLOSED: Directive = closed("char-drm", &["/dev/dri/renderD#"]);
const ACCEL_CLOSED: Directive = closed("char-accel", &["/dev/accel/accel#"]);

const NO_NETWORK: Directive =
    Directive { property: "PrivateNetwork", blocks: Blocks::When("yes"), why: "hides the network" };
const NO_ADDRESSES: Directive = Directive {
    property: "RestrictAddressFamilies",
    blocks: Blocks::Unless("AF_INET"),
    why: "forbids sockets of a network",
};

const ON_NVIDIA: &[Directive] =
    &[NO_NODES, NVIDIA_CLOSED, UVM_CLOSED, NO_CODE, NO_PROC, NO_BINDING];
const ON_AMD: &[Directive] = &[NO_NODES, KFD_CLOSED, CARD_CLOSED, NO_CODE, NO_PROC, NO_BINDING];
const ON_CARD: &[Directive] = &[NO_NODES, CARD_CLOSED, NO_CODE, NO_PROC];
const ON_NPU: &[Directive] = &[NO_NODES, ACCEL_CLOSED, NO_CODE, NO_PROC];
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

const CARD_NODE: Node = Node { path: "/dev/dri/renderD#", needed: true, next: RENDER };
const ACCEL_NODE: Node = Node { path: "/dev/accel/accel#", needed: true, next: RENDER };

/// OpenVINO on the CPU, which it takes by itself.
const OPENVINO: Facts = Facts {
    provider: Provider::OpenVino,
    beside: Some("libonnxruntime_providers_openvino.so"),
    nodes: &[Node { needed: false, ..CARD_NODE }, Node { needed: false, ..ACCEL_NODE }],
    directives: ON_CPU,
    profile: "onnx-runtime",
    ..PLAIN
};
const OPENVINO_ON_CARD: Facts =
    Facts { nodes: &[CARD_NODE], directives: ON_CARD, profile: "gpu", ..OPENVINO };
const OPENVINO_ON_NPU: Facts =
    Facts { nodes: &[ACCEL_NODE], directives: ON_NPU, profile: "gpu", ..OPENVINO };

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
        nodes: &[CARD_NODE],
        directives: ON_CARD,
        profile: "gpu",
        ..PLAIN
    },
    Facts { provider: Provider::Ggml, directives: ON_CPU, profile: "onnx-runtime", ..PLAIN },
    OPENVINO,
    Facts {
        provider: Provider::MiGraphX,
        beside: Some("libonnxruntime_providers_migraphx.so"),
        hardware: Some(&AMD),
        nodes: &[Node { path: "/dev/kfd", needed: true, next: KFD }, CARD_NODE],
        directives: ON_AMD,
        profile: "gpu",
        ..PLAIN
    },
    Facts { provider: Provider::Remote, directives: ELSEWHERE, profile: "remote", ..PLAIN },
];

/// The CPU, computed on by ONNX Runtime and not by our own kernels.
const CPU_BY_RUNTIME: Facts = Facts { directives: ON_CPU, profile: "onnx-runtime", ..PLAIN };

/// What is known of a provider; nothing special of one that the table does not have.
pub fn of(provider: Provider) -> &'static Facts {
    FACTS.iter().find(|facts| facts.provider == provider).unwrap_or(&PLAIN)
}

/// What is known of a provider on what the settings have it compute.
pub fn configured(provider: Provider, settings: &Settings) -> &'static Facts {
    let is_on = |kind: &str| {
        let mut options = told("openvino", settings).into_iter();
        options.any(|(key, value)| {
            let device = matches!(value, Told::Value(name) if name.starts_with(kind));
            key == "device_type" && device
        })
    };
    match provider {
        Provider::Cpu if settings.cpu_engine == CpuEngine::Ort => &CPU_BY_RUNTIME,
        Provider::OpenVino if is_on("GPU") => &OPENVINO_ON_CARD,
        Provider::OpenVino if is_on("NPU") => &OPENVINO_ON_NPU,
        _ => of(provider),
    }
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::Sources;

    use super::*;

    #[test]
    fn openvino_needs_what_its_device_needs() {
        let mut settings = Settings::load(&Sources::under("/nowhere")).unwrap().settings;
        assert_eq!(configured(Provider::OpenVino, &settings).profile, "onnx-runtime");
        for (device, driver) in [("GPU.1", "char-drm"), ("NPU", "char-accel")] {
            let own = settings.providers.entry("openvino".to_owned()).or_default();
            own.checked.insert("device_type".to_owned(), device.to_owned());
            let facts = configured(Provider::OpenVino, &settings);
            assert_eq!(facts.profile, "gpu");
            let is_closed =
                |one: &Directive| matches!(one.blocks, Blocks::Closed(is, _) if is == driver);
            assert!(facts.directives.iter().any(is_closed), "{device}");
        }
    }

    #[test]
    fn each_provider_is_in_the_table_once() {
        for (position, facts) in FACTS.iter().enumerate() {
            assert!(FACTS[..position].iter().all(|other| other.provider != facts.provider));
        }
    }
}
