//! The options of single execution providers: what `[providers.<name>]` accepts beside the library and faults, and
//! what of it ONNX Runtime is told.

pub mod fleet;
mod shapes;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use figment::value::{Dict, Value};
use op_dbus_engine::sim::Faults;
use op_dbus_models::manifest::{self, Reserved};
use serde_json::{Map, Value as Json};

use super::Settings;
use super::check::{Wrong, ask, not_texts};
use super::kind::{Kind, plain, show};
use super::mistakes::{Mistake, Origin};

/// One option of one provider.
#[derive(Debug)]
pub struct ProviderOption {
    /// The provider's canonical name.
    pub provider: &'static str,
    /// ONNX Runtime's own name for it, which is the key in the provider's table as well.
    pub key: &'static str,
    /// What is accepted.
    pub kind: Kind,
    /// What holds where the table does not say; empty is nothing.
    pub default: &'static str,
    /// How it is told to ONNX Runtime.
    pub form: Form,
    /// What it does, one paragraph.
    pub doc: &'static str,
}

/// How a value is told to ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is; `true` and `false` as `1` and `0`.
    Plain,
    /// As `Plain`, set or not; where it is `true`, this other option is told a folder in the cache.
    WithFolder(&'static str),
    /// Where it is `true` the option is told a folder in the cache, else nothing.
    Folder,
}

/// What ONNX Runtime is told of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// This value.
    Value(String),
    /// A folder in the cache, for what is compiled for one model, library and set of options.
    Folder,
}

/// All options of all providers, in the order in which they are shown.
pub fn all() -> impl Iterator<Item = &'static ProviderOption> {
    table::OPTIONS.into_iter().flatten()
}

/// The options of a provider.
pub fn of(provider: &str) -> impl Iterator<Item = &'static ProviderOption> {
    all().filter(move |option| option.provider == provider)
}

fn option(provider: &str, key: &str) -> Option<&'static ProviderOption> {
    of(provider).find(|option| option.key == key)
}

impl ProviderOption {
    /// What holds where the table does not say, for people.
    pub fn shown_default(&self) -> String {
        match self.default {
            "" => "not set".to_owned(),
            value => format!("`{value}`"),
        }
    }
}

/// The settings for all providers, each with a provider that has such an option, and how that calls it.
const GENERAL: [(&str, &str, &str); 4] = [
    ("gpu_memory_limit", "cuda", "gpu_mem_limit"),
    ("gpu_memory_limit", "migraphx", "migraphx_mem_limit"),
    ("arena_strategy", "cuda", "arena_extend_strategy"),
    ("arena_strategy", "migraphx", "migraphx_arena_extend_strategy"),
];

/// Such a setting in ONNX Runtime's words; `None` where it leaves it to the provider.
fn general(settings: &Settings, key: &str) -> Option<String> {
    match (key, settings.arena_strategy.as_str()) {
        ("gpu_memory_limit", _) => settings.gpu_memory_limit.map(|bytes| bytes.to_string()),
        ("arena_strategy", "next-power-of-two") => Some("kNextPowerOfTwo".to_owned()),
        ("arena_strategy", "same-as-requested") => Some("kSameAsRequested".to_owned()),
        _ => None,
    }
}

/// The settings for all providers that are set and that `provider` has no option for.
pub fn without_effect(provider: &str, settings: &Settings) -> Vec<&'static str> {
    let has = |key| GENERAL.iter().any(|(setting, of, _)| (*setting, *of) == (key, provider));
    let keys = ["gpu_memory_limit", "arena_strategy"].into_iter();
    keys.filter(|key| general(settings, key).is_some() && !has(*key)).collect()
}

/// Everything that ONNX Runtime is told of a provider: what settings for all providers say, unless the table does, the
/// checked options, and those that the table gives in the provider's own words.
pub fn told(provider: &str, settings: &Settings) -> Vec<(String, Told)> {
    let own = settings.providers.get(provider);
    let is_own = |key| own.is_some_and(|own| own.options.contains_key(key));
    let said_of_all = GENERAL.iter().filter(|(_, of, key)| *of == provider && !is_own(*key));
    let said_of_all = said_of_all.filter_map(|(setting, _, key)| {
        Some(((*key).to_owned(), Told::Value(general(settings, setting)?)))
    });
    let mut told: Vec<_> = said_of_all.collect();
    for option in of(provider) {
        let said = own.and_then(|own| own.checked.get(option.key)).map(String::as_str);
        let unsaid = matches!(option.form, Form::WithFolder(_)).then_some(option.default);
        let Some(value) = said.or(unsaid) else { continue };
        let on = value == "true";
        let word = match (option.kind, on) {
            (Kind::Bool, true) => "1",
            (Kind::Bool, false) => "0",
            _ => value,
        };
        let key = option.key.to_owned();
        match option.form {
            Form::Plain => told.push((key, Told::Value(word.to_owned()))),
            Form::WithFolder(folder) => {
                told.push((key, Told::Value(word.to_owned())));
                told.extend(on.then(|| (folder.to_owned(), Told::Folder)));
            }
            Form::Folder => told.extend(on.then_some((key, Told::Folder))),
        }
    }
    let free = own.into_iter().flat_map(|own| &own.options);
    told.extend(free.map(|(key, value)| (key.clone(), Told::Value(value.clone()))));
    told
}

/// Checks the table of one provider. What is right comes back in the form that [`ProviderSettings`]
/// has.
///
/// [`ProviderSettings`]: super::ProviderSettings
///
/// # Errors
/// Each mistake, with its key.
pub(super) fn check(provider: &str, table: &Dict) -> Result<Dict, Vec<Wrong>> {
    let (mut right, mut checked, mut mistakes) = (Dict::new(), Dict::new(), Vec::new());
    for (key, value) in table {
        let place = format!("providers.{provider}.{key}");
        let mut wrong = |message| mistakes.push((place.clone(), message));
        let refused =
            |wanted: &str| format!("{place} = {} is not accepted; write {wanted}", show(value));
        match (key.as_str(), option(provider, key)) {
            (_, Some(option)) => match option.kind.parse(value) {
                Ok(value) => drop(checked.insert(key.clone(), Value::from(plain(&value)))),
                Err(why) => wrong(format!("{place} = {why}")),
            },
            // What computes there needs no library here, and has no words that are not in the table.
            ("library" | "options", None) if provider == fleet::REMOTE => {
                wrong(unknown(provider, key));
            }
            ("library", None) => match value.as_str() {
                Some(path) if Path::new(path).is_absolute() => {
                    right.insert(key.clone(), value.clone());
                }
                _ => wrong(refused("an absolute path")),
            },
            ("faults", None) => match value.as_str().map(str::parse::<Faults>) {
                Some(Ok(_)) => drop(right.insert(key.clone(), value.clone())),
                Some(Err(why)) => wrong(format!("{place}: {why}")),
                None => wrong(refused("a text such as \"die_on_batch=3\"")),
            },
            ("options", None) => {
                let own = value.as_dict().into_iter().flat_map(Dict::keys);
                own.filter_map(|key| misplaced(provider, key)).for_each(wrong);
                mistakes.extend(not_texts(&place, value).or_else(|| no_object(provider, value)));
                right.insert(key.clone(), value.clone());
            }
            (_, None) => wrong(unknown(provider, key)),
        }
    }
    right.insert("checked".to_owned(), Value::from(checked));
    if mistakes.is_empty() { Ok(right) } else { Err(mistakes) }
}

/// Why OpenVINO's own configuration, which is one text among its options, is none: its worker would say so.
fn no_object(provider: &str, options: &Value) -> Option<Wrong> {
    const KEY: &str = "load_config";
    let said = options.as_dict().filter(|_| provider == "openvino")?.get(KEY)?;
    let error = serde_json::from_str::<Map<String, Json>>(said.as_str()?).err()?;
    let path = format!("providers.{provider}.options.{KEY}");
    let message = format!(
        "{path} = {} is not accepted, since it is no object in JSON ({error}); write one such as \
         {{\"CPU\": {{\"NUM_STREAMS\": \"2\"}}}}",
        show(said)
    );
    Some((path, message))
}

/// Why an option does not belong among those in the provider's own words.
fn misplaced(provider: &str, key: &str) -> Option<String> {
    let place = format!("`providers.{provider}.options.{key}`");
    match option(provider, key) {
        Some(_) => {
            Some(format!("{place} is a checked setting; write `providers.{provider}.{key}`"))
        }
        None => no_setting(key).map(|why| format!("{place} is not a setting, since {why}")),
    }
}

/// Why an option is no setting, whichever provider has it.
fn no_setting(key: &str) -> Option<&'static str> {
    let why = match manifest::reserved(key)? {
        Reserved::Device => {
            "the setting `gpu_device` names the devices, each of which gets a worker"
        }
        Reserved::Precision => {
            "the setting `precision` says what is computed in, on every provider"
        }
        Reserved::Place => {
            "what is compiled is kept in a folder below `cache_dir`, the one place that workers \
             write to"
        }
        Reserved::OneShape => {
            "what it makes is for one shape of batch, and nearly every batch has a shape of its own"
        }
        Reserved::Address => "it is the address of something in the memory of a program",
    };
    Some(why)
}

fn unknown(provider: &str, key: &str) -> String {
    let what = format!("`providers.{provider}.{key}` is not a setting");
    if let Some(why) = no_setting(key) {
        return format!("{what}, since {why}");
    }
    let is_remote = provider == fleet::REMOTE;
    let general = ["library", "options"].into_iter().filter(|_| !is_remote);
    let general = general.chain(["faults"]);
    let known = of(provider).map(|option| option.key).chain(general);
    let asked = ask(what.clone(), key, known);
    match asked == what && !is_remote {
        true => format!(
            "{what}; what it lacks a setting for is told to the provider in its own words by \
             `providers.{provider}.options`"
        ),
        false => asked,
    }
}

/// What in the tables of providers is right alone and can't be had together.
pub(super) fn contradictions(
    settings: &Settings,
    origins: &BTreeMap<&'static str, Origin>,
    origin: impl Fn(&str) -> Origin,
) -> Vec<Mistake> {
    let tables = settings.providers.iter();
    let wrong = tables.filter_map(|(provider, own)| {
        let message = match provider.as_str() {
            fleet::REMOTE => fleet::contradiction(settings, origins)?,
            _ => shapes::contradiction(&own.checked)?,
        };
        Some(Mistake {
            origin: origin(provider),
            message: format!("providers.{provider}: {message}"),
        })
    });
    wrong.collect()
}
