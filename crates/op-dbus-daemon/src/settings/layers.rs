//! Reading the sources: what each one says, not yet checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use figment::value::Value;
use serde::Deserialize;
use toml::de::{DeTable, DeValue, Deserializer};

use super::drop_ins;
use super::kind::Kind;
use super::mistakes::{Mistake, Origin};
use super::table::{ROWS, row};
use crate::state::StateFile;
use crate::text_file::{self, Unusable};

/// Where settings are read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What every default path is under: `/`, or the root of a tree in a test.
    pub root: PathBuf,
    /// The environment.
    pub env: BTreeMap<OsString, OsString>,
    /// Values given by flags, by the setting's key.
    pub flags: BTreeMap<String, String>,
    /// Whether systemd started this process as a service.
    pub service: bool,
    /// Whether a damaged state file is moved aside: for the daemon, not for who only looks.
    pub repair_state: bool,
}

impl Sources {
    /// What this process was started with.
    pub fn of_process(flags: BTreeMap<String, String>) -> Sources {
        // systemd gives the variable to the process it starts; a shell below it has another pid.
        let service = env::var("SYSTEMD_EXEC_PID").is_ok_and(|p| p == process::id().to_string());
        let env = env::vars_os().collect();
        Sources { root: PathBuf::from("/"), env, flags, service, repair_state: false }
    }

    /// The files under `root` alone: no environment, no flags.
    pub fn under(root: impl Into<PathBuf>) -> Sources {
        Sources { root: root.into(), ..Sources::default() }
    }

    /// The same with flags.
    #[cfg(test)]
    pub(crate) fn with_flags(mut self, flags: &[(&str, &str)]) -> Sources {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.flags.extend(flags);
        self
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// Which source a layer was read from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    Default,
    Offered(&'static str),
    File(PathBuf),
    State(PathBuf),
    Environment,
    Flags,
}

impl Place {
    /// The origin of a key in this place.
    pub(super) fn origin(&self, key: &str, line: Option<usize>) -> Origin {
        match self {
            Place::Default => Origin::Default,
            Place::Offered(variable) => Origin::Offered(variable),
            Place::File(path) => Origin::File(path.clone(), line),
            Place::State(path) => Origin::State(path.clone()),
            Place::Environment => Origin::Environment(self.spell(key)),
            Place::Flags => Origin::Flag(self.spell(key)),
        }
    }

    /// How a key is written there.
    pub(super) fn spell(&self, key: &str) -> String {
        match self {
            Place::Environment => format!("{PREFIX}{}", key.to_ascii_uppercase()),
            Place::Flags => format!("--{}", key.replace('_', "-")),
            _ => key.to_owned(),
        }
    }
}

const PREFIX: &str = "OP_DBUS_";

/// What one source says.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) place: Place,
    pub(super) entries: Vec<Entry>,
    pub(super) lines: Lines,
}

/// Lines in a file, from 1, of its keys and of those in its tables, by the path with dots between.
pub(super) type Lines = BTreeMap<String, usize>;

/// One key of a source.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Value,
}

impl Entry {
    fn new(key: impl Into<String>, value: impl Into<Value>) -> Entry {
        Entry { key: key.into(), value: value.into() }
    }
}

impl Layer {
    /// What is said elsewhere than in a file.
    fn new(place: Place, entries: Vec<Entry>) -> Layer {
        Layer { place, entries, lines: Lines::new() }
    }
}

/// The built-in values, and what better defaults the environment offers.
pub(super) fn defaults(sources: &Sources) -> Vec<Layer> {
    let entries = ROWS.iter().map(|row| match row.kind {
        Kind::Path { optional: false } => {
            Entry::new(row.key, sources.path(row.default).to_string_lossy().into_owned())
        }
        _ => Entry::new(row.key, row.default),
    });
    let mut layers = vec![Layer::new(Place::Default, entries.collect())];
    let (variable, key) = match sources.service {
        true => ("CACHE_DIRECTORY", "cache_dir"),
        false => ("ORT_DYLIB_PATH", "runtime"),
    };
    let mut value = sources.env.get(&OsString::from(variable)).and_then(|value| value.to_str());
    if sources.service {
        // systemd joins several folders by colons; the first one is ours.
        value = value.and_then(|value| value.split(':').next());
    }
    // For another program it may be a name that is looked up among the system's libraries.
    if let Some(value) = value.filter(|value| Path::new(value).is_absolute()) {
        layers.push(Layer::new(Place::Offered(variable), vec![Entry::new(key, value)]));
    }
    layers
}

/// `OP_DBUS_*`. An empty variable counts as not set.
pub(super) fn environment(sources: &Sources, mistakes: &mut Vec<Mistake>) -> Layer {
    let mut entries = Vec::new();
    for (variable, value) in &sources.env {
        let Some(name) = variable.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let refused = match value.to_str() {
            // One of either spelling would overrule the other.
            Some(_) if name.contains(|c: char| c.is_ascii_lowercase()) => {
                "names of settings are in capital letters in the environment"
            }
            Some(value) => {
                entries.push(Entry::new(name.to_ascii_lowercase(), value));
                continue;
            }
            None => "its value is not UTF-8 text",
        };
        let origin = Origin::Environment(format!("{PREFIX}{name}"));
        mistakes.push(Mistake { origin, message: refused.to_owned() });
    }
    Layer::new(Place::Environment, entries)
}

/// What is said of variables that would be a setting's but for how their names are written, and are none:
/// `OPDBUS_THREADS`.
pub(super) fn misspelt(sources: &Sources) -> Vec<String> {
    let plain = |name: &str| name.replace('_', "").to_ascii_uppercase();
    let sentence = |(variable, value): (&OsString, &OsString)| {
        let name = variable.to_str().filter(|name| !name.starts_with(PREFIX))?;
        let mut settings = ROWS.iter().map(|row| Place::Environment.spell(row.key));
        let meant = settings.find(|setting| plain(setting) == plain(name))?;
        let told = format!("environment variable {name} has no effect; did you mean `{meant}`?");
        (!value.is_empty()).then_some(told)
    };
    sources.env.iter().filter_map(sentence).collect()
}

/// The command line. A relative path is meant from the current folder there.
pub(super) fn flags(sources: &Sources) -> Layer {
    let entries = sources.flags.iter().map(|(key, value)| {
        let is_path = row(key).is_some_and(|row| matches!(row.kind, Kind::Path { .. }));
        match std::path::absolute(value) {
            Ok(path) if is_path => Entry::new(key, path.to_string_lossy().into_owned()),
            _ => Entry::new(key, value.as_str()),
        }
    });
    Layer::new(Place::Flags, entries.collect())
}

/// The configuration files that exist, in order. `named` is what the environment or a flag named
/// in place of the administrator's own.
pub(super) fn files(
    sources: &Sources,
    named: Option<(PathBuf, Origin)>,
    mistakes: &mut Vec<Mistake>,
) -> Vec<Layer> {
    let mut paths = vec![sources.path("usr/lib/op-dbus/config.toml")];
    match named {
        Some((path, origin)) => match path.try_exists() {
            Ok(true) => paths.push(path),
            Ok(false) => {
                let message = format!("there is no file {}", path.display());
                mistakes.push(Mistake { origin, message });
            }
            Err(error) => {
                let message = format!("{} cannot be read: {error}", path.display());
                mistakes.push(Mistake { origin, message });
            }
        },
        None => {
            paths.push(sources.path("etc/op-dbus/config.toml"));
            match drop_ins::read(sources) {
                Ok(found) => paths.extend(found.taken),
                Err(mistake) => mistakes.push(mistake),
            }
        }
    }
    let mut layers = Vec::new();
    for path in paths.into_iter().filter(|path| path != Path::new("/dev/null")) {
        match file(&path) {
            Ok(layer) => layers.extend(layer),
            Err((line, message)) => {
                mistakes.push(Mistake { origin: Origin::File(path, line), message });
            }
        }
    }
    layers
}

fn file(path: &Path) -> Result<Option<Layer>, (Option<usize>, String)> {
    let text = text_file::read(path).map_err(|unusable| {
        let verb = if matches!(unusable, Unusable::Foreign(..)) { "used" } else { "read" };
        (None, format!("it cannot be {verb}: {}", unusable.reason()))
    })?;
    let Some(text) = text else {
        return match fs::symlink_metadata(path) {
            Ok(_) => Err((None, "it cannot be read: it is a link to what is not there".to_owned())),
            Err(_) => Ok(None),
        };
    };
    let ends: Vec<usize> = text.match_indices('\n').map(|(byte, _)| byte).collect();
    let line = |byte: usize| 1 + ends.partition_point(|end| *end < byte);
    let refuse = |error: toml::de::Error| {
        let (message, span) = (error.message().replace('\n', ", "), error.span());
        let twice = span.clone().filter(|_| message == "duplicate key");
        let key = twice.and_then(|span| text.get(span)).map_or(String::new(), |key| {
            format!(" `{}`", key.chars().take(60).collect::<String>())
        });
        (span.map(|span| line(span.start)), format!("it is not TOML: {message}{key}"))
    };
    let table = DeTable::parse(&text).map_err(refuse)?;
    let mut lines = Lines::new();
    find_lines(table.get_ref(), "", &line, &mut lines);
    let keys: BTreeMap<String, Value> =
        BTreeMap::deserialize(Deserializer::from(table)).map_err(refuse)?;
    let mut entries: Vec<Entry> =
        keys.into_iter().map(|(key, value)| Entry::new(key, value)).collect();
    entries.sort_by_key(|entry| lines.get(&entry.key).copied());
    Ok(Some(Layer { place: Place::File(path.to_owned()), entries, lines }))
}

/// Those of longer paths are not kept: a table with a long name would have it in each of them.
const PATH_BYTES_MAX: usize = 512;

fn find_lines(table: &DeTable, path: &str, line: &impl Fn(usize) -> usize, lines: &mut Lines) {
    for (key, value) in table {
        if path.len() + key.get_ref().len() > PATH_BYTES_MAX {
            continue;
        }
        let path = format!("{path}{}", key.get_ref());
        if let DeValue::Table(table) = value.get_ref() {
            find_lines(table, &format!("{path}."), line, lines);
        }
        lines.insert(path, line(key.span().start));
    }
}

/// What was changed while the service ran.
pub(super) fn state(state: &StateFile) -> Layer {
    let entries = state.settings().iter().map(|(key, value)| {
        // JSON always has a form in figment's values; should it not, the check refuses the empty.
        let value = Value::serialize(value).unwrap_or_else(|_| Value::from(""));
        Entry::new(key, value)
    });
    Layer::new(Place::State(state.path().to_owned()), entries.collect())
}
