//! A text is nobody's business but its caller's: where a planted one can't be found.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::signal::Signal;
use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, ErrorName, JOBS_PATH, JobProxy, MANAGER_INTERFACE, ROOT_PATH,
};
use serde_json::Value;
use zbus::Fd;

use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::{Daemon, LOG_ALL, Setup};
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

/// Files below a folder that hold the secret.
fn found_below(folder: &Path) -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(found_below(&path)?);
        } else if holds(&fs::read(&path)?) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
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
    let job = embedder.start_embed_from_fd(fd, Options::new()).await?;
    let job = JobProxy::builder(client.connection()).path(job).build().await?;
    job.fetch().await?;
    fs::remove_file(&file)?;
    // A worker that dies with it in hand.
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = client.embed_meanwhile(&format!("{SECRET} in hand"));
    daemon.client().counted("in_flight_calls", 1).await?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    within("the retried call", waiting).await???;

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
    let refusals = plant(&client, &daemon, &setup).await?;
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
    let (fd, ..) = other.embedder.embed_to_fd(&["somebody else"], Options::new()).await?;
    let fd = fs::File::from(OwnedFd::from(fd));
    let vectors = fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))?;
    assert!(!holds(&vectors), "the vectors of another call hold it");
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
    let files = found_below(&setup.path(""))?;
    assert!(files.is_empty(), "{files:?}");
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
    let expected = client.vectors(&theirs[..1]).await?.concat();
    plant(&client, &daemon, &setup).await?;
    let file = setup.path("kept");
    fs::write(&file, format!("{SECRET}\n"))?;
    let fd = Fd::from(OwnedFd::from(fs::File::open(&file)?));
    let job = client.embedder.start_embed_from_fd(fd, Options::new()).await?;

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
    let bytes: Vec<u8> = serde_json::from_value(packed[0]["data"][0].clone())?;
    let expected: Vec<u8> = expected.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(bytes, expected);
    daemon.stop().await
}
