//! `cargo xtask simulate-fleet`: how long requests take, and how many are refused, with more nodes and more
//! load than there are here.

mod calibration;
mod check;
mod random;
mod simulation;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::Value;

use crate::shell::{self, Outcome};
use crate::svg::{self, Axis, COLOURS, Series};

use calibration::Calibration;
use random::Random;
use simulation::{Balance, Figures, Fleet, Load, Node, Outage, simulate};

const HELP: &str = "\
Usage: cargo xtask simulate-fleet CALIBRATION [OPTIONS]
       cargo xtask simulate-fleet --check [target/fleet-cut-off.json]

Simulates gateways behind a balancer. Requests arrive at random; an idle worker of a node takes what waits
there up to a token budget; a batch takes a time of its own and one for each token. CALIBRATION is a report
of `op-dbus bench --json --only latency,calls`, which both are fitted to.

Options:
  --label LABEL        the report's variant [default: the first]
  --nodes N,…          how many nodes [default: 1,2,4,8]
  --load PERCENT,…     of what the nodes can do [default: 30,50,70,80,90,95,120]
  --workers N          batches at once on a node that share what was measured [default: 1]
  --tokens N           tokens of a text [default: 25]
  --texts-max N        a request has 1 to so many texts [default: 16]
  --queue-tokens N     tokens in flight on a node, beyond which requests are refused [default: 32768]
  --balance HOW        least-connections or round-robin [default: least-connections]
  --outage             the first node is gone for a tenth of the time
  --requests N         how many are simulated [default: 50000]
  --seed N             of the arrivals and the sizes [default: 1]
  --svg FILE           draws p99 by load

--check simulates what the trial `fleet-cut-off` did, and fails where the p50 of a phase is not within a factor
of 1.25 of what was measured, or the p99 not within 2.5.
";

/// What is asked for.
struct Args {
    calibration: String,
    label: Option<String>,
    nodes: Vec<usize>,
    load: Vec<f64>,
    workers: usize,
    tokens: u64,
    texts_max: u64,
    queue_tokens: u64,
    balance: Balance,
    outage: bool,
    requests: usize,
    seed: u64,
    svg: Option<String>,
}

/// Runs the task.
pub fn run(words: &[String]) -> Outcome {
    match words {
        [] => Err(format!("name a calibration\n{HELP}")),
        [flag] if ["--help", "-h"].contains(&flag.as_str()) => {
            print!("{HELP}");
            Ok(())
        }
        [flag] if flag == "--check" => {
            check_report(&shell::root().join("target/fleet-cut-off.json"))
        }
        [flag, path] if flag == "--check" => check_report(Path::new(path)),
        _ => table(&Args::read(words)?),
    }
}

impl Args {
    fn read(words: &[String]) -> Result<Self, String> {
        let mut args = Self {
            calibration: String::new(),
            label: None,
            nodes: vec![1, 2, 4, 8],
            load: vec![30.0, 50.0, 70.0, 80.0, 90.0, 95.0, 120.0],
            workers: 1,
            tokens: 25,
            texts_max: 16,
            queue_tokens: 32_768,
            balance: Balance::LeastConnections,
            outage: false,
            requests: 50_000,
            seed: 1,
            svg: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--label" => args.label = Some(value()?.clone()),
                "--nodes" => args.nodes = list(word, value()?)?,
                "--load" => args.load = list(word, value()?)?,
                "--workers" => args.workers = number(word, value()?)?,
                "--tokens" => args.tokens = number(word, value()?)?,
                "--texts-max" => args.texts_max = number(word, value()?)?,
                "--queue-tokens" => args.queue_tokens = number(word, value()?)?,
                "--balance" => args.balance = balance(value()?)?,
                "--outage" => args.outage = true,
                "--requests" => args.requests = number(word, value()?)?,
                "--seed" => args.seed = number(word, value()?)?,
                "--svg" => args.svg = Some(value()?.clone()),
                _ if word.starts_with('-') => return Err(format!("{word} is no option\n{HELP}")),
                _ => args.calibration.clone_from(word),
            }
        }
        let zero = args.nodes.contains(&0) || args.load.iter().any(|percent| *percent <= 0.0);
        if zero || [args.tokens, args.texts_max].contains(&0) || args.workers * args.requests == 0 {
            return Err("nodes, load, workers, tokens, texts and requests are 1 or more".to_owned());
        }
        Ok(args)
    }

    fn fleet(&self, nodes: usize, node: Node, span_s: f64) -> Fleet {
        let outage = Outage {
            from_s: 0.4 * span_s,
            to_s: 0.5 * span_s,
            // What packaging/haproxy/op-dbus.cfg has: two checks and their time, and `timeout server`.
            seen_s: 2.0,
            retry_s: 10.0,
        };
        Fleet { nodes, node, balance: self.balance, outage: self.outage.then_some(outage) }
    }
}

fn number<T: std::str::FromStr>(word: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{word} {value}: not a number"))
}

fn list<T: std::str::FromStr>(word: &str, value: &str) -> Result<Vec<T>, String> {
    value.split(',').map(|part| number(word, part)).collect()
}

fn balance(value: &str) -> Result<Balance, String> {
    match value {
        "least-connections" => Ok(Balance::LeastConnections),
        "round-robin" => Ok(Balance::RoundRobin),
        _ => Err(format!("--balance {value}: least-connections or round-robin is right")),
    }
}

/// A node as it was measured, with one worker.
fn node(calibration: &Calibration) -> Node {
    let Calibration { batch_s, token_s, .. } = *calibration;
    // The budget that the service has before it has measured a better one.
    let (batch_tokens, queue_tokens) = (512, u64::MAX);
    Node { workers: 1, batch_s, token_s, batch_tokens, queue_tokens, way_s: 0.0 }
}

fn read(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Prints a line for each number of nodes and load.
fn table(args: &Args) -> Outcome {
    let report = read(Path::new(&args.calibration))?;
    let calibration = Calibration::of(&report, args.label.as_deref())?;
    let one = node(&calibration);
    let workers = args.workers as f64;
    let node = Node {
        workers: args.workers,
        // Each has its share of the machine.
        batch_s: one.batch_s,
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
            let tokens = |random: &mut Random| random.between(1, args.texts_max) * args.tokens;
            let load_of = Load { rate, requests: args.requests, tokens: &tokens };
            let figures = simulate(&fleet, &load_of, args.seed);
            println!("{}", row(*nodes, *load, rate, &figures));
            points.push((*load, 1e3 * figures.percentile(99.0)));
        }
        let (name, colour) = (format!("{nodes} nodes"), COLOURS[place % COLOURS.len()]);
        series.push(Series { name, colour, dashed: false, points });
    }
    match &args.svg {
        Some(path) => std::fs::write(path, plot(&series)).map_err(|e| format!("{path}: {e}")),
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
