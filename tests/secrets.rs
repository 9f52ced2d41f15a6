//! A text is nobody's business but its caller's: where a planted one can't be found.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use futures_util::TryStreamExt;
use nix::sys::signal::Signal;
use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, ErrorName, JOBS_PATH, MANAGER_INTERFACE, ROOT_PATH,
};
use serde_json::Value;
use tokio::task::JoinHandle;
use zbus::fdo::{DBusProxy, MonitoringProxy};
use zbus::message::Type;
use zbus::{Fd, Message, MessageStream};

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::{Daemon, LOG_ALL, Setup};
use crate::harness::files::content;
use crate::harness::registry::tests;
use crate::harness::users::{OTHER, Users};
use crate::harness::{Outcome, within};

tests! {
    a_planted_secret_is_found_nowhere: [Bus, Low],
    another_user_is_told_nothing_of_it: [Bus, Low, Root, Busctl],
}

/// In small letters and of no use to anybody else, so that a search finds it and nothing but it.
const SECRET: &str = "xyzzyplantedsecret";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const OBJECT_MANAGER: &str = "org.freedesktop.DBus.ObjectManager";

/// Whether the text itself is there.
fn holds(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

/// A vector as it lies in files.
fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// What is left where the secret was: itself, or a piece of its vector, of floats or of doubles.
struct Traces {
    all: Vec<Vec<u8>>,
    /// Whether one begins with these two bytes: most places are passed over by that.
    begun: Vec<bool>,
}

impl Traces {
    fn of(vector: &[f32]) -> Self {
        let doubles = vector.iter().flat_map(|number| f64::from(*number).to_le_bytes());
        let vectors = [bytes(vector), doubles.collect()].concat();
        let mut all: Vec<Vec<u8>> = vectors.chunks(32).map(<[u8]>::to_vec).collect();
        all.push(SECRET.into());
        let mut begun = vec![false; 1 << 16];
        for trace in &all {
            begun[beginning(trace)] = true;
        }
        Self { all, begun }
    }

    /// Whether there is one in these bytes.
    fn are_in(&self, bytes: &[u8]) -> bool {
        bytes.windows(2).enumerate().any(|(at, two)| {
            self.begun[beginning(two)] && self.all.iter().any(|t| bytes[at..].starts_with(t))
        })
    }

    /// Files below a folder that have one.
    fn below(&self, folder: &Path) -> Outcome<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(self.below(&path)?);
            } else if self.are_in(&fs::read(&path)?) {
                found.push(path.display().to_string());
            }
        }
        Ok(found)
    }
}

/// The first two bytes as a number.
fn beginning(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// All that is said on the bus from now on, until the service has left it.
async fn overhear(
    bus: &PrivateBus,
    client: &Client,
) -> Outcome<JoinHandle<zbus::Result<Vec<Message>>>> {
    let names = DBusProxy::new(client.connection()).await?;
    let service = names.get_name_owner(BUS_NAME.try_into()?).await?.to_string();
    let connection = bus.connect().await?;
    MonitoringProxy::new(&connection).await?.become_monitor(&[], 0).await?;
    let mut said = MessageStream::from(connection);
    Ok(tokio::spawn(async move {
        let mut messages = Vec::new();
        while let Some(message) = said.try_next().await? {
            let member = message.header().member().map(ToString::to_string);
            let body = message.body();
            messages.push(message);
            if member.as_deref() == Some("NameOwnerChanged") {
                let (name, _, owner): (String, String, String) = body.deserialize()?;
                if name == service && owner.is_empty() {
                    return Ok(messages);
                }
            }
        }
        Err(zbus::Error::Failure("the bus went before the service".to_owned()))
    }))
}

/// How many calls of the planter and replies to it have a trace; no other message may.
fn told(messages: &[Message], traces: &Traces, planter: &str) -> (usize, usize) {
    let (mut calls, mut replies) = (0, 0);
    for message in messages.iter().filter(|message| traces.are_in(message.data())) {
        let header = message.header();
        let from = header.sender().map(|name| name.as_str());
        let to = header.destination().map(|name| name.as_str());
        match header.message_type() {
            Type::MethodCall if from == Some(planter) => calls += 1,
            Type::MethodReturn | Type::Error if to == Some(planter) => replies += 1,
            _ => panic!("it is in: {message}, to {to:?}"),
        }
    }
    (calls, replies)
}

/// The vector of a text in each file that a client is handed: over the bus, directly, and by a job.
async fn handed_out(client: &Client, uid: u32, text: &str, file: &Path) -> Outcome<Vec<Vec<u8>>> {
    fs::write(file, format!("{text}\n"))?;
    let source = || fs::File::open(file).map(|file| Fd::from(OwnedFd::from(file)));
    let socket = UnixStream::from(OwnedFd::from(client.embedder.open_direct().await?));
    let line = zbus::connection::Builder::unix_stream(socket).p2p().user_id(uid).build().await?;
    let line = Client::new(line).await?;
    let mut files = Vec::new();
    for embedder in [&client.embedder, &line.embedder] {
        files.push(embedder.embed_to_fd(&[text], Options::new()).await?.0);
        files.push(embedder.embed_from_fd(source()?, Options::new()).await?.0);
    }
    let job = client.start_job(source()?, Options::new()).await?;
    files.push(job.fetch().await?.0);
    fs::remove_file(file)?;
    files.into_iter().map(content).collect()
}

/// Sends the secret in each way that there is, and is refused in each way that there is.
async fn plant(client: &Client, daemon: &Daemon, setup: &Setup) -> Outcome<Vec<String>> {
    let embedder = &client.embedder;
    let texts = [SECRET, "and another text"];
    embedder.embed(SECRET).await?;
    embedder.embed_batch(&texts).await?;
    embedder.embed_packed(&texts, Options::new()).await?;
    embedder.embed_to_fd(&texts, Options::new()).await?;
    embedder.similarity(SECRET, SECRET).await?;
    embedder.rank(SECRET, &texts, 2).await?;
    embedder.count_tokens(&texts).await?;
    embedder.tokenize(&texts, Options::new()).await?;
    let file = setup.path("planted");
    let from_fd = async |text: String, framing: &str| {
        fs::write(&file, text)?;
        let fd = Fd::from(OwnedFd::from(fs::File::open(&file)?));
        let options = Options::from([("framing", framing.into())]);
        let answer = embedder.embed_from_fd(fd, options).await;
        fs::remove_file(&file)?;
        Outcome::Ok(answer.map(drop))
    };
    from_fd(format!("{SECRET}\n"), "lines").await??;
    fs::write(&file, format!("{SECRET}\n"))?;
    let fd = Fd::from(OwnedFd::from(fs::File::open(&file)?));
    let job = client.start_job(fd, Options::new()).await?;
    job.fetch().await?;
    fs::remove_file(&file)?;
    // A worker that dies with it in hand.
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = client.embed_meanwhile(&format!("{SECRET} in hand"));
    daemon.client().counted("in_flight_calls", 1).await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    within("the retried call", waiting).await???;

    // What a caller wrote in an option is quoted to nobody else.
    for option in ["prompt", "level", "device", "encoding", SECRET, "expect_space"] {
        let name = match option {
            "expect_space" => ErrorName::WrongSpace,
            _ => ErrorName::InvalidArgument,
        };
        let options = Options::from([(option, SECRET.into())]);
        let quoted = refused(embedder.embed_packed(&texts, options).await, name)?;
        assert!(holds(quoted.as_bytes()), "{option}: {quoted}");
    }

    let long = format!("{SECRET} ").repeat(100_000);
    let too_long = Options::from([("truncate", "error".into())]);
    let words = format!("{SECRET} ").repeat(500);
    let late = Options::from([("deadline_ms", 0_u32.into())]);
    Ok(vec![
        refused(embedder.embed(&long).await, ErrorName::TooLarge)?,
        refused(embedder.embed_packed(&[&words], too_long).await, ErrorName::TooLong)?,
        refused(embedder.embed_packed(&texts, late).await, ErrorName::DeadlineExceeded)?,
        refused(
            from_fd(format!("{{\"{SECRET}\": 1}}\n"), "json-lines").await?,
            ErrorName::InvalidArgument,
        )?,
        refused(from_fd(format!("\"{SECRET}"), "json-lines").await?, ErrorName::InvalidArgument)?,
    ])
}

async fn a_planted_secret_is_found_nowhere() -> Outcome {
    let setup = Setup::real("low")?.setting("log", LOG_ALL).setting("workers_per_device", "1");
    let (bus, setup, mut daemon) = setup.setting("cache_bytes", "1000000").alone().await?;
    let client = Client::on(&bus).await?;
    let overheard = overhear(&bus, &client).await?;
    let refusals = plant(&client, &daemon, &setup).await?;
    let traces = Traces::of(&client.vectors(&[SECRET]).await?.concat());
    assert!(!refusals.iter().any(|sentence| holds(sentence.as_bytes())), "{refusals:?}");

    // What may be asked for, and what is to be seen of the processes.
    let other = daemon.client();
    let shown = format!(
        "{:?} {:?} {:?} {:?}",
        other.manager.get_status().await?,
        other.manager.get_statistics().await?,
        other.manager.get_settings().await?,
        other.manager.list_devices().await?,
    );
    assert!(!holds(shown.as_bytes()), "{shown}");
    let (fd, _, dimensions, _) =
        other.embedder.embed_to_fd(&["somebody else"], Options::new()).await?;
    let vector = content(fd)?;
    assert_eq!(vector.len(), dimensions as usize * 4);
    assert!(!traces.are_in(&vector), "the vector of another call holds it");
    let mut processes = daemon.workers().await?;
    processes.push(daemon.process.pid());
    for process in processes {
        for name in ["cmdline", "environ", "comm", "status"] {
            // A worker lets nobody but root look.
            let seen = fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
            assert!(!holds(&seen), "{name} of a process holds it");
        }
    }
    daemon.process.signal(Signal::SIGTERM)?;
    assert!(daemon.process.ended().await?.success());
    let log = daemon.process.stderr();
    assert!(log.contains("op-dbus starts") && log.contains("worker lost"), "nothing was logged");
    assert!(!holds(log.as_bytes()), "the log holds it");
    // Log, state, cache and whatever else was written.
    let files = traces.below(&setup.path(""))?;
    assert!(files.is_empty(), "{files:?}");
    let messages = within("the service's leave of the bus", overheard).await???;
    let planter = client.connection().unique_name().ok_or("the client has no name")?.to_string();
    let (calls, replies) = told(&messages, &traces, &planter);
    assert!(calls > 0 && replies > 0, "{calls} calls and {replies} replies have it");
    println!("figure: 0 traces in {} bytes of log, {} refusals", log.len(), refusals.len());
    Ok(())
}

/// What another user may ask for, after the secret has been everywhere and while a job still has it.
async fn another_user_is_told_nothing_of_it() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::real("low")?.setting("workers_per_device", "1");
    let setup = setup.setting("cache_bytes", "1000000");
    let daemon = setup.ready(&bus).await?;
    let client = Client::on(&bus).await?;
    let theirs = ["somebody else's text", SECRET];
    let own = bytes(&client.vectors(&theirs[..1]).await?.concat());
    plant(&client, &daemon, &setup).await?;
    let file = setup.path("kept");
    fs::write(&file, format!("{SECRET}\n"))?;
    let fd = Fd::from(OwnedFd::from(fs::File::open(&file)?));
    let job = client.embedder.start_embed_from_fd(fd, Options::new()).await?;

    // No byte but their own, over the bus and past it.
    let other = Client::new(bus.connect_as(OTHER.id).await?).await?;
    let text = "one more text";
    let expected = bytes(&client.vectors(&[text]).await?.concat());
    for (way, vector) in
        handed_out(&other, OTHER.id, text, &setup.path("theirs")).await?.iter().enumerate()
    {
        assert!(*vector == expected, "by way {way}: {} bytes", vector.len());
    }

    let call = async |path: &str, interface: &str, words: &[&str]| -> Outcome<Value> {
        let mut command = clean("busctl");
        command.arg(format!("--address={}", bus.address())).args(["--json=short", "call"]);
        command.args([BUS_NAME, path, interface]).args(words);
        let said = finish(OTHER.runs(&command), "").await?.success()?;
        Ok(serde_json::from_str(&said)?)
    };
    let shown = [
        call(ROOT_PATH, MANAGER_INTERFACE, &["GetStatus"]).await?,
        call(ROOT_PATH, MANAGER_INTERFACE, &["GetStatistics"]).await?,
        call(ROOT_PATH, MANAGER_INTERFACE, &["GetSettings"]).await?,
        call(ROOT_PATH, MANAGER_INTERFACE, &["ListDevices"]).await?,
        call(ROOT_PATH, PROPERTIES, &["GetAll", "s", EMBEDDER_INTERFACE]).await?,
        call(JOBS_PATH, OBJECT_MANAGER, &["GetManagedObjects"]).await?,
        call(ROOT_PATH, EMBEDDER_INTERFACE, &["Tokenize", "asa{sv}", "1", theirs[0], "0"]).await?,
    ];
    for shown in shown.map(|reply| reply.to_string()) {
        assert!(!holds(shown.as_bytes()) && !shown.contains(job.as_str()), "{shown}");
    }
    // The bytes of a reply are those of this text alone, and a text that both have is computed for each.
    let mut packed = Vec::new();
    for text in theirs {
        let words = ["EmbedPacked", "asa{sv}", "1", text, "0"];
        packed.push(call(ROOT_PATH, EMBEDDER_INTERFACE, &words).await?);
        assert_eq!(packed[packed.len() - 1]["data"][3]["cached"]["data"], 0, "{text}");
    }
    let found: Vec<u8> = serde_json::from_value(packed[0]["data"][0].clone())?;
    assert_eq!(found, own);
    daemon.stop().await
}
