//! Workers of two kinds behind one queue.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use op_dbus_engine::sim::{Faults, Faulty, SimBackend};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, BatchCost, BatchLimits, Buckets, Call,
    Description, Engine, EngineConfig, Limits, Pool, Priority, WorkerState,
};

use crate::around::around;
use crate::support::*;

/// A simulator that does so much work for nothing in each batch.
fn named(name: &str, work: u64, faults: Faults) -> Result<Box<dyn Backend>, BackendError> {
    let sim = Box::new(SimBackend::of(name, DIMENSIONS));
    let working = around(sim, move |sim, batch, out| {
        black_box((0..work).fold(0, |sum, n| black_box(sum ^ n)));
        sim.run(batch, out)
    });
    Ok(Box::new(Faulty::new(working, faults)))
}

fn pool(name: &'static str, work: u64) -> Pool {
    Pool::new(Box::new(move |_| named(name, work, Faults::default())))
}

/// A pool whose devices are known to take so long for a batch of a few texts. Of a size of which nothing is known the
/// first batch would be believed, also where another program held it up.
fn known(us: u64, devices: &[&str], pool: Pool) -> Pool {
    let costs: Vec<_> = (0..8).map(|octave| BatchCost { tokens: 1 << octave, us }).collect();
    let of_device = |device: &&str| ((*device).to_owned(), costs.clone());
    Pool { costs: devices.iter().map(of_device).collect(), ..pool }
}

/// Known to be quick.
fn quick(device: BackendFactory) -> Pool {
    known(1_000, &["device:0"], Pool::new(device))
}

/// Known to be slow, and so never chosen for what it costs.
fn slow_cpu() -> Pool {
    known(10_000_000, &["cpu:0"], pool("cpu", 0))
}

fn batches(engine: &Engine) -> Vec<u64> {
    engine.descriptions().iter().map(|worker| worker.batches).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_goes_to_the_pool_that_has_it_done_first() {
    let slow = pool("slow", 100_000_000);
    let engine = of_pools(vec![slow, pool("fast", 0)]);
    for _ in 0..20 {
        let reply = engine.embed(call(1, &["a", "b"])).await.unwrap();
        assert_eq!((reply.provider.as_str(), reply.device.as_str()), ("fast", "fast:0"));
        assert_eq!(reply.vectors, [expected("a"), expected("b")].concat());
    }
    assert_eq!(batches(&engine), [0, 20]);
}

/// A pool with a worker on each of two devices, of which the first takes longer for every batch.
fn unlike() -> Pool {
    let factory: BackendFactory = Box::new(|worker| {
        let (name, work) = [("slow", 100_000_000), ("fast", 0)][worker];
        named(name, work, Faults::default())
    });
    let devices = ["slow:0", "fast:0"].map(str::to_owned).to_vec();
    Pool { workers: 2, devices, ..Pool::new(factory) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_devices_of_a_pool_the_fast_one_gets_what_it_has_done_first() {
    let engine = of_pools(vec![known(1_000, &["fast:0"], unlike())]);
    for _ in 0..20 {
        let reply = engine.embed(call(1, &["a", "b"])).await.unwrap();
        assert_eq!(reply.device, "fast:0");
        assert_eq!(reply.vectors, [expected("a"), expected("b")].concat());
    }
    assert_eq!(batches(&engine), [0, 20]);
    let costs = engine.costs(16);
    assert_eq!([&costs[0].0, &costs[1].0], ["slow:0", "fast:0"]);
    assert!(costs[0].1 > costs[1].1, "{costs:?}");
}

/// Neither is measured where both are known: what is told is what they were started with.
#[tokio::test]
async fn what_an_engine_knows_of_each_device_another_begins_with() {
    let one = known(1_000, &["fast:0"], unlike());
    let costs = of_pools(vec![one]).known_costs().remove(0);
    let [fast, slow] = ["fast:0", "slow:0"].map(|device| costs[device].clone());
    assert!(fast.iter().all(|cost| cost.us == 1_000), "{fast:?}");
    assert!(slow != fast && !slow.is_empty(), "that was measured: {slow:?}");
    let again = of_pools(vec![Pool { costs: costs.clone(), ..unlike() }]);
    assert_eq!(again.known_costs(), [costs]);
}

/// What is known of the device is from a bad moment, and as it computes nothing, nothing corrects that.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_leaves_all_to_another_is_measured_anew() {
    let device = known(10_000_000, &["device:0"], pool("device", 0));
    let cpu = known(50_000, &["cpu:0"], pool("cpu", 1_000_000));
    let config =
        EngineConfig { check_interval: Duration::from_millis(2), ..config(Limits::default()) };
    let engine = configured(vec![device, cpu], config);
    let provider = async || engine.embed(call(1, &["a"])).await.unwrap().provider;
    assert_eq!(provider().await, "cpu");
    let comes_back = async { while provider().await != "device" {} };
    tokio::time::timeout(Duration::from_secs(60), comes_back).await.unwrap();
}

/// It computes what it is quick at, so that it is never idle for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_leaves_full_batches_alone_is_measured_anew() {
    let of = |device: &str, times_us: [u64; 2], pool| {
        let costs = [8, 512].into_iter().zip(times_us).map(|(tokens, us)| BatchCost { tokens, us });
        Pool { costs: [(device.to_owned(), costs.collect())].into(), ..pool }
    };
    let device = of("device:0", [1, 10_000_000], pool("device", 0));
    let cpu = of("cpu:0", [50_000; 2], pool("cpu", 1_000_000));
    let check_interval = Duration::from_millis(50);
    let config = EngineConfig { check_interval, ..config(Limits::default()) };
    let engine = configured(vec![device, cpu], config);
    let embed = async |text: String, texts, priority| {
        let inputs = vec![text; texts].into();
        let call = Call { inputs, priority: Some(priority), ..Call::default() };
        engine.embed(call).await.unwrap().provider
    };
    let is_back = Cell::new(false);
    let small = async {
        while !is_back.get() {
            embed("a".to_owned(), 1, Priority::Interactive).await;
        }
    };
    // Two, so that one always waits.
    let full = async || {
        while !is_back.get() {
            let text = "x".repeat(INPUT_MAX - 2);
            let provider = embed(text, 512 / INPUT_MAX, Priority::Bulk).await;
            is_back.set(is_back.get() || provider.contains("device"));
        }
    };
    let all = async { tokio::join!(small, full(), full()) };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}

/// A simulator that tells how large its batches are to be, and notes how large they were.
struct Told {
    sim: SimBackend,
    description: Description,
    largest: Arc<AtomicUsize>,
}

impl Backend for Told {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.largest.fetch_max(batch.tokens(), Ordering::Relaxed);
        self.sim.run(batch, out)
    }
}

#[tokio::test]
async fn what_is_measured_at_the_start_is_no_larger_than_what_callers_send() {
    let (tokens_max, attention_max, rows_max, length_max) = (200, 1 << 20, 64, INPUT_MAX);
    let buckets = Buckets { tokens_max, attention_max, rows_max, length_max, packed: false };
    for (batch_tokens, buckets) in [(tokens_max, None), (0, Some(buckets))] {
        let largest = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&largest);
        let device = Pool::new(Box::new(move |_| {
            let sim = SimBackend::new(DIMENSIONS);
            let description = Description { batch_tokens, buckets, ..sim.description().clone() };
            Ok(Box::new(Told { sim, description, largest: Arc::clone(&seen) }))
        }));
        let device = Pool { batch: BatchLimits::accelerator(None), ..device };
        let engine = of_pools(vec![device, pool("cpu", 0)]);
        assert!(!engine.known_costs()[0]["sim:0"].is_empty(), "nothing was measured");
        let largest = largest.load(Ordering::Relaxed);
        assert!(largest <= tokens_max, "{largest} tokens in a batch");
    }
}

/// The first batch with a "!" of each ends when that of the other has begun: neither has all of the work,
/// whatever the engine measured when it started.
#[tokio::test(flavor = "multi_thread")]
async fn two_pools_share_the_work_and_the_reply_names_both() {
    let both = Arc::new(Barrier::new(2));
    let pools = ["one", "other"].map(|name| {
        let both = Arc::clone(&both);
        Pool::new(Box::new(move |_| {
            let mut other = Some(Arc::clone(&both));
            Ok(around(named(name, 0, Faults::default())?, move |named, batch, out| {
                let is_asked = batch.texts().flatten().any(|id| *id == 33);
                if let Some(other) = other.take_if(|_| is_asked) {
                    other.wait();
                }
                named.run(batch, out)
            }))
        }))
    });
    let engine = of_pools(pools.into());
    let texts: Vec<String> = (0..2000).map(|n| format!("{n}!")).collect();
    let reply =
        engine.embed(Call { inputs: texts.clone().into(), ..Call::default() }).await.unwrap();
    let wanted: Vec<f32> = texts.iter().flat_map(|text| expected(text)).collect();
    assert_eq!(reply.vectors, wanted);
    let mut devices: Vec<_> = reply.device.split(',').collect();
    devices.sort_unstable();
    assert_eq!(devices, ["one:0", "other:0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_outlive_the_pool_that_was_asked_for() {
    let (broken, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let is_broken = Arc::clone(&broken);
    let count = Arc::clone(&made);
    let device: BackendFactory = Box::new(move |_| {
        if is_broken.load(Ordering::Relaxed) {
            count.fetch_add(1, Ordering::Relaxed);
            return Err(BackendError::Lost("the device is gone".into()));
        }
        named("device", 0, Faults { die_on_token: Some(33), ..Faults::default() })
    });
    let engine = of_pools(vec![quick(device), slow_cpu()]);
    assert_eq!(engine.embed(call(1, &["a"])).await.unwrap().provider, "device");
    broken.store(true, Ordering::Relaxed);
    // "!" kills the device and not the CPU.
    let reply = engine.embed(call(1, &["!"])).await.unwrap();
    assert_eq!((reply.provider.as_str(), reply.vectors), ("cpu", expected("!")));
    engine.failing().await;
    assert!(made.load(Ordering::Relaxed) >= 3, "it is given up after some tries");
    let workers = engine.descriptions();
    assert_eq!(workers[0].state, WorkerState::Restarting);
    for text in ["b", "c"] {
        let reply = engine.embed(call(1, &[text])).await.unwrap();
        assert_eq!((reply.provider.as_str(), reply.vectors), ("cpu", expected(text)));
    }
    let (stand_in, why) = engine.stand_in().unwrap();
    assert_eq!(stand_in.provider, "cpu");
    assert!(why.starts_with("device could not") && why.contains("the device is gone"), "{why}");
    // Where there is nothing to compute, who would is told.
    let nothing = engine.embed(call(1, &[])).await.unwrap();
    assert_eq!((&*nothing.provider, &*nothing.device), ("cpu", "cpu:0"));
    broken.store(false, Ordering::Relaxed);
    engine.stand_in_other_than(true).await;
    assert_eq!(engine.stand_in(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_batch_is_tried_again_on_another_device() {
    let faults = Faults { die_on_token: Some(33), ..Faults::default() };
    let device = quick(Box::new(move |_| named("device", 0, faults.clone())));
    let engine = of_pools(vec![device, slow_cpu()]);
    for n in 1..=20 {
        // "!" kills the device.
        let reply = engine.embed(call(1, &["!"])).await.unwrap();
        assert_eq!((reply.provider.as_str(), reply.vectors), ("cpu", expected("!")));
        assert_eq!(engine.stats().retries, n);
        // The CPU may have answered before it is there again.
        while engine.descriptions()[0].state != WorkerState::Idle {
            tokio::task::yield_now().await;
        }
        assert_eq!(engine.embed(call(1, &["a"])).await.unwrap().provider, "device");
    }
}

/// Not an eighth of the batch fits the device.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_a_device_is_computed_by_another() {
    let faults = Faults { oom_above_rows: Some(1), ..Faults::default() };
    let device = quick(Box::new(move |_| named("device", 0, faults.clone())));
    let engine = of_pools(vec![device, slow_cpu()]);
    let texts: Vec<_> = "abcdefghijklmnopqrstuvwxyz".split_inclusive(|_| true).collect();
    let reply = engine.embed(call(1, &texts)).await.unwrap();
    assert_eq!(reply.vectors, texts.iter().flat_map(|text| expected(text)).collect::<Vec<_>>());
    assert!(reply.provider.contains("cpu"), "{}", reply.provider);
    assert_eq!(engine.stats().worker_restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_batch_is_tried_again_by_another_kind_of_device() {
    // Each worker on a device of its own, as endpoints of a fleet are.
    let mut fleet = Pool::new(Box::new(|worker| {
        let faults = Faults { die_on_token: Some(33), ..Faults::default() };
        named(["here", "there"][worker], 0, faults)
    }));
    fleet.workers = 2;
    let fleet = known(1_000, &["here:0", "there:0"], fleet);
    let engine = of_pools(vec![fleet, slow_cpu()]);
    for _ in 0..20 {
        let reply = engine.embed(call(1, &["!"])).await.unwrap();
        assert_eq!((reply.provider.as_str(), reply.vectors), ("cpu", expected("!")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_batch_is_tried_again_by_another_worker_of_the_device() {
    let faults = |worker| Faults { die_on_token: (worker == 0).then_some(33), ..Faults::default() };
    let mut device = Pool::new(Box::new(move |worker| named("device", 0, faults(worker))));
    device.workers = 2;
    let engine = of_pools(vec![device]);
    for _ in 0..20 {
        let reply = engine.embed(call(1, &["!"])).await.unwrap();
        assert_eq!(reply.vectors, expected("!"));
    }
}

/// Each worker of it passes the short proof and is lost with the first batch of a caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_loses_batches_in_a_row_has_to_compute_larger_ones_first() {
    let (mended, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_mended, count) = (Arc::clone(&mended), Arc::clone(&made));
    let mut pool = Pool::new(Box::new(move |worker| {
        let is_bad = worker == 0 && !is_mended.load(Ordering::Relaxed);
        count.fetch_add(usize::from(worker == 0), Ordering::Relaxed);
        let faults = Faults { die_on_batch: is_bad.then_some(2), ..Faults::default() };
        named(["bad", "good"][worker], 0, faults)
    }));
    pool.workers = 2;
    let engine = of_pools(vec![pool]);
    let calls = async || {
        let one = async |text| {
            assert_eq!(engine.embed(call(1, &[text])).await.unwrap().vectors, expected(text));
        };
        tokio::join!(one("a"), one("b"), one("c"), one("d"));
    };
    while made.load(Ordering::Relaxed) < 6 {
        calls().await;
    }
    let bad = engine.descriptions().remove(0);
    assert_eq!((bad.restarts, bad.state, bad.batches), (2, WorkerState::Restarting, 0));
    let why = bad.last_error.unwrap();
    assert!(why.starts_with("bad:0 lost 2 batches of late"), "{why}");
    mended.store(true, Ordering::Relaxed);
    while engine.descriptions()[0].batches == 0 {
        calls().await;
    }
}
