//! What a setting accepts, and how each source's form of a value becomes the one form we keep.

use std::path::Path;

use figment::value::{Num, Value};

use super::check::did_you_mean;
use super::listen::Listen;
use super::types::{Bus, Devices};
use crate::telemetry;

/// A name that a setting accepts.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The canonical name.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
}

/// What a setting accepts.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// One name.
    Choice(&'static [Choice]),
    /// Names in order, each once, or `none`.
    Choices(&'static [Choice]),
    /// Device numbers, each once, or `all`.
    Devices,
    /// `true` or `false`; also `1` and `0`.
    Bool,
    /// A whole number; where there is a word, it may stand in place of the number.
    Count {
        /// The smallest that makes sense.
        min: u64,
        /// The largest that makes sense.
        max: u64,
        /// Stands for "not set".
        word: Option<&'static str>,
    },
    /// A number of bytes, also with `KiB`, `MiB` or `GiB`; a word as in `Count`.
    Bytes {
        /// The smallest that makes sense.
        min: u64,
        /// Stands for "not set".
        word: Option<&'static str>,
    },
    /// The name of a model in the store; empty is none.
    Model,
    /// An absolute path; empty is none where that is allowed.
    Path {
        /// Whether it may be empty.
        optional: bool,
    },
    /// A bus.
    Bus,
    /// An address to listen on, or `none`.
    Listen,
    /// A log filter.
    Filter,
    /// Texts of a form of their own, in one text with commas between.
    List {
        /// What is accepted, for people.
        accepted: &'static str,
        /// Whether such a text is.
        is_right: fn(&str) -> bool,
    },
    /// A text of a form of its own.
    Text {
        /// What is accepted, for people.
        accepted: &'static str,
        /// Whether a text is.
        is_right: fn(&str) -> bool,
    },
}

/// A whole number.
pub const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max, word: None }
}

/// The same, or a word.
pub const fn count_or(word: &'static str, min: u64, max: u64) -> Kind {
    Kind::Count { min, max, word: Some(word) }
}

impl Kind {
    /// What is accepted, for people; Markdown code marks around what can be typed.
    pub fn accepted(&self) -> String {
        match self {
            Kind::Choice(choices) => names(choices),
            Kind::Choices(choices) => format!("an ordered list of {}; or `none`", names(choices)),
            Kind::Devices => "`0`, a list such as `0,1`, or `all`".to_owned(),
            Kind::Bool => "`true`, `false`".to_owned(),
            Kind::Count { min, max, word } => {
                let numbers = format!("{min} to {max}");
                word.map_or(numbers.clone(), |word| format!("`{word}`, or {numbers}"))
            }
            Kind::Bytes { min, word } => {
                let least = match min {
                    0 => String::new(),
                    _ => format!(" of at least `{}MiB`,", min >> 20),
                };
                let sizes = format!("a size{least} such as `536870912`, `512MiB` or `1GiB`");
                word.map_or(sizes.clone(), |word| format!("`{word}`, or {sizes}"))
            }
            Kind::Model => "the name of a model in the store, or nothing".to_owned(),
            Kind::Path { optional: true } => "an absolute path, or nothing".to_owned(),
            Kind::Path { optional: false } => "an absolute path".to_owned(),
            Kind::Bus => "`system`, `session`, or a D-Bus address".to_owned(),
            Kind::Listen => "`none`, an address with a port such as `127.0.0.1:8080` or \
                             `[::1]:8080`, or `unix:` and an absolute path"
                .to_owned(),
            Kind::Filter => "`error`, `warn`, `info`, `debug`, `trace`, `off`, or a list such as \
                             `info,op_dbus_engine=debug`"
                .to_owned(),
            Kind::List { accepted, .. } => format!("a list of {accepted}"),
            Kind::Text { accepted, .. } => (*accepted).to_owned(),
        }
    }

    /// Checks a value in a source's form and returns it in ours: names canonical, sizes in bytes,
    /// lists as arrays, "not set" as the word or the empty text.
    ///
    /// # Errors
    /// One clause that starts with what was found: `"hgih" is not one of …`.
    pub fn parse(&self, raw: &Value) -> Result<Value, String> {
        match self {
            Kind::Choices(choices) => self.parse_choices(choices, raw),
            Kind::Devices => {
                let text = list(raw).ok_or_else(|| self.refuse(raw))?.join(",");
                let devices: Devices = text.parse().map_err(|why| self.refuse_since(raw, why))?;
                Ok(Value::from(devices.to_string()))
            }
            Kind::List { is_right, .. } => match list(raw).map(|parts| parts.join(",")) {
                Some(text) if is_right(&text) => Ok(Value::from(text)),
                _ => Err(self.refuse(raw)),
            },
            Kind::Bool => match (raw.to_bool(), text(raw).as_deref()) {
                (Some(value), _) => Ok(Value::from(value)),
                (None, Some("true" | "1")) => Ok(Value::from(true)),
                (None, Some("false" | "0")) => Ok(Value::from(false)),
                _ => Err(self.refuse(raw)),
            },
            Kind::Count { min, max, word } => match text(raw) {
                Some(text) if *word == Some(text.as_str()) => Ok(Value::from(text)),
                Some(text) => match digits(&text) {
                    Some(number) if (*min..=*max).contains(&number) => Ok(Value::from(number)),
                    _ => Err(self.refuse(raw)),
                },
                None => Err(self.refuse(raw)),
            },
            Kind::Bytes { min, word } => match text(raw) {
                Some(text) if *word == Some(text.as_str()) => Ok(Value::from(text)),
                Some(text) => match bytes(&text) {
                    Some(bytes) if bytes >= *min => Ok(Value::from(bytes)),
                    _ => Err(self.refuse(raw)),
                },
                None => Err(self.refuse(raw)),
            },
            Kind::Choice(_)
            | Kind::Model
            | Kind::Path { .. }
            | Kind::Bus
            | Kind::Listen
            | Kind::Filter
            | Kind::Text { .. } => {
                let text = raw.as_str().ok_or_else(|| self.refuse(raw))?;
                self.parse_text(text, raw).map(Value::from)
            }
        }
    }

    fn parse_text(&self, text: &str, raw: &Value) -> Result<String, String> {
        // Settings are told over D-Bus, where it would end the connection, and go to workers as arguments.
        if text.contains('\0') {
            return Err(self.refuse(raw));
        }
        match self {
            Kind::Choice(choices) => {
                choose(choices, text).map(str::to_owned).ok_or_else(|| self.refuse(raw))
            }
            Kind::Model => {
                let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                let plain = text.chars().all(letters) && !text.starts_with('.');
                if plain { Ok(text.to_owned()) } else { Err(self.refuse(raw)) }
            }
            Kind::Path { optional } => {
                let fits = if text.is_empty() { *optional } else { Path::new(text).is_absolute() };
                if fits { Ok(text.to_owned()) } else { Err(self.refuse(raw)) }
            }
            Kind::Bus => match text.parse::<Bus>() {
                Ok(bus) => Ok(bus.to_string()),
                // It says itself what to write.
                Err(why) if !is_kept_back(raw) => {
                    Err(format!("{} is not accepted, since {why}", show(raw)))
                }
                Err(_) => Err(self.refuse(raw)),
            },
            Kind::Listen => match text.parse::<Listen>() {
                Ok(listen) => Ok(listen.to_string()),
                Err(why) => Err(self.refuse_since(raw, why)),
            },
            Kind::Filter => match telemetry::parse_filter(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(why) => Err(self.refuse_since(raw, why)),
            },
            Kind::Text { is_right, .. } if !is_right(text) => Err(self.refuse(raw)),
            _ => Ok(text.to_owned()),
        }
    }

    fn parse_choices(&self, choices: &[Choice], raw: &Value) -> Result<Value, String> {
        let parts = list(raw).ok_or_else(|| self.refuse(raw))?;
        if parts == ["none"] {
            return Ok(Value::from(Vec::<Value>::new()));
        }
        let mut names = Vec::new();
        for part in &parts {
            let name = choose(choices, part.trim()).ok_or_else(|| self.refuse(raw))?;
            if names.contains(&name) {
                return Err(self.refuse_since(raw, format!("`{name}` is named twice")));
            }
            names.push(name);
        }
        Ok(Value::from(names))
    }

    fn refuse(&self, raw: &Value) -> String {
        let accepted = self.accepted();
        let found = show(raw);
        let (Kind::Choice(choices) | Kind::Choices(choices)) = self else {
            return format!("{found} is not accepted; write {accepted}");
        };
        let text = text(raw).unwrap_or_default();
        let known = choices.iter().flat_map(|c| [c.name].into_iter().chain(c.aliases.to_vec()));
        let hint = did_you_mean(&text, known).map(|best| format!(" (did you mean `{best}`?)"));
        format!("{found} is not accepted{}; write {accepted}", hint.unwrap_or_default())
    }

    fn refuse_since(&self, raw: &Value, why: String) -> String {
        // Which may quote a part of it.
        if is_kept_back(raw) {
            return self.refuse(raw);
        }
        format!("{} is not accepted, since {why}; write {}", show(raw), self.accepted())
    }
}

/// What `text` is the name of.
pub(super) fn choose(choices: &[Choice], text: &str) -> Option<&'static str> {
    let named = |choice: &&Choice| choice.name == text || choice.aliases.contains(&text);
    choices.iter().find(named).map(|choice| choice.name)
}

fn names(choices: &[Choice]) -> String {
    let names = choices.iter().map(|choice| {
        let aliases: String = choice.aliases.iter().map(|name| format!(" (`{name}`)")).collect();
        format!("`{}`{aliases}", choice.name)
    });
    names.collect::<Vec<_>>().join(", ")
}

/// A number without sign, point or blanks.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    // The value must fit a signed 64-bit integer: TOML has no larger one.
    digits(number)?.checked_mul(unit).filter(|bytes| i64::try_from(*bytes).is_ok())
}

/// A text or a whole number as text; nothing else.
fn text(raw: &Value) -> Option<String> {
    match raw {
        Value::String(_, text) => Some(text.clone()),
        Value::Num(_, Num::F32(_) | Num::F64(_)) => None,
        Value::Num(_, number) => number
            .to_u128()
            .map(|n| n.to_string())
            .or_else(|| number.to_i128().map(|n| n.to_string())),
        _ => None,
    }
}

/// A list: an array, or a text with commas, or one value.
fn list(raw: &Value) -> Option<Vec<String>> {
    match raw {
        Value::Array(_, values) if values.is_empty() => None,
        Value::Array(_, values) => values.iter().map(text).collect(),
        Value::String(_, text) => Some(text.split(',').map(str::to_owned).collect()),
        other => text(other).map(|text| vec![text]),
    }
}

/// Whether a value, or one in a list, may be a URL with a password or a key.
fn is_kept_back(raw: &Value) -> bool {
    match raw {
        Value::String(_, text) => text.contains(['@', '?']),
        Value::Array(_, values) => values.iter().any(is_kept_back),
        _ => false,
    }
}

/// A value as it looks in a message: cut when it is long, and kept back where it may hold a secret.
pub(super) fn show(raw: &Value) -> String {
    match raw {
        Value::String(..) if is_kept_back(raw) => {
            "a text with @ or ? (not shown, as it may hold a secret)".to_owned()
        }
        Value::String(_, text) => {
            let cut = if text.chars().count() > 60 { "…" } else { "" };
            format!("{:?}{cut}", text.chars().take(60).collect::<String>())
        }
        Value::Bool(_, value) => value.to_string(),
        // With the point or the exponent for which it is refused.
        Value::Num(_, Num::F32(number)) => format!("{number:?}"),
        Value::Num(_, Num::F64(number)) => format!("{number:?}"),
        Value::Array(_, values) => {
            let values: Vec<String> = values.iter().take(8).map(show).collect();
            format!("[{}]", values.join(", "))
        }
        // A date is a table of one text to who reads TOML.
        Value::Dict(_, table) => match table.get("$__toml_private_datetime") {
            Some(date) => date.as_str().unwrap_or_default().to_owned(),
            None => "a table".to_owned(),
        },
        Value::Empty(..) => "null".to_owned(),
        other => text(other).unwrap_or_default(),
    }
}

/// A checked value in the form that an environment variable or a flag would have.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Array(_, values) if values.is_empty() => "none".to_owned(),
        Value::Array(_, values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Bool(_, value) => value.to_string(),
        other => text(other).unwrap_or_default(),
    }
}
