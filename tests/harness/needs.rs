//! What a test needs of the machine. A test without it is skipped, visibly, and the reason said.

use std::env;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope,
};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Outcome, polkit};

/// Something that a bare machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `dbus-daemon`, for a private bus.
    Bus,
    /// The ONNX Runtime library.
    Runtime,
    /// The ggml provider's library, and the runtime that loads it.
    Ggml,
    /// The ONNX Runtime library that has OpenVINO in itself.
    OpenVino,
    /// WebGPU's library, the runtime that loads it, and Chromium's Vulkan device, which is the CPU.
    WebGpu,
    /// The model of level `low`.
    Low,
    /// The model of level `medium`.
    Medium,
    /// The model of level `high`.
    High,
    /// `busctl`.
    Busctl,
    /// `gdbus`.
    Gdbus,
    /// `python3` with the package `jeepney`.
    Python,
    /// The Python environment with what our own package is built from and depends on.
    PythonPackages,
    /// The Python packages of the examples for clusters: Dask and Ray.
    Cluster,
    /// The examples of `op-dbus-api`, which `cargo build --examples` builds.
    RustExamples,
    /// Those of `op-dbus-embedder` and `op-dbus-engine`.
    LibraryExamples,
    /// `localedef`, and what it makes the German locale of.
    Locales,
    /// A C compiler, `pkg-config`, and the headers of sd-bus.
    SdBus,
    /// `curl`.
    Curl,
    /// `jq`.
    Jq,
    /// `python3` with the clients of the HTTP gateway.
    PythonHttp,
    /// `python3` with Triton, llama.cpp's server, and what they need.
    Fleet,
    /// The same, and what Triton needs of `python3`'s version.
    Triton,
    /// `openssl`, and `python3` to serve with what it makes.
    OpenSsl,
    /// Chromium and its driver.
    Chromium,
    /// `strace` that may attach to our own processes.
    Strace,
    /// The library of `faketime`, which sets the clock of one process.
    Faketime,
    /// `tmux`, as a terminal that a test can read.
    Tmux,
    /// `groff`, which reads manual pages.
    Groff,
    /// Shells that complete our command line.
    Bash,
    Zsh,
    Fish,
    /// Root with its rights: to become another user, to lay files over others, to look into processes.
    Root,
    /// `setfacl`.
    Acl,
    /// `systemd-analyze`, and the units of systemd itself.
    SystemdAnalyze,
    /// `polkitd`.
    Polkit,
    /// HAProxy.
    Haproxy,
    /// The right to make network namespaces, and the programs for it.
    Network,
    /// A kernel whose Landlock restricts files, TCP and signals.
    Landlock,
    /// A machine without NVIDIA's driver.
    NoNvidia,
    /// A machine without a graphics card.
    NoGraphics,
}

impl Need {
    /// Why the need isn't met; `None` when it is. Cheap: listing the tests asks this for each.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Bus => program("dbus-daemon"),
            Self::Busctl => program("busctl"),
            Self::Gdbus => program("gdbus"),
            Self::Tmux => program("tmux"),
            Self::Faketime => unless(faketime().is_some(), "libfaketime is not installed"),
            Self::Curl => program("curl"),
            Self::Jq => program("jq"),
            Self::OpenSsl => program("python3").or_else(|| program("openssl")),
            Self::Chromium => program("chromium").or_else(|| program("chromedriver")),
            Self::Groff => program("groff"),
            Self::Bash => program("bash"),
            Self::Zsh => program("zsh"),
            Self::Fish => program("fish"),
            Self::Strace => {
                program("strace").or_else(|| unless(may_trace(), "ptrace is not allowed"))
            }
            Self::Root => unless(nix::unistd::Uid::effective().is_root(), "not root")
                .or_else(|| unless(are_others(), "no other user is in this namespace"))
                .or_else(|| unless(mounts(), "root without CAP_SYS_ADMIN"))
                .or_else(|| unless(looks_into_all(), "root without CAP_SYS_PTRACE"))
                .or_else(|| program("setpriv")),
            Self::Acl => program("setfacl"),
            Self::SystemdAnalyze => program("systemd-analyze").or_else(|| {
                unless(systemd_units().is_some(), "the units of systemd are not installed")
            }),
            Self::Polkit => unless(polkit::program().is_some(), "polkitd is not installed"),
            Self::Haproxy => program("haproxy"),
            Self::Network => program("ip")
                .or_else(|| program("nsenter"))
                .or_else(|| unless(namespace("--net"), "no network namespace can be made")),
            Self::Landlock => unless(landlock(), "the kernel has no Landlock of version 6"),
            Self::NoNvidia => absent("/proc/driver/nvidia/version"),
            Self::NoGraphics => absent("/sys/class/drm/card0"),
            Self::Python => python_package(python_path().join("jeepney")),
            Self::PythonHttp => python_package(python_http_path().join("schemathesis")),
            Self::Cluster => python_package(cluster_path().join("ray")),
            Self::Fleet => python_package(fleet_path().join("tokenizers")),
            Self::Triton => Self::Fleet.missing().or_else(triton),
            Self::RustExamples => examples(&["nearest", "rank", "search"]),
            Self::LibraryExamples => examples(&["bulk", "fallback", "full_batches"])
                .or_else(|| examples(&["gpu_demo", "gpu_optimization"])),
            Self::Locales => program("localedef").or_else(|| {
                let source = Path::new("/usr/share/i18n/locales/de_DE");
                unless(source.is_file(), &format!("{} is not installed", source.display()))
            }),
            Self::SdBus => program("cc").or_else(|| program("pkg-config")).or_else(|| {
                let header = Path::new("/usr/include/systemd/sd-bus.h");
                unless(header.is_file(), &format!("{} is not installed", header.display()))
            }),
            Self::PythonPackages => {
                let venv = test_venv();
                let complete = venv.join("complete").is_file();
                unless(complete, &format!("no Python environment at {}", venv.display()))
            }
            Self::Runtime => library("onnxruntime-1."),
            Self::Ggml => library("onnxruntime-ggml"),
            Self::OpenVino => library("onnxruntime-openvino"),
            Self::WebGpu => library("onnxruntime-ep-webgpu").or_else(|| {
                let vulkan = [VULKAN_DEVICE, "/etc/vulkan/icd.d"];
                let missing = vulkan.iter().find(|path| !Path::new(path).exists())?;
                Some(format!("{missing} is not installed"))
            }),
            Self::Low => stored("paraphrase-MiniLM-L3-v2"),
            Self::Medium => stored("all-MiniLM-L6-v2"),
            Self::High => stored("all-mpnet-base-v2"),
        }
    }
}

/// SwiftShader, a Vulkan device in software, as Debian has it. Vulkan's loader (`libvulkan1`) has its folder
/// for devices beside it.
pub const VULKAN_DEVICE: &str = "/usr/lib/chromium/libvk_swiftshader.so";

/// The library that lets a process see another time; distributions have several folders for it.
pub fn faketime() -> Option<PathBuf> {
    let folders = Path::new("/usr/lib").read_dir().ok()?.flatten().map(|entry| entry.path());
    let folders = folders.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.is_file())
}

/// The program under test.
pub fn op_dbus() -> PathBuf {
    let given = env::var_os("OP_DBUS_TEST_BINARY");
    given.map_or_else(|| profile_folder().join("op-dbus"), PathBuf::from)
}

/// An example in Rust, or another program that is built with them.
pub fn example(name: &str) -> PathBuf {
    profile_folder().join("examples").join(name)
}

/// The library that a worker is attacked with.
pub fn intruder() -> Outcome<PathBuf> {
    built(example("libintruder.so"))
}

/// The library that stands in for NVIDIA's management library.
pub fn fake_nvml() -> Outcome<PathBuf> {
    built(example("libfake_nvml.so"))
}

/// What has TensorRT's name and computes with ggml's library beside it.
pub fn fake_tensorrt() -> Outcome<PathBuf> {
    built(example("libfake_tensorrt.so"))
}

/// Puts one in the place of `library`, which may be a link, whose load never ends: the library that the new one looks
/// for beside it is a pipe, which nobody writes.
pub fn hang_in_its_load(library: &Path) -> Outcome {
    fs::remove_file(library)?;
    fs::copy(fake_tensorrt()?, library)?;
    Ok(mkfifo(&library.with_file_name("libonnxruntime_ggml.so"), Mode::S_IRWXU)?)
}

fn built(path: PathBuf) -> Outcome<PathBuf> {
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("{} was not built with the tests", path.display()).into()),
    }
}

/// The folder with `models/` and `runtime/` as `op-dbus models pull` and `runtime pull` leave it.
pub fn store() -> PathBuf {
    fetched("test-store")
}

/// Whether the namespace has other users than root.
fn are_others() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().nth(2) != Some("1") || map.lines().count() > 1
}

/// The folder with the Python packages that the Python client needs.
pub fn python_path() -> PathBuf {
    fetched("test-python")
}

/// The interpreter of the environment with what our own package is built from and depends on.
pub fn python_packages() -> PathBuf {
    test_venv().join("bin/python")
}

fn test_venv() -> PathBuf {
    fetched("test-venv")
}

/// The folder with the Python packages of the HTTP gateway's clients.
pub fn python_http_path() -> PathBuf {
    fetched("test-python-http")
}

/// The folder with Triton and llama.cpp's server as Python packages.
pub fn fleet_path() -> PathBuf {
    fetched("test-fleet")
}

/// The folder with the Python packages of the examples for clusters.
pub fn cluster_path() -> PathBuf {
    fetched("test-cluster")
}

fn python_package(path: PathBuf) -> Option<String> {
    program("python3")
        .or_else(|| unless(path.is_dir(), &format!("no Python package at {}", path.display())))
}

/// What Triton lacks, whose models are computed by a program for each version of Python, which has the
/// interpreter as a library.
fn triton() -> Option<String> {
    const TELL: &str = "
import ctypes, os, sys
version = f'{sys.version_info.major}.{sys.version_info.minor}'
library = f'libpython{version}.so.1.0'
if not os.path.isdir(os.path.join(sys.argv[1], version)):
    sys.exit(f'Triton knows no Python {version}')
try:
    ctypes.CDLL(library)
except OSError:
    sys.exit(f'{library} is not installed')
";
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let stubs = fleet_path().join("pytriton/tritonserver/python_backend_stubs");
        let told = Command::new("python3").args(["-c", TELL]).arg(stubs).output();
        match told {
            Ok(told) if told.status.success() => None,
            Ok(told) => Some(String::from_utf8_lossy(&told.stderr).trim().to_owned()),
            Err(error) => Some(format!("python3: {error}")),
        }
    };
    MISSING.get_or_init(ask).clone()
}

/// The folder with the units that systemd brings itself.
pub fn systemd_units() -> Option<PathBuf> {
    let places = ["/usr/lib/systemd/system", "/lib/systemd/system"].map(PathBuf::from);
    places.into_iter().find(|place| place.join("basic.target").is_file())
}

/// What `cargo xtask test` has fetched, beside `target/debug`.
fn fetched(name: &str) -> PathBuf {
    profile_folder().with_file_name(name)
}

/// `target/debug`, where this very program lies two folders deep.
fn profile_folder() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("")).to_owned()
}

fn program(name: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|folder| folder.join(name).is_file());
    unless(found, &format!("{name} is not installed"))
}

fn examples(names: &[&str]) -> Option<String> {
    let mut paths = names.iter().map(|name| example(name));
    let missing = paths.find(|path| !path.is_file())?;
    Some(format!("{} was not built", missing.display()))
}

fn library(prefix: &str) -> Option<String> {
    let found = first_in(&store().join("runtime"), prefix).is_some();
    unless(found, &format!("no {prefix}… in {}", store().display()))
}

/// ONNX Runtime's library as it was pulled for the CPU.
pub fn runtime() -> Option<PathBuf> {
    let folder = first_in(&store().join("runtime"), "onnxruntime-1.")?;
    first_in(&folder, "libonnxruntime.so")?.canonicalize().ok()
}

fn first_in(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let mut entries = folder.read_dir().ok()?.flatten();
    let named = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    entries.find(named).map(|entry| entry.path())
}

fn stored(model: &str) -> Option<String> {
    let store = store();
    let record = store.join("models").join(model).join("op-dbus.json");
    unless(record.is_file(), &format!("{model} is not in {}", store.display()))
}

/// Makes a set of rules and lets it go: that restricts nobody.
fn landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = rules.handle_access(AccessFs::from_all(ABI::V6)).and_then(|rules| {
        rules.handle_access(AccessNet::from_all(ABI::V6))?.scope(Scope::from_all(ABI::V6))
    });
    rules.and_then(Ruleset::create).is_ok()
}

/// Makes a namespace of that kind, which ends with the program in it.
fn namespace(kind: &str) -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args([kind, "true"]).stderr(std::process::Stdio::null());
    unshare.status().is_ok_and(|status| status.success())
}

/// Whether files can be laid over others. Asked once, as many tests need it.
fn mounts() -> bool {
    static MADE: OnceLock<bool> = OnceLock::new();
    *MADE.get_or_init(|| namespace("--mount"))
}

/// Yama's scopes 1 to 3 keep all but root, or everybody, from attaching to a running process.
fn may_trace() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => true,
        "1" | "2" => looks_into_all(),
        _ => false,
    }
}

/// Whether this process may look into every other one: as root, but for containers that take it from root.
pub fn looks_into_all() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    rights.is_some_and(|bits| bits & (1 << CAP_SYS_PTRACE) != 0)
}

/// What a test about its absence needs.
fn absent(path: &str) -> Option<String> {
    unless(!Path::new(path).exists(), &format!("{path} is there"))
}

fn unless(met: bool, reason: &str) -> Option<String> {
    (!met).then(|| reason.to_owned())
}
