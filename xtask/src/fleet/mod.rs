//! `cargo xtask simulate-fleet`: how long requests take, and how many are refused, with more nodes and more
//! load than there are here.

mod calibration;
mod check;
// As `op-dbus bench` has it.
#[path = "../../../crates/op-dbus/src/bench/random.rs"]
mod random;
mod simulation;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::shell::{self, Outcome};
use crate::svg::{self, Axis, COLOURS, Series};

use calibration::Calibration;
pub use random::Random;
use simulation::{Figures, Fleet, Load, Node, Outage, simulate};

/// Simulate how long requests take with more nodes and more load
///
/// There are gateways behind a balancer. Requests arrive at random; an idle worker of a node takes what waits
/// there up to a token budget; a batch takes a time of its own and one for each token. CALIBRATION is a report
/// of `op-dbus bench --json --only latency,calls`, which both are fitted to.
#[derive(clap::Args)]
pub struct Args {
    #[arg(required_unless_present = "check", value_parser = shell::path)]
    calibration: Option<PathBuf>,
    /// The report's variant [default: the first]
    #[arg(long)]
    label: Option<String>,
    /// How many nodes
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8")]
    nodes: Vec<usize>,
    /// Percent of what the nodes can do
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',')]
    #[arg(default_value = "30,50,70,80,90,95,120")]
    load: Vec<f64>,
    /// Batches at once on a node that share what was measured
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Tokens of a text
    #[arg(long, value_name = "N", default_value_t = 25)]
    tokens: u64,
    /// A request has 1 to so many texts
    #[arg(long, value_name = "N", default_value_t = 16)]
    texts_max: u64,
    /// Tokens in flight on a node, beyond which requests are refused
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    queue_tokens: u64,
    /// The first node is gone for a tenth of the time
    #[arg(long)]
    outage: bool,
    /// How many are simulated
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    requests: usize,
    /// Of the arrivals and the sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw p99 by load
    #[arg(long, value_name = "FILE", value_parser = shell::path)]
    svg: Option<PathBuf>,
    /// Simulate what the trial `fleet-cut-off` did, and fail where the p50 of a phase is not within a factor
    /// of 1.25 of what was measured, or the p99 not within 2.5 [FILE: target/fleet-cut-off.json]
    #[arg(long, value_name = "FILE", value_parser = shell::path, exclusive = true)]
    check: Option<Option<PathBuf>>,
}

/// Runs the task.
pub fn run(args: &Args) -> Outcome {
    match (&args.check, &args.calibration) {
        (Some(Some(path)), _) => check_report(path),
        (Some(None), _) => check_report(&shell::root().join("target/fleet-cut-off.json")),
        (None, calibration) => table(args, calibration.as_deref().unwrap_or(Path::new(""))),
    }
}

impl Args {
    fn fleet(&self, nodes: usize, node: Node, span_s: f64) -> Fleet {
        let outage = Outage {
            from_s: 0.4 * span_s,
            to_s: 0.5 * span_s,
            // What packaging/haproxy/op-dbus.cfg has: two checks and their time, and `timeout server`.
            seen_s: 2.0,
            retry_s: 10.0,
        };
        Fleet { nodes, node, outage: self.outage.then_some(outage) }
    }
}

/// A node as it was measured, with one worker.
fn node(calibration: &Calibration) -> Node {
    let Calibration { batch_s, token_s, .. } = *calibration;
    // The budget that the service has before it has measured a better one.
    let (batch_tokens, queue_tokens) = (512, u64::MAX);
    Node { workers: 1, batch_s, token_s, batch_tokens, queue_tokens, way_s: 0.0 }
}

/// A whole number from `least` to `most`.
fn between(random: &mut Random, least: u64, most: u64) -> u64 {
    least + (random.unit() * (most - least + 1) as f64) as u64
}

fn read(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Prints a line for each number of nodes and load.
fn table(args: &Args, calibration: &Path) -> Outcome {
    let zero = args.nodes.contains(&0) || args.load.iter().any(|percent| *percent <= 0.0);
    if zero || [args.tokens, args.texts_max].contains(&0) || args.workers * args.requests == 0 {
        return Err("nodes, load, workers, tokens, texts and requests are 1 or more".to_owned());
    }
    let report = read(calibration)?;
    let calibration = Calibration::of(&report, args.label.as_deref())?;
    let one = node(&calibration);
    let workers = args.workers as f64;
    let node = Node {
        workers: args.workers,
        // Each has its share of the machine.
        token_s: one.token_s * workers,
        queue_tokens: args.queue_tokens,
        ..one
    };
    // With batches as full as they get.
    let batch_s = node.batch_s + node.token_s * node.batch_tokens as f64;
    let tokens_per_s = node.batch_tokens as f64 / batch_s * workers;
    let request_tokens = args.tokens as f64 * (args.texts_max + 1) as f64 / 2.0;
    println!(
        "{}: a batch takes {:.2} ms and {:.1} µs for each token; a node does {tokens_per_s:.0} tokens/s",
        calibration.label,
        1e3 * node.batch_s,
        1e6 * node.token_s
    );
    println!(
        "\n| nodes | load | requests/s | answered/s | busy | p50 ms | p99 ms | refused | sent again |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut series = Vec::new();
    for (place, nodes) in args.nodes.iter().enumerate() {
        let mut points = Vec::new();
        for load in &args.load {
            let rate = load / 100.0 * tokens_per_s * *nodes as f64 / request_tokens;
            let fleet = args.fleet(*nodes, node, args.requests as f64 / rate);
            let tokens = |random: &mut Random| between(random, 1, args.texts_max) * args.tokens;
            let load_of = Load { rate, requests: args.requests, tokens: &tokens };
            let figures = simulate(&fleet, &load_of, args.seed);
            println!("{}", row(*nodes, *load, rate, &figures));
            points.push((*load, 1e3 * figures.percentile(99.0)));
        }
        let (name, colour) = (format!("{nodes} nodes"), COLOURS[place % COLOURS.len()]);
        series.push(Series { name, colour, dashed: false, points });
    }
    match &args.svg {
        Some(path) => {
            std::fs::write(path, plot(&series)).map_err(|e| format!("{}: {e}", path.display()))
        }
        None => Ok(()),
    }
}

fn row(nodes: usize, load: f64, rate: f64, figures: &Figures) -> String {
    let requests = figures.times.len() + figures.refused;
    format!(
        "| {nodes} | {load} % | {rate:.1} | {:.1} | {:.0} % | {:.1} | {:.1} | {:.2} % | {} |",
        figures.per_s,
        100.0 * figures.utilisation,
        1e3 * figures.percentile(50.0),
        1e3 * figures.percentile(99.0),
        100.0 * figures.refused as f64 / requests.max(1) as f64,
        figures.retried
    )
}

fn plot(series: &[Series]) -> String {
    let all = || series.iter().flat_map(|series| &series.points);
    let (least, most) = all()
        .fold((f64::INFINITY, 1.0_f64), |(least, most), (_, ms)| (least.min(*ms), most.max(*ms)));
    let load = all().map(|(load, _)| *load).fold(0.0, f64::max);
    let x = Axis::linear("load, % of what the nodes can do", load);
    let y = Axis::logarithmic("p99, ms", least, most);
    svg::lines("Time of a request by load, simulated", (&x, &y), series)
}

/// Prints measured and simulated times; fails where they are too far apart.
fn check_report(path: &Path) -> Outcome {
    let compared = check::compare(&read(path)?)?;
    println!(
        "| phase | nodes | | measured, ms | simulated, ms | apart | at most |\n|---|---|---|---|---|---|---|"
    );
    for found in &compared {
        println!(
            "| {} | {} | p{} | {:.1} | {:.1} | {:.2} | {} |",
            found.phase,
            found.nodes,
            found.percent,
            1e3 * found.measured,
            1e3 * found.simulated,
            found.apart(),
            found.factor
        );
    }
    match compared.iter().filter(|found| found.is_far()).count() {
        0 => Ok(()),
        far => Err(format!("{far} of {} figures are too far apart", compared.len())),
    }
}
