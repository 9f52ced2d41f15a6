//! Providers that the runtime library has in itself, each asked for in its own way.

use ort::ep;
use ort::ep::{ArbitrarilyConfigurableExecutionProvider, ExecutionProvider};
use ort::session::builder::SessionBuilder;

use crate::{Accelerator, openvino};

/// Asks for the provider; returns what the runtime says, and the provider's name in its words. `None`: it
/// comes by a library of its own alone.
pub(crate) fn ask(
    accelerator: &Accelerator,
    builder: &mut SessionBuilder,
) -> Option<(ort::Result<()>, &'static str)> {
    let device = i32::try_from(accelerator.device).unwrap_or(i32::MAX);
    let options = &accelerator.options[..];
    Some(match accelerator.provider.as_str() {
        "cuda" => register(ep::CUDA::default().with_device_id(device), options, builder),
        "tensorrt" => register(ep::TensorRT::default().with_device_id(device), options, builder),
        "migraphx" => migraphx(ep::MIGraphX::default().with_device_id(device), options, builder),
        "openvino" => openvino(options, builder),
        "webgpu" => first(ep::WebGPU::default(), accelerator, builder),
        "coreml" => first(ep::CoreML::default(), accelerator, builder),
        "directml" => plain(ep::DirectML::default().with_device_id(device), options, builder),
        _ => return None,
    })
}

/// How many devices the provider has there to choose from by number; 0 where the runtime does not tell.
pub(crate) fn devices(accelerator: &Accelerator) -> usize {
    match accelerator.provider.as_str() {
        "openvino" => openvino::devices(accelerator),
        // They are told no number and take their first.
        "webgpu" | "coreml" => 1,
        _ => 0,
    }
}

/// Asks for a provider with its own settings; returns its name in ONNX Runtime's words.
fn register<P: ExecutionProvider + ArbitrarilyConfigurableExecutionProvider>(
    mut provider: P,
    options: &[(String, String)],
    builder: &mut SessionBuilder,
) -> (ort::Result<()>, &'static str) {
    for (key, value) in options {
        provider = provider.with_arbitrary_config(key, value);
    }
    (provider.register(builder), P::NAME)
}

/// As [`register`], for OpenVINO, which computes on the CPU what an NPU does not compile, and says so in a log
/// alone, unless the session is told that nothing may.
fn openvino(
    options: &[(String, String)],
    builder: &mut SessionBuilder,
) -> (ort::Result<()>, &'static str) {
    if openvino::is_npu(options) {
        let strict = builder.clone().with_config_entry("session.disable_cpu_ep_fallback", "1");
        match strict {
            Ok(strict) => *builder = strict,
            Err(error) => return (Err(error.into()), ep::OpenVINO::NAME),
        }
    }
    register(ep::OpenVINO::default(), options, builder)
}

/// As [`register`], for a provider that is told no number of a device and takes its first.
fn first<P: ExecutionProvider + ArbitrarilyConfigurableExecutionProvider>(
    provider: P,
    accelerator: &Accelerator,
    builder: &mut SessionBuilder,
) -> (ort::Result<()>, &'static str) {
    match is_first(accelerator) {
        Ok(()) => register(provider, &accelerator.options, builder),
        Err(why) => (Err(ort::Error::new(why)), P::NAME),
    }
}

/// Whether the first device is asked for: another would be no more than another name for it.
fn is_first(Accelerator { provider, device, .. }: &Accelerator) -> Result<(), String> {
    match device {
        0 => Ok(()),
        _ => Err(format!("{provider} has one device there, 0, and gpu_device names {device}")),
    }
}

/// As [`register`], for MIGraphX, which takes its settings in a structure.
fn migraphx(
    mut provider: ep::MIGraphX,
    options: &[(String, String)],
    builder: &mut SessionBuilder,
) -> (ort::Result<()>, &'static str) {
    let name = ep::MIGraphX::NAME;
    for (key, value) in options {
        provider = match (key.as_str(), value.as_str(), value.parse::<usize>()) {
            ("migraphx_fp16_enable", "0" | "1", _) => provider.with_fp16(value == "1"),
            ("migraphx_exhaustive_tune", "0" | "1", _) => {
                provider.with_exhaustive_tune(value == "1")
            }
            ("migraphx_mem_limit", _, Ok(bytes)) => provider.with_mem_limit(bytes),
            ("migraphx_arena_extend_strategy", "kNextPowerOfTwo", _) => {
                provider.with_arena_extend_strategy(ep::ArenaExtendStrategy::NextPowerOfTwo)
            }
            ("migraphx_arena_extend_strategy", "kSameAsRequested", _) => {
                provider.with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
            }
            _ => return (Err(ort::Error::new(format!("it has no option {key} = {value}"))), name),
        };
    }
    (provider.register(builder), name)
}

/// As [`register`], for a provider that takes no settings by name.
fn plain<P: ExecutionProvider>(
    provider: P,
    options: &[(String, String)],
    builder: &mut SessionBuilder,
) -> (ort::Result<()>, &'static str) {
    let refused = |(key, _): &(String, String)| {
        Err(ort::Error::new(format!("it takes no options, and not {key}; leave it out")))
    };
    (options.first().map_or_else(|| provider.register(builder), refused), P::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_is_told_no_number_has_its_first_device_alone() {
        let on = |device| is_first(&Accelerator { device, ..Accelerator::of("webgpu", &[]) });
        assert_eq!(on(0), Ok(()));
        let refusal = "webgpu has one device there, 0, and gpu_device names 1";
        assert_eq!(on(1), Err(refusal.to_owned()));
    }
}
