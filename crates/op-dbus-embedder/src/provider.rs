//! Execution providers: which are tried, and the libraries that each needs.

use std::path::{Path, PathBuf};

use op_dbus_models::{Error, RuntimeStore, manifest, runtime};

use crate::backend::{CPU, CpuEngine};

/// The canonical names of the providers to try, in order and each once. One that there is nothing to pull
/// of may be in a library of the user's own.
///
/// # Errors
/// A name that is not a provider's.
pub fn candidates(asked: &str, fallback: &[String]) -> Result<Vec<String>, crate::Error> {
    let asked: Vec<&str> = match asked {
        "auto" => manifest::auto().collect(),
        one => std::iter::once(one).chain(fallback.iter().map(String::as_str)).collect(),
    };
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        let canonical = manifest::canonical(name).ok_or_else(|| {
            let known: Vec<_> = manifest::names().collect();
            let known = known.join(", ");
            crate::Error::Option(format!(
                "{name:?} is no provider of this library; known are {known}"
            ))
        })?;
        if !names.iter().any(|name| name == canonical) {
            names.push(canonical.to_owned());
        }
    }
    Ok(names)
}

/// What a provider calls the bytes of device memory that its arena may take, if it has such an option.
pub fn memory_option(provider: &str) -> Option<&'static str> {
    match provider {
        "cuda" => Some("gpu_mem_limit"),
        "migraphx" => Some("migraphx_mem_limit"),
        _ => None,
    }
}

/// The libraries that a provider computes with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// ONNX Runtime; empty for the native engine.
    pub runtime: PathBuf,
    /// The plugin library that brings the provider; without one the runtime has it.
    pub plugin: Option<PathBuf>,
}

/// Libraries of the caller's own, which are taken as they are.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// ONNX Runtime.
    pub runtime: Option<PathBuf>,
    /// The plugin library of the provider.
    pub plugin: Option<PathBuf>,
}

/// Finds what `provider` needs: the caller's own, what this process has already, or what was pulled, compared with
/// its digests.
///
/// # Errors
/// What is missing or damaged, and what to type.
pub fn libraries(
    provider: &str,
    cpu_engine: CpuEngine,
    own: &Own,
    model_dir: &Path,
) -> Result<Libraries, Error> {
    let store = RuntimeStore::open(runtime::beside(model_dir));
    match (provider, cpu_engine) {
        (CPU, CpuEngine::Native) => return Ok(Libraries::default()),
        (CPU, CpuEngine::Ort) => {
            // A process has one ONNX Runtime, and each of them computes on the CPU.
            let runtime = own.runtime.clone().or_else(op_dbus_ort::loaded);
            let runtime = runtime.map_or_else(|| store.verify(CPU), Ok)?;
            return Ok(Libraries { runtime, plugin: None });
        }
        _ => {}
    }
    let known = manifest::provider(provider).map(|(library, _)| library);
    let pulls_plugin = known.as_ref().is_ok_and(|library| library.plugin.is_some());
    // A runtime of one's own may have in itself what was not pulled.
    let needs_plugin = pulls_plugin && (own.runtime.is_none() || store.plugin(provider).is_some());
    let plugin = match &own.plugin {
        Some(own) => Some(own.clone()),
        None => needs_plugin.then(|| store.verify(provider)).transpose()?,
    };
    // A plugin of one's own goes with the plain runtime, unless one that has the provider was pulled.
    let is_plain = own.plugin.is_some() && store.runtime(provider).is_none();
    let runtime = match (&own.runtime, known) {
        (Some(own), _) => own.clone(),
        (None, _) if is_plain => store.verify(CPU)?,
        (None, Ok(library)) => {
            store.verify(library.plugin.as_ref().map_or(provider, |plugin| plugin.host.as_str()))?
        }
        (None, Err(error)) => return Err(error),
    };
    Ok(Libraries { runtime, plugin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_canonical_and_each_is_tried_once() {
        let of = |asked: &str, fallback: &[&str]| {
            let fallback: Vec<String> = fallback.iter().map(|name| (*name).to_owned()).collect();
            candidates(asked, &fallback)
        };
        assert_eq!(of("gpu", &["cpu", "cuda"]).unwrap(), ["cuda", "cpu"]);
        assert_eq!(of("auto", &[]).unwrap(), ["cuda", "cpu"]);
        assert_eq!(of("cpu", &[]).unwrap(), ["cpu"]);
        // Also of what there is nothing to pull of.
        assert_eq!(of("rocm", &["dml", "migraphx"]).unwrap(), ["migraphx", "directml"]);
        let message = of("quantum", &[]).unwrap_err().to_string();
        let known = "cpu, cuda, tensorrt, webgpu, openvino, ggml, migraphx, directml, coreml";
        let words = format!("\"quantum\" is no provider of this library; known are {known}");
        assert_eq!(message, words);
    }

    #[test]
    fn what_is_missing_is_named_and_what_is_ones_own_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        let of = |provider: &str, engine, own: &Own| libraries(provider, engine, own, &models);
        let none = Own::default();
        assert_eq!(of(CPU, CpuEngine::Native, &none).unwrap(), Libraries::default());
        let message = of(CPU, CpuEngine::Ort, &none).unwrap_err().to_string();
        assert!(message.contains("op-dbus runtime pull"), "{message}");
        let message = of("ggml", CpuEngine::Native, &none).unwrap_err().to_string();
        assert!(message.contains("ggml"), "{message}");
        let own = Own { runtime: Some("/lib/ort.so".into()), plugin: Some("/lib/p.so".into()) };
        let found = of("migraphx", CpuEngine::Native, &own).unwrap();
        assert_eq!(found, Libraries { runtime: "/lib/ort.so".into(), plugin: own.plugin.clone() });
        // With a plugin of one's own the plain runtime is what is missing.
        let plugin = Own { runtime: None, ..own.clone() };
        let message = of("migraphx", CpuEngine::Native, &plugin).unwrap_err().to_string();
        assert!(message.contains("op-dbus runtime pull --provider cpu"), "{message}");
        // With a runtime of one's own a plugin is taken where it was pulled.
        let runtime = Own { plugin: None, ..own };
        let found = of("webgpu", CpuEngine::Native, &runtime).unwrap();
        assert_eq!(found, Libraries { runtime: "/lib/ort.so".into(), plugin: None });
        let (library, _) = manifest::provider("webgpu").unwrap();
        let pulled = folder.path().join("runtime").join(library.folder_name()).join(&library.load);
        std::fs::create_dir_all(pulled.parent().unwrap()).unwrap();
        std::fs::write(pulled, "no library").unwrap();
        let message = of("webgpu", CpuEngine::Native, &runtime).unwrap_err().to_string();
        assert!(message.contains(&library.load), "{message}");
    }
}
