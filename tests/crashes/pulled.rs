//! A model or a library that is being pulled: it is whole or not there, whatever befalls who pulls it, and the next
//! pull succeeds.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use op_dbus_models::manifest::{self, Build, BuiltIn, BuiltInFile, Library};
use op_dbus_models::{Error, FileRecord, Progress, PullOptions, RuntimeStore, Source, Store};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use super::STORE_CALLS;
use super::tracer::{FAULTS, KILL, points, traced};
use crate::harness::Outcome;
use crate::harness::command::{Finished, clean, finish};
use crate::harness::registry::tests;

tests! {
    a_model_survives_a_fault_at_every_system_call: [Strace] => faulted(Kind::Model),
    a_model_that_broke_off_survives_a_fault_at_every_system_call: [Strace] =>
        faulted(Kind::BrokenOff),
    a_library_survives_a_fault_at_every_system_call: [Strace] => faulted(Kind::Library),
}

/// A name, a content and its SHA-256.
type File = (&'static str, &'static str, &'static str);

/// What is fetched.
const FILES: [File; 2] = [
    (
        "model.safetensors",
        "the weights of the model",
        "e6202dea401e05dbe6203d4d5603b7e7d06620002137a7f7d5b456a50cbffd6c",
    ),
    ("tokenizer.json", "{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
];
/// What a model has besides, of which its content is known.
const CONFIG: File =
    ("config.json", "[]", "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945");

/// The model's name, and the library's.
const NAME: &str = "own";
/// The word for the hub, in place of a folder to fetch from.
const HUB: &str = "hub";

fn record((path, content, sha256): File) -> FileRecord {
    let (path, sha256) = (path.to_owned(), sha256.to_owned());
    FileRecord { path, bytes: content.len() as u64, sha256 }
}

/// Another model than the built-in ones, whose files take seconds.
fn model() -> BuiltIn {
    let fetched = |file| BuiltInFile { record: record(file), content: None };
    let config = BuiltInFile { record: record(CONFIG), content: Some(CONFIG.1.to_owned()) };
    let files = FILES.map(fetched).into_iter().chain([config]).collect();
    let known = manifest::models()[0].clone();
    BuiltIn { name: NAME.to_owned(), files, packages: Vec::new(), hub: true, ..known }
}

/// Another library for the same reason.
fn library() -> Library {
    let (load, _, _) = FILES[0];
    let arch = std::env::consts::ARCH.to_owned();
    Library {
        package: NAME.to_owned(),
        version: "1".to_owned(),
        folder: String::new(),
        load: load.to_owned(),
        plugin: None,
        providers: manifest::libraries()[0].providers.clone(),
        builds: vec![Build { arch, platform: "any".to_owned(), files: FILES.map(record).into() }],
    }
}

/// What this program does with `--pull STORE FROM`: it pulls the model from the hub, or the library from a folder, in a
/// process that may be ended.
pub fn pull(words: &[String]) -> ExitCode {
    let [store, from] = words else { return ExitCode::FAILURE };
    match bring(Path::new(store), from) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With one system call, so that none of the sentence is lost to a fault.
            let _ = io::stderr().write_all(format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn bring(store: &Path, from: &str) -> Result<(), Error> {
    let progress = Progress::silent();
    if from != HUB {
        let sources = [Source::Folder(PathBuf::from(from))];
        return RuntimeStore::open(store).bring(&library(), &sources, &progress).map(drop);
    }
    let options = PullOptions {
        sources: vec![Source::Hub],
        convert: &|_| Err("there is nothing to convert".into()),
        progress: &progress,
    };
    Store::open(store).bring(&model(), &options).map(drop)
}

/// A hub that has the files, each from whatever byte it is asked for.
async fn serve(hub: TcpListener) {
    while let Ok((stream, _)) = hub.accept().await {
        // Who is killed leaves in the middle.
        let _ = answer(stream).await;
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let asked = lines.next_line().await?.unwrap_or_default();
    let mut start = 0_usize;
    while let Some(line) = lines.next_line().await?.filter(|line| !line.is_empty()) {
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            start = range.trim_end_matches('-').parse().unwrap_or(0);
        }
    }
    let file = FILES.into_iter().find(|(name, ..)| asked.contains(&format!("/{name} ")));
    let (_, content, _) = file.ok_or(io::ErrorKind::NotFound)?;
    let rest = content.get(start..).unwrap_or_default();
    let length = rest.len();
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // In one piece, so that it is written with as many calls each time.
    lines.get_mut().write_all((head + rest).as_bytes()).await
}

/// What is fetched, and what there is of it before.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    /// The same where half of its first file came before.
    BrokenOff,
    Library,
}

/// Pulls into a store of their own.
struct Pull {
    root: TempDir,
    kind: Kind,
    hub: String,
}

impl Pull {
    async fn new(kind: Kind) -> Outcome<Self> {
        let root = tempfile::tempdir()?;
        let from = root.path().join("from");
        fs::create_dir(&from)?;
        for (name, content, _) in FILES {
            fs::write(from.join(name), content)?;
        }
        let hub = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = hub.local_addr()?;
        tokio::spawn(serve(hub));
        Ok(Self { root, kind, hub: format!("http://{address}") })
    }

    fn store(&self) -> PathBuf {
        self.root.path().join("store")
    }

    /// Where what was pulled lies.
    fn folder(&self) -> PathBuf {
        let name = if self.kind == Kind::Library { library().folder_name() } else { NAME.into() };
        self.store().join(name)
    }

    /// Where the first file is downloaded to.
    fn part(&self) -> PathBuf {
        let (_, _, sha256) = FILES[0];
        self.store().join(".partial").join(NAME).join(format!("{sha256}.part"))
    }

    fn command(&self) -> Outcome<Command> {
        let from = match self.kind {
            Kind::Library => self.root.path().join("from"),
            Kind::Model | Kind::BrokenOff => HUB.into(),
        };
        let mut command = clean(std::env::current_exe()?);
        command.arg("--pull").arg(self.store()).arg(from);
        command.env("HF_ENDPOINT", &self.hub).env("HF_HOME", self.root.path());
        Ok(command)
    }

    /// The store is as it is before, and the pull traced, with what else the tracer is told; its log as well.
    async fn traced(&self, told: &[&str]) -> Outcome<(Finished, String)> {
        let store = self.store();
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        if self.kind == Kind::BrokenOff {
            let ((_, content, _), part) = (FILES[0], self.part());
            fs::create_dir_all(part.parent().ok_or("a part in no folder")?)?;
            fs::write(part, &content[..content.len() / 2])?;
        }
        traced(&self.command()?, STORE_CALLS, told).await
    }

    /// Whether there is something in its place, which has to be whole then.
    fn is_there(&self) -> Outcome<bool> {
        let folder = self.folder();
        if !folder.exists() {
            return Ok(false);
        }
        for (name, content, _) in FILES {
            if fs::read_to_string(folder.join(name))? != content {
                return Err(format!("{name} is another file").into());
            }
        }
        if self.kind != Kind::Library {
            Store::open(self.store()).verify(NAME)?;
        }
        Ok(true)
    }

    /// Whether there is nothing else in the store.
    fn is_alone(&self) -> Outcome<bool> {
        let (store, folder) = (self.store(), self.folder());
        let [lock, parts] = [".lock", ".partial"].map(|name| store.join(name));
        let mut all = store.read_dir()?.flatten().map(|entry| entry.path());
        let others = all.any(|path| ![&lock, &parts, &folder].contains(&&path));
        Ok(!others && parts.read_dir().map_or(0, Iterator::count) == 0)
    }
}

async fn faulted(kind: Kind) -> Outcome {
    let pull = Pull::new(kind).await?;
    // Of a file that there is no room for, the folder is told.
    let (around, part) = (pull.root.path().display().to_string(), pull.part());
    let part = format!("-P{}", part.display());
    let writes = ["openat", "write", "fsync", "fchmod", "mkdir", "rename"];
    let mut counted = vec![(vec![], &writes[..])];
    // Calls are counted for each thread, and the first ones of the thread that downloads come after those of the main
    // thread, which a kill would hit: so what has to do with the download's file is counted for itself as well.
    if kind != Kind::Library {
        counted.push((vec![part.as_str()], &["ftruncate", "write"][..]));
    }
    let (mut killed, mut refused) = (0, 0);
    for (only, expected) in counted {
        let (finished, log) = pull.traced(&only).await?;
        finished.success()?;
        assert!(pull.is_there()?);
        for (name, number) in points(&log, &pull.store(), expected) {
            for fault in FAULTS {
                let inject = format!("--inject={name}:{fault}:when={number}");
                let told: Vec<&str> = only.iter().copied().chain([inject.as_str()]).collect();
                let (finished, log) = pull.traced(&told).await?;
                let what = format!("{fault} at {name} {number}: {}", finished.stderr);
                let failed = |error| format!("{what}: {error}");
                let is_there = pull.is_there().map_err(failed)?;
                match finished.code {
                    None => killed += 1,
                    Some(0) => assert!(is_there, "{what}"),
                    code => {
                        refused += 1;
                        assert!(code == Some(1) && !is_there, "{what}");
                        assert!(finished.stderr.contains(&around), "{what}");
                    }
                }
                assert_eq!(finished.code.is_none(), fault == KILL, "{what}");
                assert!(fault == KILL || log.contains("(INJECTED)"), "{what}");

                finish(pull.command()?, "").await?.success().map_err(failed)?;
                assert!(pull.is_there().map_err(failed)?, "{what}");
                assert!(pull.is_alone().map_err(failed)?, "left over, {what}");
            }
        }
    }
    let what = match kind {
        Kind::Model => "a pull",
        Kind::BrokenOff => "the rest of a pull",
        Kind::Library => "a library's pull",
    };
    println!("figure: {what} killed at {killed} system calls, {refused} refused");
    assert!(killed > 15 && refused > 30, "only {killed} kills and {refused} errors hit it");
    Ok(())
}
