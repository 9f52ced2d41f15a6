//! What the native engine promises beside its vectors: it runs without any library, on the
//! instruction set it was told to, asleep when there is nothing to do.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use op_dbus_api::ErrorName;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Told, refused, value};
use crate::harness::command::cli;
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::golden::{self, cosine, distance};
use crate::harness::needs;
use crate::harness::process::{children, mapped, resident};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, fixture, soon, within};

tests! {
    it_serves_without_any_library: [Bus, Low],
    every_instruction_set_works_or_is_refused: [Bus, Low],
    a_graph_of_the_users_own_needs_the_other_engine: [Bus],
    its_threads_sleep_when_there_is_nothing_to_do: [Bus, Low],
    its_calibration_is_kept: [Bus, Low],
    its_memory_is_that_of_the_weights: [Bus, Medium, High],
    a_worker_in_reserve_computes_what_bulk_keeps_waiting: [Bus, Low],
    a_model_that_was_replaced_is_not_served_under_the_old_name: [Bus],
    a_worker_killed_while_it_packs_leaves_nothing: [Bus, Low],
    an_engine_that_needs_a_library_says_so: [Bus, Low],
}

/// Every name that the setting `cpu_isa` accepts, beside `auto`.
const ISAS: [&str; 11] = [
    "portable",
    "avx2",
    "avx-vnni",
    "avx512",
    "avx512-vnni",
    "avx512-bf16",
    "amx",
    "neon",
    "neon-dotprod",
    "neon-i8mm",
    "neon-bf16",
];

async fn a_worker_in_reserve_computes_what_bulk_keeps_waiting() -> Outcome {
    let setup = Setup::real("low")?.setting("workers_per_device", "1");
    let (bus, _setup, daemon) = setup.alone().await?;
    let text = "somebody waits for this";
    let alone = daemon.client().vectors(&[text]).await?;
    assert_eq!(daemon.client().workers().await?.len(), 1);

    let bulk = Client::on(&bus).await?;
    let flood = tokio::spawn(async move {
        let texts: Vec<String> =
            (0..500).map(|line| format!("line {line} of a long log")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        loop {
            if let Err(error) = bulk.embedder.embed_to_fd(&texts, HashMap::new()).await {
                return error;
            }
        }
    });
    let reserve = within("a worker in reserve", async {
        loop {
            assert_eq!(daemon.client().vectors(&[text]).await?, alone);
            let used = |worker: &Told| {
                value(worker, "reserved").unwrap_or(false)
                    && value::<u64>(worker, "batches").unwrap_or(0) > 0
            };
            let found = daemon.client().workers().await?.into_iter().find(used);
            if let Some(reserve) = found {
                return Outcome::Ok(reserve);
            }
        }
    })
    .await??;
    let sandbox: String = value(&reserve, "sandbox")?;
    assert!(sandbox.contains("seccomp"), "{sandbox}");
    let told = cli(&bus, &["status"]).await?.success()?;
    assert!(told.contains("for interactive calls beside bulk"), "{told}");
    flood.abort();
    daemon.stop().await
}

async fn its_calibration_is_kept() -> Outcome {
    let setup = Setup::real("low")?.setting("batch_tokens_max", "auto");
    let (bus, setup, daemon) = setup.alone().await?;
    let measured = |daemon: &Daemon| daemon.process.stderr().contains("calibrated how");
    assert!(measured(&daemon), "{}", daemon.process.stderr());
    let tokens: u64 = daemon.client().workers().await?[0]
        .get("batch_tokens")
        .ok_or("no figure")?
        .clone()
        .try_into()?;
    assert!(tokens >= 128, "{tokens}");
    let expected = daemon.client().vectors(&["as good as ever"]).await?;
    daemon.stop().await?;

    // What other tests disturbed would be repeated.
    let record = fs::read_dir(setup.cached()?.join("tuning"))?.next().ok_or("no record")??.path();
    let kept = fs::read_to_string(&record)?;
    fs::write(&record, kept.replace(r#""disturbed":1"#, r#""disturbed":0"#))?;
    let daemon = setup.ready(&bus).await?;
    assert!(!measured(&daemon), "{}", daemon.process.stderr());
    assert_eq!(daemon.client().vectors(&["as good as ever"]).await?, expected);
    daemon.stop().await?;

    fs::write(&record, "{")?;
    let daemon = setup.ready(&bus).await?;
    let said = daemon.process.stderr();
    assert!(said.contains("calibration can't be used") && measured(&daemon), "{said}");
    daemon.stop().await?;

    let setup = setup.setting("batch_tokens_max", "64");
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().vectors(&["as good as ever"]).await?, expected);
    daemon.stop().await
}

/// The models of the store, and nothing beside them.
pub fn without_library(setup: Setup) -> Outcome<Setup> {
    let models = setup.path("models");
    std::os::unix::fs::symlink(needs::store().join("models").canonicalize()?, &models)?;
    Ok(setup.setting("model_dir", &models.display().to_string()))
}

async fn it_serves_without_any_library() -> Outcome {
    let (_bus, _setup, daemon) = without_library(Setup::real("low")?)?.alone().await?;
    assert_eq!(daemon.client().embedder.execution_provider().await?, "cpu");
    assert_eq!(daemon.client().status::<String>("engine").await?, "native");
    daemon.client().embedder.embed("out of the box").await?;
    let workers = daemon.workers().await?;
    assert_eq!(workers.len(), 1, "one worker has all the threads");
    if let Some(mapped) = mapped(workers[0])? {
        assert!(!mapped.contains("onnxruntime"), "{mapped}");
    }
    daemon.stop().await
}

async fn every_instruction_set_works_or_is_refused() -> Outcome {
    let bus = PrivateBus::start().await?;
    let texts = golden::plain_texts()?;
    let references = golden::vectors("low")?;
    let (mut ran, mut refusals) = (Vec::new(), Vec::new());
    for isa in ISAS {
        let setup = Setup::real("low")?.env("OP_DBUS_CPU_ISA", isa).setting("precision", "f32");
        let daemon = setup.start(&bus).await?;
        if daemon.settled().await? == "ready" {
            assert_eq!(daemon.client().status::<String>("isa").await?, isa);
            let found = daemon.client().vectors(&texts).await?;
            for (found, reference) in found.iter().zip(&references) {
                assert!(cosine(found, reference) >= 0.99999, "{isa}");
                assert!(distance(found, reference) <= 1e-4, "{isa}");
            }
            ran.push(isa);
        } else {
            let refusal = daemon.client().embedder.embed("x").await;
            let message = refused(refusal, ErrorName::ProviderUnavailable)?;
            assert!(message.contains("cpu_isa") && message.contains(isa), "{message}");
            assert!(message.contains("OP_DBUS_CPU_ISA"), "{message}");
            refusals.push((isa, message));
        }
        daemon.stop().await?;
    }
    println!("ran: {}; refused: {}", ran.join(", "), refusals.len());
    assert!(ran.contains(&"portable"), "{ran:?}");
    // The sentence lists just those that work.
    for (isa, message) in &refusals {
        let (_, has) = message.split_once("it has ").ok_or_else(|| message.clone())?;
        let (has, _) = has.split_once(';').ok_or_else(|| message.clone())?;
        assert_eq!(has.split(", ").collect::<Vec<_>>(), ran, "{isa}: {message}");
    }
    // What is chosen by itself is the last of them, which is the best.
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let best: String = daemon.client().status("isa").await?;
    assert_eq!(ran.last(), Some(&best.as_str()));
    // Without a word about precision it is bf16 where the CPU computes in that.
    let has_bf16 = ["avx512-bf16", "amx", "neon-bf16"].contains(&best.as_str());
    let expected = if has_bf16 { "bf16" } else { "f32" };
    assert_eq!(daemon.client().embedder.precision().await?, expected);
    daemon.stop().await
}

/// A daemon's files with this graph of the user's own, imported as `own`.
pub async fn with_graph(graph: &[u8]) -> Outcome<Setup> {
    let setup = Setup::sim()?;
    fs::create_dir(setup.path("models"))?;
    let folder = setup.path("graph");
    fs::create_dir(&folder)?;
    fs::write(folder.join("model.onnx"), graph)?;
    fs::copy(fixture("golden/tiny-bert/tokenizer.json"), folder.join("tokenizer.json"))?;
    let words = ["--name", "own", "--pooling", "mean", "--max-input-tokens", "48"];
    setup.import(folder.join("model.onnx"), &words).await?.success()?;
    let setup = setup.setting("model", "own").setting("cpu_engine", "native");
    std::os::unix::fs::symlink(needs::store().join("runtime"), setup.path("runtime"))?;
    Ok(setup)
}

async fn a_graph_of_the_users_own_needs_the_other_engine() -> Outcome {
    let setup = with_graph(&fs::read(fixture("golden/tiny-bert/onnx/model.onnx"))?).await?;
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    for part in ["own is an ONNX graph", "config.toml", "OP_DBUS_CPU_ENGINE=ort"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(message.contains("runtime pull"), needs::runtime().is_none(), "{message}");
    Ok(())
}

/// Whether all threads of a process wait for something, as the kernel sees it.
fn asleep(process: Pid) -> Outcome<bool> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // One that has ended meanwhile does not run.
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        // The name before the state may itself hold anything but its closing bracket.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state != Some('S') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a process has done by itself so far.
struct Done {
    /// How often each thread went to sleep, by its folder.
    sleeps: HashMap<PathBuf, u64>,
    /// Ticks of CPU time, of which a second has 100.
    ticks: u64,
}

impl Done {
    fn by(process: Pid) -> Outcome<Self> {
        let number = |text: &str| text.trim().parse::<u64>();
        let mut sleeps = HashMap::new();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?.path();
            let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
            let count = |line: &str| line.strip_prefix("voluntary_ctxt_switches:").map(number);
            sleeps.insert(thread, status.lines().find_map(count).ok_or("no count")??);
        }
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let fields = stat.rsplit_once(") ").ok_or("no state")?.1.split(' ');
        let ticks = fields.skip(11).take(2).map(number).sum::<Result<u64, _>>()?;
        Ok(Self { sleeps, ticks })
    }

    /// Whether hardly anything has been done since `before`: a daemon wakes less than once a second.
    fn is_rest(&self, before: &Self) -> bool {
        let earlier = |thread: &PathBuf| before.sleeps.get(thread).copied().unwrap_or(0);
        let since = |(thread, count): (&PathBuf, &u64)| count.saturating_sub(earlier(thread));
        self.sleeps.iter().map(since).sum::<u64>() <= 15 && self.ticks - before.ticks <= 50
    }
}

async fn its_threads_sleep_when_there_is_nothing_to_do() -> Outcome {
    // They take two seconds at least, in which who looks around ten times a second wakes twenty times.
    const LOOKS: usize = 1_000;
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    daemon.client().vectors(&golden::plain_texts()?).await?;
    let worker = daemon.workers().await?[0];
    let name = fs::read_to_string(format!("/proc/{worker}/comm"))?;
    assert_eq!(name.trim_end(), "op-dbus-worker", "what `top` shows");
    let both = || Outcome::Ok([Done::by(worker)?, Done::by(daemon.process.pid())?]);
    let (mut looks, mut before) = (0, both()?);
    eventually("the sleep of worker and daemon", async || {
        // A thread that spins is seen running.
        looks = if asleep(worker)? { looks % LOOKS + 1 } else { 0 };
        if looks <= 1 {
            before = both()?;
        }
        Ok(looks == LOOKS && both()?.iter().zip(&before).all(|(now, before)| now.is_rest(before)))
    })
    .await?;
    daemon.stop().await
}

async fn its_memory_is_that_of_the_weights() -> Outcome {
    // With two threads, and for each further one.
    const BESIDE_BYTES_MAX: u64 = 60 << 20;
    const THREAD_BYTES_MAX: u64 = 11 << 20;
    let further = std::thread::available_parallelism()?.get().saturating_sub(2);
    let beside = BESIDE_BYTES_MAX + u64::try_from(further)? * THREAD_BYTES_MAX;
    let bus = PrivateBus::start().await?;
    let medium = ("medium", "models/all-MiniLM-L6-v2/model.safetensors");
    let high = ("high", "models/all-mpnet-base-v2/model.safetensors");
    let tried = [(medium, "f32", 1), (medium, "bf16", 2), (medium, "int8", 4), (high, "bf16", 2)];
    for ((level, weights), precision, part) in tried {
        let weights = fs::metadata(needs::store().join(weights))?.len();
        let setup = Setup::real(level)?.setting("precision", precision);
        let setup = setup.setting("load_timeout_s", "3600");
        // The second start finds the weights packed.
        for start in ["cold", "warm"] {
            let daemon = setup.ready(&bus).await?;
            daemon.client().vectors(&golden::plain_texts()?).await?;
            let resident = resident(daemon.workers().await?[0])?;
            let most = weights / part + beside;
            println!("{level} {precision}, {start}: {} of {} MiB", resident >> 20, most >> 20);
            assert!(resident <= most, "{level} {precision}, {start}: {resident} > {most}");
            daemon.stop().await?;
        }
    }
    Ok(())
}

async fn a_model_that_was_replaced_is_not_served_under_the_old_name() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("cpu_engine", "native").setting("model", "own");
    let import = async |tiny: &str| {
        setup.import(fixture(&format!("golden/{tiny}")), &["--name", "own"]).await?.success()
    };
    import("tiny-bert").await?;
    let daemon = setup.ready(&bus).await?;
    let (before, workers) = (daemon.client().vectors(&["x"]).await?, daemon.workers().await?);
    fs::remove_dir_all(setup.path("models/own"))?;
    import("tiny-mpnet").await?;
    // What is mapped stays what it was.
    assert_eq!(daemon.client().vectors(&["x"]).await?, before);
    assert_eq!(daemon.workers().await?, workers);
    daemon.signal_workers(Signal::SIGKILL).await?;
    let refusal = daemon.client().embedder.embed("x").await;
    refused(refusal, ErrorName::WorkerFailed)?;
    daemon.process.says("is another model than").await?;
    daemon.stop().await
}

/// The files in the cache of packed weights whose names begin so.
fn cached(setup: &Setup, start: &str) -> Vec<PathBuf> {
    let folder = setup.cached().map(|model| model.join("weights"));
    let entries = folder.and_then(|folder| Ok(folder.read_dir()?)).into_iter().flatten().flatten();
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(start);
    entries.filter(named).map(|entry| entry.path()).collect()
}

async fn a_worker_killed_while_it_packs_leaves_nothing() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = loop {
        let daemon = setup.start(&bus).await?;
        soon("the beginning of packing", async || Ok(!cached(&setup, "").is_empty())).await?;
        // The one that is started in its place as well.
        let killing = async {
            loop {
                for worker in children(daemon.process.pid())? {
                    // It may have left by itself.
                    let _ = kill(worker, Signal::SIGKILL);
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            settled = daemon.settled() => drop(settled?),
            ended = killing => return ended,
        }
        if !cached(&setup, ".packing-").is_empty() {
            break daemon;
        }
        // It was faster than we are.
        daemon.stop().await?;
        fs::remove_dir_all(setup.path("cache"))?;
    };
    assert_eq!(daemon.client().embedder.state().await?, "failed");
    refused(daemon.client().embedder.embed("x").await, ErrorName::WorkerFailed)?;
    daemon.client().manager.reload().await?;
    assert_eq!(daemon.settled().await?, "ready");
    daemon.client().embedder.embed("x").await?;
    let left = cached(&setup, "");
    assert!(left.len() == 1 && cached(&setup, ".").is_empty(), "{left:?}");
    daemon.stop().await
}

async fn an_engine_that_needs_a_library_says_so() -> Outcome {
    let setup = without_library(Setup::real("low")?)?.env("OP_DBUS_CPU_ENGINE", "ort");
    let message = setup.refusal(ErrorName::ProviderUnavailable).await?;
    for part in ["cpu_engine is ort (", "OP_DBUS_CPU_ENGINE", "runtime pull", "to native"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    Ok(())
}
