//! Checking one layer against the table.

use std::collections::BTreeMap;

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider as Figments};

use super::kind::{plain, show};
use super::layers::{Entry, Layer, Place};
use super::mistakes::{Mistake, Origin};
use super::options;
use super::row::{Row, Scope};
use super::table::{ROWS, row};
use super::types::Provider;

/// What is right in one source, in the one form that figment merges.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    place: Place,
    values: Dict,
    lines: BTreeMap<String, usize>,
}

impl Checked {
    /// The value of a key, if this source has one.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Where a key of this source stands.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.place.origin(key, self.lines.get(key).copied())
    }

    /// Whether this source is the state file.
    pub(super) fn is_state(&self) -> bool {
        matches!(self.place, Place::State(_))
    }
}

impl Figments for Checked {
    fn metadata(&self) -> Metadata {
        // The place is the identity by which a value's origin is found again.
        Metadata::named(format!("{:?}", self.place))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// Checks every key of a layer; what is wrong goes to `mistakes` and is left out.
pub(super) fn check(layer: Layer, mistakes: &mut Vec<Mistake>) -> Checked {
    let Layer { place, entries } = layer;
    let mut checked = Checked { place, values: Dict::new(), lines: BTreeMap::new() };
    for Entry { key, value, line } in entries {
        let found = match row(&key) {
            Some(row) => check_row(row, &checked.place, &value),
            None => check_table(&checked.place, &key, &value),
        };
        match found {
            Ok(value) => {
                checked.lines.extend(line.map(|line| (key.clone(), line)));
                checked.values.insert(key, value);
            }
            Err(messages) => mistakes.extend(
                messages
                    .into_iter()
                    .map(|message| Mistake { origin: checked.place.origin(&key, line), message }),
            ),
        }
    }
    checked
}

/// Checks a value that is to be set while the service runs.
///
/// # Errors
/// One sentence.
pub(super) fn check_change(key: &str, value: &str) -> Result<String, String> {
    match row(key) {
        Some(row) if row.scope == Scope::Runtime => {
            let value =
                row.kind.parse(&Value::from(value)).map_err(|why| format!("{key} = {why}"))?;
            Ok(plain(&value))
        }
        Some(row) => Err(format!(
            "`{key}` cannot be changed while the service runs; set it in a file, by {} or by {}",
            row.variable(),
            row.flag()
        )),
        None => Err(unknown(&Place::Default, key)),
    }
}

fn check_row(row: &Row, place: &Place, value: &Value) -> Result<Value, Vec<String>> {
    let in_file = matches!(place, Place::File(_) | Place::State(_));
    let named = if in_file { format!("{} = ", row.key) } else { String::new() };
    if row.scope == Scope::Outside && in_file {
        let (variable, flag) = (row.variable(), row.flag());
        return Err(vec![format!("`{}` is set by {variable} or {flag}, not in a file", row.key)]);
    }
    if matches!(place, Place::State(_)) && row.scope != Scope::Runtime {
        return Err(vec![format!("`{}` cannot be changed while the service runs", row.key)]);
    }
    let parsed = row.kind.parse(value);
    let is_default = parsed.as_ref().is_ok_and(|value| plain(value) == row.default);
    if row.scope == Scope::Later && !is_default {
        let (found, default) = (show(value), row.default);
        return Err(vec![format!(
            "{named}{found} is not supported by this version of op-dbus, which has only \
             `{default}`; leave it out"
        )]);
    }
    parsed.map_err(|why| vec![format!("{named}{why}")])
}

/// The two kinds of tables that a file may have.
fn check_table(place: &Place, key: &str, value: &Value) -> Result<Value, Vec<String>> {
    let Place::File(_) = place else { return Err(vec![unknown(place, key)]) };
    let check: fn(&str, &Dict) -> Result<Dict, Vec<String>> = match key {
        "models" => check_model,
        "providers" => check_provider,
        _ => return Err(vec![unknown(place, key)]),
    };
    let Some(tables) = value.as_dict() else {
        return Err(vec![format!("`{key}` is a table; write [{key}.<name>]")]);
    };
    let (mut right, mut messages) = (Dict::new(), Vec::new());
    for (name, table) in tables {
        match table.as_dict().map(|table| check(name, table)) {
            Some(Ok(table)) => drop(right.insert(name.clone(), Value::from(table))),
            Some(Err(wrong)) => messages.extend(wrong),
            None => messages.push(format!("`{key}.{name}` is a table; write [{key}.{name}]")),
        }
    }
    if messages.is_empty() { Ok(Value::from(right)) } else { Err(messages) }
}

fn check_model(model: &str, table: &Dict) -> Result<Dict, Vec<String>> {
    const KEYS: [&str; 2] = ["prompts", "default_prompt"];
    let mut messages = Vec::new();
    for (key, value) in table {
        let right = match key.as_str() {
            "prompts" => value.as_dict().is_some_and(|p| p.values().all(|v| v.as_str().is_some())),
            "default_prompt" => value.as_str().is_some(),
            _ => {
                let what = format!("`models.{model}.{key}` is not a setting");
                messages.push(ask(what, key, KEYS));
                continue;
            }
        };
        if !right {
            let wanted = if key == "prompts" { "a table of texts" } else { "a text" };
            let found = show(value);
            messages
                .push(format!("models.{model}.{key} = {found} is not accepted; write {wanted}"));
        }
    }
    if messages.is_empty() { Ok(table.clone()) } else { Err(messages) }
}

/// The settings of a single provider.
fn check_provider(provider: &str, table: &Dict) -> Result<Dict, Vec<String>> {
    let names = Provider::ALL.iter().map(|(_, name)| *name);
    if names.clone().any(|name| name == provider) {
        return options::check(provider, table);
    }
    let what = format!("`{provider}` is not the name of an execution provider");
    Err(vec![ask(what, provider, names)])
}

fn unknown(place: &Place, key: &str) -> String {
    let tables = match place {
        Place::File(_) => ["models", "providers"].as_slice(),
        _ => &[],
    };
    let what = match place {
        // Their origin names them already.
        Place::Environment | Place::Flags => "there is no such setting".to_owned(),
        _ => format!("`{key}` is not a setting"),
    };
    let known = ROWS.iter().map(|row| row.key).chain(tables.iter().copied());
    match did_you_mean(key, known) {
        Some(best) => format!("{what}; did you mean `{}`?", place.spell(best)),
        None => what,
    }
}

/// `what` with the question whether a near name was meant, if there is one.
pub(super) fn ask(
    what: String,
    text: &str,
    known: impl IntoIterator<Item = &'static str>,
) -> String {
    match did_you_mean(text, known) {
        Some(best) => format!("{what}; did you mean `{best}`?"),
        None => what,
    }
}

/// The known name that is nearest to a text, if it is near at all.
pub(super) fn did_you_mean<'a>(
    text: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // No known name is this long, and the distance takes time by the product of the lengths.
    if text.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let text = plain(text);
    let near = |name: &str| strsim::damerau_levenshtein(&text, &plain(name));
    let best = known.into_iter().min_by_key(|name| near(name))?;
    (near(best) <= 1.max(best.len() / 3)).then_some(best)
}
