//! Sessions on another execution provider than the CPU's: found, asked for by name, and never
//! silently replaced.

use std::collections::BTreeMap;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use op_dbus_engine::BackendError;
use ort::device::Device;
use ort::environment::Environment;
use ort::ep;
use ort::ep::ExecutionProvider;
use ort::memory::AllocationDevice;
use ort::session::builder::SessionBuilder;

use crate::{built_in, failure, library as file, session};

/// Threads of the CPU: what a provider leaves to it are shapes and lengths.
const THREADS: usize = 1;

/// Libraries that this process has registered, each with the names of its providers: ONNX Runtime takes
/// a library once, and several sessions may want it.
static REGISTERED: Mutex<BTreeMap<PathBuf, Vec<String>>> = Mutex::new(BTreeMap::new());

/// An execution provider other than the CPU's, and the device of it that is to compute.
#[derive(Clone, Debug)]
pub struct Accelerator {
    /// Public name: `cuda`, `webgpu`, ….
    pub provider: String,
    /// The plugin library that brings the provider; without one the runtime itself is to have it.
    pub library: Option<PathBuf>,
    /// Number of the device among those of the provider.
    pub device: usize,
    /// The provider's own settings, in its own words.
    pub options: Vec<(String, String)>,
}

/// Memory of a device, or that it reaches, in ONNX Runtime's words.
pub(crate) type Place = (AllocationDevice<'static>, i32);

/// Where a device computes, as seen from where batches are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// In the same memory.
    Same,
    /// The provider does not tell.
    Untold,
    /// In memory of its own, to and from which the driver copies.
    Separate,
    /// In memory of its own, to and from which it copies by itself what lies in memory that is made
    /// for that.
    Pinned,
}

impl Memory {
    /// Whether inputs are copied to the device when they are bound.
    pub fn is_separate(self) -> bool {
        matches!(self, Self::Separate | Self::Pinned)
    }

    /// Whether the device itself reads inputs, and writes results, where they lie here; none where that is
    /// not known. What is not bound comes back in a tensor that the runtime has made, and is copied out of it.
    pub fn is_in_place(self, bound: bool) -> Option<[bool; 2]> {
        match self {
            Self::Same => Some([true, bound]),
            Self::Pinned => Some([bound; 2]),
            Self::Separate => Some([false; 2]),
            Self::Untold => None,
        }
    }
}

impl Accelerator {
    /// Prepares a session on the device. Returns the name of the provider in ONNX Runtime's words
    /// and how many devices of it there are; 0 where the runtime does not tell.
    ///
    /// # Errors
    /// `ProviderUnavailable`, or `OutOfMemory`, with what the runtime, the library or the driver says.
    pub(crate) fn builder(
        &self,
        environment: &Environment,
    ) -> Result<(SessionBuilder, String, usize), BackendError> {
        match &self.library {
            Some(library) => self.plugin(environment, library),
            None => self.built_in(environment),
        }
    }

    /// A session on a device of a plugin library.
    fn plugin(
        &self,
        environment: &Environment,
        library: &Path,
    ) -> Result<(SessionBuilder, String, usize), BackendError> {
        let brought = self.registered(environment, library)?;
        self.refuse_another(&brought, library)?;
        // OpenVINO's brings each device once more, for what chooses by itself.
        let its = |device: &Device<'_>| {
            let name = named(device);
            brought.contains(&name) && self.names().contains(&name.as_str())
        };
        let devices: Vec<Device<'_>> = environment.devices().filter(its).collect();
        let count = devices.len();
        let Some(device) = devices.into_iter().nth(self.device) else {
            return Err(self.no_device(count));
        };
        if self.provider == "webgpu" && count > 1 {
            tracing::warn!(
                "webgpu shows {count} cards, and its library takes one of them by itself, whatever \
                 gpu_device says; powerPreference in [providers.webgpu] chooses"
            );
        }
        let name = named(&device);
        let options: Vec<(String, String)> =
            self.options.iter().map(|(key, v)| (format!("{name}.{key}"), v.clone())).collect();
        let builder = session::plain(environment, THREADS)
            .and_then(|builder| Ok(builder.with_devices([device], Some(&options))?))
            .map_err(|error| self.unavailable(error.to_string()))?;
        Ok((builder, name, count))
    }

    /// Has the runtime load a library of the provider, if it has not yet, and returns the names of the
    /// providers that came with it.
    fn registered(
        &self,
        environment: &Environment,
        library: &Path,
    ) -> Result<Vec<String>, BackendError> {
        let shown = library.display();
        // ONNX Runtime looks for a relative path beside itself.
        let checked = library.canonicalize().and_then(|path| Ok((file::problem(&path)?, path)));
        let (problem, path) = checked.map_err(|error| {
            self.unavailable(format!("its library {shown} can't be read ({error})"))
        })?;
        if let Some(problem) = problem {
            return Err(self.unavailable(format!("its library {shown} is {problem}")));
        }
        let names = || environment.devices().map(|device| named(&device));
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = registered.get(&path) {
            return Ok(own.clone());
        }
        let before: Vec<String> = names().collect();
        environment.register_ep_library(self.provider.clone(), &path).map_err(|error| {
            self.unavailable(format!("ONNX Runtime can't use its library {shown}: {error}"))
        })?;
        let own: Vec<String> = names().filter(|name| !before.contains(name)).collect();
        registered.insert(path, own.clone());
        Ok(own)
    }

    /// What ONNX Runtime calls the provider.
    fn names(&self) -> Vec<&str> {
        match self.provider.as_str() {
            // The second is what the plugin for it calls itself.
            "cuda" => vec![ep::CUDA::NAME, "CudaPluginExecutionProvider"],
            "tensorrt" => vec![ep::TensorRT::NAME, "NvTensorRTRTXExecutionProvider"],
            "migraphx" => vec![ep::MIGraphX::NAME],
            "openvino" => vec![ep::OpenVINO::NAME],
            "webgpu" => vec![ep::WebGPU::NAME],
            "coreml" => vec![ep::CoreML::NAME],
            "directml" => vec![ep::DirectML::NAME],
            provider => vec![provider],
        }
    }

    /// Refuses a library of another provider, of which what is told of device and precision would not be so. One
    /// whose devices are not there brings no name.
    fn refuse_another(&self, brought: &[String], library: &Path) -> Result<(), BackendError> {
        let (own, library) = (self.names(), library.display());
        let is_its = brought.iter().any(|name| own.contains(&name.as_str()));
        let Some(other) = brought.first().filter(|_| !is_its) else { return Ok(()) };
        Err(self.unavailable(format!(
            "its library {library} is another provider's: it brings one by the name {other}, and not {}",
            own[0]
        )))
    }

    fn no_device(&self, count: usize) -> BackendError {
        let (Self { provider, device, .. }, last) = (self, count.saturating_sub(1));
        self.unavailable(match count {
            0 => "its library finds no device that it can use".to_owned(),
            1 => format!("{provider} has one device here, 0, and gpu_device names {device}"),
            _ => format!("{provider} has devices 0 to {last} here, and gpu_device names {device}"),
        })
    }

    /// A session on a provider that the runtime library has in itself.
    fn built_in(
        &self,
        environment: &Environment,
    ) -> Result<(SessionBuilder, String, usize), BackendError> {
        let mut builder = session::plain(environment, THREADS)
            .map_err(|error| self.unavailable(error.to_string()))?;
        let asked = built_in::ask(self, &mut builder);
        let Some((registered, name)) = asked else {
            let needs = "it needs a provider library; name one in its table [providers]";
            return Err(self.unavailable(needs.to_owned()));
        };
        registered.map_err(|error| {
            // Of a device that is not there OpenVINO says nothing but in a log.
            let device = self.options.iter().find(|(key, _)| key == "device_type");
            let device =
                device.map_or(String::new(), |(key, device)| format!(" with {key} {device}"));
            self.unavailable(format!(
                "the ONNX Runtime library does not bring it up{device}: {error}"
            ))
        })?;
        Ok((builder, name.to_owned(), built_in::devices(self)))
    }

    /// The memory that the device computes in.
    pub(crate) fn memory(&self) -> Memory {
        match self.provider.as_str() {
            "cuda" | "tensorrt" | "migraphx" => Memory::Pinned,
            "webgpu" | "directml" => Memory::Separate,
            _ => Memory::Untold,
        }
    }

    /// Memory of the host that the device reads and writes by itself, and its own, in ONNX Runtime's
    /// words.
    pub(crate) fn places(&self) -> (Option<Place>, Option<Place>) {
        let number = i32::try_from(self.device).unwrap_or(i32::MAX);
        let at = |device| Some((device, number));
        match self.provider.as_str() {
            "cuda" | "tensorrt" => (at(AllocationDevice::CUDA_PINNED), at(AllocationDevice::CUDA)),
            "migraphx" => (at(AllocationDevice::HIP_PINNED), at(AllocationDevice::HIP)),
            "webgpu" | "directml" => (None, None),
            _ => (None, Some((AllocationDevice::CPU, 0))),
        }
    }

    /// Whether each new shape costs seconds or minutes, as the provider compiles for it.
    pub(crate) fn compiles_shapes(&self) -> bool {
        matches!(self.provider.as_str(), "tensorrt" | "migraphx")
    }

    /// Of all shapes, those between which the others lie, where the provider compiles for the range of what it has
    /// seen: with TensorRT, unless `trt_profile_*` says the range, whatever lies outside of it is compiled for anew
    /// (<https://github.com/microsoft/onnxruntime/pull/15546>), which takes up to minutes, and callers would wait.
    pub(crate) fn first_compiled(&self, shapes: &[[usize; 2]]) -> Vec<[usize; 2]> {
        let ranges = self.provider == "tensorrt"
            && !self.options.iter().any(|(key, _)| key.starts_with("trt_profile_"));
        if !ranges {
            return Vec::new();
        }
        let ends = [
            shapes.iter().max_by_key(|[rows, _]| *rows),
            shapes.iter().max_by_key(|[_, length]| *length),
        ];
        ends.into_iter().flatten().copied().collect()
    }

    /// The memory of the device itself, once the runtime is able to copy to it and back outside of a run.
    /// `name` is the provider's in ONNX Runtime's words, and `runtime` the runtime's library.
    ///
    /// # Errors
    /// A provider that does not tell of its memory, or whose library does not bring what copies.
    pub(crate) fn reached(
        &self,
        environment: &Environment,
        (name, runtime): (&str, &Path),
    ) -> Result<Place, BackendError> {
        let untold = || self.unavailable("it tells of no memory of its own".to_owned());
        if self.library.is_some() {
            let mut devices = environment.devices().filter(|device| named(device) == name);
            let device = devices.nth(self.device).ok_or_else(untold)?;
            let memory = device.memory_info(false);
            let kind = AllocationDevice::new(memory.allocation_device().as_str());
            return Ok((kind, memory.device_id()));
        }
        if self.provider == "cuda" {
            // What a session is given of it copies within runs alone.
            let file = format!("{DLL_PREFIX}onnxruntime_providers_cuda{DLL_SUFFIX}");
            let runtime = runtime.canonicalize().unwrap_or_else(|_| runtime.to_owned());
            self.registered(environment, &runtime.with_file_name(file))?;
            return self.places().1.ok_or_else(untold);
        }
        Err(untold())
    }

    /// The arenas of a session on the device, in ONNX Runtime's words. What plugin libraries have of
    /// the kind is theirs.
    pub(crate) fn arenas(&self) -> String {
        match self.provider.as_str() {
            "cuda" | "tensorrt" | "migraphx" => format!("cpu:0;gpu:{}", self.device),
            _ => "cpu:0".to_owned(),
        }
    }

    /// The provider can't be used, or has no memory for this model, and why.
    pub(crate) fn unavailable(&self, why: String) -> BackendError {
        failure::unavailable(&self.provider, &why)
    }
}

fn named(device: &Device<'_>) -> String {
    device.ep().unwrap_or_default().to_owned()
}

#[cfg(test)]
impl Accelerator {
    /// The first device of a provider that the runtime has in itself.
    pub(crate) fn of(provider: &str, options: &[(&str, &str)]) -> Self {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let options = options.iter().map(own).collect();
        Self { provider: provider.to_owned(), library: None, device: 0, options }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensorrt_first_compiles_for_what_the_other_shapes_lie_between() {
        let shapes = [[4, 512], [128, 16], [1, 512], [1, 16]];
        let first = |provider, options: &[(&str, &str)]| {
            let mut ends = Accelerator::of(provider, options).first_compiled(&shapes);
            ends.sort_unstable();
            ends
        };
        let [[rows, short], [few, long]] = first("tensorrt", &[])[..] else { panic!("two ends") };
        assert_eq!([rows.max(few), short.min(long), short.max(long)], [128, 16, 512]);
        assert!(first("tensorrt", &[("trt_profile_max_shapes", "ids:8x64")]).is_empty());
        assert!(first("cuda", &[]).is_empty());
    }

    #[test]
    fn a_library_is_of_the_provider_that_it_is_named_for() {
        let is_taken = |provider, name: &str| {
            let brought: Vec<String> = name.split(' ').map(str::to_owned).collect();
            let accelerator = Accelerator::of(provider, &[]);
            accelerator.refuse_another(&brought, Path::new("/own.so")).is_ok()
        };
        for (provider, name) in [
            ("ggml", "ggml"),
            ("openvino", "OpenVINOExecutionProvider.AUTO OpenVINOExecutionProvider"),
            ("cuda", "CudaPluginExecutionProvider"),
        ] {
            assert!(is_taken(provider, name), "{provider}: {name}");
        }
        // ggml calls itself as it is registered.
        for provider in ["webgpu", "openvino", "coreml", "directml", "cuda", "tensorrt", "migraphx"]
        {
            assert!(!is_taken(provider, provider), "{provider}");
        }
    }
}
