//! WebGPU, OpenVINO and MIGraphX.

use super::super::super::kind::{Choice, Kind, digits};
use super::super::{Form, ProviderOption};
use super::{migraphx, name, openvino, webgpu};

const POWER: &[Choice] = &[name("high-performance"), name("low-power")];
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

/// Their options, in the order in which they are shown.
pub const OPTIONS: &[ProviderOption] = &[
    webgpu(
        "powerPreference",
        Kind::Choice(POWER),
        "high-performance",
        "Which GPU is taken of several: the fast one, or the one that draws less.",
    ),
    webgpu(
        "enableGraphCapture",
        Kind::Bool,
        "false",
        "Whether batches of up to 256 tokens are recorded, one of each shape, and replayed.",
    ),
    openvino(
        "device_type",
        OPENVINO_DEVICE,
        "CPU",
        "What OpenVINO computes on: `GPU` with `gpu_device` for one or several of that kind. This \
        and what follows is for an ONNX Runtime that has OpenVINO built in, as `op-dbus runtime \
        pull` brings it. A plugin library ignores all of it, and is therefore not used with any of \
        it: it computes on what `gpu_device` says, and takes the rest in OpenVINO's words as \
        `load_config`, JSON, in `[providers.openvino.options]`.",
    ),
    ProviderOption {
        form: Form::Folder,
        ..openvino(
            "cache_dir",
            Kind::Bool,
            "false",
            "Whether compiled models are kept below `cache_dir`.",
        )
    },
    migraphx(
        "migraphx_fp16_enable",
        Kind::Bool,
        "false",
        "Whether MIGraphX may compute in 16-bit floating point. The vector space then says `f16`.",
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
