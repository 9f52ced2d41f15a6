//! Three machines with a gateway each behind HAProxy: one is cut off, killed and restarted under load.

use std::fs;
use std::mem;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStdin;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::interval;

use super::watch::{ms, p50, p99};
use super::{Outcome, Size, figure, timed};
use crate::harness::balancer::{Balancer, Counts, PORT};
use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::gateway::{self, Gateway};
use crate::harness::needs::op_dbus;
use crate::harness::network::{Lan, Machine};
use crate::harness::process::Process;
use crate::harness::{fixture, needs, repository, within};

const NODES: usize = 3;
const KEY: &str = "the-key-of-the-trial";
/// Requests a second, of which a third of two cores' time is taken.
const RATE: &str = "12";
const TEXTS_MAX: &str = "16";
/// What HAProxy answers where no node is left, or none was reached in time.
const NO_NODE: &str = "No server is available";

/// How often it is seen whether this machine runs at all.
const PULSE: Duration = Duration::from_millis(100);
/// Where it did not for longer than this, HAProxy may have missed the answers of all nodes.
const STILL_MAX: Duration = Duration::from_secs(1);

/// A machine with the service and a gateway.
struct Node {
    // In the order in which they may end.
    gateway: Option<Gateway>,
    daemon: Daemon,
    bus: PrivateBus,
    setup: Setup,
    machine: Machine,
}

impl Node {
    async fn start(lan: &Lan, number: usize) -> Outcome<Self> {
        let machine = lan.join(10 + u8::try_from(number)?).await?;
        // What one machine of a fleet has: a worker, on a core of its own while others rest.
        let setup = Setup::real("low")?.setting("workers_per_device", "1");
        let setup = setup.setting("threads", "1").setting("precision", "f32");
        fs::write(setup.path("api-key"), KEY)?;
        let bus = PrivateBus::start_with(&[], |command| machine.runs(&command)).await?;
        let daemon = machine.runs(&setup.command(&bus)?);
        let daemon = setup.start_command(daemon, &bus).await?;
        assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
        let mut node = Self { machine, setup, bus, daemon, gateway: None };
        node.serve().await?;
        Ok(node)
    }

    /// Starts the gateway.
    async fn serve(&mut self) -> Outcome {
        let listen = format!("{}:{PORT}", self.machine.address());
        let mut command = gateway::command(&self.bus, &self.setup, &listen)?;
        command.env("CREDENTIALS_DIRECTORY", self.setup.path(""));
        self.gateway = Some(Gateway::start_command(self.machine.runs(&command)).await?);
        Ok(())
    }

    /// Ends the gateway without warning.
    async fn kill(&mut self) -> Outcome {
        let mut gateway = self.gateway.take().ok_or("there is no gateway")?;
        gateway.process.signal(Signal::SIGKILL)?;
        gateway.process.ended().await.map(drop)
    }

    /// Ends the gateway as systemd would.
    async fn stop(&mut self) -> Outcome {
        self.gateway.take().ok_or("there is no gateway")?.stop().await.map(drop)
    }
}

/// A client that keeps asking.
struct Load {
    process: Process,
    stdin: Option<ChildStdin>,
    ended: UnboundedReceiver<Value>,
    /// What failed at its start, to be told with what follows.
    start: Requests,
}

/// What became of requests.
#[derive(Default)]
struct Requests {
    times: Vec<Duration>,
    failed: Vec<String>,
    wrong: u64,
    retried: u64,
}

impl Load {
    /// Starts it; `folder` takes what it writes.
    fn start(machine: &Machine, (rate, texts_max): (&str, &str), folder: &Path) -> Outcome<Self> {
        let mut python = clean("python3");
        python.env("PYTHONPATH", needs::python_http_path()).env("OPENAI_API_KEY", KEY);
        python.arg(fixture("python/balanced.py"));
        python.arg(format!("http://{}:{PORT}/v1", machine.address())).args([rate, texts_max]);
        let mut command = machine.runs(&python);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start("the client", command, &folder.join("client.log"))?;
        let stdin = process.child().stdin.take();
        let stdout = process.child().stdout.take().ok_or("the client has no output")?;
        let (sender, ended) = unbounded_channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or_default());
            }
        });
        Ok(Self { process, stdin, ended, start: Requests::default() })
    }

    /// Passes over the times of the first requests: a client that has just started is slow, and all that it has
    /// asked for meanwhile is due.
    async fn warm(&mut self) -> Outcome {
        self.start = Requests { times: Vec::new(), ..self.next(40).await? };
        Ok(())
    }

    /// The requests that have ended since the last were asked for, and so many `more` that end from now on: what was
    /// waited for meanwhile may have taken as long as all of those.
    async fn next(&mut self, more: usize) -> Outcome<Requests> {
        let mut requests = mem::take(&mut self.start);
        while let Ok(ended) = self.ended.try_recv() {
            requests.add(&ended);
        }
        for _ in 0..more {
            let Some(ended) = within("a request's end", self.ended.recv()).await? else {
                return Err(format!("the client has ended: {}", self.process.stderr()).into());
            };
            requests.add(&ended);
        }
        Ok(requests)
    }

    /// Asks no more; the requests that were under way.
    async fn last(mut self) -> Outcome<Requests> {
        self.stdin = None;
        let mut requests = Requests::default();
        while let Some(ended) = within("the client's end", self.ended.recv()).await? {
            requests.add(&ended);
        }
        Ok(requests)
    }
}

impl Requests {
    fn count(&self) -> usize {
        self.times.len() + self.failed.len()
    }

    fn add(&mut self, ended: &Value) {
        self.retried += u64::from(ended["retries"].as_u64() != Some(0));
        self.wrong += ended["wrong"].as_u64().unwrap_or_default();
        match (&ended["error"], ended["ms"].as_f64()) {
            (Value::Null, Some(ms)) => self.times.push(Duration::from_secs_f64(ms / 1e3)),
            (error, _) => self.failed.push(error.to_string()),
        }
    }
}

/// The longest that this machine stood still from now on, in milliseconds: between two turns of one that has them
/// at [`PULSE`] and does nothing else.
fn stood_still() -> Arc<AtomicU64> {
    let longest = Arc::new(AtomicU64::new(0));
    let kept = longest.clone();
    tokio::spawn(async move {
        let mut turns = interval(PULSE);
        let mut last = Instant::now();
        loop {
            turns.tick().await;
            kept.fetch_max(ms(last.elapsed()) as u64, Ordering::Relaxed);
            last = Instant::now();
        }
    });
    longest
}

/// What was seen while the nodes were in one state.
struct Phase {
    name: &'static str,
    requests: Requests,
}

/// Three gateways behind HAProxy: one is cut off, one is killed, one is stopped; each comes back.
pub async fn fleet_cut_off(size: Size) -> Outcome {
    let each = size.of(150, 2_000);
    let lan = Lan::new().await?;
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        nodes.push(Node::start(&lan, number).await?);
    }
    let folder = tempfile::Builder::new().prefix("balancer-").tempdir()?;
    let balancer = Balancer::start(&lan.switch, folder.path()).await?;
    let alone = alone(&lan.switch, &nodes[0], folder.path()).await?;
    let still = stood_still();
    let mut load = Load::start(&lan.switch, (RATE, TEXTS_MAX), folder.path())?;
    load.warm().await?;
    let (mut phases, mut shares) = (Vec::new(), Vec::new());
    let mut phase = async |name, load: &mut Load| {
        let requests = load.next(each).await?;
        phases.push(Phase { name, requests });
        Outcome::Ok(())
    };
    phase("all nodes", &mut load).await?;
    lan.unplug(&nodes[1].machine).await?;
    balancer.has(2, "DOWN").await?;
    phase("while one is cut off", &mut load).await?;
    phase("without it", &mut load).await?;
    lan.plug_in(&nodes[1].machine).await?;
    balancer.has(2, "UP").await?;
    let back = balancer.counts().await?;
    phase("it is back", &mut load).await?;
    shares.push(share_since(&balancer, &back, 2).await?);
    nodes[2].kill().await?;
    balancer.has(3, "DOWN").await?;
    phase("a gateway killed", &mut load).await?;
    nodes[2].serve().await?;
    balancer.has(3, "UP").await?;
    let back = balancer.counts().await?;
    phase("it is back", &mut load).await?;
    shares.push(share_since(&balancer, &back, 3).await?);
    nodes[0].stop().await?;
    phase("a gateway stopped", &mut load).await?;
    nodes[0].serve().await?;
    balancer.has(1, "UP").await?;
    let back = balancer.counts().await?;
    phase("it is back", &mut load).await?;
    shares.push(share_since(&balancer, &back, 1).await?);
    let requests = load.last().await?;
    phases.push(Phase { name: "the last", requests });
    let still = Duration::from_millis(still.load(Ordering::Relaxed));
    tell(&balancer, &mut phases, still).await?;
    let least_share = shares.iter().copied().fold(f64::INFINITY, f64::min);
    figure(
        least_share > 0.0,
        format_args!("who is back has {:.0} % of an equal share at least", 100.0 * least_share),
    );
    keep(&alone, &mut phases)
}

/// What one node does with nothing else to do: the calibration of `cargo xtask simulate-fleet`.
async fn alone(switch: &Machine, node: &Node, folder: &Path) -> Outcome<Value> {
    let mut bench = clean(op_dbus());
    bench.args(["bench", "--json", "--only", "latency,calls", "--rounds", "3", "--seconds", "0.5"]);
    bench.arg("--bus").arg(node.bus.address());
    // As the services of the nodes, whatever the CPU would have.
    bench.env("OP_DBUS_PRECISION", "f32");
    bench.env("OP_DBUS_MODEL_DIR", needs::store().join("models"));
    let bench: Value = serde_json::from_str(&finish(bench, "").await?.success()?)?;
    let mut load = Load::start(switch, ("5", "1"), folder)?;
    let mut single = load.next(40).await?;
    load.last().await?;
    let texts = ["text 150 of those that several gateways embed in turn"];
    let tokens = node.daemon.client().embedder.count_tokens(&texts).await?[0];
    let single = json!({"tokens": tokens, "p50_ms": ms(p50(&mut single.times))});
    Ok(json!({"bench": bench, "single": single}))
}

/// What node `number` got of the requests since then, as part of an equal share. HAProxy gives one that has just come
/// back less for some seconds.
async fn share_since(balancer: &Balancer, then: &Counts, number: usize) -> Outcome<f64> {
    let now = balancer.counts().await?;
    let got: Vec<u64> =
        now.requests.iter().zip(&then.requests).map(|(now, then)| now - then).collect();
    let all: u64 = got.iter().sum();
    Ok(got[number - 1] as f64 * got.len() as f64 / all.max(1) as f64)
}

/// Prints the figures; this machine stood `still` for so long at most.
async fn tell(balancer: &Balancer, phases: &mut [Phase], still: Duration) -> Outcome {
    let of = |count: fn(&Requests) -> u64| phases.iter().map(|p| count(&p.requests)).sum::<u64>();
    let (all, failed) = (of(|r| r.count() as u64), of(|r| r.failed.len() as u64));
    let (wrong, retried) = (of(|r| r.wrong), of(|r| r.retried));
    for failure in phases.iter().flat_map(|phase| &phase.requests.failed) {
        eprintln!("{failure}");
    }
    let counts = balancer.counts().await?;
    // Two nodes at least are there all the time: where HAProxy misses them all and this machine did not stand still,
    // it is the nodes that refused.
    let no_node =
        of(|r| r.failed.iter().filter(|failure| failure.contains(NO_NODE)).count() as u64);
    let late = if counts.outages > 0 && still > STILL_MAX { no_node } else { 0 };
    let failed = failed - late;
    timed(
        late == 0,
        format_args!(
            "{late} of {all} requests came while HAProxy saw no node as the machine stood still; it saw none {} \
             times, and what has a turn every 100 ms waited for {:.0} ms at most",
            counts.outages,
            ms(still)
        ),
    );
    figure(
        failed == 0 && wrong == 0,
        format_args!(
            "{failed} of {all} requests failed, {wrong} vectors of another text; HAProxy sent {} to \
             another node and {} again, the client {retried}; nodes answered {} with an error",
            counts.redispatches, counts.retries, counts.failed
        ),
    );
    for Phase { name, requests } in phases {
        let times = &mut requests.times;
        let (p50, p99, most) = (p50(times), p99(times), times.iter().max().copied());
        figure(
            true,
            format_args!(
                "{name}: p50 {:.0} ms, p99 {:.0} ms, at most {:.0} ms",
                ms(p50),
                ms(p99),
                ms(most.unwrap_or_default())
            ),
        );
    }
    Ok(())
}

/// Writes what was measured for `cargo xtask simulate-fleet --check`.
fn keep(alone: &Value, phases: &mut [Phase]) -> Outcome {
    let phases: Vec<Value> = phases
        .iter_mut()
        .map(|Phase { name, requests }| {
            let times = &mut requests.times;
            let (count, p50, p99) = (times.len(), ms(p50(times)), ms(p99(times)));
            json!({"name": name, "requests": count, "p50_ms": p50, "p99_ms": p99})
        })
        .collect();
    let texts_max: u64 = TEXTS_MAX.parse()?;
    let rate: f64 = RATE.parse()?;
    let kept = json!({
        "alone": alone, "nodes": NODES, "rate": rate, "texts_max": texts_max, "phases": phases
    });
    let path = repository().join("target/fleet-cut-off.json");
    Ok(fs::write(path, serde_json::to_string_pretty(&kept)?)?)
}
