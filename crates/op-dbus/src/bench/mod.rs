//! `op-dbus bench`: what the machine gives, inside the engine and over the bus, in one run.

mod client;
mod corpus;
mod engine;
mod machine;
mod measure;
mod report;
mod rounds;
mod spawn;
mod spread;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use op_dbus_daemon::settings::{Bus, Settings, Sources};

use crate::cli::{Done, EXIT_CODES, Failure, Properties, connect};
use client::Side;
use corpus::Corpus;
use machine::Machine;
use report::Report;
use rounds::Plan;
use spawn::PrivateService;

/// How long a service may be loading when we come.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Measure texts per second and latency, in the engine and over the bus
#[derive(clap::Args)]
#[command(after_help = format!("\
The engine runs in this process, with worker processes as the daemon starts them, and is measured in
turn with the service on the bus: same texts, same calls, several rounds. Every figure is the median
of the rounds, with the lowest and the highest behind it. Without --bus (and OP_DBUS_BUS) a private
bus and a service are started for the purpose; they need the program `dbus-daemon`.

Examples:
  op-dbus bench
  op-dbus bench --level low --rounds 3 --texts /var/log/syslog
  op-dbus bench --bus system --json

{EXIT_CODES}"))]
pub struct Args {
    /// Level to measure; without it the service's or the configured one
    #[arg(long)]
    level: Option<String>,
    /// Texts to embed, one a line, in place of generated ones
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// Seed of the generated texts
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "texts")]
    seed: u64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds that one measurement should take, about
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Measure one side alone
    #[arg(long, value_enum)]
    only: Option<Side>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Measure the service on this bus: `system`, `session` or a D-Bus address
    #[arg(long, env = "OP_DBUS_BUS", hide_env_values = true, help_heading = "Service")]
    bus: Option<String>,
    /// Start a private bus and service, even if OP_DBUS_BUS names a bus
    #[arg(long, help_heading = "Service")]
    spawn: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.01 to 3600".to_owned()),
    }
}

pub fn run(args: Args) -> Done {
    // One thread, like a client has: a call is not handed from thread to thread on its way.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::refused(format!("can't start: {error}")))?
        .block_on(bench(args))
}

async fn bench(args: Args) -> Done {
    let corpus = match &args.texts {
        Some(path) => Corpus::read(path)?,
        None => Corpus::generated(args.seed),
    };
    let machine = Machine::this();
    let mut stage = Stage::set(&args).await?;
    let plan = Plan { rounds: args.rounds, target: Duration::from_secs_f64(args.seconds) };
    let progress = progress();
    let results = rounds::run(&mut stage, &corpus, plan, &progress).await;
    progress.finish_and_clear();
    let report = Report::new(machine, &stage, &corpus, plan, results?);
    stage.strike().await;
    let text = match args.json {
        true => report.json(),
        false => report.text(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// What is measured: the engine, the service, or both.
pub struct Stage {
    pub engine: Option<engine::Local>,
    pub bus: Option<client::Remote>,
    pub served: Served,
    spawned: Option<PrivateService>,
}

/// What serves, on either side.
pub struct Served {
    pub level: String,
    pub model: String,
    pub space: String,
    pub provider: String,
    pub precision: String,
    pub max_input_tokens: usize,
    pub workers: Option<usize>,
}

impl Served {
    fn of_service(properties: &Properties) -> Self {
        let text = |name| properties.text(name).to_owned();
        Self {
            level: text("VectorLevel"),
            model: text("Model"),
            space: text("VectorSpace"),
            provider: text("ExecutionProvider"),
            precision: text("Precision"),
            max_input_tokens: properties.number("MaxInputTokens").unwrap_or(0),
            workers: None,
        }
    }
}

impl Stage {
    async fn set(args: &Args) -> Result<Self, Failure> {
        let mut flags = BTreeMap::new();
        if let Some(level) = &args.level {
            flags.insert("vector_level".to_owned(), level.clone());
        }
        let mut spawned = None;
        let mut bus = None;
        if args.only != Some(Side::Engine) {
            let named = args.bus.as_ref().filter(|bus| !args.spawn && !bus.is_empty());
            let address = match named {
                Some(address) => address.parse::<Bus>().map_err(Failure::usage)?,
                None => spawned.insert(PrivateService::start(&mut flags).await?).bus(),
            };
            let service = connect(&address).await?;
            service.wait(READY_TIMEOUT).await?;
            let served = Served::of_service(&service.properties().await?);
            // The engine is to compute what the service computes.
            if args.level.is_none() && !served.level.is_empty() {
                flags.insert("vector_level".to_owned(), served.level.clone());
            }
            bus = Some((client::Remote::new(address, service), served));
        }
        let mut engine = None;
        if args.only != Some(Side::Bus) {
            let loaded = Settings::load(&Sources::of_process(flags))
                .map_err(|mistakes| Failure::not_configured(mistakes.to_string()))?;
            engine = Some(engine::Local::start(loaded).await?);
        }
        let (bus, remote) = bus.unzip();
        let served = match (&engine, remote) {
            (Some(local), Some(remote)) if local.served.vector_space() != remote.space => {
                return Err(Failure::refused(format!(
                    "the service embeds with {} and the settings here say {}: compare like with \
                     like (--level), or measure one side alone (--only)",
                    remote.model, local.served.model
                )));
            }
            (Some(local), _) => local.served(),
            (None, Some(remote)) => remote,
            (None, None) => return Err(Failure::usage("there is nothing to measure")),
        };
        Ok(Self { engine, bus, served, spawned })
    }

    /// The sides that are measured.
    pub fn sides(&self) -> Vec<Side> {
        let sides = [(Side::Engine, self.engine.is_some()), (Side::Bus, self.bus.is_some())];
        sides.into_iter().filter_map(|(side, there)| there.then_some(side)).collect()
    }

    async fn strike(self) {
        if let Some(engine) = self.engine {
            engine.stop().await;
        }
        if let Some(spawned) = self.spawned {
            spawned.stop().await;
        }
    }
}
