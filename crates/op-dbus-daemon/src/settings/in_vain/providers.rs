//! What the settings say of providers in vain, as far as that is known without trying any.

use op_dbus_models::{Family, Level, Model, manifest};
use serde_json::{Map, Value};

use crate::settings::{
    CpuEngine, Loaded, Origin, Precision, Provider, ProviderSettings, Settings, options,
};

/// What of OpenVINO's own configuration the setting `precision` decides.
const HINT: &str = "INFERENCE_PRECISION_HINT";

/// All that is told of it, a sentence each; `model` is the one in force.
pub(super) fn sentences(loaded: &Loaded, model: Option<&Model>) -> Vec<String> {
    let mut all: Vec<String> = missing_endpoints(loaded).into_iter().collect();
    all.extend(other_systems(loaded));
    all.extend(chain_of_auto(loaded));
    all.extend(fallback_to_itself(loaded));
    all.extend(missing_libraries(loaded));
    all.extend(faults(loaded));
    if loaded.settings.vector_level != Level::None {
        all.extend(other_precisions(loaded));
        all.extend(own_hint(loaded));
        all.extend(model.and_then(|model| graph_for_native(loaded, model)));
        all.extend(model.and_then(|model| graph_in_halves(loaded, model)));
    }
    all
}

/// Whether none that is named can compute `model` with these settings, whatever is installed; `cpu_computes` is whether
/// the CPU has the instructions that they ask for.
pub(super) fn none(loaded: &Loaded, model: Option<&Model>, cpu_computes: bool) -> bool {
    let Settings { execution_provider, fallback, .. } = &loaded.settings;
    let refuses = |sentence: fn(&Loaded, &Model) -> Option<String>| {
        model.is_some_and(|model| sentence(loaded, model).is_some())
    };
    let is_out = |one: &Provider| {
        let by_itself = match one {
            Provider::Cpu => !cpu_computes || refuses(graph_for_native),
            Provider::Remote => missing_endpoints(loaded).is_some(),
            Provider::OpenVino => own_hint(loaded).is_some(),
            other => of_another_system(*other).is_some(),
        };
        let takes_graph = matches!(one, Provider::Auto | Provider::Remote);
        let is_graph = !takes_graph && refuses(graph_in_halves);
        by_itself || is_graph || lacks_precision(loaded, *one)
    };
    fallback.iter().chain([execution_provider]).all(is_out)
}

/// The providers that are named, each with the setting that does, and a verb; none where `auto` has its own, as is
/// told.
fn named(settings: &Settings) -> impl Iterator<Item = (&'static str, &'static str, Provider)> {
    let asked = settings.execution_provider;
    let others = settings.fallback.iter().copied().filter(move |other| *other != asked);
    let others = others.map(|other| ("fallback", "names", other));
    let all = std::iter::once(("execution_provider", "is", asked)).chain(others);
    all.filter(move |_| asked != Provider::Auto)
}

/// That the remote provider is asked for, and nobody says where.
fn missing_endpoints(loaded: &Loaded) -> Option<String> {
    let Settings { execution_provider, fallback, .. } = &loaded.settings;
    let (key, value) = match execution_provider {
        Provider::Remote => ("execution_provider", "is"),
        _ if fallback.contains(&Provider::Remote) => ("fallback", "names"),
        _ => return None,
    };
    let origin = loaded.origin(key);
    let missing = options::fleet::endpoints(&loaded.settings).is_empty();
    missing.then(|| {
        format!(
            "{origin}: {key} {value} remote, and nothing says where servers answer; set endpoints in a \
             table [providers.remote] of a file"
        )
    })
}

/// Providers that are named and that no library for this system has.
fn other_systems(loaded: &Loaded) -> Vec<String> {
    let sentence = |(key, verb, provider): (&str, &str, Provider)| {
        let why = of_another_system(provider)?;
        let origin = loaded.origin(key);
        Some(format!("{origin}: {key} {verb} {provider}, and {why}; name another provider"))
    };
    named(&loaded.settings).filter_map(sentence).collect()
}

/// Why the provider can't be had here with any library, if it is one of another system.
fn of_another_system(provider: Provider) -> Option<String> {
    match provider {
        Provider::DirectMl | Provider::CoreMl => {
            manifest::provider(&provider.to_string()).err().map(|error| error.to_string())
        }
        _ => None,
    }
}

/// That a chain is set beside `auto`, which has its own.
fn chain_of_auto(loaded: &Loaded) -> Option<String> {
    let origin = loaded.origin("fallback");
    let is_auto = loaded.settings.execution_provider == Provider::Auto;
    let in_vain = is_auto && *origin != Origin::Default;
    in_vain.then(|| {
        format!(
            "{origin}: fallback is {}, which has no effect while execution_provider is auto ({}), as \
             that ends with the CPU",
            loaded.value("fallback").unwrap_or_default(),
            loaded.origin("execution_provider")
        )
    })
}

/// That nothing is named behind a provider but that itself. The CPU works wherever anything does.
fn fallback_to_itself(loaded: &Loaded) -> Option<String> {
    let Settings { execution_provider: asked, fallback, .. } = &loaded.settings;
    let is_itself = !fallback.is_empty() && fallback.iter().all(|other| other == asked);
    (is_itself && *asked != Provider::Cpu).then(|| {
        format!(
            "{}: fallback is {asked}, which has no effect, as execution_provider is {asked} itself \
             ({}); name another provider, such as cpu, or none",
            loaded.origin("fallback"),
            loaded.origin("execution_provider")
        )
    })
}

/// Libraries that tables of providers name and that are not there.
fn missing_libraries(loaded: &Loaded) -> Vec<String> {
    let tables = loaded.settings.providers.iter();
    let sentence = |(provider, own): (&String, &ProviderSettings)| {
        // Who may not look there knows nothing of it.
        let path = own.library.as_ref().filter(|path| matches!(path.try_exists(), Ok(false)))?;
        let key = format!("providers.{provider}.library");
        let (origin, path) = (loaded.place_of(&key), path.display());
        Some(format!("{origin}: {key} is {path}, which does not exist; name a file that does"))
    };
    tables.filter_map(sentence).collect()
}

/// Faults on purpose.
fn faults(loaded: &Loaded) -> Vec<String> {
    let tables = loaded.settings.providers.iter();
    let sentence = |(provider, own): (&String, &ProviderSettings)| {
        let faults = own.faults.as_ref()?;
        let key = format!("providers.{provider}.faults");
        let origin = loaded.place_of(&key);
        Some(format!(
            "{origin}: {key} is {faults}, so that workers of {provider} fail on purpose; leave it out \
             where they are not to"
        ))
    };
    tables.filter_map(sentence).collect()
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

/// Providers that are named and do not compute in what is asked for.
fn other_precisions(loaded: &Loaded) -> Vec<String> {
    let sentence = |(key, verb, provider): (&str, &str, Provider)| {
        let (origin, named_by) = (loaded.origin("precision"), loaded.origin(key));
        let precision = loaded.settings.precision;
        lacks_precision(loaded, provider).then(|| {
            format!(
                "{origin}: precision is {precision}, and {key} {verb} {provider} ({named_by}), which \
                 does not compute in that; set precision to auto"
            )
        })
    };
    named(&loaded.settings).filter_map(sentence).collect()
}

/// That OpenVINO's own configuration says what it is to compute in, which its workers refuse.
fn own_hint(loaded: &Loaded) -> Option<String> {
    if !named(&loaded.settings).any(|(.., provider)| provider == Provider::OpenVino) {
        return None;
    }
    let own = loaded.settings.providers.get("openvino")?;
    let config: Map<String, Value> = serde_json::from_str(own.options.get("load_config")?).ok()?;
    let has_hint = |told: &Value| {
        let mut keys = told.as_object().into_iter().flat_map(Map::keys);
        keys.any(|key| key.eq_ignore_ascii_case(HINT))
    };
    let (device, _) = config.iter().find(|(_, told)| has_hint(told))?;
    let key = "providers.openvino.options.load_config";
    Some(format!(
        "{}: {key} says {HINT} for {device}, which the setting precision decides, so that openvino \
         does not compute; leave it out",
        loaded.place_of(key)
    ))
}

/// That the model is an ONNX graph, where our own engine is what computes on the CPU.
fn graph_for_native(loaded: &Loaded, model: &Model) -> Option<String> {
    let Settings { cpu_engine, execution_provider, fallback, .. } = &loaded.settings;
    let asked = [Provider::Cpu, Provider::Auto].contains(execution_provider);
    let is_named = asked || fallback.contains(&Provider::Cpu);
    let is_graph = model.family == Family::Onnx && *cpu_engine == CpuEngine::Native;
    (is_graph && is_named).then(|| {
        format!(
            "{}: model is {}, an ONNX graph, which ONNX Runtime computes, and cpu_engine is native \
             ({}); set cpu_engine to ort",
            loaded.origin("model"),
            model.name,
            loaded.origin("cpu_engine")
        )
    })
}

/// That an ONNX graph is to be computed in 16 bits.
fn graph_in_halves(loaded: &Loaded, model: &Model) -> Option<String> {
    let in_halves = loaded.settings.precision == Precision::F16 && model.family == Family::Onnx;
    in_halves.then(|| {
        format!(
            "{}: precision is f16, and {} ({}) is an ONNX graph, which is computed as it is; set \
             precision to auto",
            loaded.origin("precision"),
            model.name,
            loaded.origin("model")
        )
    })
}
