//! `cargo xtask bench-peers`: op-dbus beside the libraries that people would use instead.

mod args;
mod competitor;
mod document;
mod environment;
mod field;
mod lineup;
mod ours;
mod plots;
mod statistics;
mod texts;

pub use args::Args;
pub use lineup::cpu_has_bf16;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use competitor::{Competitor, Entry};
use environment::Environment;
use field::{By, Field, Quality, Rates};
use lineup::Places;
use ours::Run;
use texts::Sample;

use crate::dist;
use crate::shell::{self, Outcome, program};

/// Everything that was measured.
pub struct Figures {
    pub level: String,
    pub field: Field,
    pub samples: Vec<Sample>,
    /// Texts per second by batch tokens, on the first sample.
    pub curves: By<Vec<(usize, f64)>>,
    pub rates: Rates,
    pub quality: By<Quality>,
    /// The measured level at both places: calls, clients, latency.
    pub service: Run,
    /// All levels in the engine alone.
    pub levels: Run,
    /// Arrivals at a rate, through the service.
    pub load: Run,
    pub rounds: usize,
    pub took_s: f64,
}

/// How much of everything.
struct Amount {
    rounds: usize,
    seconds: f64,
    /// Tokens of a sample: enough batches for every thread, and no more than a slow library embeds
    /// in some seconds.
    sample_tokens: f64,
    /// Batch sizes beside 512.
    sizes: &'static [usize],
    /// `op-dbus bench`: its rounds and seconds.
    ours: [&'static str; 2],
    /// Those of the rates, and the rates.
    load: [&'static str; 3],
}

const FULL: Amount = Amount {
    rounds: 5,
    seconds: 0.8,
    sample_tokens: 8_000.0,
    sizes: &[128, 256, 1024, 4096],
    ours: ["5", "0.5"],
    load: ["2", "2", "20%,40%,60%,80%,90%"],
};
const QUICK: Amount = Amount {
    rounds: 2,
    seconds: 0.3,
    sample_tokens: 4_000.0,
    sizes: &[256, 1024],
    ours: ["2", "0.25"],
    load: ["1", "1", "30%,60%,90%"],
};

/// Measures everybody and writes the document.
///
/// # Errors
/// What stands in the way of measuring ourselves; a peer that fails is left out with its reason.
pub fn run(args: &Args) -> Outcome {
    let folder = shell::root().join("target/peers");
    fs::create_dir_all(&folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
    step("build and install");
    let exe = args.exe.clone().map_or_else(|| dist::build("release"), Ok)?;
    let models = models(args, &exe)?;
    let libraries: Vec<&str> = lineup::ENTRIES
        .iter()
        .filter(|entry| !entry.ours() && lineup::asked_for(&args.peers, entry))
        .map(|entry| entry.library)
        .collect();
    let environment = Environment::make(&folder, &libraries)?;
    let model = model(args, &exe, &models)?;
    let work = folder.join("work").join(model.file_name().unwrap_or_default());
    let samples = folder.join("samples.txt");
    let places = Places {
        exe: &exe,
        models: &models,
        model: &model,
        level: &args.level,
        work: &work,
        folder: &folder,
        samples: &samples,
    };
    let figures = measure(args, &environment, &places)?;
    let out = args.out.clone().unwrap_or_else(|| shell::root().join("docs"));
    document::write(&figures, &out)?;
    println!("\nwrote {}; measured for {:.0} s", out.display(), figures.took_s);
    Ok(())
}

fn measure(args: &Args, environment: &Environment, places: &Places<'_>) -> Result<Figures, String> {
    let amount = if args.quick { QUICK } else { FULL };
    let corpora = corpora(args, places)?;
    texts::mixture(&corpora, places.samples)?;
    let start = Instant::now();
    step("start");
    let (competitors, missing) = lineup::start(environment, places, &args.peers);
    let mut field = Field { competitors, missing };
    let Some(counter) = field.competitors.iter_mut().find(|one| one.entry.ours()) else {
        return Err("op-dbus itself can't be measured".to_owned());
    };
    let engine = counter.entry.library;
    let samples = corpora
        .iter()
        .map(|(name, path)| {
            texts::sample((name, path), (places.folder, amount.sample_tokens), counter)
        })
        .collect::<Result<Vec<_>, _>>()?;
    step("batch sizes");
    let curves = field.tune(&samples[0], amount.sizes, amount.seconds);
    step("everybody in turn");
    let rates = field.rounds(&samples, (amount.rounds, amount.seconds));
    step("vectors");
    let pairs = args.pairs.as_deref().filter(|_| !args.quick);
    let quality = field.quality(&samples, pairs, places.folder)?;
    // They would only take memory from now on.
    field.competitors.iter_mut().for_each(Competitor::stop);
    let service = service(places, &samples, (engine, args.quick))?;
    let levels = levels(places, &samples, (engine, pairs, args.quick))?;
    step("op-dbus: load");
    let [rounds, seconds, rates_asked] = amount.load;
    let mut words = vec!["--rounds", rounds, "--seconds", seconds, "--rate", rates_asked];
    words.extend(["--at", "daemon", "--only", "calls", "--level", places.level]);
    let load = ours::bench(places, &samples[..1], (engine, &words))?;
    Ok(Figures {
        level: args.level.clone(),
        field,
        samples,
        curves,
        rates,
        quality,
        service,
        levels,
        load,
        rounds: amount.rounds,
        took_s: start.elapsed().as_secs_f64(),
    })
}

/// The measured level, in the engine and through the service.
fn service(
    places: &Places<'_>,
    samples: &[Sample],
    (engine, quick): (&str, bool),
) -> Result<Run, String> {
    step("op-dbus: the service");
    let ([rounds, seconds], samples) = match quick {
        true => (QUICK.ours, &samples[..1]),
        false => (FULL.ours, samples),
    };
    let words = ["--rounds", rounds, "--seconds", seconds, "--peak", "--level", places.level];
    ours::bench(places, samples, (engine, &words))
}

/// All levels in the engine, with the quality of each precision.
fn levels(
    places: &Places<'_>,
    samples: &[Sample],
    (engine, pairs, quick): (&str, Option<&Path>, bool),
) -> Result<Run, String> {
    step("op-dbus: all levels");
    let ([rounds, seconds], levels) = match quick {
        true => (QUICK.ours, places.level),
        false => (FULL.ours, "low,medium,high"),
    };
    let quality = match pairs {
        Some(pairs) => format!("--quality={}", pairs.display()),
        None => "--quality".to_owned(),
    };
    let words = ["--rounds", rounds, "--seconds", seconds, "--peak", "--level", levels, &quality];
    let words = [&words[..], &["--at", "engine", "--only", "calls"]].concat();
    ours::bench(places, samples, (engine, &words))
}

fn step(name: &str) {
    println!("\n── {name}");
}

/// The model store, with all levels and the runtime in it.
fn models(args: &Args, exe: &Path) -> Result<PathBuf, String> {
    if let Some(models) = &args.models {
        return Ok(models.clone());
    }
    let models = shell::root().join("target/test-store/models");
    for words in [&["runtime", "pull"][..], &["models", "pull", "all"]] {
        shell::run(program(exe, words).arg("--model-dir").arg(&models))?;
    }
    Ok(models)
}

/// The folder of the measured level's model.
fn model(args: &Args, exe: &Path, models: &Path) -> Result<PathBuf, String> {
    let mut list = program(exe, &["models", "list", "--json"]);
    let list = shell::read_json(list.arg("--model-dir").arg(models))?;
    let found = list.as_array().into_iter().flatten().find(|one| one["level"] == *args.level);
    let name = found.and_then(|model| model["name"].as_str());
    name.map(|name| models.join(name)).ok_or_else(|| format!("there is no level {}", args.level))
}

/// The texts to measure with: those asked for, or generated ones.
fn corpora(args: &Args, places: &Places<'_>) -> Result<Vec<(String, PathBuf)>, String> {
    if !args.corpora.is_empty() {
        return Ok(args.corpora.clone());
    }
    static GENERATOR: Entry =
        Entry { library: "sim", title: "op-dbus", precision: "f32", exports: &[] };
    let command = places.op_dbus(&["bench", "--driven", "--at", "engine", "--engine", "sim"]);
    let mut generator = Competitor::start(&GENERATOR, command, places.folder)?;
    let to = places.folder.join("generated-all.txt");
    generator.ask(&serde_json::json!({ "do": "generate", "seed": 1, "to": &to }))?;
    Ok(vec![("generated".to_owned(), to)])
}
