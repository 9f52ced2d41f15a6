//! Calls of every member with arguments that it does not take: those that are known to be nasty, and others that are
//! made up from a seed.
//!
//! The seed of a call that is not answered is printed; `OP_DBUS_RANDOM_CALL` makes that one alone, and
//! `OP_DBUS_RANDOM_CALLS` is how many are made.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use op_dbus_api::{BUS_NAME, JOB_INTERFACE, JOBS_PATH, ROOT_PATH, option};
use zbus::fdo;
use zbus::{Array, Connection, Dict, Fd, ObjectPath, Signature, Structure, Variant};

use crate::harness::client::{Client, Options};
use crate::harness::daemon::Setup;
use crate::harness::introspection::{described, interfaces};
use crate::harness::random::Random;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    every_member_answers_arguments_of_every_type: [Bus],
    every_method_answers_random_arguments: [Bus],
}

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// One argument of a type, in its nastier forms.
fn arguments(signature: &str) -> Outcome<Vec<Variant<'static>>> {
    let options =
        |key: &'static str, value: Variant<'static>| Variant::from(Options::from([(key, value)]));
    Ok(match signature {
        "s" => ["", "\u{202e}\u{feff}", "../../../../etc/passwd", "none\n[Service]"]
            .map(Variant::from)
            .into_iter()
            .chain([Variant::from("x".repeat(2 << 20))])
            .collect(),
        "u" => [0, 1, u32::MAX].map(Variant::from).into(),
        "as" => {
            let lists = [vec![], vec![String::new(); 20_000], vec!["x".repeat(2 << 20)]];
            lists.map(Variant::from).into()
        }
        "aau" => {
            let many = vec![vec![]; 20_000];
            let lists = [vec![], vec![vec![]], vec![vec![u32::MAX; 1000]], vec![vec![0; 1 << 20]]];
            lists.into_iter().chain([many]).map(Variant::from).collect()
        }
        "v" => vec![Variant::Variant(Box::new(0_u8.into())), nested(30)],
        "a{sv}" => vec![
            options("no such option", 1_u32.into()),
            options("deadline_ms", "soon".into()),
            options("deadline_ms", u64::MAX.into()),
            options("dimensions", i32::MIN.into()),
            options("level", vec!["low"; 1000].into()),
            options("encoding", f64::NAN.into()),
            options("truncate", nested(30)),
            options("expect_space", "x".repeat(1 << 20).into()),
        ],
        "h" => ["/dev/null", "/dev/zero", "/"]
            .into_iter()
            .map(|path| Ok(Variant::from(Fd::from(OwnedFd::from(File::open(path)?)))))
            .collect::<Outcome<_>>()?,
        unknown => return Err(format!("no argument of type {unknown}").into()),
    })
}

/// A value in a value in a value.
fn nested(depth: usize) -> Variant<'static> {
    (0..depth).fold(Variant::from(0_u8), |inner, _| Variant::Variant(Box::new(inner)))
}

/// Arguments that hardly any member takes.
fn strange() -> Outcome<Vec<Vec<Variant<'static>>>> {
    Ok(vec![
        vec![],
        vec![0_u8.into()],
        vec![i64::MIN.into(), f64::INFINITY.into()],
        vec!["a".into(); 40],
        vec![nested(30)],
        vec![vec![0_u8; 1 << 20].into()],
        vec![Structure::builder().append_field(nested(5)).build()?.into()],
        arguments("h")?,
        vec![arguments("a{sv}")?.swap_remove(0)],
    ])
}

/// Interface and name of each property of an object.
fn properties(xml: &str) -> Outcome<Vec<(String, String)>> {
    let named = |line: &String| Some(line.strip_prefix("property ")?.split(' ').next()?.to_owned());
    let of = |(interface, lines): (String, BTreeSet<String>)| {
        let names: Vec<String> = lines.iter().filter_map(named).collect();
        names.into_iter().map(move |name| (interface.clone(), name))
    };
    Ok(interfaces(xml)?.into_iter().flat_map(of).collect())
}

/// Each method of each interface of an object, with the types of its arguments.
fn methods(xml: &str) -> Outcome<Vec<(String, String, Vec<String>)>> {
    let mut methods = Vec::new();
    for (interface, lines) in interfaces(xml)? {
        for line in &lines {
            let Some(method) = line.strip_prefix("method ").filter(|m| !m.contains(':')) else {
                continue;
            };
            let argument = |line: &String| {
                let rest = line.strip_prefix(&format!("method {method}: arg "))?;
                let words: Vec<&str> = rest.split(' ').collect();
                let place: usize = words.first()?.parse().ok()?;
                (words.get(1) == Some(&"in")).then(|| (place, words[words.len() - 1].to_owned()))
            };
            let mut types: Vec<(usize, String)> = lines.iter().filter_map(argument).collect();
            types.sort();
            let types = types.into_iter().map(|(_, kind)| kind).collect();
            methods.push((interface.clone(), method.to_owned(), types));
        }
    }
    Ok(methods)
}

/// Strange arguments, and those of a method's own types with one that is hostile.
fn bodies(types: &[String]) -> Outcome<Vec<Vec<Variant<'static>>>> {
    let mut bodies = strange()?;
    for (place, kind) in types.iter().enumerate() {
        for hostile in arguments(kind)? {
            let mut body = Vec::new();
            for (other, kind) in types.iter().enumerate().filter(|(other, _)| *other != place) {
                body.push((other, arguments(kind)?.swap_remove(0)));
            }
            body.push((place, hostile));
            body.sort_by_key(|(place, _)| *place);
            bodies.push(body.into_iter().map(|(_, argument)| argument).collect());
        }
    }
    Ok(bodies)
}

/// Whether an error is the bus's, about a service that has ended.
fn is_gone(error: &fdo::Error) -> bool {
    use fdo::Error::{NameHasNoOwner, NoReply, ServiceUnknown};
    matches!(error, NameHasNoOwner(_) | NoReply(_) | ServiceUnknown(_))
}

/// Whether a call is refused; nothing is refused but by a name that is known.
async fn refuses(
    connection: &Connection,
    path: &str,
    (interface, member): (&str, &str),
    body: Vec<Variant<'static>>,
) -> Outcome<bool> {
    let (name, interface) = (Some(BUS_NAME), Some(interface));
    let body = body.into_iter().fold(Structure::builder(), |all, one| all.append_field(one));
    let call = async {
        match body.build() {
            Ok(body) => connection.call_method(name, path, interface, member, &body).await,
            // D-Bus knows no structure without fields, but calls without arguments.
            Err(_) => connection.call_method(name, path, interface, member, &()).await,
        }
    };
    match within("an answer", call).await? {
        Ok(_) => Ok(false),
        Err(zbus::Error::MethodError(name, ..)) => {
            let known = ["org.freedesktop.DBus.Error.", "org.opdbus.Embedding1.Error."];
            match known.iter().any(|start| name.as_str().starts_with(start)) {
                true => Ok(true),
                false => Err(format!("refused by the name {name}").into()),
            }
        }
        // One of those that the standard has names for, but for what the bus says of a service that has gone.
        Err(zbus::Error::FDO(error)) if !is_gone(&error) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The path of a job that has this file for its texts.
async fn job(client: &Client, source: &Path) -> Outcome<String> {
    let fd = Fd::from(OwnedFd::from(File::open(source)?));
    let job = client.embedder.start_embed_from_fd(fd, Options::new()).await?;
    Ok(job.as_str().to_owned())
}

async fn every_member_answers_arguments_of_every_type() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let source = setup.path("source");
    std::fs::write(&source, "a text\n")?;
    let (mut members, mut calls, mut refusals, mut jobs) = (0, 0, 0, 0);
    for object in [Some(ROOT_PATH), Some(JOBS_PATH), None] {
        // Jobs that one object's calls have started end with their connection.
        let client = Client::on(&bus).await?;
        let connection = client.connection();
        let mut path = match object {
            Some(path) => path.to_owned(),
            None => job(&client, &source).await?,
        };
        let xml = described(connection, &path).await?;
        let (methods, properties) = (methods(&xml)?, properties(&xml)?);
        members += methods.len() + properties.len();
        for (interface, method, types) in &methods {
            for body in bodies(types)? {
                calls += 1;
                let what = (interface.as_str(), method.as_str());
                let refused = refuses(connection, &path, what, body).await;
                let refused = refused.map_err(|e| format!("{what:?}, call {calls}: {e}"))?;
                refusals += usize::from(refused);
                if !refused && interface == JOB_INTERFACE {
                    // It was fetched or cancelled, and is not there any more.
                    jobs += 1;
                    path = job(&client, &source).await?;
                }
            }
        }
        for (interface, property) in &properties {
            let named = || vec![interface.clone().into(), property.clone().into()];
            let get = (PROPERTIES, "Get");
            assert!(!refuses(connection, &path, get, named()).await?, "{interface}.{property}");
            for kind in ["s", "u", "as", "aau", "a{sv}", "h", "v"] {
                for value in arguments(kind)? {
                    calls += 1;
                    let mut body = named();
                    body.push(Variant::Variant(Box::new(value)));
                    let refused = refuses(connection, &path, (PROPERTIES, "Set"), body).await;
                    let refused = refused.map_err(|e| format!("{property}, {kind}: {e}"))?;
                    assert!(refused, "{property} was set to {kind}");
                    refusals += 1;
                }
            }
        }
    }
    assert!(members > 60 && jobs == 2, "{members} members, {jobs} jobs");
    println!("figure: {calls} calls of {members} members, {refusals} refused by name");
    // As it was before, whatever was unloaded or read again.
    assert_eq!(daemon.state(|state| state == "ready").await?, "ready");
    daemon.client().embedder.embed("still there").await?;
    daemon.stop().await
}

/// Types of random arguments, those of one value first.
const KINDS: [&str; 24] = [
    "y", "b", "n", "q", "i", "u", "x", "t", "d", "s", "o", "g", "h", "v", "as", "ay", "au", "aau",
    "av", "a{sv}", "a{us}", "(sv)", "(yaay)", "aaaas",
];
const OF_ONE_VALUE: usize = 13;
/// How deep values lie in each other.
const DEPTH_MAX: usize = 4;
/// Descriptors among arguments that may be of any type: dbus-daemon ends who sends more than 16 in a message.
const DESCRIPTORS_MAX: usize = 8;

fn parsed(kind: &str) -> Outcome<Signature> {
    Signature::try_from(kind).map_err(|error| error.to_string().into())
}

/// What makes the arguments of a call up.
struct Dice {
    random: Random,
    descriptors: usize,
}

impl Dice {
    /// For a method that takes these types: as often as not of those, but for one in eight.
    fn body(&mut self, types: &[String]) -> Outcome<Vec<Variant<'static>>> {
        // What a method without arguments does, as to unload the model, would only be done again and again.
        if types.is_empty() || self.random.below(2) == 0 {
            return (0..=self.random.below(4)).map(|_| self.any(0)).collect();
        }
        let mut body = Vec::new();
        for kind in types {
            body.push(match self.random.below(8) {
                0 => self.any(0)?,
                _ => self.value(&parsed(kind)?, 0)?,
            });
        }
        Ok(body)
    }

    fn any(&mut self, depth: usize) -> Outcome<Variant<'static>> {
        let kinds = if depth < DEPTH_MAX { KINDS.len() } else { OF_ONE_VALUE };
        match KINDS[self.random.below(kinds)] {
            "h" if self.descriptors == DESCRIPTORS_MAX => self.value(&Signature::U32, depth),
            kind => self.value(&parsed(kind)?, depth),
        }
    }

    fn value(&mut self, kind: &Signature, depth: usize) -> Outcome<Variant<'static>> {
        let number = self.number();
        Ok(match kind {
            Signature::U8 => (number as u8).into(),
            Signature::Bool => (number % 2 == 1).into(),
            Signature::I16 => (number as i16).into(),
            Signature::U16 => (number as u16).into(),
            Signature::I32 => (number as i32).into(),
            Signature::U32 => (number as u32).into(),
            Signature::I64 => (number as i64).into(),
            Signature::U64 => number.into(),
            Signature::F64 => f64::from_bits(number).into(),
            Signature::Str => self.text().into(),
            Signature::Signature => parsed(KINDS[self.random.below(KINDS.len())])?.into(),
            Signature::ObjectPath => ObjectPath::from_static_str(ROOT_PATH)?.into(),
            Signature::Variant => Variant::Variant(Box::new(self.any(depth + 1)?)),
            Signature::Fd => {
                self.descriptors += 1;
                arguments("h")?.swap_remove(self.random.below(3))
            }
            Signature::Array(item) => {
                let mut array = Array::new(item.signature());
                for _ in 0..self.random.below(4) {
                    array.append(self.value(item.signature(), depth + 1)?)?;
                }
                array.into()
            }
            Signature::Dict { key, value } => {
                let mut dict = Dict::new(key.signature(), value.signature());
                for _ in 0..self.random.below(4) {
                    let key = self.value(key.signature(), depth + 1)?;
                    dict.append(key, self.value(value.signature(), depth + 1)?)?;
                }
                dict.into()
            }
            Signature::Structure(fields) => {
                let mut structure = Structure::builder();
                for field in fields.iter() {
                    structure = structure.append_field(self.value(field, depth + 1)?);
                }
                structure.build()?.into()
            }
            unknown => return Err(format!("no value of type {unknown}").into()),
        })
    }

    fn number(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            _ => self.random.below(usize::MAX) as u64,
        }
    }

    /// The name of an option, or what is no name of anything.
    fn text(&mut self) -> String {
        const PIECES: [&str; 8] =
            ["a", " ", "\n", "\u{e9}", "\u{202e}", "\u{1f469}\u{200d}", "../", "\u{10ffff}"];
        if self.random.below(4) == 0 {
            return option::ALL[self.random.below(option::ALL.len())].to_owned();
        }
        (0..self.random.below(20)).map(|_| PIECES[self.random.below(PIECES.len())]).collect()
    }
}

async fn every_method_answers_random_arguments() -> Outcome {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OP_DBUS_RANDOM_CALL") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OP_DBUS_RANDOM_CALLS").unwrap_or(3_000),
    };
    let calls = seeds.end - seeds.start;
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let source = setup.path("source");
    std::fs::write(&source, "a text\n")?;
    let client = Client::on(&bus).await?;
    let connection = client.connection();
    let job = job(&client, &source).await?;
    let mut all = Vec::new();
    for path in [ROOT_PATH, JOBS_PATH, job.as_str()] {
        let methods = methods(&described(connection, path).await?)?;
        all.extend(methods.into_iter().map(|method| (path, method)));
    }
    let mut refusals = 0;
    for seed in seeds {
        let mut dice = Dice { random: Random::new(seed), descriptors: 0 };
        let (path, (interface, method, types)) = &all[dice.random.below(all.len())];
        let what = (interface.as_str(), method.as_str());
        let refused = refuses(connection, path, what, dice.body(types)?).await;
        let refused = refused
            .map_err(|e| format!("{what:?}: {e}; made alone with OP_DBUS_RANDOM_CALL={seed}"))?;
        refusals += u64::from(refused);
    }
    println!("figure: {calls} random calls, {refusals} refused by name");
    assert!(calls == 1 || (1..calls).contains(&refusals), "{refusals} of {calls} refused");
    assert_eq!(daemon.state(|state| state == "ready").await?, "ready");
    daemon.client().embedder.embed("still there").await?;
    daemon.stop().await
}
