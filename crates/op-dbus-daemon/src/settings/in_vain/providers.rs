//! What the settings say of providers in vain, as far as that is known without trying any.

use std::path::PathBuf;

use op_dbus_models::{Family, Level, Model, manifest};
use serde_json::{Map, Value};

use crate::settings::options::fleet;
use crate::settings::{CpuEngine, Loaded, Origin, Precision, Provider, Settings};

/// What of OpenVINO's own configuration the setting `precision` decides.
const HINT: &str = "INFERENCE_PRECISION_HINT";

impl Loaded {
    /// What is said of a provider that the settings name in vain.
    pub(crate) fn names_in_vain(&self, provider: Provider, why: &str) -> String {
        let (key, verb) = match self.settings.execution_provider == provider {
            true => ("execution_provider", "is"),
            false => ("fallback", "names"),
        };
        format!("{}: {key} {verb} {provider}, and {why}", self.origin(key))
    }

    /// Why the CPU does not compute a model that is an ONNX graph, if our own engine is what computes there.
    pub(crate) fn graph_for_native(&self, model: &str) -> Option<String> {
        (self.settings.cpu_engine == CpuEngine::Native).then(|| {
            format!(
                "{model} is an ONNX graph, which ONNX Runtime computes, and cpu_engine is native ({}); set \
                 OP_DBUS_CPU_ENGINE=ort",
                self.origin("cpu_engine")
            )
        })
    }
}

/// All that is told of it, a sentence each; `model` is the one in force.
pub(super) fn sentences(loaded: &Loaded, model: Option<&Model>) -> Vec<String> {
    let mut all = of_tables(loaded);
    all.extend(chain(loaded));
    for provider in named(&loaded.settings) {
        let why = match loaded.settings.vector_level {
            Level::None => Vec::from_iter(whatever_the_model(loaded, provider)),
            _ => obstacles(loaded, provider, model),
        };
        all.extend(why.iter().map(|why| loaded.names_in_vain(provider, why)));
    }
    all
}

/// Whether none that is named can compute `model` with these settings, whatever is installed; `cpu_computes` is whether
/// the CPU has the instructions that they ask for.
pub(super) fn none(loaded: &Loaded, model: Option<&Model>, cpu_computes: bool) -> bool {
    let is_out = |provider| match provider {
        // It tries more than one.
        Provider::Auto => false,
        Provider::Cpu if !cpu_computes => true,
        _ => !obstacles(loaded, provider, model).is_empty(),
    };
    named(&loaded.settings).all(is_out)
}

/// The providers that are named; beside `auto`, which has its own, no other counts.
fn named(settings: &Settings) -> impl Iterator<Item = Provider> {
    let asked = settings.execution_provider;
    let others = settings.fallback.iter().copied();
    let others = others.filter(move |other| asked != Provider::Auto && *other != asked);
    std::iter::once(asked).chain(others)
}

/// Why the provider can't compute `model` with these settings, whatever is installed.
fn obstacles(loaded: &Loaded, provider: Provider, model: Option<&Model>) -> Vec<String> {
    let Settings { precision, .. } = &loaded.settings;
    let (asked_in, graph) =
        (loaded.origin("precision"), model.filter(|model| model.family == Family::Onnx));
    let of_its_own = match provider {
        Provider::OpenVino => own_hint(loaded),
        Provider::Auto | Provider::Cpu => graph.and_then(|graph| {
            loaded.graph_for_native(&format!("{} ({})", graph.name, loaded.origin("model")))
        }),
        _ => None,
    };
    let lacks_precision = lacks_precision(loaded, provider).then(|| {
        format!("precision is {precision} ({asked_in}), which it does not compute in; set precision to auto")
    });
    let graph = graph.filter(|_| *precision == Precision::F16 && provider != Provider::Remote);
    let as_it_is = graph.map(|graph| {
        format!(
            "precision is f16 ({asked_in}), and {} ({}) is an ONNX graph, which is computed as it is; set \
             precision to auto",
            graph.name,
            loaded.origin("model")
        )
    });
    let general = whatever_the_model(loaded, provider);
    [general, of_its_own, lacks_precision, as_it_is].into_iter().flatten().collect()
}

/// Why the provider computes nothing with these settings.
fn whatever_the_model(loaded: &Loaded, provider: Provider) -> Option<String> {
    match provider {
        Provider::Remote => fleet::no_endpoint(&loaded.settings),
        Provider::DirectMl | Provider::CoreMl => {
            let other_system = manifest::provider(&provider.to_string()).err();
            other_system.map(|why| format!("{why}; name another provider"))
        }
        _ => None,
    }
}

/// That a chain of fallbacks leads nowhere else.
fn chain(loaded: &Loaded) -> Option<String> {
    let Settings { execution_provider: asked, fallback, .. } = &loaded.settings;
    let origin = loaded.origin("fallback");
    let is_itself = !fallback.is_empty() && fallback.iter().all(|other| other == asked);
    let why = match asked {
        Provider::Auto if *origin != Origin::Default => "as that ends with the CPU",
        // The CPU works wherever anything does.
        Provider::Auto | Provider::Cpu => return None,
        _ if is_itself => "which is the same; name another provider, such as cpu, or none",
        _ => return None,
    };
    Some(format!(
        "{origin}: fallback is {}, which has no effect while execution_provider is {asked} ({}), {why}",
        loaded.value("fallback").unwrap_or_default(),
        loaded.origin("execution_provider")
    ))
}

/// What tables of providers say: libraries that are not there, and faults on purpose.
fn of_tables(loaded: &Loaded) -> Vec<String> {
    let mut all = Vec::new();
    for (provider, own) in &loaded.settings.providers {
        let key = |key: &str| format!("providers.{provider}.{key}");
        // Who may not look there knows nothing of it.
        let is_missing = |path: &&PathBuf| matches!(path.try_exists(), Ok(false));
        if let (key, Some(path)) = (key("library"), own.library.as_ref().filter(is_missing)) {
            let (origin, path) = (loaded.place_of(&key), path.display());
            all.push(format!(
                "{origin}: {key} is {path}, which does not exist; name a file that does"
            ));
        }
        if let (key, Some(faults)) = (key("faults"), &own.faults) {
            let origin = loaded.place_of(&key);
            all.push(format!(
                "{origin}: {key} is {faults}, so that workers of {provider} fail on purpose; leave it out \
                 where they are not to"
            ));
        }
    }
    all
}

/// Whether the provider does not compute in what is asked for, on any device. Of the CPU that is a mistake, with an
/// engine that does not.
fn lacks_precision(loaded: &Loaded, provider: Provider) -> bool {
    let Settings { precision, execution_provider, .. } = &loaded.settings;
    match (precision, provider) {
        (Precision::Auto | Precision::F32, _) | (_, Provider::Auto | Provider::Cpu) => false,
        // Behind others it computes as it does.
        (_, Provider::Remote) => *execution_provider == Provider::Remote,
        (Precision::F16, _) => false,
        (Precision::Bf16, other) => !matches!(other, Provider::OpenVino | Provider::TensorRt),
        (Precision::Int8, _) => true,
    }
}

/// That OpenVINO's own configuration says what it is to compute in, which its workers refuse.
fn own_hint(loaded: &Loaded) -> Option<String> {
    let own = loaded.settings.providers.get("openvino")?;
    let config: Map<String, Value> = serde_json::from_str(own.options.get("load_config")?).ok()?;
    let has_hint = |told: &Value| {
        let mut keys = told.as_object().into_iter().flat_map(Map::keys);
        keys.any(|key| key.eq_ignore_ascii_case(HINT))
    };
    let (device, _) = config.iter().find(|(_, told)| has_hint(told))?;
    let key = "providers.openvino.options.load_config";
    Some(format!(
        "{key} ({}) says {HINT} for {device}, which the setting precision decides; leave it out",
        loaded.place_of(key)
    ))
}
