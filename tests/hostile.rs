//! Arguments and texts that no well-meaning client sends.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use futures_util::future::join_all;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use op_dbus_api::{BUS_NAME, EMBEDDER_INTERFACE, ErrorName, JOB_INTERFACE, JOBS_PATH, ROOT_PATH};
use zbus::as_variant::Serialize;
use zbus::fdo::IntrospectableProxy;
use zbus::{Connection, Fd, Message, Structure, Variant};

use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::introspection::interfaces;
use crate::harness::process::peak;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};
use crate::unread::fill_up;

tests! {
    awkward_texts_have_a_vector_or_a_refusal: [Bus, Low],
    every_member_answers_arguments_of_every_type: [Bus],
    a_refusal_does_not_grow_with_what_was_asked: [Bus],
    an_option_of_a_wrong_type_takes_no_more_than_its_call: [Bus],
    tokens_are_made_for_one_call_of_a_user_at_a_time: [Bus],
    who_reads_nothing_silences_nobody: [Bus],
}

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// What `EmbedFromFd` makes of bytes.
async fn refusal_of(client: &Client, bytes: &[u8], framing: &str) -> Outcome<String> {
    let mut file = File::from(memfd_create(c"texts", MFdFlags::MFD_ALLOW_SEALING)?);
    file.write_all(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    let options = Options::from([("framing", framing.into())]);
    let answer = client.embedder.embed_from_fd(Fd::from(OwnedFd::from(file)), options);
    refused(within("an answer", answer).await?, ErrorName::InvalidArgument)
}

async fn awkward_texts_have_a_vector_or_a_refusal() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let client = daemon.client();
    let texts = [
        String::new(),
        " \t\r\n".to_owned(),
        (1..32_u8).chain([127]).map(char::from).collect(),
        "\u{feff}text after a mark of byte order".to_owned(),
        "\u{202e}from right to left\u{202c} and back".to_owned(),
        "\u{200b}".repeat(100_000),
        format!("e{}", "\u{301}".repeat(100_000)),
        "\u{10ffff}\u{e000}\u{fffd}\u{ffff}".to_owned(),
        "x".repeat(1 << 20),
        "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s>".to_owned(),
        "\u{1f469}\u{200d}".repeat(10_000),
        "'; -- %s %n ${HOME} $(reboot) ../../etc/passwd".to_owned(),
    ];
    let together = client.vectors(&texts).await?;
    for (number, (text, vector)) in texts.iter().zip(&together).enumerate() {
        assert!(vector.iter().all(|x| x.is_finite()), "text {number}: {vector:?}");
        let alone = client.vectors(&[text]).await?.remove(0);
        assert_eq!(&alone, vector, "text {number} has another vector alone");
    }
    let bytes: [(&str, &[u8], &str, &str); 6] = [
        ("an overlong form", b"good\nb\xc0\x80d\n", "lines", "line 2 of"),
        ("a lone surrogate", b"good\n\xed\xa0\x80\n", "lines", "line 2 of"),
        ("a cut character", b"good\nb\xf0\x9f\x91", "lines", "line 2 of"),
        ("beyond the last character", b"good\0\xf4\x90\x80\x80\0", "nul", "record 2 of"),
        ("an escaped surrogate", b"\"good\"\n\"\\ud800\"\n", "json-lines", "line 2 of"),
        ("no string", b"\"good\"\n{\"a\": [1]}\n", "json-lines", "line 2 of"),
    ];
    for (what, bytes, framing, place) in bytes {
        let message = refusal_of(client, bytes, framing).await;
        let message = message.map_err(|error| format!("{what}: {error}"))?;
        assert!(message.starts_with(place), "{what}, without its place: {message}");
    }
    println!("figure: {} texts with a vector, {} refused", texts.len(), bytes.len());
    daemon.stop().await
}

/// dbus-daemon ends the connection of a service that answers with more than 32 MiB, for all its callers.
async fn a_refusal_does_not_grow_with_what_was_asked() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    // Five times as long where it is written as Rust writes it.
    let long = "\u{1}".repeat(10 << 20);
    for key in ["level", "prompt", "device", "expect_space", "truncate"] {
        let options = Options::from([(key, long.as_str().into())]);
        let answer = within("a refusal", client.embedder.embed_packed(&["one"], options)).await?;
        let message = refused(answer, ErrorName::InvalidArgument)?;
        assert!(message.contains(key) && message.len() < 1000, "{key}: {} bytes", message.len());
    }
    // As long as the bus takes a call: it would end who sends more in reply.
    let connection = client.connection();
    let us = connection.unique_name().ok_or("we have no name")?;
    let shortest = Message::method_call("/", "Embed").sender(us.clone()).destination(BUS_NAME);
    let shortest = shortest.interface(EMBEDDER_INTERFACE).build(&())?;
    let path = format!("/{}", "a".repeat((32 << 20) - shortest.data().len()));
    let call = connection.call_method(Some(BUS_NAME), path, Some(EMBEDDER_INTERFACE), "Embed", &());
    let error =
        within("a refusal", call).await?.err().ok_or("there is such an object")?.to_string();
    assert!(
        error.contains("Unknown object '/aaa") && error.len() < 20_000,
        "{} bytes",
        error.len()
    );
    client.embedder.embed("goes on").await?;
    daemon.stop().await
}

/// What is in an array takes sixty times as much where it is read without being asked for.
async fn an_option_of_a_wrong_type_takes_no_more_than_its_call() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (connection, process) = (daemon.client().connection(), daemon.process.pid());
    let before = peak(process)?;
    let bytes = vec![0_u8; 30_000_000];
    let call = async |_| {
        let body = (Vec::<&str>::new(), HashMap::from([("level", Serialize(&bytes))]));
        let (to, of) = (Some(BUS_NAME), Some(EMBEDDER_INTERFACE));
        connection.call_method(to, ROOT_PATH, of, "EmbedPacked", &body).await
    };
    for answer in within("refusals", join_all((0..3).map(call))).await? {
        let message = refused(answer, ErrorName::InvalidArgument)?;
        assert_eq!(message, "option level has the type ay; it must be a string (s)");
    }
    let grown = peak(process)? - before;
    assert!(grown < 200_000_000, "it grew by {grown} bytes");
    daemon.stop().await
}

/// A token takes a hundred times what its byte does, until it is in a reply.
async fn tokens_are_made_for_one_call_of_a_user_at_a_time() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (connection, process) = (daemon.client().connection(), daemon.process.pid());
    let before = peak(process)?;
    let texts = vec!["!".repeat(1 << 10); 256];
    let call = async |_| {
        let body = (&texts, Options::new());
        let (to, of) = (Some(BUS_NAME), Some(EMBEDDER_INTERFACE));
        connection.call_method(to, ROOT_PATH, of, "Tokenize", &body).await
    };
    let mut answered = 0;
    for answer in within("tokens", join_all((0..32).map(call))).await? {
        match answer {
            Ok(_) => answered += 1,
            refusal => drop(refused(refusal, ErrorName::Overloaded)?),
        }
    }
    let grown = peak(process)? - before;
    assert!(answered > 0 && grown < 300_000_000, "{answered} answered; it grew by {grown} bytes");
    daemon.stop().await
}

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
            assert!(known.iter().any(|start| name.as_str().starts_with(start)), "{name}");
            Ok(true)
        }
        // One of those that the standard has names for.
        Err(zbus::Error::FDO(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
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
        let job = async || -> Outcome<String> {
            let fd = Fd::from(OwnedFd::from(File::open(&source)?));
            let job = client.embedder.start_embed_from_fd(fd, Options::new()).await?;
            Ok(job.as_str().to_owned())
        };
        let mut path = match object {
            Some(path) => path.to_owned(),
            None => job().await?,
        };
        let introspectable = IntrospectableProxy::builder(connection).destination(BUS_NAME);
        let introspectable = introspectable.path(path.clone()).build().await?;
        let xml = introspectable.introspect().await?;
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
                    path = job().await?;
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

/// Its replies lie in the bus on the account of the service, of which the bus takes nothing more when that is full.
async fn who_reads_nothing_silences_nobody() -> Outcome {
    let (bus, setup, mut daemon) = Setup::sim()?.alone().await?;
    let deaf = fill_up(&bus, &daemon).await?;
    assert_eq!(daemon.process.ended().await?.code(), Some(1));
    let next = setup.start(&bus).await?;
    next.process.says("calls are answered").await?;
    within("a call beside it", next.client().embedder.embed("x")).await??;
    drop(deaf);
    next.stop().await
}
