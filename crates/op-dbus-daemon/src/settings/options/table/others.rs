//! WebGPU, OpenVINO and MIGraphX.

use super::super::super::kind::{Choice, Kind, digits};
use super::super::Preset::{Setting, Theirs};
use super::super::{Form, ProviderOption};
use super::{ARENAS, MEMORY, count, migraphx, name, openvino, webgpu};

const POWER: &[Choice] = &[name("high-performance"), name("low-power")];
const LAYOUTS: &[Choice] = &[name("NCHW"), name("NHWC")];
const BACKENDS: &[Choice] = &[name("Vulkan"), name("D3D12")];
const BUFFERS: &[Choice] = &[name("disabled"), name("lazyRelease"), name("simple"), name("bucket")];
const VALIDATIONS: &[Choice] = &[name("disabled"), name("wgpuOnly"), name("basic"), name("full")];
const OPENVINO_DEVICE: Kind = Kind::Text {
    accepted: "`CPU`, `GPU`, `GPU.0`, `NPU`, or `AUTO:`, `HETERO:` or `MULTI:` and such a list",
    is_right: is_openvino_device,
};

fn is_openvino_device(text: &str) -> bool {
    let (combined, list) = match text.split_once(':') {
        Some((how, list)) => (["AUTO", "HETERO", "MULTI"].contains(&how), list),
        None => (!text.contains(','), text),
    };
    let device = |device: &str| {
        let (kind, number) = device.split_once('.').unwrap_or((device, "0"));
        ["CPU", "GPU", "NPU"].contains(&kind) && digits(number).is_some_and(|number| number <= 255)
    };
    combined && list.split(',').all(device)
}

/// A switch of OpenVINO's, which wants words where others want digits.
const fn words(key: &'static str, default: &'static str, doc: &'static str) -> ProviderOption {
    ProviderOption { form: Form::Words, ..openvino(key, Kind::Bool, Theirs(default), doc) }
}

/// Their options, in the order in which they are shown.
pub const OPTIONS: &[ProviderOption] = &[
    webgpu(
        "powerPreference",
        Kind::Choice(POWER),
        Theirs("high-performance"),
        "Which GPU is taken of several: the fast one, or the one that draws less.",
    ),
    webgpu(
        "preferredLayout",
        Kind::Choice(LAYOUTS),
        Theirs("NHWC"),
        "The layout of images, which encoders of texts don't have.",
    ),
    webgpu(
        "dawnBackendType",
        Kind::Choice(BACKENDS),
        Theirs("Vulkan"),
        "Through which driver the GPU is reached.",
    ),
    webgpu(
        "storageBufferCacheMode",
        Kind::Choice(BUFFERS),
        Theirs("bucket"),
        "How buffers of data are kept for the next batch.",
    ),
    webgpu(
        "uniformBufferCacheMode",
        Kind::Choice(BUFFERS),
        Theirs("simple"),
        "The same for buffers of parameters.",
    ),
    webgpu(
        "validationMode",
        Kind::Choice(VALIDATIONS),
        Theirs("basic"),
        "How much of what the provider asks of the driver is checked.",
    ),
    webgpu(
        "enableGraphCapture",
        Kind::Bool,
        Theirs("false"),
        "Whether batches of up to 256 tokens are recorded, one of each shape, and replayed.",
    ),
    openvino(
        "device_type",
        OPENVINO_DEVICE,
        Theirs("CPU"),
        "What OpenVINO computes on: `GPU` with `gpu_device` for one or several of that kind. This \
        and what follows is for an ONNX Runtime that has OpenVINO built in, as `op-dbus runtime \
        pull` brings it. A plugin library ignores all of it, and is therefore not used with any of \
        it: it computes on what `gpu_device` says, and takes the rest in OpenVINO's words as \
        `load_config`, JSON, in `[providers.openvino.options]`.",
    ),
    openvino("num_of_threads", count(1, 1024), Theirs("8"), "Threads of the CPU."),
    openvino("num_streams", count(1, 255), Theirs("1"), "Batches that are computed side by side."),
    ProviderOption {
        form: Form::Folder,
        ..openvino(
            "cache_dir",
            Kind::Bool,
            Theirs("false"),
            "Whether compiled models are kept below `cache_dir`.",
        )
    },
    words("enable_opencl_throttling", "false", "Whether the CPU rests while it waits for a GPU."),
    words("enable_qdq_optimizer", "false", "Whether quantized graphs are rewritten for an NPU."),
    migraphx(
        "migraphx_fp16_enable",
        Kind::Bool,
        Theirs("false"),
        "Whether MIGraphX may compute in 16-bit floating point. The vector space then says `f16`.",
    ),
    migraphx(
        "migraphx_exhaustive_tune",
        Kind::Bool,
        Theirs("false"),
        "Whether every way to compute is tried while compiling.",
    ),
    migraphx(
        "migraphx_mem_limit",
        MEMORY,
        Setting("gpu_memory_limit"),
        "Bytes of device memory that the arena of each worker may take.",
    ),
    migraphx(
        "migraphx_arena_extend_strategy",
        Kind::Choice(ARENAS),
        Setting("arena_strategy"),
        "How the arena grows: to the next power of two, or by what a batch asks for.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openvino_devices_are_one_or_a_named_combination() {
        for right in ["CPU", "GPU", "GPU.1", "NPU", "AUTO:GPU,CPU", "HETERO:NPU,GPU.0", "MULTI:GPU"]
        {
            assert!(is_openvino_device(right), "{right}");
        }
        for wrong in
            ["", "cpu", "GPU.", "GPU.+1", "GPU,CPU", "AUTO:", "BOTH:GPU", "AUTO:GPU,", "TPU"]
        {
            assert!(!is_openvino_device(wrong), "{wrong}");
        }
    }
}
