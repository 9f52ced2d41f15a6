//! `op-dbus top`, in a terminal and without one.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use op_dbus_api::{BUS_NAME, ROOT_PATH};
use serde_json::Value;
use tokio::task::JoinHandle;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;

use crate::harness::bus::PrivateBus;
use crate::harness::client::Told;
use crate::harness::command::{clean, cli};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;
use crate::harness::terminal::Terminal;
use crate::harness::{Outcome, eventually};

tests! {
    top_shows_a_busy_service_and_gives_the_terminal_back: [Bus, Tmux],
    top_survives_a_service_that_goes_and_comes_back: [Bus, Tmux],
    top_prints_one_interval_to_a_pipe: [Bus],
    top_measures_from_counters_to_counters: [Bus],
    top_draws_nothing_on_a_dumb_terminal: [Bus, Tmux],
    top_gives_the_terminal_back_to_who_interrupts_it: [Bus, Tmux],
    top_ends_well_where_its_terminal_goes: [Bus, Tmux],
}

/// What runs in the terminal: the state of the terminal and the exit code are there to be read when
/// `top` has ended.
const SCRIPT: &str = "\
    before=$(stty -g); echo printed before; \"$@\"; echo \"ended with $?\"; \
    [ \"$(stty -g)\" = \"$before\" ] && echo as it was; exec cat";

async fn open(bus: &PrivateBus) -> Outcome<Terminal> {
    let mut command = clean("sh");
    command.args(["-c", SCRIPT, "sh"]).arg(op_dbus()).args(["top", "--interval", "0.2"]);
    command.arg("--bus").arg(bus.address());
    Terminal::open(&command).await
}

/// Keeps the service busy until it ends.
fn load(daemon: &Daemon) -> JoinHandle<()> {
    let embedder = daemon.client().embedder.clone();
    tokio::spawn(async move { while embedder.embed_batch(&["some text"; 16]).await.is_ok() {} })
}

/// The numbers in the line that starts with `name`.
fn numbers(screen: &str, name: &str) -> Vec<f64> {
    let line = screen.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().map_while(|number| number.replace(',', "").parse().ok()).collect()
}

/// The first of them.
fn number(screen: &str, name: &str) -> Option<f64> {
    numbers(screen, name).first().copied()
}

async fn top_shows_a_busy_service_and_gives_the_terminal_back() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let load = load(&daemon);
    let terminal = open(&bus).await?;
    let goes = |screen: &str, name: &str| number(screen, name).is_some_and(|rate| rate > 0.0);
    // The simulator may take less than the smallest time that is shown, but not each time.
    let takes_time = |screen: &str| {
        let times = numbers(screen, "compute");
        times.len() == 3 && times.iter().any(|time| *time > 0.0)
    };
    let busy =
        |screen: &str| goes(screen, "texts/s") && goes(screen, "tokens/s") && takes_time(screen);
    let screen = terminal.shows("a rate", busy).await?;
    assert!(terminal.is_taken().await? && !screen.contains("printed before"), "{screen}");
    assert!(screen.contains(": ready for ") && screen.contains("low ("), "{screen}");
    for worker in daemon.workers().await? {
        assert!(
            screen.lines().any(|line| line.trim().starts_with(&format!("{worker} "))),
            "{screen}"
        );
    }

    terminal.press("q").await?;
    let screen = terminal.shows("the end", |screen| screen.contains("as it was")).await?;
    assert!(screen.contains("printed before\nended with 0\n"), "{screen}");
    assert!(!terminal.is_taken().await?);
    load.abort();
    daemon.stop().await
}

async fn top_draws_nothing_on_a_dumb_terminal() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let mut command = clean("sh");
    command.args(["-c", SCRIPT, "sh", "env", "TERM=dumb"]).arg(op_dbus()).args(["top", "--bus"]);
    let terminal = Terminal::open(command.arg(bus.address())).await?;
    let screen = terminal.shows("the end", |screen| screen.contains("ended with 0")).await?;
    assert!(screen.contains("printed before") && screen.contains("Since start"), "{screen}");
    daemon.stop().await
}

async fn top_survives_a_service_that_goes_and_comes_back() -> Outcome {
    let bus = PrivateBus::start().await?;
    let terminal = open(&bus).await?;
    let absent = |screen: &str| screen.starts_with("op-dbus: the service");
    let ready = |screen: &str| screen.contains(": ready for ") && screen.contains("Worker");
    let setup = Setup::sim()?;
    for _ in 0..2 {
        terminal.shows("that there is no service", absent).await?;
        let daemon = setup.ready(&bus).await?;
        terminal.shows("the service", ready).await?;
        daemon.stop().await?;
    }
    terminal.shows("that there is no service", absent).await?;
    terminal.press("C-c").await?;
    terminal.shows("the end", |screen| screen.contains("ended with 0\nas it was")).await?;
    Ok(())
}

/// Opens `top` in a terminal whose shell outlives it. Files in `folder` have the process id of `top`, and how it ended.
async fn open_beside(folder: &Path, bus: &PrivateBus) -> Outcome<Terminal> {
    const OUTLIVING: &str = "\
        trap : HUP; sh -c 'echo $$ >\"$0/pid\"; exec \"$@\"' \"$0\" \"$@\"; code=$?; \
        echo $code >\"$0/made\"; mv \"$0/made\" \"$0/ended\"; exit $code";
    let mut command = clean("sh");
    command.args(["-c", SCRIPT, "sh", "sh", "-c", OUTLIVING]).arg(folder).arg(op_dbus());
    command.args(["top", "--bus", bus.address()]);
    let terminal = Terminal::open(&command).await?;
    terminal.shows("the page", |screen| screen.starts_with("op-dbus: the service")).await?;
    Ok(terminal)
}

async fn top_gives_the_terminal_back_to_who_interrupts_it() -> Outcome {
    let (bus, folder) = (PrivateBus::start().await?, tempfile::tempdir()?);
    let terminal = open_beside(folder.path(), &bus).await?;
    let pid = fs::read_to_string(folder.path().join("pid"))?;
    kill(Pid::from_raw(pid.trim().parse()?), Signal::SIGINT)?;
    terminal.shows("the end", |screen| screen.contains("ended with 0\nas it was")).await?;
    assert!(!terminal.is_taken().await?);
    Ok(())
}

async fn top_ends_well_where_its_terminal_goes() -> Outcome {
    let (bus, folder) = (PrivateBus::start().await?, tempfile::tempdir()?);
    drop(open_beside(folder.path(), &bus).await?);
    let ended = folder.path().join("ended");
    eventually("the end", async || Ok(ended.exists())).await?;
    // Not 134, of a process that could not print.
    assert_eq!(fs::read_to_string(ended)?, "0\n");
    Ok(())
}

async fn top_prints_one_interval_to_a_pipe() -> Outcome {
    let bus = PrivateBus::start().await?;
    let absent = cli(&bus, &["top", "--once"]).await?;
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);

    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    let load = load(&daemon);
    daemon.client().counted("calls", 1).await?;
    // On a busy machine nothing may be answered in an interval.
    let mut text = String::new();
    eventually("a rate", async || {
        text = cli(&bus, &["top"]).await?.success()?;
        Ok(number(&text, "texts/s").is_some_and(|rate| rate > 0.0))
    })
    .await?;
    assert!(text.contains("ready") && !text.contains('\u{1b}'), "{text:?}");
    let mut all = Value::Null;
    eventually("a rate in JSON", async || {
        let told = cli(&bus, &["top", "--json", "--interval", "0.5"]).await?.success()?;
        all = serde_json::from_str(&told)?;
        let interval = &all["interval"];
        assert!(interval["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.5), "{interval}");
        let goes = interval["texts_per_s"].as_f64().is_some_and(|rate| rate > 0.0);
        Ok(goes && interval["compute_us"]["p99"].is_u64())
    })
    .await?;
    // Every call that was answered is in a bucket.
    let buckets = all["statistics"]["queue_us_buckets"].as_array().ok_or("no buckets")?;
    let counted: u64 = buckets.iter().filter_map(|bucket| bucket[1].as_u64()).sum();
    let calls = all["statistics"]["calls"].as_u64().ok_or("no calls")?;
    assert!(counted.abs_diff(calls) <= 1, "{counted} {calls}");
    load.abort();
    daemon.stop().await
}

/// A service that notes when it is asked for counters and, behind them, for devices, which its drivers are slow to tell
/// of the first time.
struct Slow(Arc<Mutex<Vec<Instant>>>);

impl Slow {
    /// Notes a question; how many there were before.
    fn asked(&self) -> usize {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push(Instant::now());
        asked.len() - 1
    }
}

#[zbus::interface(name = "org.opdbus.Embedding1.Manager")]
impl Slow {
    async fn get_status(&self) -> Told {
        HashMap::new()
    }

    async fn get_statistics(&self) -> Told {
        self.asked();
        HashMap::new()
    }

    async fn list_devices(&self, #[zbus(connection)] connection: &Connection) -> Vec<Told> {
        if self.asked() == 1 {
            let bus = DBusProxy::new(connection).await.expect("a proxy of the bus");
            // Many times as long as a question of `top` takes.
            for _ in 0..500 {
                bus.get_id().await.expect("an answer of the bus");
            }
        }
        Vec::new()
    }
}

/// Else a driver that answers late would make rates many times what they are.
async fn top_measures_from_counters_to_counters() -> Outcome {
    let (bus, asked) = (PrivateBus::start().await?, Arc::new(Mutex::new(Vec::new())));
    let service = Builder::address(bus.address()).serve_at(ROOT_PATH, Slow(Arc::clone(&asked)));
    let _service = service.name(BUS_NAME).build().await?;
    let told = cli(&bus, &["top", "--json", "--interval", "0.1"]).await?.success()?;
    let all: Value = serde_json::from_str(&told)?;
    let seconds = all["interval"]["seconds"].as_f64().ok_or("no interval")?;
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    let [counters, devices, later_counters, later_devices] = asked[..] else {
        return Err(format!("it was asked {} times", asked.len()).into());
    };
    // The moment of a reading is between its counters and the question for devices.
    let least = later_counters.duration_since(devices).as_secs_f64();
    let most = later_devices.duration_since(counters).as_secs_f64();
    assert!((least..=most).contains(&seconds), "{least} {seconds} {most}");
    Ok(())
}
