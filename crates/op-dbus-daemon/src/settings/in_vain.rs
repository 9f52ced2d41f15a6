//! What the settings say that comes to nothing, and is no mistake: it may come to something later. And whether
//! anything can be embedded with them.

mod providers;

use op_dbus_engine::Tokenizer;
use op_dbus_models::{Error as ModelError, Level, Model, Store, manifest};

use super::check::{Checked, ask};
use super::kind::plain;
use super::loaded::last;
use super::mistakes::Origin;
use super::table::ROWS;
use super::types::CpuEngine;
use super::{Loaded, Row, Settings};

/// Tokens that no text has fewer of: one, and those that it begins and ends with.
const SHORTEST_TEXT: usize = 3;

impl Loaded {
    /// What is said of the default prompt that the settings have for this model, if it lacks that and so is not
    /// served; `warnings` has it as well.
    pub fn missing_prompt(&self, model: &Model) -> Option<String> {
        let name = &model.name;
        let own = self.settings.models.get(name)?;
        let prompt = own.default_prompt.as_ref().filter(|prompt| !prompt.is_empty())?;
        let known: Vec<&str> =
            own.prompts.keys().chain(model.prompts.keys()).map(String::as_str).collect();
        let has = match known.is_empty() {
            true => String::new(),
            false => format!(" (it has {})", known.join(", ")),
        };
        let key = format!("models.{name}.default_prompt");
        let origin = self.place_of(&key);
        (!known.contains(&prompt.as_str())).then(|| {
            format!(
                "{origin}: {key} is {prompt:?}, which the model does not have{has}; add it to the \
                 table as `prompts = {{ {prompt:?} = \"…\" }}`, or leave default_prompt out"
            )
        })
    }

    /// What is said of `expect_dimensions`, if a model has other dimensions and so is not served; `warnings` has it as
    /// well, of the model in force.
    pub fn wrong_dimensions(&self, model: &str, found: usize) -> Option<String> {
        let expected = self.settings.expect_dimensions.filter(|expected| *expected != found)?;
        Some(format!(
            "{model} has {found} dimensions, and expect_dimensions is {expected} ({}); ask for another model, or \
             change the setting",
            self.origin("expect_dimensions")
        ))
    }

    /// What is said of the setting that named a model, or the store itself, where the store does not have that model,
    /// and can't know of settings; `warnings` has it as well, of the model in force.
    pub(crate) fn not_found(&self, model: &str, error: &ModelError) -> Option<String> {
        match error {
            ModelError::NotInstalled { .. } if self.settings.model.as_deref() == Some(model) => {
                Some(format!("model is {model} ({}), and {error}", self.origin("model")))
            }
            ModelError::NoFolder { dir } => Some(format!(
                "model_dir is {} ({}), which is no folder, or lies below a file; name another",
                dir.display(),
                self.origin("model_dir")
            )),
            _ => None,
        }
    }

    /// Whether something that `warnings` tell keeps the model in force from being served;
    /// `cpu_computes` is whether the CPU has the instructions that the settings ask for.
    pub fn serves_nothing(&self, cpu_computes: bool) -> bool {
        let Settings { vector_level, queue_tokens_max, quota_tokens, .. } = &self.settings;
        if *vector_level == Level::None {
            return false;
        }
        let no_text = *queue_tokens_max.min(quota_tokens) < SHORTEST_TEXT;
        let model = match looked_up(self) {
            Some(Err(ModelError::NoFolder { .. })) => return true,
            found => found.and_then(Result::ok),
        };
        let is_refused = |model: &Model| {
            let wrong = || self.wrong_dimensions(&model.name, model.dimensions);
            self.missing_prompt(model).or_else(wrong).is_some()
        };
        no_text
            || model.as_ref().is_some_and(is_refused)
            || providers::none(self, model.as_ref(), cpu_computes)
    }

    /// What is said of a default prompt that fills all that the model in force reads: nothing is read of a text that is
    /// cut at its end. Calls may ask for another prompt, or for another end. It is not among `warnings`, as the model's
    /// tokenizer has to be read for it.
    pub fn full_prompt(&self) -> Option<String> {
        let model = in_force(self)?;
        let (name, longest) = (&model.name, model.max_input_tokens);
        let own = self.settings.models.get(name);
        let default = own.and_then(|own| own.default_prompt.as_ref());
        let prompt = default.or(model.default_prompt.as_ref())?;
        let own_text = own.and_then(|own| own.prompts.get(prompt));
        let text = own_text.or_else(|| model.prompts.get(prompt))?;
        // A tokenizer is costly to read, and makes hardly more tokens of a text than it has bytes.
        if text.len() < longest / 2 {
            return None;
        }
        let json = model.read(&model.tokenizer()).ok()?;
        let tokens = Tokenizer::from_bytes(&json, longest).ok()?.ids(text).ok()?.len();
        let key = format!("models.{name}.default_prompt");
        let of_text = format!("models.{name}.prompts.{prompt}");
        let which = match default {
            _ if own_text.is_some() => {
                format!("{}: {of_text} is the default prompt, and", self.place_of(&of_text))
            }
            Some(_) => format!("{}: {key} is {prompt:?}, which", self.place_of(&key)),
            None => format!("the default prompt {prompt:?} that {name} itself has"),
        };
        (tokens >= longest).then(|| {
            format!(
                "{which} fills all {longest} tokens that the model reads, so that with the default \
                 truncation all texts get the same vector; use a shorter prompt, or set {key} to \
                 \"\""
            )
        })
    }

    /// What is said of limits that no long text of the model in force fits, or not even a short one where the model is
    /// not known; `warnings` has it as well.
    pub fn short_limits(&self) -> Vec<String> {
        let Settings { vector_level, queue_tokens_max, quota_tokens, .. } = &self.settings;
        if *vector_level == Level::None {
            return Vec::new();
        }
        let built_in = |name: &str| manifest::models().iter().find(|model| model.name == name);
        let known = model_name(self).and_then(|name| {
            let longest = in_force(self).map(|model| model.max_input_tokens);
            let longest = longest.or_else(|| Some(built_in(name)?.max_input_tokens))?;
            Some((format!("a long text of {name}"), longest))
        });
        let (text, longest) =
            known.unwrap_or_else(|| ("even a short text".to_owned(), SHORTEST_TEXT));
        let limits = [("queue_tokens_max", *queue_tokens_max), ("quota_tokens", *quota_tokens)];
        let sentence = |(key, limit): (&str, usize)| {
            format!(
                "{}: {key} is {limit}, and {text} counts as {longest} tokens or more; raise {key} \
                 to {longest} at least",
                self.origin(key)
            )
        };
        limits.into_iter().filter(|(_, limit)| *limit < longest).map(sentence).collect()
    }
}

/// All of it that is told of settings by themselves, a sentence each.
pub(super) fn sentences(loaded: &Loaded) -> Vec<String> {
    let mut all = switched_off(loaded);
    let model = match looked_up(loaded) {
        Some(Err(error)) => {
            all.extend(loaded.not_found(model_name(loaded).unwrap_or_default(), &error));
            None
        }
        found => found.and_then(Result::ok),
    };
    all.extend(missing_models(loaded));
    all.extend(missing_prompts(loaded));
    let wrong = |model: &Model| loaded.wrong_dimensions(&model.name, model.dimensions);
    all.extend(model.as_ref().and_then(wrong));
    all.extend(loaded.short_limits());
    all.extend(providers::sentences(loaded, model.as_ref()));
    all
}

/// What the settings ask of a model while they have none loaded.
fn switched_off(loaded: &Loaded) -> Vec<String> {
    let Settings { vector_level, model, expect_dimensions, .. } = &loaded.settings;
    if *vector_level != Level::None {
        return Vec::new();
    }
    let asked = [("model", model.is_some()), ("expect_dimensions", expect_dimensions.is_some())];
    let sentence = |(key, _)| {
        let value = loaded.value(key).unwrap_or_default();
        format!(
            "{}: {key} is {value}, which has no effect while vector_level is none ({})",
            loaded.origin(key),
            loaded.origin("vector_level")
        )
    };
    asked.into_iter().filter(|(_, is_asked)| *is_asked).map(sentence).collect()
}

/// What the files say in vain, as it was changed over the bus; the layer of the state file is the one
/// behind `of_files`.
pub(super) fn overruled(layers: &[Checked], of_files: usize) -> Vec<String> {
    let (files, rest) = layers.split_at(of_files);
    let [state, outer @ ..] = rest else { return Vec::new() };
    let sentence = |Row { key, .. }: &Row| {
        let kept = plain(state.value(key)?);
        let file = last(files, key).filter(|one| matches!(one.origin(key), Origin::File(..)))?;
        let said = plain(file.value(key)?);
        let in_vain = kept != said && last(outer, key).is_none();
        in_vain.then(|| {
            format!(
                "{}: {key} = {said} has no effect: it was changed to {kept} over the bus, which the \
                 {} keeps; change it over the bus to have it otherwise",
                file.origin(key),
                state.origin(key)
            )
        })
    };
    ROWS.iter().filter_map(sentence).collect()
}

/// Tables of models that are not in the store; they may be imported later.
fn missing_models(loaded: &Loaded) -> Vec<String> {
    let Settings { model_dir, models, cpu_engine, .. } = &loaded.settings;
    // The simulator has no use for any.
    if *cpu_engine == CpuEngine::Sim {
        return Vec::new();
    }
    let built_in = || manifest::models().iter().map(|model| model.name.as_str());
    let sentence = |name: &String| {
        // Who may not look into the store knows nothing of it.
        let is_missing = matches!(model_dir.join(name).try_exists(), Ok(false));
        let (origin, dir) = (loaded.place_of(&format!("models.{name}")), model_dir.display());
        let what = format!("{origin}: [models.{name}] has no effect, as {dir} has no such model");
        is_missing.then(|| ask(what, name, built_in()))
    };
    let own = models.keys().filter(|name| built_in().all(|model| model != *name));
    own.filter_map(sentence).collect()
}

/// Default prompts that neither the settings nor the models have.
fn missing_prompts(loaded: &Loaded) -> Vec<String> {
    let Settings { model_dir, models, .. } = &loaded.settings;
    let store = Store::open(model_dir);
    models.keys().filter_map(|name| loaded.missing_prompt(&store.get(name).ok()?)).collect()
}

/// What the model is called that the service would embed with; the simulator has none of the store.
fn model_name(loaded: &Loaded) -> Option<&str> {
    let Settings { vector_level, model, cpu_engine, .. } = &loaded.settings;
    let has_one = *vector_level != Level::None && *cpu_engine != CpuEngine::Sim;
    let name = model.as_deref().or_else(|| vector_level.model());
    name.filter(|_| has_one)
}

/// The same model, or why the store does not have it.
fn looked_up(loaded: &Loaded) -> Option<Result<Model, ModelError>> {
    Some(Store::open(&loaded.settings.model_dir).get(model_name(loaded)?))
}

fn in_force(loaded: &Loaded) -> Option<Model> {
    looked_up(loaded)?.ok()
}
