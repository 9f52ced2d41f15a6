//! `cargo xtask gpu`: on a machine with an accelerator, everything that only such a machine can tell.

mod memory;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dist;
use crate::fleet::Random;
use crate::shell::{self, Outcome, path, program};

/// Words of one token each with the tokenizers of all levels.
const WORDS: [&str; 24] = [
    "the", "pump", "was", "noisy", "after", "rain", "and", "water", "came", "in", "from", "a",
    "roof", "while", "two", "men", "looked", "for", "their", "old", "tools", "by", "night", "fall",
];

/// On a machine with an accelerator: correctness, speed and memory
///
/// Fetches a provider's library and the models, says what the machine has, and then measures, at each level,
/// in f32, in f16, and in f16 with small batches that are recorded and replayed (cuda and webgpu): how near
/// the vectors are to the CPU's, texts and tokens per second with texts of 25 tokens and of mixed lengths,
/// what share that is of what the provider does with large matrices, how long one text takes with 1, 8 and
/// 64 clients and at 50 % and 80 % of the rate, and whether memory stays what it is. Where python3 has
/// sentence-transformers, it is measured with the same texts on the same device: in fp16 where torch sees a
/// GPU, else, and for the providers cpu and ggml, in f32 on the CPU. Prints a table, and writes all of it as
/// JSON; what can't be had is told there and ends nothing else. Changes no setting of a card. Settings in
/// the environment (OP_DBUS_…) reach op-dbus.
#[derive(clap::Args)]
pub struct Args {
    /// What is measured
    #[arg(long, value_name = "NAME", default_value = "cuda")]
    provider: String,
    #[arg(long, value_name = "LEVEL,…", value_delimiter = ',', default_value = "low,medium,high")]
    levels: Vec<String>,
    /// Models and libraries, filled if it is not
    #[arg(long, value_name = "DIR", value_parser = path, default_value_os_t = folder().join("store"))]
    store: PathBuf,
    /// Text, text and score with tabs between: how well each keeps their order
    #[arg(long, value_name = "FILE", value_parser = path)]
    pairs: Option<PathBuf>,
    /// Measure this op-dbus [default: a release build of the checkout]
    #[arg(long, value_name = "FILE", value_parser = path)]
    exe: Option<PathBuf>,
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: String,
    /// Seconds of one measurement, about
    #[arg(long, value_name = "S", default_value = "2")]
    seconds: String,
    /// Seconds of the look at memory, about
    #[arg(long, value_name = "S", default_value_t = 120)]
    memory_s: u64,
    #[arg(long, value_name = "FILE", value_parser = path, default_value_os_t = folder().join("report.json"))]
    out: PathBuf,
}

/// Clients that send calls of many texts at the same time: one alone would leave a fast device waiting.
const CALLERS: &str = "16";

/// What one step takes at most: several times what a CPU alone takes for the largest model.
const STEP_TIME_MAX_S: u32 = 30 * 60;

fn folder() -> PathBuf {
    shell::root().join("target/gpu")
}

/// Runs all steps; what fails is told in the report and ends nothing but its own step.
pub fn run(args: &Args) -> Outcome {
    let folder = args.out.parent().ok_or("--out has no folder")?.to_owned();
    fs::create_dir_all(&folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
    let exe = args.exe.clone().map_or_else(|| dist::build("release"), Ok)?;
    let recorded = recorded(&args.provider, &folder)?;
    let bench = Bench { exe, corpora: corpora(&folder)?, recorded, args };
    bench.fetch();
    let mut levels = Vec::new();
    for level in &args.levels {
        println!("\n── {level}");
        levels.push(bench.level(level, &folder));
    }
    let report = json!({
        "provider": args.provider,
        "doctor": bench.doctor(),
        "devices": shell::read(&mut program("nvidia-smi", &["-L"])).unwrap_or_default(),
        "levels": levels,
    });
    let text = format!("{report:#}\n");
    fs::write(&args.out, text).map_err(|e| format!("can't write {}: {e}", args.out.display()))?;
    print!("\n{}", table::of(&report));
    println!("\nall of it: {}", args.out.display());
    Ok(())
}

/// The texts: of 25 tokens, and of mixed lengths. Reproducible.
fn corpora(folder: &Path) -> Result<[(&'static str, PathBuf); 2], String> {
    let mut random = Random::new(20_260_817);
    let mut word = || WORDS[random.next() as usize % WORDS.len()];
    let mut text = |words: usize| (0..words).map(|_| word()).collect::<Vec<_>>().join(" ");
    // The special tokens are two of the 25.
    let short: Vec<String> = (0..4096).map(|_| text(23)).collect();
    let mixed: Vec<String> = (0..4096).map(|n| text([3, 8, 14, 30, 60, 120, 250][n % 7])).collect();
    let mut written = Vec::new();
    for (name, texts) in [("25 tokens", short), ("mixed", mixed)] {
        let path = folder.join(format!("{}.txt", name.replace(' ', "-")));
        fs::write(&path, texts.join("\n")).map_err(|e| format!("{}: {e}", path.display()))?;
        written.push((name, path));
    }
    written.try_into().map_err(|_| "there are two kinds of texts".to_owned())
}

/// `op-dbus`, with what it measures.
struct Bench<'a> {
    exe: PathBuf,
    corpora: [(&'static str, PathBuf); 2],
    /// Settings by which the provider records batches; none for one that can't.
    recorded: Option<PathBuf>,
    args: &'a Args,
}

/// How a level is measured.
struct Way {
    name: &'static str,
    precision: &'static str,
    /// Whether small batches are recorded and replayed.
    recorded: bool,
}

const WAYS: [Way; 3] = [
    Way { name: "f32", precision: "f32", recorded: false },
    Way { name: "f16", precision: "f16", recorded: false },
    Way { name: "f16 rec.", precision: "f16", recorded: true },
];

/// A file of settings by which a provider records batches.
fn recorded(provider: &str, folder: &Path) -> Result<Option<PathBuf>, String> {
    let option = match provider {
        "cuda" | "gpu" => "cuda]\nenable_cuda_graph",
        "webgpu" | "wgpu" => "webgpu]\nenableGraphCapture",
        _ => return Ok(None),
    };
    let path = folder.join("recorded.toml");
    let written = fs::write(&path, format!("[providers.{option} = true\n"));
    written.map_err(|e| format!("can't write {}: {e}", path.display())).map(|()| Some(path))
}

impl Bench<'_> {
    fn op_dbus(&self, words: &[&str]) -> std::process::Command {
        let mut command = program(&self.exe, words);
        command.env("OP_DBUS_MODEL_DIR", self.args.store.join("models"));
        command.env("OP_DBUS_CACHE_DIR", self.args.store.join("cache"));
        command
    }

    /// Models and libraries. What can't be had is told by what needs it.
    fn fetch(&self) {
        let models = self.args.store.join("models").display().to_string();
        let mut pulls = vec![vec!["runtime", "pull", "--provider", &self.args.provider]];
        pulls.extend(self.args.levels.iter().map(|level| vec!["models", "pull", &**level]));
        for mut words in pulls {
            words.extend(["--model-dir", &models]);
            if let Err(error) = shell::run(&mut program(&self.exe, &words)) {
                println!("{error}");
            }
        }
    }

    /// What is missing on the machine, in the program's own words.
    fn doctor(&self) -> String {
        let words = ["doctor", &self.args.provider];
        let output = limited(&self.op_dbus(&words)).output();
        output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    /// Everything about one level.
    fn level(&self, level: &str, folder: &Path) -> Value {
        let mut found = BTreeMap::new();
        for way in WAYS.iter().filter(|way| !way.recorded || self.recorded.is_some()) {
            let quality = step(&format!("{}: quality", way.name), || self.quality(level, way));
            let speed = step(&format!("{}: speed", way.name), || self.speed(level, way));
            let peak = step(&format!("{}: share of the peak", way.name), || self.peak(level, way));
            found.insert(way.name, json!({ "quality": quality, "speed": speed, "peak": peak }));
        }
        let peer = step("sentence-transformers", || self.peer(level));
        let looked_at = self.measured(level, &WAYS[0], false);
        let most = Duration::from_secs(u64::from(STEP_TIME_MAX_S) + self.args.memory_s);
        let times = (self.args.memory_s, most);
        let memory = step("memory", || memory::plateau(looked_at, times, folder));
        json!({
            "level": level,
            "op-dbus": found,
            "sentence-transformers": peer,
            "memory": memory,
        })
    }

    /// Vectors against the CPU's in f32.
    fn quality(&self, level: &str, way: &Way) -> Result<Value, String> {
        let mut report = answer(&mut self.measured(level, way, true))?;
        Ok(report["quality"].take())
    }

    fn speed(&self, level: &str, way: &Way) -> Result<Value, String> {
        let mut bench = self.measured(level, way, false);
        bench.args(["--rounds", &self.args.rounds, "--seconds", &self.args.seconds]);
        bench.args(["--only", "calls,clients", "--callers", CALLERS]);
        bench.args(["--clients", "1,8,64", "--rate", "50%,80%"]);
        answer(&mut bench)
    }

    /// Calls of many texts, and large products beside them.
    fn peak(&self, level: &str, way: &Way) -> Result<Value, String> {
        let mut bench = self.measured(level, way, false);
        bench.args(["--rounds", &self.args.rounds, "--seconds", &self.args.seconds]);
        bench.args(["--only", "calls", "--callers", CALLERS, "--peak"]);
        answer(&mut bench)
    }

    /// `op-dbus bench` of a level in one way; with `compared`, the CPU in f32 beside it, and
    /// nothing but the vectors.
    fn measured(&self, level: &str, way: &Way, compared: bool) -> std::process::Command {
        let (args, precision) = (self.args, way.precision);
        let mut command = self.op_dbus(&["bench", "--json", "--at", "engine", "--level", level]);
        for (name, path) in &self.corpora {
            command.arg("--corpus").arg(format!("{name}={}", path.display()));
        }
        let providers = match compared {
            true => format!("cpu,{}", args.provider),
            false => args.provider.clone(),
        };
        let precisions = if compared { format!("f32,{precision}") } else { precision.to_owned() };
        command.args(["--provider", &providers, "--precision", &precisions]);
        if let Some(config) = self.recorded.as_ref().filter(|_| way.recorded) {
            command.env("OP_DBUS_CONFIG", config);
        }
        if compared {
            command.args(["--only", "none", "--quality"]).args(&args.pairs);
        }
        command
    }

    /// sentence-transformers on the same device with the same texts.
    fn peer(&self, level: &str) -> Result<Value, String> {
        let on_the_cpu = ["cpu", "ggml"].contains(&&*self.args.provider);
        let mut python = program("python3", &[]);
        python.arg(shell::root().join("xtask/src/gpu/peer.py"));
        python.arg(if on_the_cpu { "cpu" } else { "any" });
        python.arg(self.args.store.join("models")).arg(level);
        answer(python.args(self.corpora.iter().map(|(_, path)| path)))
    }
}

/// The same, ended once a step has had its time.
fn limited(command: &std::process::Command) -> std::process::Command {
    let mut limited = program("timeout", &["--kill-after=10", &format!("{STEP_TIME_MAX_S}")]);
    limited.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        limited.env(key, value.unwrap_or_default());
    }
    limited
}

/// The JSON object that a program prints; if it fails, what it said last. A device may never answer.
fn answer(command: &mut std::process::Command) -> Result<Value, String> {
    let output = limited(command).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    // What `timeout` ends with when it had to end the program, or to kill it.
    if matches!(output.status.code(), Some(124 | 137)) {
        return Err(format!("did not end within {} minutes", STEP_TIME_MAX_S / 60));
    }
    if !output.status.success() {
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        return Err(last.map_or_else(|| output.status.to_string(), str::to_owned));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// What a step has found, or why it could not; says how long it took.
fn step(name: &str, find: impl FnOnce() -> Result<Value, String>) -> Value {
    let began = Instant::now();
    let found = find();
    let how = if found.is_ok() { "done" } else { "failed" };
    println!("{name}: {how} after {:.0} s", began.elapsed().as_secs_f64());
    found.unwrap_or_else(|error| json!({ "failed": error }))
}
