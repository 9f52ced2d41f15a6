//! What is compared: every combination of the levels, engines, precisions and so on that are asked
//! for, and what each of them turned out to be.

use std::collections::BTreeMap;

use clap::ValueEnum;
use op_dbus_daemon::settings::{Choice, Kind, Settings, row};
use serde::Serialize;

use super::args::Compared;
use crate::cli::{Failure, Properties};

/// Where the figures are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The engine in this process: no service, no bus
    Engine,
    /// The service, over the bus, vectors in its reply
    Daemon,
    /// The same with the vectors in a memfd
    Memfd,
    /// The service past the bus, over direct connections
    Direct,
    /// The same with the vectors in a memfd
    DirectMemfd,
}

/// Settings that one variant has, by key.
pub type Flags = BTreeMap<String, String>;

/// The flag of `bench` that gave the setting of another command's `flag`.
pub fn typed(flag: &str) -> String {
    match flag {
        "--vector-level" => "--level",
        "--execution-provider" => "--provider",
        "--cpu-engine" => "--engine",
        "--cpu-isa" => "--isa",
        "--batch-tokens-max" => "--batch-tokens",
        other => other,
    }
    .to_owned()
}

/// Has `level` served, also where the settings name a model in its place.
pub fn name_level(flags: &mut Flags, level: &str) {
    flags.insert("vector_level".to_owned(), level.to_owned());
    flags.insert("model".to_owned(), String::new());
}

/// What computes with ONNX Runtime, on instruction sets of its own choice, in these precisions.
const OF_ONNX_RUNTIME: [&str; 3] = ["auto", "f32", "f16"];

/// Providers that compute in `bf16` as well.
const WITH_BF16: [&str; 2] = ["openvino", "tensorrt"];

/// Settings of which each value is a name.
const NAMED: [&str; 4] = ["execution_provider", "cpu_engine", "cpu_isa", "precision"];

/// The settings of every variant, in the order of the lists. What an engine has no choice of does
/// not multiply it; what computes is in the `settings` where no list has it.
pub fn product(compared: &Compared, settings: &Settings) -> Result<Vec<Flags>, Failure> {
    let Compared { level, engine, provider, offload, precision, isa, batch_tokens } = compared;
    let offload: Vec<String> =
        if *offload { ["off", "auto"].map(str::to_owned).to_vec() } else { Vec::new() };
    let batch_tokens: Vec<String> = batch_tokens.iter().map(usize::to_string).collect();
    let lists: [(&str, &[String]); 7] = [
        ("vector_level", level),
        ("execution_provider", provider),
        ("offload", &offload),
        ("cpu_engine", engine),
        ("batch_tokens_max", &batch_tokens),
        ("cpu_isa", isa),
        ("precision", precision),
    ];
    let mut all = vec![Flags::new()];
    for (key, values) in lists.into_iter().filter(|(_, values)| !values.is_empty()) {
        let with = |flags: &Flags, value: &String| {
            let mut flags = flags.clone();
            flags.insert(key.to_owned(), canonical(key, value).unwrap_or(value).to_owned());
            flags
        };
        all = all.iter().flat_map(|f| values.iter().map(move |value| with(f, value))).collect();
    }
    let mut variants: Vec<Flags> = Vec::new();
    for flags in all.into_iter().filter_map(|flags| possible(flags, settings)) {
        if !variants.contains(&flags) {
            variants.push(flags);
        }
    }
    if variants.is_empty() {
        return Err(Failure::usage(
            "nothing that is to be compared computes in what --precision names: name another one, \
             or what does with --provider or --engine",
        ));
    }
    Ok(variants)
}

/// What the table of settings calls what `name` stands for; `None` where that is no name there.
fn canonical(key: &str, name: &str) -> Option<&'static str> {
    let Kind::Choice(choices) = row(key)?.kind else { return None };
    let named = |choice: &&Choice| choice.name == name || choice.aliases.contains(&name);
    choices.iter().find(named).map(|choice| choice.name)
}

/// A variant without what its engine has no choice of; `None` where that does not compute in the precision.
fn possible(mut flags: Flags, settings: &Settings) -> Option<Flags> {
    let is_wrong = |key: &str| flags.get(key).is_some_and(|name| canonical(key, name).is_none());
    // It stays, and is refused where the settings are read.
    if NAMED.into_iter().any(is_wrong) {
        return Some(flags);
    }
    // What is compared must be what runs.
    if let Some(level) = flags.get("vector_level").cloned() {
        name_level(&mut flags, &level);
    }
    let or = |key: &str, set: String| flags.get(key).cloned().unwrap_or(set);
    let provider = or("execution_provider", settings.execution_provider.to_string());
    let cpu_engine = or("cpu_engine", settings.cpu_engine.to_string());
    // With itself behind it nothing else is tried; `auto` has a chain of its own.
    if flags.contains_key("execution_provider") && provider != "auto" {
        flags.insert("fallback".to_owned(), provider.clone());
    }
    if provider == "cpu" {
        flags.remove("offload");
    }
    let engine = if ["auto", "cpu"].contains(&&*provider) { &*cpu_engine } else { "ort" };
    let has = |precision: &str| match engine {
        "ort" if precision == "bf16" => WITH_BF16.contains(&&*provider),
        "ort" => OF_ONNX_RUNTIME.contains(&precision),
        "sim" => ["auto", "f32"].contains(&precision),
        // An accelerator, which `auto` may turn out to be, has it.
        _ => precision != "f16" || provider == "auto",
    };
    if flags.get("precision").is_some_and(|precision| !has(precision)) {
        return None;
    }
    if engine == "sim" {
        flags.remove("precision");
    }
    if ["ort", "sim"].contains(&engine) {
        flags.remove("cpu_isa");
    }
    Some(flags)
}

/// What serves: a variant as it turned out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Empty for an imported model.
    pub level: String,
    pub model: String,
    /// What computes: `native`, `ort`, ….
    pub engine: String,
    /// Execution provider; several with a plus in between.
    pub provider: String,
    pub precision: String,
    /// Instruction set; empty where the engine chooses by itself.
    pub isa: String,
    /// Tokens of one batch for each thread; 0 as calibrated, or where only the service knows.
    pub batch_tokens: usize,
    pub max_input_tokens: usize,
    #[serde(skip)]
    pub space: String,
}

impl Facts {
    /// What a service says of itself: its properties, and the manager's status.
    pub fn of_service(properties: &Properties, status: &Properties) -> Self {
        let text = |name| properties.text(name).to_owned();
        Self {
            level: text("VectorLevel"),
            model: text("Model"),
            engine: status.text("engine").to_owned(),
            provider: providers(status.text("device")),
            precision: text("Precision"),
            isa: status.text("isa").to_owned(),
            batch_tokens: 0,
            max_input_tokens: properties.number("MaxInputTokens").unwrap_or(0),
            space: text("VectorSpace"),
        }
    }

    /// A few words that tell it from `others`: the model's level, and what differs.
    pub fn label(&self, others: &[&Self]) -> String {
        let level = if self.level.is_empty() { &self.model } else { &self.level };
        let mut words = vec![level.clone()];
        let mut word = |of: fn(&Self) -> String, always: bool| {
            if (always || others.iter().any(|other| of(other) != of(self))) && !of(self).is_empty()
            {
                words.push(of(self));
            }
        };
        word(|facts| facts.provider.clone(), false);
        word(|facts| facts.engine.clone(), true);
        word(|facts| facts.precision.clone(), true);
        word(|facts| facts.isa.clone(), true);
        word(
            |facts| match facts.batch_tokens {
                0 => "calibrated tokens".to_owned(),
                tokens => format!("{tokens} tokens"),
            },
            false,
        );
        words.join(" ")
    }
}

/// The providers of these devices (`cuda:0,cuda:1,cpu:0`).
pub fn providers(devices: &str) -> String {
    let mut names: Vec<&str> =
        devices.split(',').map(|device| device.split(':').next().unwrap_or(device)).collect();
    names.dedup();
    names.join("+")
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::{CpuEngine, Provider, Sources};

    use super::*;

    fn defaults() -> Settings {
        Settings::load(&Sources::under("/nowhere")).unwrap().settings
    }

    fn of_defaults(compared: &Compared) -> Result<Vec<Flags>, Failure> {
        product(compared, &defaults())
    }

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn nothing_asked_for_is_what_is_configured() {
        assert_eq!(of_defaults(&Compared::default()).unwrap(), [Flags::new()]);
    }

    #[test]
    fn a_level_is_served_whatever_model_the_settings_name() {
        let compared = Compared { level: list("low high"), ..Compared::default() };
        let variants = of_defaults(&compared).unwrap();
        assert_eq!(variants.len(), 2);
        assert!(variants.iter().all(|flags| flags["model"].is_empty()));
    }

    #[test]
    fn an_engine_is_there_in_each_precision_that_it_has() {
        let compared = Compared {
            engine: list("native ort sim"),
            precision: list("f32 f16 bf16"),
            isa: list("avx2 portable"),
            ..Compared::default()
        };
        let variants = of_defaults(&compared).unwrap();
        let of = |engine| variants.iter().filter(|v| v["cpu_engine"] == engine).count();
        assert_eq!((of("native"), of("ort"), of("sim")), (4, 2, 1));
        let none = Compared { engine: list("ort"), precision: list("bf16"), ..Compared::default() };
        assert!(of_defaults(&none).is_err());
        let devices = Compared {
            provider: list("openvino ggml"),
            precision: list("f32 bf16"),
            ..Compared::default()
        };
        assert_eq!(of_defaults(&devices).unwrap().len(), 3);
    }

    #[test]
    fn providers_are_compared_strictly_and_the_cpu_has_nothing_beside_it() {
        let compared =
            Compared { provider: list("cpu ggml"), offload: true, ..Compared::default() };
        let variants = of_defaults(&compared).unwrap();
        let offload = |of: &Flags| of.get("offload").cloned().unwrap_or_default();
        assert_eq!(variants.iter().map(offload).collect::<Vec<_>>(), ["", "off", "auto"]);
        assert!(variants.iter().all(|flags| flags["fallback"] == flags["execution_provider"]));
        let auto = Compared { provider: list("auto"), ..Compared::default() };
        assert!(!of_defaults(&auto).unwrap()[0].contains_key("fallback"));
        assert_eq!(providers("cuda:0,cuda:1,cpu:0"), "cuda+cpu");
    }

    #[test]
    fn what_computes_may_be_in_the_settings() {
        let (mut cuda, mut ort) = (defaults(), defaults());
        cuda.execution_provider = Provider::Cuda;
        ort.cpu_engine = CpuEngine::Ort;
        let precisions = Compared { precision: list("f32 f16 bf16"), ..Compared::default() };
        let isas = Compared { isa: list("avx2 portable"), ..Compared::default() };
        for settings in [&cuda, &ort] {
            let variants = product(&precisions, settings).unwrap();
            let precisions: Vec<_> = variants.iter().map(|flags| &*flags["precision"]).collect();
            assert_eq!(precisions, ["f32", "f16"]);
            assert_eq!(product(&isas, settings).unwrap(), [Flags::new()]);
        }
        assert_eq!(of_defaults(&isas).unwrap().len(), 2);
        // What it will be is not known yet.
        let auto = Compared { provider: list("auto"), precision: list("f32 f16 bf16"), ..isas };
        assert_eq!(product(&auto, &cuda).unwrap().len(), 6);
    }

    #[test]
    fn a_provider_has_one_name() {
        let of = |provider: &str, precision: &str| {
            let (provider, precision) = (list(provider), list(precision));
            of_defaults(&Compared { provider, precision, ..Compared::default() }).unwrap()
        };
        let variants = of("gpu cuda", "");
        assert_eq!(variants.len(), 1);
        assert_eq!(variants[0]["execution_provider"], "cuda");
        assert_eq!(variants[0]["fallback"], "cuda");
        assert_eq!(of("trt", "bf16").len(), 1);
    }

    #[test]
    fn what_is_no_name_stays_to_be_refused() {
        let wrong = Compared {
            engine: list("sim"),
            isa: list("huge"),
            precision: list("huge"),
            ..Compared::default()
        };
        let variants = of_defaults(&wrong).unwrap();
        assert_eq!((&*variants[0]["cpu_isa"], &*variants[0]["precision"]), ("huge", "huge"));
    }

    #[test]
    fn a_label_has_what_differs() {
        let one = Facts {
            level: "low".into(),
            engine: "native".into(),
            precision: "f32".into(),
            batch_tokens: 512,
            ..Facts::default()
        };
        let other = Facts { batch_tokens: 64, ..one.clone() };
        assert_eq!(one.label(&[&one]), "low native f32");
        assert_eq!(one.label(&[&one, &other]), "low native f32 512 tokens");
    }
}
