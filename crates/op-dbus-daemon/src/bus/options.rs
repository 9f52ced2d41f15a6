//! The options dictionary of the packed methods: every key known, every value of its type.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use op_dbus_api::{Error, ErrorName, option};
use op_dbus_engine::{Priority, Truncate};
use op_dbus_models::Level;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use zbus::{Signature, Type};

use super::bulk::{Format, Framing};
use super::encoding::{self, Encoding};
use crate::service::{Options, shown};

/// What a caller wants of the vectors, and how they travel.
#[derive(Debug, Default, PartialEq)]
pub struct Wanted {
    /// What the service is asked for.
    pub options: Options,
    /// Element type of the vectors.
    pub encoding: Encoding,
    /// What a result's file descriptor holds.
    pub format: Format,
    /// How texts follow one another in a file descriptor.
    pub framing: Framing,
    /// Whether tokens are told by the text that they stand for.
    pub covered: bool,
}

/// The value of an option, of which nothing is kept that no option may have: zbus makes sixty bytes of each byte of an
/// array.
#[derive(Debug, PartialEq)]
pub enum Value<'m> {
    /// `s`
    Text(&'m str),
    /// `u`
    Number(u32),
    /// `b`
    Flag(bool),
    /// Of any other type. It was not read, nor was what follows it.
    Other(Signature),
}

impl Type for Value<'_> {
    const SIGNATURE: &'static Signature = &Signature::Variant;
}

impl<'de: 'm, 'm> Deserialize<'de> for Value<'m> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Typed)
    }
}

/// Reads a type, and a value of one that options have.
struct Typed;

impl<'de> Visitor<'de> for Typed {
    type Value = Value<'de>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value with its type")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let value = match parts.next_element()? {
            Some(Signature::Str) => parts.next_element()?.map(Value::Text),
            Some(Signature::U32) => parts.next_element()?.map(Value::Number),
            Some(Signature::Bool) => parts.next_element()?.map(Value::Flag),
            other => other.map(Value::Other),
        };
        value.ok_or_else(|| de::Error::custom("an option has no value"))
    }
}

/// The options of a call, each once: said again and again they would be any number of bytes that are held with
/// the call and counted to nobody. They are read until it is clear that one of them is to be refused.
#[derive(Debug)]
pub struct Given<'m>(pub HashMap<&'m str, Value<'m>>);

impl Type for Given<'_> {
    const SIGNATURE: &'static Signature = <HashMap<&str, Value<'_>> as Type>::SIGNATURE;
}

impl<'de: 'm, 'm> Deserialize<'de> for Given<'m> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Once).map(Self)
    }
}

/// Reads options of which none comes twice.
struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = HashMap<&'de str, Value<'de>>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("options")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
        let mut options = HashMap::new();
        // One more than there are is unknown.
        while options.len() <= option::ALL.len() + option::OF_FDS.len() {
            let Some((key, value)) = all.next_entry()? else { break };
            let is_last = matches!(value, Value::Other(_));
            if options.insert(key, value).is_some() {
                return Err(de::Error::custom("an option is given twice"));
            }
            if is_last {
                break;
            }
        }
        Ok(options)
    }
}

/// Reads the options of a method that knows `more` keys than those of all; a deadline counts from
/// `now`.
///
/// # Errors
/// `InvalidArgument` names the key, what was found and what is accepted.
pub fn parse(
    options: &HashMap<&str, Value<'_>>,
    more: &[&str],
    now: Instant,
) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    let parsed = &mut wanted.options;
    let accepted = || [option::ALL, more].concat();
    for (key, value) in options {
        let found = Found { key, value };
        let is_of_some = option::OF_FDS.contains(key) || *key == option::COVERED;
        if is_of_some && !more.contains(key) {
            return Err(unknown(key, &accepted()));
        }
        match *key {
            option::LEVEL => parsed.level = Some(found.choice(&LEVELS)?),
            option::DIMENSIONS => parsed.dimensions = Some(found.number()? as usize),
            option::NORMALIZE => parsed.normalize = Some(found.flag()?),
            option::PROMPT => parsed.prompt = Some(found.text()?.to_owned()),
            option::TRUNCATE => parsed.truncate = found.choice(&TRUNCATIONS)?,
            option::ENCODING => wanted.encoding = found.choice(&encoding::NAMES)?,
            option::FORMAT => wanted.format = found.choice(&Format::NAMES)?,
            option::FRAMING => wanted.framing = found.choice(&Framing::NAMES)?,
            option::COVERED => wanted.covered = found.flag()?,
            option::PRIORITY => parsed.priority = Some(found.choice(&PRIORITIES)?),
            option::DEADLINE_MS => {
                parsed.deadline = Some(now + Duration::from_millis(found.number()?.into()));
            }
            option::EXPECT_SPACE => parsed.expect_space = Some(found.text()?.to_owned()),
            option::DEVICE => parsed.device = Some(found.text()?.to_owned()),
            _ => return Err(unknown(key, &accepted())),
        }
    }
    Ok(wanted)
}

/// Reads the options of a method that embeds nothing; most of them would have no meaning there.
///
/// # Errors
/// As [`parse`].
pub fn parse_for_tokens(options: &HashMap<&str, Value<'_>>, now: Instant) -> Result<Wanted, Error> {
    const ACCEPTED: [&str; 4] =
        [option::LEVEL, option::PROMPT, option::DEADLINE_MS, option::COVERED];
    match options.keys().find(|key| !ACCEPTED.contains(key)) {
        Some(key) => Err(unknown(key, &ACCEPTED)),
        None => parse(options, &[option::COVERED], now),
    }
}

/// Those that have a model: `none` is a state of the service, and nothing that a call could ask for.
const LEVELS: [(&str, Level); 3] =
    [("low", Level::Low), ("medium", Level::Medium), ("high", Level::High)];

const TRUNCATIONS: [(&str, Truncate); 4] = [
    ("error", Truncate::Error),
    ("end", Truncate::End),
    ("start", Truncate::Start),
    ("mean", Truncate::Mean),
];

const PRIORITIES: [(&str, Priority); 2] =
    [("interactive", Priority::Interactive), ("bulk", Priority::Bulk)];

/// Bytes of a text: it is held while a level loads, and counted to nobody.
const TEXT_BYTES_MAX: usize = 1024;

/// One option as it was given.
struct Found<'a> {
    key: &'a str,
    value: &'a Value<'a>,
}

impl<'a> Found<'a> {
    fn text(&self) -> Result<&'a str, Error> {
        match self.value {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX => Err(invalid(format!(
                "option {} has {} bytes and begins with {}; it may have {TEXT_BYTES_MAX}",
                self.key,
                text.len(),
                shown(text)
            ))),
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong_type("a string (s)")),
        }
    }

    fn number(&self) -> Result<u32, Error> {
        match self.value {
            Value::Number(number) => Ok(*number),
            _ => Err(self.wrong_type("an unsigned number (u)")),
        }
    }

    fn flag(&self) -> Result<bool, Error> {
        match self.value {
            Value::Flag(flag) => Ok(*flag),
            _ => Err(self.wrong_type("a boolean (b)")),
        }
    }

    fn choice<T: Copy>(&self, accepted: &[(&str, T)]) -> Result<T, Error> {
        let text = self.text()?;
        if let Some((_, choice)) = accepted.iter().find(|(name, _)| *name == text) {
            return Ok(*choice);
        }
        let names: Vec<&str> = accepted.iter().map(|(name, _)| *name).collect();
        Err(invalid(format!(
            "option {} is {}; accepted: {}",
            self.key,
            shown(text),
            names.join(", ")
        )))
    }

    fn wrong_type(&self, wanted: &str) -> Error {
        let found = match self.value {
            Value::Text(_) => &Signature::Str,
            Value::Number(_) => &Signature::U32,
            Value::Flag(_) => &Signature::Bool,
            Value::Other(found) => found,
        };
        invalid(format!("option {} has the type {found}; it must be {wanted}", self.key))
    }
}

fn unknown(key: &str, accepted: &[&str]) -> Error {
    let known = accepted.join(", ");
    invalid(format!("there is no option {}; accepted: {known}", shown(key)))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorName::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use zbus::wire::serialized::Context;
    use zbus::wire::{LE, to_bytes};
    use zbus::{DynamicType, Variant};

    use super::*;

    /// As they come over the bus.
    fn parsed<T: Serialize + DynamicType>(options: &T) -> Result<Wanted, Error> {
        let bytes = to_bytes(Context::new(LE, 0), options).unwrap();
        let (Given(given), _) = bytes.deserialize().unwrap();
        assert!(given.len() <= option::ALL.len() + option::OF_FDS.len() + 1);
        parse(&given, &[], Instant::now())
    }

    fn refusal<'v>(key: &'static str, value: impl Into<Variant<'v>>) -> String {
        let error = parsed(&HashMap::from([(key, value.into())])).unwrap_err();
        assert_eq!(error.name(), ErrorName::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn every_option_is_read() {
        let now = Instant::now();
        let given = HashMap::from([
            ("level", Value::Text("low")),
            ("dimensions", Value::Number(64)),
            ("normalize", Value::Flag(true)),
            ("prompt", Value::Text("query")),
            ("truncate", Value::Text("mean")),
            ("encoding", Value::Text("i8")),
            ("priority", Value::Text("bulk")),
            ("deadline_ms", Value::Number(250)),
            ("expect_space", Value::Text("ab-f32")),
            ("device", Value::Text("cpu:0")),
            ("format", Value::Text("npy")),
            ("framing", Value::Text("nul")),
            ("covered", Value::Flag(true)),
        ]);
        let more = [option::OF_FDS, &[option::COVERED]].concat();
        assert_eq!(given.len(), option::ALL.len() + more.len());
        let options = Options {
            level: Some(Level::Low),
            dimensions: Some(64),
            normalize: Some(true),
            prompt: Some("query".to_owned()),
            truncate: Truncate::Mean,
            priority: Some(Priority::Bulk),
            deadline: Some(now + Duration::from_millis(250)),
            expect_space: Some("ab-f32".to_owned()),
            device: Some("cpu:0".to_owned()),
        };
        let (encoding, format, framing) = (Encoding::I8, Format::Npy, Framing::Nul);
        let expected = Wanted { options, encoding, format, framing, covered: true };
        assert_eq!(parse(&given, &more, now).unwrap(), expected);
    }

    #[test]
    fn a_refusal_names_key_found_and_accepted() {
        assert_eq!(
            refusal("tuncate", "end"),
            "there is no option \"tuncate\"; accepted: level, dimensions, normalize, prompt, \
             truncate, encoding, priority, deadline_ms, expect_space, device"
        );
        assert_eq!(
            refusal("encoding", "f64"),
            "option encoding is \"f64\"; accepted: f32, f16, i8, b1"
        );
        assert_eq!(
            refusal("level", "none"),
            "option level is \"none\"; accepted: low, medium, high"
        );
        for (elsewhere, value) in [("framing", Variant::from("lines")), ("covered", true.into())] {
            let start = format!("there is no option \"{elsewhere}\"; accepted: level");
            assert!(refusal(elsewhere, value).starts_with(&start));
        }
        assert_eq!(
            refusal("dimensions", -1_i32),
            "option dimensions has the type i; it must be an unsigned number (u)"
        );
        let long = refusal("truncate", "x".repeat(1000));
        assert!(long.len() < 200, "{long}");
        for key in ["prompt", "expect_space", "device", "level"] {
            let told = refusal(key, "x".repeat(1025));
            let start = format!("option {key} has 1025 bytes and begins with \"xxx");
            assert!(told.starts_with(&start) && told.len() < 150, "{told}");
        }
        parsed(&HashMap::from([("prompt", Variant::from("x".repeat(1024)))])).unwrap();
    }

    #[test]
    fn what_no_option_may_have_is_not_read() {
        let of_type =
            |found: &str| format!("option level has the type {found}; it must be a string (s)");
        assert_eq!(refusal("level", vec![0_u8; 1000]), of_type("ay"));
        assert_eq!(refusal("level", vec![Variant::from(1_u8); 1000]), of_type("av"));
        assert_eq!(refusal("level", ("low", 1_u8)), of_type("(sy)"));
        assert_eq!(refusal("level", 1_u8), of_type("y"));
        let inner = Variant::Variant(Box::new("low".into()));
        assert_eq!(refusal("level", inner), of_type("v"));
        let unknown = refusal("no such", vec![0_u8; 1000]);
        assert!(
            unknown.starts_with("there is no option \"no such\"; accepted: level"),
            "{unknown}"
        );
        let keys = (0..10_000).map(|number| (number.to_string(), Variant::from("low")));
        let unknown = parsed(&keys.collect::<HashMap<_, _>>()).unwrap_err();
        assert!(unknown.message().starts_with("there is no option"), "{unknown}");
    }
}
