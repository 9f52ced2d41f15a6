//! The commands that the documents show, each typed as a reader would type it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish, with_program};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, needs, repository};

tests! {
    readme_shows_what_is_said: [Bus, Bash, Busctl, Medium],
    use_shows_what_works: [Bus, Bash, Busctl, Gdbus, Python, PythonPackages],
    http_shows_what_works: [Bus, Bash, Curl, OpenSsl, PythonHttp, PythonPackages],
    tune_and_operate_show_what_works: [Bus, Bash, Busctl, Gdbus, Jq, Low, Medium, Ggml],
    what_is_not_run_is_still_shown: [],
    no_command_writes_elsewhere_on_the_machine: [],
    who_maps_vectors_is_told_how: [],
}

const DOCUMENTS: &[&str] =
    &["README.md", "docs/use.md", "docs/http.md", "docs/tune.md", "docs/operate.md"];

/// What no test can run, by its beginning, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo ", "builds for minutes; tests/library.rs runs the example"),
    ("systemctl ", "there is no systemd: `cargo xtask boot` has one"),
    ("journalctl -u op-dbus", "there is no journal: `cargo xtask boot` has one"),
    ("install -d -o op-dbus", "there is no such user"),
    ("for what in models", "moves what an installed service has"),
    ("python3 -m venv", "for the next line; tests/python.rs makes one"),
    ("~/op-dbus-python/bin/pip", "fetches; tests/python.rs installs the package"),
    ("op-dbus runtime pull", "fetches: `cargo xtask test` does before the tests"),
    ("op-dbus doctor cuda", "fails without a GPU"),
    ("from llama_index", "not among the tests' packages: tried by hand"),
    ("let bus = zbus::", "much as the documentation of op-dbus-api, which is built"),
    ("use op_dbus_embedder::", "much as the documentation of op-dbus-embedder, which is built"),
    ("[dependencies]", "for a program of the reader's own"),
    ("[providers.cuda]", "for a file"),
    ("[op-dbus]", "for a file"),
    ("[Service]", "for a file"),
    ("[Socket]", "for a file"),
    ("scrape_configs:", "for a file"),
];

/// What is another word here than in the documents.
const HERE: &[(&str, &str)] = &[
    ("journalctl -b -p warning -o cat", "cat lines"),
    ("/usr/share/op-dbus/profiles", "profiles"),
    ("/etc/", "etc/"),
    ("ReadWritePaths=/", "ReadWritePaths="),
    // Any other level than the daemon's, and ggml packs this one in seconds.
    ("SetVectorLevel s high", "SetVectorLevel s medium"),
];
/// The gateway's port, which the kernel chooses here.
const PORT: &str = ":8080";

/// The files of texts that the documents speak of, and what is in each.
const FILES: &[&str] = &["lines", "texts.txt", "titles.txt"];
const LINES: &str = "\
sshd[811]: Accepted publickey for deploy from 10.0.3.7 port 50122
postgres[2231]: PANIC: could not write to file \"pg_wal/xlogtemp\": No space left on device
systemd[1]: Started Daily apt download activities.
df: /var/lib/docker is at 98% of 200G
";

/// A command of a document; or a whole block that is no list of commands.
struct Step {
    language: String,
    text: String,
    /// What it prints, line by line, where the document has that.
    shown: Vec<String>,
}

impl Step {
    fn new(language: &str, text: &str) -> Self {
        Self { language: language.to_owned(), text: text.to_owned(), shown: vec![] }
    }

    fn is_run(&self) -> bool {
        !NOT_RUN.iter().any(|(start, _)| self.text.starts_with(*start))
    }
}

/// The steps of a document's blocks, in their order.
fn steps(document: &str) -> Outcome<Vec<Step>> {
    let text = fs::read_to_string(repository().join(document))?;
    let mut lines = text.lines();
    let mut steps = Vec::new();
    while let Some(line) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
        match language {
            "" | "sh" | "console" => steps.extend(commands(language, &block)),
            _ => steps.push(Step::new(language, &block.join("\n"))),
        }
    }
    Ok(steps)
}

/// A command begins at the margin, on a console behind `$ `, and `done` ends one; what else is at the margin of a
/// console was printed.
fn commands(language: &str, block: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.iter().copied().filter(|line| !line.is_empty()) {
        let goes_on = line.starts_with(' ') || line == "done";
        let typed = line.strip_prefix("$ ");
        match steps.last_mut() {
            Some(step) if goes_on => step.text += &format!("\n{line}"),
            Some(step) if language == "console" && typed.is_none() => {
                step.shown.push(line.to_owned());
            }
            _ => steps.push(Step::new(language, typed.unwrap_or(line))),
        }
    }
    steps
}

/// Where a reader types: a service, the gateways that were started, and a folder.
struct Desk {
    // In the order in which they end, where a test fails.
    gateways: Vec<Gateway>,
    daemon: Daemon,
    setup: Setup,
    bus: PrivateBus,
    folder: TempDir,
}

impl Desk {
    async fn with(setup: Setup) -> Outcome<Self> {
        let (bus, setup, daemon) = setup.alone().await?;
        let folder = tempfile::Builder::new().prefix("desk-").tempdir()?;
        let path = folder.path();
        for file in FILES {
            fs::write(path.join(file), LINES)?;
        }
        fs::create_dir_all(path.join("etc/op-dbus"))?;
        symlink(repository().canonicalize()?.join("systemd/profiles"), path.join("profiles"))?;
        // A refusal is a failure here.
        fs::write(path.join(".curlrc"), "fail\n")?;
        Ok(Self { gateways: vec![], daemon, setup, bus, folder })
    }

    /// A program that finds the service where one of the machine would be found.
    fn command(&self, program: impl AsRef<OsStr>) -> Outcome<Command> {
        let mut command = with_program(clean(program))?;
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        for bus in ["OP_DBUS_BUS", "DBUS_SYSTEM_BUS_ADDRESS", "DBUS_SESSION_BUS_ADDRESS"] {
            command.env(bus, self.bus.address());
        }
        command.env("OP_DBUS_CONFIG", self.setup.config_file());
        command.env("OP_DBUS_STATE_FILE", self.setup.state_file());
        Ok(command)
    }

    /// Python with all that the documents import.
    fn python(&self) -> Outcome<Command> {
        let mut command = self.command(needs::python_packages())?;
        let own = repository().canonicalize()?.join("packaging/python/src");
        let paths = env::join_paths([own, needs::python_path(), needs::python_http_path()])?;
        command.env("PYTHONPATH", paths).env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(command)
    }

    async fn run(&mut self, step: &Step) -> Outcome {
        let text = step.text.clone();
        let text = HERE.iter().fold(text, |text, (there, here)| text.replace(*there, here));
        if step.language != "python" {
            stays_in_the_folder(&text)?;
        }
        if text.starts_with("op-dbus gateway") {
            let mut command = self.command("bash")?;
            command.args(["-c", &format!("exec {}", text.replace(PORT, ":0"))]);
            self.gateways.push(Gateway::start_command(command).await?);
            return Ok(());
        }
        let url = self.gateways.last().map(|gateway| gateway.url("")).unwrap_or_default();
        let text = match url.rsplit_once(':') {
            Some((_, port)) => text.replace(PORT, &format!(":{port}")),
            None => text,
        };
        let mut command = match step.language.as_str() {
            "python" => self.python()?,
            "" | "sh" | "console" => self.command("bash")?,
            other => return Err(format!("{other:?} is neither run nor in NOT_RUN").into()),
        };
        if step.language != "python" {
            command.args(["-e", "-o", "pipefail"]);
        }
        command.arg("-c").arg(&text);
        let said = finish(command, "").await?.success()?;
        if !step.shown.is_empty() {
            assert_eq!(said.lines().count(), step.shown.len(), "{said}");
            for (shown, said) in step.shown.iter().zip(said.lines()) {
                assert!(agree(shown, said), "{said}\nis shown as\n{shown}");
            }
        }
        Ok(())
    }
}

/// Refuses a command that names a place of the machine: who runs the tests may be root.
fn stays_in_the_folder(text: &str) -> Outcome {
    let parts = |c: char| c.is_whitespace() || "\"'`=<>(){},;&|".contains(c);
    let is_elsewhere = |word: &&str| {
        // A path may stand right behind the letter of its option.
        let option = word.strip_prefix('-');
        let path = option.map_or(*word, |it| it.trim_start_matches(char::is_alphanumeric));
        let is_object = path.starts_with("/org/opdbus/");
        path.starts_with('/') && !is_object || path.split('/').any(|folder| folder == "..")
    };
    match text.split(parts).find(is_elsewhere) {
        Some(path) => Err(format!("{path} is the machine's: put it into HERE or NOT_RUN").into()),
        None => Ok(()),
    }
}

/// Whether a line was printed as it is shown: the same words, and numbers no further apart than those of two CPUs
/// may be in `f32`. `…` stands for all that follows.
fn agree(shown: &str, said: &str) -> bool {
    let mut shown: Vec<&str> = shown.split_whitespace().collect();
    let mut said: Vec<&str> = said.split_whitespace().collect();
    if shown.last() == Some(&"…") {
        shown.pop();
        said.truncate(shown.len());
    }
    let alike = |(shown, said): (&&str, &&str)| match (shown.parse::<f64>(), said.parse::<f64>()) {
        (Ok(shown), Ok(said)) => (shown - said).abs() <= 2e-4,
        _ => shown == said,
    };
    shown.len() == said.len() && shown.iter().zip(&said).all(alike)
}

/// Runs all that `documents` show and a test can run, one after the other.
async fn typed(documents: &[&str], setup: Setup) -> Outcome {
    let mut desk = Desk::with(setup).await?;
    for document in documents {
        for step in steps(document)?.iter().filter(|step| step.is_run()) {
            let end = desk.run(step).await;
            end.map_err(|error| format!("{document} shows\n{}\n{error}", step.text))?;
        }
    }
    for gateway in desk.gateways {
        gateway.stop().await?;
    }
    desk.daemon.stop().await
}

async fn readme_shows_what_is_said() -> Outcome {
    typed(&["README.md"], Setup::real("medium")?.setting("precision", "f32")).await
}

async fn use_shows_what_works() -> Outcome {
    typed(&["docs/use.md"], Setup::sim()?).await
}

async fn http_shows_what_works() -> Outcome {
    typed(&["docs/http.md"], Setup::sim()?).await
}

async fn tune_and_operate_show_what_works() -> Outcome {
    typed(&["docs/tune.md", "docs/operate.md"], Setup::real("low")?).await
}

async fn what_is_not_run_is_still_shown() -> Outcome {
    let mut shown = Vec::new();
    for document in DOCUMENTS {
        shown.extend(steps(document)?);
    }
    for (start, _) in NOT_RUN {
        let is_shown = shown.iter().any(|step| step.text.starts_with(*start));
        assert!(is_shown, "no document shows what begins with {start:?}");
    }
    for word in HERE.iter().map(|(there, _)| *there).chain([PORT]).chain(FILES.iter().copied()) {
        let is_shown = shown.iter().any(|step| step.is_run() && step.text.contains(word));
        assert!(is_shown, "no document shows {word:?}");
    }
    Ok(())
}

/// A kernel that refuses the other way need not be here.
async fn who_maps_vectors_is_told_how() -> Outcome {
    let interface = "dbus-policy/interfaces/org.opdbus.Embedding1.Embedder.xml";
    for file in ["docs/use.md", interface, "crates/op-dbus-api/src/proxy.rs"] {
        let text = fs::read_to_string(repository().join(file))?;
        assert!(text.contains("MAP_PRIVATE"), "{file}");
    }
    Ok(())
}

async fn no_command_writes_elsewhere_on_the_machine() -> Outcome {
    for elsewhere in [
        "cat /srv/x",
        "cat lines >/srv/x",
        "cat lines > \"/srv/x\"",
        "op-dbus embed --output=/srv/x",
        "curl -o/srv/x http://127.0.0.1/v1",
        "curl -sSo../x http://127.0.0.1/v1",
        "(cd /srv)",
        "cat lines|tee /srv/x",
        "cat lines > ../../x",
        "cat lines > etc/../../x",
        "cd ..; cat lines > x",
    ] {
        assert!(stays_in_the_folder(elsewhere).is_err(), "{elsewhere}");
    }
    stays_in_the_folder("curl http://127.0.0.1/v1 -H 'a: b/c' > etc/x; busctl a /org/opdbus/b")
}
