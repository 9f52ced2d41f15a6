//! Checking one layer against the table.

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider as Figments};
use op_dbus_models::manifest;

use super::kind::{choose, plain, show};
use super::layers::{Entry, Layer, Lines, Place};
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
    lines: Lines,
}

/// What is wrong in a source: the path of the key, dots between, and a sentence.
pub(super) type Wrong = (String, String);

impl Checked {
    /// The value of a key, if this source has one.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Where a key of this source stands; of one in a table, by its path.
    pub(super) fn origin(&self, path: &str) -> Origin {
        self.place.origin(path, self.lines.get(path).copied())
    }

    /// Whether this source is a file that has the key, or table, with that path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.lines.contains_key(path)
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
    let Layer { place, entries, lines } = layer;
    let mut checked = Checked { place, values: Dict::new(), lines };
    for Entry { key, value } in entries {
        let found = match row(&key) {
            Some(row) => check_row(row, &checked.place, &value)
                .map_err(|message| vec![(key.clone(), message)]),
            None => check_table(&checked.place, &key, &value),
        };
        match found {
            Ok(value) => drop(checked.values.insert(key, value)),
            Err(wrong) => mistakes.extend(
                wrong
                    .into_iter()
                    .map(|(path, message)| Mistake { origin: checked.origin(&path), message }),
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

fn check_row(row: &Row, place: &Place, value: &Value) -> Result<Value, String> {
    let in_file = matches!(place, Place::File(_) | Place::State(_));
    let named = if in_file { format!("{} = ", row.key) } else { String::new() };
    if row.scope == Scope::Outside && in_file {
        let (variable, flag) = (row.variable(), row.flag());
        return Err(format!("`{}` is set by {variable} or {flag}, not in a file", row.key));
    }
    if matches!(place, Place::State(_)) && row.scope != Scope::Runtime {
        return Err(format!("`{}` cannot be changed while the service runs", row.key));
    }
    row.kind.parse(value).map_err(|why| format!("{named}{why}"))
}

/// The two kinds of tables that a file may have.
fn check_table(place: &Place, key: &str, value: &Value) -> Result<Value, Vec<Wrong>> {
    let refuse = |message| Err(vec![(key.to_owned(), message)]);
    let Place::File(_) = place else { return refuse(unknown(place, key)) };
    let check: fn(&str, &Dict) -> Result<Dict, Vec<Wrong>> = match key {
        "models" => check_model,
        "providers" => check_provider,
        _ => return refuse(unknown(place, key)),
    };
    let Some(tables) = value.as_dict() else {
        return refuse(format!("`{key}` is a table; write [{key}.<name>]"));
    };
    // As in every other setting: it would end the connection that the settings are told over.
    if let Some(path) = path_of_zero(key, value) {
        let message = format!("{} has the character U+0000", path.escape_debug());
        return Err(vec![(path, message)]);
    }
    let (mut right, mut mistakes) = (Dict::new(), Vec::new());
    for (name, table) in tables {
        let path = format!("{key}.{name}");
        match table.as_dict().map(|table| check(name, table)) {
            Some(Ok(table)) => drop(right.insert(name.clone(), Value::from(table))),
            Some(Err(wrong)) => mistakes.extend(wrong),
            None => mistakes.push((path.clone(), format!("`{path}` is a table; write [{path}]"))),
        }
    }
    if mistakes.is_empty() { Ok(Value::from(right)) } else { Err(mistakes) }
}

/// Where a table has the character U+0000, in a name or in a text.
fn path_of_zero(path: &str, value: &Value) -> Option<String> {
    let of_table = |(key, value): (&String, &Value)| path_of_zero(&format!("{path}.{key}"), value);
    match value {
        _ if path.contains('\0') => Some(path.to_owned()),
        Value::String(_, text) => text.contains('\0').then(|| path.to_owned()),
        Value::Array(_, values) => values.iter().find_map(|value| path_of_zero(path, value)),
        Value::Dict(_, table) => table.iter().find_map(of_table),
        _ => None,
    }
}

fn check_model(model: &str, table: &Dict) -> Result<Dict, Vec<Wrong>> {
    const KEYS: [&str; 2] = ["prompts", "default_prompt"];
    // A level, or the name in other letters: the table would never be looked up.
    if let Some(built_in) = manifest::find(model).filter(|built_in| built_in.name != model) {
        let meant = &built_in.name;
        let message = format!("`{model}` is not the name of a model; did you mean `{meant}`?");
        return Err(vec![(format!("models.{model}"), message)]);
    }
    let mut mistakes = Vec::new();
    for (key, value) in table {
        let path = format!("models.{model}.{key}");
        match key.as_str() {
            "prompts" => {
                mistakes.extend(not_texts(&path, value).or_else(|| nameless(&path, value)));
            }
            "default_prompt" if value.as_str().is_some() => {}
            "default_prompt" => {
                let message = format!("{path} = {} is not accepted; write a text", show(value));
                mistakes.push((path, message));
            }
            _ => {
                let what = format!("`{path}` is not a setting");
                mistakes.push((path, ask(what, key, KEYS)));
            }
        }
    }
    if mistakes.is_empty() { Ok(table.clone()) } else { Err(mistakes) }
}

/// Why a table has a prompt that no call could ask for.
fn nameless(path: &str, prompts: &Value) -> Option<Wrong> {
    prompts.as_dict()?.get("")?;
    let message = format!(
        "{path} has a prompt with the name \"\", which is how a call asks for none; give it another"
    );
    Some((format!("{path}."), message))
}

/// Why a value is no table of texts, told of the first in it that is none.
pub(super) fn not_texts(path: &str, value: &Value) -> Option<Wrong> {
    let (path, value, wanted) = match value.as_dict() {
        Some(table) => {
            let (key, value) = table.iter().find(|(_, value)| value.as_str().is_none())?;
            (format!("{path}.{key}"), value, "a text")
        }
        None => (path.to_owned(), value, "a table of texts"),
    };
    let message = format!("{path} = {} is not accepted; write {wanted}", show(value));
    Some((path, message))
}

/// The settings of a single provider.
fn check_provider(provider: &str, table: &Dict) -> Result<Dict, Vec<Wrong>> {
    let what = format!("`{provider}` is not the name of an execution provider");
    let message = match choose(Provider::CHOICES, provider) {
        Some("auto") => {
            "`auto` is no provider of its own; each that it tries has a table".to_owned()
        }
        Some("cpu") => {
            "`cpu` has no table; its settings are `cpu_engine`, `cpu_isa` and `runtime`".to_owned()
        }
        Some(name) if name == provider => return options::check(provider, table),
        Some(name) => format!("{what}; did you mean `{name}`?"),
        None => {
            let names = Provider::ALL.iter().map(|(_, name)| *name);
            ask(what, provider, names.filter(|name| !["auto", "cpu"].contains(name)))
        }
    };
    Err(vec![(format!("providers.{provider}"), message)])
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
pub(crate) fn did_you_mean<'a>(
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
