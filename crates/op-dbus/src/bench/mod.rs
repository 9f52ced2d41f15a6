//! `op-dbus bench`: what the machine gives, inside the engine and over the bus, in one run.

mod args;
mod client;
mod collection;
mod corpus;
mod crossover;
mod driven;
mod engine;
mod generated;
mod machine;
mod measure;
mod open;
mod peak;
mod quality;
mod random;
mod ranks;
mod report;
mod rounds;
mod spawn;
mod spread;
mod stage;
mod table;
mod variant;

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{Done, block_on_and_clear, pretty_json, printed};
use crate::open_files;
use corpus::Corpus;
use machine::Machine;
use quality::Pairs;
use report::Report;
use rounds::Plan;
use stage::Stage;

pub use args::Args;

pub fn run(args: Args) -> Done {
    // Each client of each place of each variant has a connection of its own.
    open_files::allow_most();
    // One thread, like a client has: a call is not handed from thread to thread on its way.
    block_on_and_clear(async {
        if args.driven { driven::run(args).await } else { bench(args).await }
    })
}

async fn bench(args: Args) -> Done {
    args.check()?;
    let corpora = match args.corpus.as_slice() {
        [] => Corpus::all_generated(&args.generate, args.seed),
        files => Corpus::read_all(files)?,
    };
    let pairs = match &args.quality {
        Some(Some(path)) => Some(Pairs::read(path)?),
        _ => None,
    };
    let machine = Machine::this();
    let stage = Stage::set(&args).await?;
    let quality = match args.quality {
        Some(_) => quality::measure(&stage, &corpora, pairs.as_ref()).await?,
        None => Vec::new(),
    };
    let progress = progress();
    let results = rounds::run(&stage, corpora, &args, &progress).await;
    progress.finish_and_clear();
    let report = Report::new(machine, &stage, Plan::of(&args), (&results?, quality));
    stage.strike().await;
    let text = match args.json {
        true => pretty_json(&report),
        false => table::page(&report, args.compared.offload),
    };
    printed(text)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
