//! All layers put together: the settings, and where each value comes from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use figment::{Figment, Provider as _};

use super::check::{Checked, check, check_change};
use super::kind::plain;
use super::layers::{self, Layer, Sources};
use super::mistakes::{Mistake, Mistakes, Origin, Warning};
use super::table::{ROWS, row};
use super::{Row, Settings, drop_ins, in_vain, options, together};
use crate::state::{StateError, StateFile, not_used};
use crate::telemetry::message_id;
use crate::text_file::Unusable;

/// Settings that are read once, at the start.
const READ_AT_START: [&str; 3] = ["bus", "state_file", "core_dumps"];

/// Settings that were read and checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub settings: Settings,
    /// Where each value comes from, by key.
    pub origins: BTreeMap<&'static str, Origin>,
    /// What the administrator should know: for the log.
    pub warnings: Vec<Warning>,
    values: BTreeMap<&'static str, String>,
    layers: Vec<Checked>,
    state: StateFile,
    sources: Sources,
    /// What was read at the start, once it was read again.
    start: Option<Arc<Loaded>>,
}

/// One setting as it is shown.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Shown {
    /// The key, for example `vector_level` or `models.NAME.default_prompt`.
    pub key: String,
    /// The value in the form that a flag has.
    pub value: String,
    /// Where it comes from.
    pub origin: String,
}

/// Why a setting could not be changed while the service runs.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The environment or a flag decides.
    #[error("`{key}` is pinned by the {by}; remove it there and restart the service")]
    Pinned {
        /// The setting.
        key: String,
        /// What pins it, for example `environment variable OP_DBUS_VECTOR_LEVEL`.
        by: String,
    },
    /// The value is wrong, or the setting cannot be changed.
    #[error("{0}")]
    Invalid(String),
    /// The change could not be kept; it has not been made.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Loaded {
    /// Names the environment variable or the flag that decides `key`, so that a change at run
    /// time would have no effect.
    pub fn pinned_by(&self, key: &str) -> Option<String> {
        match self.origins.get(key)? {
            origin @ (Origin::Environment(_) | Origin::Flag(_)) => Some(origin.to_string()),
            _ => None,
        }
    }

    /// What is said of environment variables that are nearly a setting's; `warnings` has it as well.
    pub fn misspelt(&self) -> Vec<String> {
        layers::misspelt(&self.sources)
    }

    /// Keeps in the state file what was changed. Waits for the disk.
    ///
    /// # Errors
    /// The state file could not be written; it is what it was.
    pub fn save(&mut self) -> Result<(), ChangeError> {
        Ok(self.state.save()?)
    }

    /// The settings with one changed while the service runs; nothing is kept before they are [saved](Self::save).
    ///
    /// # Errors
    /// The setting is pinned, or the value is wrong.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, ChangeError> {
        let value = check_change(key, value).map_err(ChangeError::Invalid)?;
        if let Some(by) = self.pinned_by(key) {
            return Err(ChangeError::Pinned { key: key.to_owned(), by });
        }
        let mut state = self.state.clone();
        state.set(key, value.into());
        let mut unused = Vec::new();
        let changed = check(layers::state(&state), &mut unused);
        let replaced = self.layers.iter().map(|layer| match layer.is_state() {
            true => changed.clone(),
            false => layer.clone(),
        });
        let (sources, warnings) = (self.sources.clone(), self.warnings.clone());
        let mut with = assemble(replaced.collect(), Parts { state, warnings, sources })
            .map_err(|mistakes| ChangeError::Invalid(mistakes.to_string()))?;
        with.hold(self.start.clone());
        Ok(with)
    }

    /// Reads the same sources again, and the state file that has been in use: that, as all that is read at
    /// the start, stays what it was, and the warnings tell what waits for a restart. Where that file can't be used
    /// any more, what it had stays in force.
    ///
    /// # Errors
    /// All mistakes in all sources; the settings in `self` still hold.
    pub fn reload(&self) -> Result<Loaded, Mistakes> {
        load(&self.sources, Some(self))
    }

    /// Puts what counts since the start in the place of what was read since; one sentence for each that is
    /// another.
    fn hold(&mut self, start: Option<Arc<Loaded>>) -> Vec<String> {
        let Some(first) = start.as_deref() else { return Vec::new() };
        let mut waiting = Vec::new();
        for key in READ_AT_START {
            let (value, origin) = (first.values[key].clone(), first.origins[key].clone());
            let read = self.values.insert(key, value).filter(|read| *read != first.values[key]);
            let from = self.origins.insert(key, origin).unwrap_or(Origin::Default);
            waiting.extend(read.map(|read| {
                format!(
                    "{key} is {read} by now ({from}), and is read at the start only; restart the \
                     service to apply it"
                )
            }));
        }
        self.settings.bus.clone_from(&first.settings.bus);
        self.settings.state_file.clone_from(&first.settings.state_file);
        self.settings.core_dumps = first.settings.core_dumps;
        self.start = start;
        waiting
    }

    /// Where the value of a setting comes from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Where a table, or a key in one, was found last.
    pub(crate) fn place_of(&self, path: &str) -> Origin {
        place_of(&self.layers, path)
    }

    /// A setting's value in the form that a flag has.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Every setting, in the order of the table, then what tables say about models and providers.
    pub fn show(&self) -> Vec<Shown> {
        let rows = ROWS.iter().map(|Row { key, .. }| Shown {
            key: (*key).to_owned(),
            value: self.values.get(key).cloned().unwrap_or_default(),
            origin: self.origin(key).to_string(),
        });
        rows.chain(self.show_tables()).collect()
    }

    fn show_tables(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        let mut add = |key: String, value: &str| {
            let origin = self.place_of(&key).to_string();
            shown.push(Shown { key, value: value.to_owned(), origin });
        };
        for (model, settings) in &self.settings.models {
            for (prompt, text) in &settings.prompts {
                add(format!("models.{model}.prompts.{prompt}"), text);
            }
            if let Some(prompt) = &settings.default_prompt {
                add(format!("models.{model}.default_prompt"), prompt);
            }
        }
        for (provider, settings) in &self.settings.providers {
            if let Some(library) = &settings.library {
                add(format!("providers.{provider}.library"), &library.display().to_string());
            }
            if let Some(faults) = &settings.faults {
                add(format!("providers.{provider}.faults"), faults);
            }
            for (option, value) in &settings.checked {
                add(format!("providers.{provider}.{option}"), value);
            }
            for (option, value) in &settings.options {
                add(format!("providers.{provider}.options.{option}"), value);
            }
        }
        shown
    }
}

/// Reads, checks and puts together; see [`Settings::load`]. Of a service that runs, with settings that are `in_use`,
/// their state file is read in place of the one that the settings name.
pub(super) fn load(sources: &Sources, in_use: Option<&Loaded>) -> Result<Loaded, Mistakes> {
    let (mut mistakes, mut outer_mistakes) = (Vec::new(), Vec::new());
    let environment = layers::environment(sources, &mut outer_mistakes);
    let outer =
        [environment, layers::flags(sources)].map(|layer| check(layer, &mut outer_mistakes));
    let named = last(&outer, "config").and_then(|layer| {
        let path = PathBuf::from(layer.value("config")?.as_str()?);
        Some((path, layer.origin("config")))
    });
    // A named file is read in place of the drop-ins, too.
    let passed_over = if named.is_none() { drop_ins::passed_over(sources) } else { Vec::new() };
    let mut inner: Vec<Layer> = layers::defaults(sources);
    inner.extend(layers::files(sources, named, &mut mistakes));
    let mut layers: Vec<Checked> =
        inner.into_iter().map(|layer| check(layer, &mut mistakes)).collect();

    let state_file = last(&outer, "state_file").or_else(|| last(&layers, "state_file"));
    let named = state_file.and_then(|layer| layer.value("state_file")?.as_str());
    let in_use_state = in_use.map(|loaded| &loaded.state);
    let path = in_use_state.map_or(Path::new(named.unwrap_or_default()), StateFile::path);
    let (mut state, unusable) = StateFile::look(path);
    let known = in_use_state.filter(|_| unusable.is_some()).map(StateFile::settings);
    for (key, value) in known.into_iter().flatten() {
        state.set(key, value.clone());
    }
    let mut ignored = Vec::new();
    let of_files = layers.len();
    layers.push(check(layers::state(&state), &mut ignored));
    let of_state = |text| Warning { message_id: Some(message_id::STATE_CORRUPT), text };
    let ignored = ignored.iter().map(|mistake: &Mistake| format!("{mistake}; it is ignored"));
    let told = |text| Warning { message_id: None, text };
    layers.extend(outer);
    let unread = layers::misspelt(sources).into_iter().chain(passed_over);
    let of_layers = in_vain::overruled(&layers, of_files).into_iter().chain(unread);
    let warnings = ignored.map(of_state).chain(of_layers.map(told)).collect();

    mistakes.extend(outer_mistakes);
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes));
    }
    let mut loaded = assemble(layers, Parts { state, warnings, sources: sources.clone() })?;
    let start =
        in_use.map(|loaded| loaded.start.clone().unwrap_or_else(|| Arc::new(loaded.clone())));
    let waiting = loaded.hold(start);
    let in_vain = in_vain::sentences(&loaded);
    loaded.warnings.extend(waiting.into_iter().chain(in_vain).map(told));
    // Last: beside a mistake nobody would be told that it was moved, and next time it is missing, which is no
    // reason to tell anything.
    let of_file = state_warnings(&mut loaded, unusable);
    loaded.warnings.splice(0..0, of_file.into_iter().map(of_state));
    Ok(loaded)
}

fn state_warnings(loaded: &mut Loaded, unusable: Option<Unusable>) -> Vec<String> {
    if loaded.sources.repair_state {
        return loaded.state.repair(unusable);
    }
    let path = loaded.state.path();
    unusable.map(|unusable| not_used(path, &unusable.reason())).into_iter().collect()
}

/// The last layer that has the key.
pub(super) fn last<'a>(layers: &'a [Checked], key: &str) -> Option<&'a Checked> {
    layers.iter().rev().find(|layer| layer.value(key).is_some())
}

/// Where a table, or a key in one, was found last.
fn place_of(layers: &[Checked], path: &str) -> Origin {
    let layer = layers.iter().rev().find(|layer| layer.has(path));
    layer.map_or(Origin::Default, |layer| layer.origin(path))
}

/// What goes with the layers.
struct Parts {
    state: StateFile,
    warnings: Vec<Warning>,
    sources: Sources,
}

fn assemble(layers: Vec<Checked>, parts: Parts) -> Result<Loaded, Mistakes> {
    let figment = layers.iter().fold(Figment::new(), |figment, layer| figment.merge(layer));
    // Every value was checked, so this fails only when the table and the struct disagree.
    let settings: Settings = figment.extract().map_err(|errors| {
        Mistakes(errors.into_iter().map(|error| disagreement(&error)).collect())
    })?;
    let mut origins = BTreeMap::new();
    let mut values = BTreeMap::new();
    for Row { key, .. } in ROWS {
        let metadata = figment.find_metadata(key);
        let layer = layers.iter().rev().find(|layer| Some(&layer.metadata()) == metadata);
        origins.insert(*key, layer.map_or(Origin::Default, |layer| layer.origin(key)));
        values.insert(*key, figment.find_value(key).map_or(String::new(), |value| plain(&value)));
    }
    let mut contradictions = together::check(&settings, &origins);
    let of_table = |provider: &str| place_of(&layers, &format!("providers.{provider}"));
    contradictions.extend(options::contradictions(&settings, &origins, of_table));
    if !contradictions.is_empty() {
        return Err(Mistakes(contradictions));
    }
    let Parts { state, warnings, sources } = parts;
    Ok(Loaded { settings, origins, warnings, values, layers, state, sources, start: None })
}

fn disagreement(error: &figment::Error) -> Mistake {
    let key = error.path.join(".");
    let place = row(&key).map_or(key.clone(), |row| row.key.to_owned());
    Mistake { origin: Origin::Default, message: format!("{place}: {error}") }
}
