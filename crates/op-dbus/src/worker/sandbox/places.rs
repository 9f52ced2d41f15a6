//! Where a worker may read, write and reach a device: by what it computes with.
//!
//! What our own engine and ONNX Runtime on the CPU open was watched, and theirs is the short list. The
//! drivers of accelerators open more, and other files on each machine; their lists name whole folders
//! of the system, in which nothing is secret. A place that is not there is passed over.

use std::path::{Path, PathBuf};

use op_dbus_daemon::service::WorkerConfig;
use op_dbus_embedder::backend::{CPU, CpuEngine, REMOTE, Spec};
use op_dbus_models::runtime;

use super::calls::Network;

/// About the process, its CPUs and its memory: read by the C and the Rust library as well.
const PROCESS: &[&str] = &[
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
];

/// Libraries of the system, and what tells the dynamic loader where they are.
const LIBRARIES: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// What drivers of accelerators bring and read, whichever it is. The kernel describes its devices in
/// `/sys` and the rest.
const DRIVERS: &[&str] = &[
    "/usr",
    "/opt",
    "/etc/vulkan",
    "/etc/OpenCL",
    "/etc/glvnd",
    "/etc/egl",
    "/etc/drirc",
    "/etc/nvidia",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/run/opengl-driver",
    "/sys",
    "/proc/bus/pci",
    "/proc/devices",
    "/proc/driver",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys",
    "/proc/version",
];

/// By what the C library looks up the address of a machine.
const NAMES: &[&str] = &[
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/run/systemd/resolve",
];
/// The port of those who know the addresses.
const NAMES_PORT: u16 = 53;
/// Options of the remote provider that name a file.
const REMOTE_FILES: [&str; 2] = ["ca_file", "token_file"];

/// Nodes by the beginning of their names in `/dev`: NVIDIA's are several, and a folder.
const NVIDIA: &[&str] = &["nvidia"];
/// A Vulkan device is behind a graphics driver of the kernel or behind NVIDIA's.
const VULKAN: &[&str] = &["dri", "nvidia", "dxg"];
const OPENVINO: &[&str] = &["dri", "accel"];
const ROCM: &[&str] = &["kfd", "dri"];

/// What a worker may do with files.
#[derive(Debug, Default)]
pub struct Places {
    /// Files, and folders with all that is in them, to read.
    pub read: Vec<PathBuf>,
    /// Folders to read, write, make and remove files in.
    pub write: Vec<PathBuf>,
    /// Files to read and write but not to make, and devices.
    pub nodes: Vec<PathBuf>,
    /// TCP ports to connect to, of whichever machine.
    pub ports: Vec<u16>,
    /// Whether programs may be started, of those that may be read. They are confined as well.
    pub programs: bool,
}

/// The places of a worker that is told `config`.
pub fn of(config: &WorkerConfig) -> Places {
    let spec = &config.backend;
    let mut places = Places {
        read: PROCESS.iter().map(PathBuf::from).collect(),
        // Its model's folder in the cache, and no other's. What others' libraries write is in here as well: the
        // daemon sets TMPDIR to it.
        write: vec![spec.cache_dir.clone()],
        nodes: vec![PathBuf::from("/dev/null")],
        ports: Vec::new(),
        programs: false,
    };
    places.read.push(spec.model_dir.join(&spec.model));
    if spec.provider == REMOTE {
        return elsewhere(config, places);
    }
    if !by_libraries(spec) {
        return places;
    }
    places.read.extend(LIBRARIES.iter().map(PathBuf::from));
    places.read.push(runtime::beside(&spec.model_dir));
    let own = [Some(&spec.runtime), spec.provider_library.as_ref()];
    places.read.extend(own.into_iter().flatten().filter_map(|path| folder_of(path)));
    if spec.provider == CPU {
        // ONNX Runtime looks there for what else could compute.
        places.read.push(PathBuf::from("/sys/bus/pci/devices"));
        return places;
    }
    places.read.extend(DRIVERS.iter().map(PathBuf::from));
    // NVIDIA's driver names its threads there, and does not start if it can't.
    places.nodes.push(PathBuf::from("/proc/self"));
    let nodes = match spec.provider.as_str() {
        "cuda" | "tensorrt" => NVIDIA,
        "openvino" => OPENVINO,
        "migraphx" => ROCM,
        // Also ggml, whose library looks for a Vulkan device by itself, and libraries of the user's own.
        _ => VULKAN,
    };
    places.nodes.extend(nodes_in(Path::new("/dev"), nodes));
    if spec.provider == "migraphx" {
        // It compiles kernels for the device with a program of its own, and ROCm's processes share
        // what they know of the devices.
        places.programs = true;
        places.write.push(PathBuf::from("/dev/shm"));
    }
    places
}

/// Whether libraries of others compute in a worker with this backend.
pub fn by_libraries(spec: &Spec) -> bool {
    match spec.provider.as_str() {
        REMOTE => false,
        CPU => spec.cpu_engine == CpuEngine::Ort,
        _ => true,
    }
}

/// What a worker needs beside the model whose batches others compute: nothing to write, and no library
/// but those by which names are looked up.
fn elsewhere(config: &WorkerConfig, mut places: Places) -> Places {
    places.write.clear();
    places.ports.clone_from(&config.tcp_ports);
    let options = config.backend.provider_options.iter();
    let named = options.filter(|(key, _)| REMOTE_FILES.contains(&key.as_str()));
    places.read.extend(named.map(|(_, path)| PathBuf::from(path)));
    if config.look_up_names {
        places.read.extend(NAMES.iter().chain(LIBRARIES).map(PathBuf::from));
        places.ports.push(NAMES_PORT);
    }
    places
}

/// Whom a worker that is told `config` may connect to.
pub fn network(config: &WorkerConfig) -> Network {
    match (config.backend.provider.as_str(), config.look_up_names) {
        ("cuda" | "tensorrt", _) => Network::NoneListening,
        (REMOTE, false) => Network::Tcp,
        (REMOTE, true) => Network::TcpByName,
        _ => Network::None,
    }
}

/// The folder that a library may need others from. Those of a Python package lie in several beside
/// each other.
fn folder_of(library: &Path) -> Option<PathBuf> {
    let library = library.canonicalize().ok()?;
    let packages = library.ancestors().find(|folder| {
        folder.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
    });
    packages.or(library.parent()).map(Path::to_owned)
}

/// What is in `folder` under a name that begins with one of `prefixes`.
fn nodes_in(folder: &Path, prefixes: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    entries.map(|entry| entry.path()).filter(named).collect()
}

#[cfg(test)]
mod tests {
    use op_dbus_embedder::backend::CpuEngine::{Native, Ort};

    use super::*;

    fn config(provider: &str, cpu_engine: CpuEngine) -> WorkerConfig {
        let backend = Spec {
            model_dir: "/m/models".into(),
            model: "tiny".to_owned(),
            cache_dir: "/c".into(),
            runtime: "/bin/sh".into(),
            cpu_engine,
            provider: provider.to_owned(),
            ..Spec::default()
        };
        WorkerConfig { backend, ..WorkerConfig::default() }
    }

    fn places(provider: &str, cpu_engine: CpuEngine) -> Places {
        of(&config(provider, cpu_engine))
    }

    #[test]
    fn who_has_a_network_has_nothing_else() {
        let mut remote = WorkerConfig { tcp_ports: vec![8000, 443], ..config("remote", Ort) };
        let file = ("ca_file".to_owned(), "/etc/ours.pem".to_owned());
        remote.backend.provider_options.push(file);
        assert_eq!(network(&remote), Network::Tcp);
        let places = of(&remote);
        assert_eq!((&places.write[..], &places.ports[..]), (&[][..], &[8000, 443][..]));
        assert!(reads(&places, "/etc/ours.pem") && reads(&places, "/m/models/tiny/config.json"));
        for path in ["/etc/resolv.conf", "/usr/lib/libc.so", "/m/runtime/x.so", "/c/drivers"] {
            assert!(!reads(&places, path), "{path}");
        }
        let named = WorkerConfig { look_up_names: true, ..remote };
        assert_eq!(network(&named), Network::TcpByName);
        let places = of(&named);
        assert_eq!(places.ports, [8000, 443, 53]);
        assert!(reads(&places, "/etc/resolv.conf") && !reads(&places, "/etc/passwd"));
        for provider in ["cpu", "cuda", "webgpu"] {
            let own = config(provider, Ort);
            let other = WorkerConfig { tcp_ports: vec![8000], look_up_names: true, ..own };
            let expected = match provider {
                "cuda" => Network::NoneListening,
                _ => Network::None,
            };
            assert_eq!(network(&other), expected, "{provider}");
            assert!(of(&other).ports.is_empty(), "{provider}");
        }
    }

    fn reads(places: &Places, path: &str) -> bool {
        places.read.iter().any(|place| Path::new(path).starts_with(place))
    }

    #[test]
    fn who_computes_without_libraries_places_no_thread_by_number() {
        let by = |provider, cpu_engine| by_libraries(&config(provider, cpu_engine).backend);
        assert!(!by("cpu", Native) && !by("remote", Ort));
        assert!(by("cpu", Ort) && by("cuda", Native));
    }

    #[test]
    fn our_own_engine_reads_no_library() {
        let native = places("cpu", Native);
        assert!(reads(&native, "/m/models/tiny/model.safetensors"));
        for path in ["/m/models/other/model.safetensors", "/usr/lib/libc.so", "/m/runtime/x.so"] {
            assert!(!reads(&native, path), "{path}");
        }
    }

    #[test]
    fn the_cpu_has_no_device_and_nobody_the_files_of_users() {
        for (provider, engine) in [("cpu", Native), ("cpu", Ort), ("ggml", Ort), ("cuda", Ort)] {
            let places = places(provider, engine);
            assert_eq!(places.write, [Path::new("/c")], "{provider}");
            for path in ["/etc/passwd", "/var/lib/x", "/proc/1/environ", "/run/dbus/x", "/tmp/x"] {
                assert!(!reads(&places, path), "{provider}, {engine:?}: {path}");
            }
            if provider == "cpu" {
                assert_eq!(places.nodes, [Path::new("/dev/null")], "{engine:?}");
            }
            assert!(!places.programs, "{provider}");
        }
        assert!(reads(&places("cpu", Ort), "/m/runtime/onnxruntime-1/x.so"));
        assert!(places("migraphx", Ort).programs);
    }

    #[test]
    fn a_library_of_a_python_package_has_its_neighbours() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let packages = root.join("site-packages");
        for (library, expected) in [
            (packages.join("onnxruntime/capi/x.so"), packages.clone()),
            (root.join("lib/x.so"), root.join("lib")),
        ] {
            std::fs::create_dir_all(library.parent().unwrap()).unwrap();
            std::fs::write(&library, "").unwrap();
            assert_eq!(folder_of(&library), Some(expected));
        }
        assert_eq!(folder_of(&root.join("absent.so")), None);
    }

    #[test]
    fn nodes_are_found_by_the_beginning_of_their_names() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidiactl", "null", "dri"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(nodes_in(dev.path(), NVIDIA).len(), 2);
        assert_eq!(nodes_in(dev.path(), OPENVINO), [dev.path().join("dri")]);
    }
}
