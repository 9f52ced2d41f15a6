//! Execution providers: which are tried and in which order, what each needs before a worker can try
//! it, and what is missing.

mod lacking;
mod libraries;

use std::path::PathBuf;

use op_dbus_models::{RuntimeStore, manifest, named, runtime};

use super::now::Now;
use super::served::Served;
use crate::devices::is_same;
use crate::settings::options::{self, Told, fleet};
use crate::settings::{CpuEngine, Devices, Loaded, Precision, Provider, Settings};

pub use lacking::lacking;
pub use libraries::verify;
pub(super) use libraries::verify_again;

/// The name of the provider that every ONNX Runtime has.
const CPU: &str = "cpu";

/// What a worker computes on.
#[derive(Clone, Debug)]
pub struct Host {
    /// The execution provider.
    pub provider: Provider,
    /// What computes on the CPU; of no meaning to other providers.
    pub cpu_engine: CpuEngine,
    /// The ONNX Runtime library; empty for an engine that needs none.
    pub runtime: PathBuf,
    /// The plugin library that brings the provider.
    pub library: Option<PathBuf>,
    /// What the provider is told, in ONNX Runtime's words.
    pub options: Vec<(String, Told)>,
    /// The devices that are used, each by a worker of its own.
    pub devices: Vec<u32>,
    /// Whether a worker is to measure how it computes batches best, unless the cache says.
    pub calibrate: bool,
}

/// The providers in the order in which they are tried.
pub fn candidates(settings: &Settings) -> Vec<Provider> {
    tried(settings).collect()
}

/// The provider after which nothing is to be tried. Each call asks for it.
pub(super) fn last(settings: &Settings) -> Option<Provider> {
    tried(settings).last()
}

/// Whether nothing is to be tried once `provider` does not compute any more.
pub(super) fn is_last(provider: Provider, settings: &Settings) -> bool {
    last(settings).is_none_or(|last| last == provider)
}

fn tried(settings: &Settings) -> impl Iterator<Item = Provider> {
    let asked = settings.execution_provider;
    let is_auto = asked == Provider::Auto;
    // It ends with what always works.
    let auto = manifest::auto().filter(move |_| is_auto).filter_map(|name| name.parse().ok());
    let others = settings.fallback.iter().copied().filter(move |other| *other != asked);
    auto.chain(std::iter::once(asked).chain(others).filter(move |_| !is_auto))
}

/// What has to be there before a worker can try `provider` for a model; `own_graph` is the model's
/// name if it is an ONNX file of the user's own.
///
/// # Errors
/// One clause that begins with the provider's name: what is missing and what to do.
pub fn host(provider: Provider, loaded: &Loaded, own_graph: Option<&str>) -> Result<Host, String> {
    let settings = &loaded.settings;
    let Settings { cpu_engine, gpu_device, .. } = settings;
    if provider == Provider::Cpu {
        return cpu(loaded, own_graph);
    }
    let name = provider.to_string();
    let known = manifest::provider(&name);
    let own = settings.providers.get(&name).cloned().unwrap_or_default();
    // A library of the user's own may have what there is nothing to pull of; elsewhere none is needed.
    let needs_library = provider != Provider::Remote;
    // None makes up for another system.
    let is_here =
        !matches!(provider, Provider::DirectMl | Provider::CoreMl) || !cfg!(target_os = "linux");
    let has_own = is_here && (own.library.is_some() || settings.runtime.is_some());
    if let (Err(error), false, true) = (&known, has_own, needs_library) {
        return Err(error.to_string());
    }
    if *cpu_engine == CpuEngine::Sim {
        return Err(format!(
            "{provider} is not tried while cpu_engine is sim ({}), which stands in for all of them",
            loaded.origin("cpu_engine")
        ));
    }
    // `gpu_device` names devices of what was asked for. Who falls back to others has the first: of a fleet the first
    // endpoint, while the others stand by.
    let asked_for = candidates(settings).first().map(|asked| format!("{asked}:0"));
    let is_asked_for = asked_for.is_some_and(|asked| is_same(&asked, &format!("{provider}:0")));
    let devices = match gpu_device {
        Devices::List(_) if !is_asked_for => vec![0],
        Devices::List(numbers) => numbers.clone(),
        // How many there are is known to the provider alone; a worker will tell.
        Devices::All => Vec::new(),
    };
    if provider == Provider::Remote {
        return remote(loaded, own_graph, devices);
    }
    let (store, here) = (store(settings), named(&settings.model_dir));
    let pulled = store.plugin(&name).map(|plugin| plugin.library);
    let library = own.library.or(pulled);
    // A plugin goes with the plain runtime, unless one that has the provider was pulled.
    let host = if library.is_some() && store.runtime(&name).is_none() { CPU } else { &name };
    let Some(runtime) = settings.runtime.clone().or_else(|| store.runtime(host)) else {
        return Err(format!(
            "{provider} needs an ONNX Runtime library, which is not installed; type `op-dbus \
             runtime pull --provider {host}{here}`, or name one with OP_DBUS_RUNTIME"
        ));
    };
    let is_plugin = known.is_ok_and(|(library, _)| library.plugin.is_some());
    if is_plugin && library.is_none() && settings.runtime.is_none() {
        return Err(format!(
            "{provider} needs its provider library, which is not installed; type `op-dbus runtime \
             pull --provider {provider}{here}`, or name one in [providers.{provider}]"
        ));
    }
    let mut said = own.checked.keys().chain(own.options.keys());
    if library.is_some()
        && let Some(key) = said.find(|key| manifest::plugin_ignores(&name, key))
    {
        return Err(format!(
            "openvino's plugin library ignores {key} in [providers.openvino]; write it in OpenVINO's \
             words as options.load_config there (gpu_device chooses the device)"
        ));
    }
    let (cpu_engine, options) = (CpuEngine::Ort, options::told(&name, settings));
    let calibrate = settings.batch_tokens_max.is_none();
    Ok(Host { provider, cpu_engine, runtime, library, options, devices, calibrate })
}

/// Refuses settings that ask for a provider by name of which it is known without trying that it can't be had.
///
/// # Errors
/// As of [`host`].
pub(super) fn needs(loaded: &Loaded) -> Result<(), String> {
    match loaded.settings.execution_provider {
        Provider::Auto => Ok(()),
        named => host(named, loaded, None).map(drop),
    }
}

impl Host {
    /// The CPU.
    fn cpu(cpu_engine: CpuEngine, runtime: PathBuf) -> Self {
        Self {
            provider: Provider::Cpu,
            cpu_engine,
            runtime,
            library: None,
            options: Vec::new(),
            devices: vec![0],
            calibrate: false,
        }
    }

    /// The CPU as it computes what accelerators are measured against.
    pub(super) fn reference(&self, own_graph: Option<&str>) -> Self {
        match own_graph {
            Some(_) => Self::cpu(CpuEngine::Ort, self.runtime.clone()),
            None => Self::cpu(CpuEngine::Native, PathBuf::new()),
        }
    }

    /// The precision that its workers are asked for.
    pub fn precision(&self, settings: &Settings) -> Precision {
        // Whoever wants halves of a device has nothing against more on the CPU that it falls back to.
        match (settings.precision, self.provider, self.cpu_engine) {
            (Precision::F16, Provider::Cpu, CpuEngine::Native) => Precision::Auto,
            // Nor against what agrees with 32 bits on others' machines.
            (Precision::F16 | Precision::Bf16 | Precision::Int8, Provider::Remote, _)
                if settings.execution_provider != Provider::Remote =>
            {
                Precision::Auto
            }
            (asked_for, ..) => asked_for,
        }
    }
}

/// Credentials of the unit by the options that they stand for: the token that servers are shown, and the
/// certificates that these are certified by.
pub const CREDENTIALS: [(&str, &str); 2] =
    [("token_file", "remote-token"), ("ca_file", "remote-ca")];

/// A fleet that others run. What it is compared with is computed here.
fn remote(loaded: &Loaded, own_graph: Option<&str>, devices: Vec<u32>) -> Result<Host, String> {
    let settings = &loaded.settings;
    if let Some(why) = fleet::no_endpoint(settings) {
        return Err(why);
    }
    let runtime = match (own_graph, plain_runtime(settings)) {
        (None, _) => PathBuf::new(),
        (Some(_), Some(runtime)) => runtime,
        (Some(model), None) => {
            return Err(format!(
                "remote is compared with what the CPU computes, for which {model}, an ONNX graph, \
                 needs the ONNX Runtime library; type `op-dbus runtime pull{}`",
                named(&settings.model_dir)
            ));
        }
    };
    let mut options = options::told(fleet::REMOTE, settings);
    options.retain(|(key, _)| fleet::is_for_worker(key));
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    for (option, credential) in CREDENTIALS {
        let path = folder.as_ref().map(|folder| folder.join(credential));
        if let Some(path) = path.filter(|path| path.is_file())
            && !options.iter().any(|(key, _)| key == option)
        {
            options.push((option.to_owned(), Told::Value(path.display().to_string())));
        }
    }
    Ok(Host {
        provider: Provider::Remote,
        cpu_engine: CpuEngine::Ort,
        runtime,
        library: None,
        options,
        devices,
        calibrate: false,
    })
}

fn cpu(loaded: &Loaded, own_graph: Option<&str>) -> Result<Host, String> {
    let settings = &loaded.settings;
    let (from, here) = (loaded.origin("cpu_engine"), named(&settings.model_dir));
    if let Some(why) = own_graph.and_then(|model| loaded.graph_for_native(model)) {
        let pull = match plain_runtime(settings) {
            Some(_) => String::new(),
            None => format!(", and type `op-dbus runtime pull{here}` for the library"),
        };
        return Err(why + &pull);
    }
    let runtime = match settings.cpu_engine {
        CpuEngine::Native | CpuEngine::Sim => PathBuf::new(),
        CpuEngine::Ort => plain_runtime(settings).ok_or_else(|| {
            format!(
                "cpu_engine is ort ({from}), and the ONNX Runtime library is not installed; type \
                 `op-dbus runtime pull{here}`, or set cpu_engine to native"
            )
        })?,
    };
    let native = settings.cpu_engine == CpuEngine::Native;
    let calibrate = native && settings.batch_tokens_max.is_none();
    Ok(Host { calibrate, ..Host::cpu(settings.cpu_engine, runtime) })
}

/// The ONNX Runtime that has no other provider than the CPU, or the one of the user's own.
fn plain_runtime(settings: &Settings) -> Option<PathBuf> {
    settings.runtime.clone().or_else(|| store(settings).runtime(CPU))
}

/// The libraries that were pulled.
fn store(settings: &Settings) -> RuntimeStore {
    RuntimeStore::open(runtime::beside(&settings.model_dir))
}

/// Those of `candidates` that come before the one of `served`.
pub(super) fn preferred(mut candidates: Vec<Provider>, served: &Served) -> Vec<Provider> {
    let own = candidates.iter().position(|candidate| served.is_on(*candidate));
    candidates.truncate(own.unwrap_or(0));
    candidates
}

/// Whether something is there to try of the providers that are preferred to the one of `served`: where that is a
/// fallback any of them, else one that has worked for another model. It may have had no memory for this one just then;
/// one that can't have it is tried `anew` only.
pub(super) fn may_do_better(served: &Served, now: &Now, anew: bool) -> bool {
    let refused = &now.fleet.refused;
    let may_have = |provider| {
        refused.has_worked(provider) && (anew || !refused.is_unfit(provider, &served.model))
    };
    let may = |provider: &Provider| {
        (!served.fallback_reason.is_empty() || may_have(*provider))
            && host(*provider, &now.loaded, None).is_ok()
    };
    preferred(candidates(now.settings()), served).iter().any(may)
}

/// Why none of the candidates serves, each of which is refused for one of these `reasons`.
pub(super) fn none_left(settings: &Settings, reasons: String) -> String {
    // `auto` ends with the CPU, and heeds no fallback.
    let named = !matches!(settings.execution_provider, Provider::Auto | Provider::Cpu);
    match named && settings.fallback.is_empty() {
        true => format!(
            "{reasons}; and fallback is none: set execution_provider or fallback to cpu to do \
             without"
        ),
        false => reasons,
    }
}

/// Why `provider`, which does not compute now, could not at once; `None` when it could. Where it was tried that is
/// what it was `refused` for, unless by now it is known without a try.
pub fn unavailable(provider: Provider, loaded: &Loaded, refused: Option<String>) -> Option<String> {
    if provider == Provider::Cpu {
        return refused;
    }
    let idle = || format!("{provider} does not compute now; `op-dbus doctor {provider}` tries it");
    let tried = |_| refused.unwrap_or_else(idle);
    Some(host(provider, loaded, None).map_or_else(|missing| missing, tried))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::settings::Sources;

    #[test]
    fn no_library_makes_up_for_another_system() {
        let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
        loaded.settings.runtime = Some("/own.so".into());
        for (provider, name) in [(Provider::CoreMl, "coreml"), (Provider::DirectMl, "directml")] {
            let own = loaded.settings.providers.entry(name.to_owned()).or_default();
            own.library = Some("/plugin.so".into());
            let refused = host(provider, &loaded, None).unwrap_err();
            assert!(refused.starts_with(&format!("{name} needs ")), "{refused}");
        }
    }

    #[test]
    fn an_own_graph_is_not_told_to_pull_what_is_there() {
        let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
        let refusal = |loaded: &Loaded| host(Provider::Cpu, loaded, Some("own")).unwrap_err();
        assert!(
            refusal(&loaded).contains("OP_DBUS_CPU_ENGINE=ort, and type `op-dbus runtime pull")
        );
        loaded.settings.runtime = Some("/own.so".into());
        let refused = refusal(&loaded);
        assert!(refused.ends_with("set OP_DBUS_CPU_ENGINE=ort"), "{refused}");
    }

    #[test]
    fn what_is_there_and_idle_is_left_to_who_tries_it() {
        let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
        loaded.settings.runtime = Some("/own.so".into());
        let idle = unavailable(Provider::WebGpu, &loaded, None).unwrap();
        assert_eq!(idle, "webgpu does not compute now; `op-dbus doctor webgpu` tries it");
        let refused = Some("webgpu has no device".to_owned());
        assert_eq!(unavailable(Provider::WebGpu, &loaded, refused.clone()), refused);
        loaded.settings.runtime = None;
        let missing = unavailable(Provider::WebGpu, &loaded, refused).unwrap();
        assert!(missing.contains("runtime pull"), "{missing}");
    }

    #[test]
    fn openvinos_plugin_is_not_told_what_it_ignores() {
        let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
        loaded.settings.runtime = Some("/own.so".into());
        let own = loaded.settings.providers.entry("openvino".to_owned()).or_default();
        own.checked.insert("device_type".to_owned(), "GPU".to_owned());
        let host = |loaded: &Loaded| host(Provider::OpenVino, loaded, None);
        let built_in = host(&loaded).unwrap();
        assert_eq!(built_in.options.len(), 1, "{built_in:?}");
        let own = loaded.settings.providers.get_mut("openvino").unwrap();
        own.library = Some("/plugin.so".into());
        let refused = host(&loaded).unwrap_err();
        assert!(refused.contains("ignores device_type"), "{refused}");
        for (key, is_heeded) in [("num_streams", false), ("load_config", true)] {
            let own = loaded.settings.providers.get_mut("openvino").unwrap();
            own.checked.clear();
            own.options = BTreeMap::from([(key.to_owned(), "2".to_owned())]);
            assert_eq!(host(&loaded).is_ok(), is_heeded, "{key}");
        }
    }
}
