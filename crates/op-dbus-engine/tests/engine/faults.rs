//! Backends that fail, die, lie or never come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use op_dbus_engine::sim::{Faults, SimBackend};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, BatchLimits, Description, Engine, EngineConfig,
    Error, Limits, LoadErrorKind, ModelShape, Pool, Reference, Tokenizer, WorkerState,
};

use crate::around::around;
use crate::support::*;

#[tokio::test]
async fn a_batch_whose_worker_died_is_run_again() {
    for faults in [
        Faults { die_on_batch: Some(2), ..Faults::default() },
        Faults { nan_on_batch: Some(2), ..Faults::default() },
    ] {
        let engine = with_faults(vec![faults], Limits::default());
        let reply = engine.embed(call(1, &["a", "b"])).await.unwrap();
        assert_eq!(reply.vectors, [expected("a"), expected("b")].concat());
        let stats = engine.stats();
        assert_eq!((stats.retries, stats.worker_restarts), (2, 1));
        assert_eq!(engine.descriptions()[0].restarts, 1);
        engine.canary().await.unwrap();
    }
}

#[tokio::test]
async fn a_text_that_kills_workers_fails_alone() {
    let poison = Faults { die_on_token: Some(i32::from(b'!')), ..Faults::default() };
    let limits = Limits { batch_delay_us_max: 20_000, ..Limits::default() };
    let batch = BatchLimits { tokens_max: 64, ..BatchLimits::default() };
    let engine = batched(Box::new(move |_| sim(poison.clone())), limits, batch, 1);
    let (bad, good) =
        tokio::join!(engine.embed(call(1, &["bad!"])), engine.embed(call(2, &["good"])));
    assert!(matches!(bad, Err(Error::WorkerFailed(BackendError::Lost(_)))), "{bad:?}");
    assert_eq!(good.unwrap().vectors, expected("good"));
    assert_eq!(engine.stats().worker_restarts, 2);
}

#[tokio::test]
async fn a_panic_costs_one_worker() {
    let made = AtomicUsize::new(0);
    let factory = move |_| {
        let healthy = sim(Faults::default())?;
        if made.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(healthy);
        }
        // Works for its check, then panics.
        let mut is_checked = false;
        Ok(around(healthy, move |sim, batch, out| {
            assert!(!std::mem::replace(&mut is_checked, true), "as the test wants it");
            sim.run(batch, out)
        }))
    };
    let engine = start(Box::new(factory), Limits::default(), 1);
    engine.embed(call(1, &["a"])).await.unwrap();
    assert_eq!(engine.stats().worker_restarts, 1);
}

fn corrupt() -> BackendError {
    BackendError::Load { kind: LoadErrorKind::ModelCorrupt, message: "damaged".into() }
}

#[test]
fn a_worker_that_does_not_load_fails_the_start() {
    let start = |factory| try_of_pools(pools(factory, 2)).unwrap_err();
    assert_eq!(start(Box::new(|_| Err(corrupt()))), corrupt());
    let wide = |_| -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(SimBackend::new(DIMENSIONS + 1)))
    };
    assert!(start(Box::new(wide)).to_string().contains("9 dimensions and the model has 8"));
    let lying = |_| sim(Faults { nan_on_batch: Some(1), ..Faults::default() });
    let BackendError::Load { kind: LoadErrorKind::Untrusted, message } = start(Box::new(lying))
    else {
        panic!("it is trusted, or lost");
    };
    assert!(message.contains("not finite numbers"), "{message}");
}

#[tokio::test]
async fn calls_fail_when_no_worker_can_be_had() {
    let made = AtomicUsize::new(0);
    let factory = move |_| match made.fetch_add(1, Ordering::Relaxed) {
        0 => sim(Faults { die_on_batch: Some(2), ..Faults::default() }),
        _ => Err(corrupt()),
    };
    let engine = start(Box::new(factory), Limits::default(), 1);
    let (refusal, ()) = tokio::join!(engine.embed(call(1, &["a"])), engine.failing());
    assert!(matches!(refusal, Err(Error::WorkerFailed(_))), "{refusal:?}");
    let worker = engine.descriptions().remove(0);
    assert_eq!(worker.state, WorkerState::Restarting);
    assert_eq!(worker.last_error.as_deref(), Some("damaged"));
    assert!(engine.canary().await.is_err());
}

#[tokio::test]
async fn another_worker_takes_over_while_one_cannot_be_replaced() {
    let made = AtomicUsize::new(0);
    let factory = move |n| match (n, made.fetch_add(1, Ordering::Relaxed)) {
        (0, 0..2) => sim(Faults { die_on_batch: Some(2), ..Faults::default() }),
        (0, _) => Err(corrupt()),
        _ => sim(Faults::default()),
    };
    let engine = start(Box::new(factory), Limits::default(), 2);
    for text in ["a", "b", "c", "d"] {
        assert_eq!(engine.embed(call(1, &[text])).await.unwrap().vectors, expected(text));
    }
}

#[tokio::test]
async fn a_backend_with_other_vectors_is_not_trusted() {
    let known = reference();
    let vector = known.vector.clone();
    let started = |vector: Vec<f32>| {
        let reference = Some(Reference { vector, ..known.clone() });
        let healthy: BackendFactory = Box::new(|_| sim(Faults::default()));
        try_of_pools(vec![Pool { reference, ..Pool::new(healthy) }])
    };
    started(vector.clone()).unwrap().canary().await.unwrap();
    let mut other = vector.clone();
    other[0] += 0.5;
    for wrong in [other, vector.iter().map(|value| -value).collect(), vec![f32::NAN; DIMENSIONS]] {
        let error = started(wrong).unwrap_err();
        let BackendError::Load { kind, message } = &error else { panic!("{error}") };
        assert_eq!(*kind, LoadErrorKind::Untrusted);
        assert!(message.contains("sim can't be trusted on sim:0: its vectors"), "{message}");
    }
}

/// A simulator that does something to each batch before.
fn odd(
    faults: Faults,
    does: fn(&Batch<'_>) -> Vec<Vec<i32>>,
) -> Result<Box<dyn Backend>, BackendError> {
    Ok(around(sim(faults)?, move |sim, batch, out| {
        let rows = does(batch);
        let lengths: Vec<i32> = rows.iter().map(|row| row.len() as i32).collect();
        sim.run(&Batch { ids: &rows.concat(), lengths: &lengths }, out)
    }))
}

fn padded(batch: &Batch<'_>) -> Vec<Vec<i32>> {
    let longest = batch.longest();
    batch.texts().map(|row| row.iter().copied().chain([0; 999]).take(longest).collect()).collect()
}

fn cut(batch: &Batch<'_>) -> Vec<Vec<i32>> {
    batch.texts().map(|row| row.iter().copied().take(INPUT_MAX - 1).collect()).collect()
}

fn honest(batch: &Batch<'_>) -> Vec<Vec<i32>> {
    batch.texts().map(<[i32]>::to_vec).collect()
}

#[tokio::test]
async fn a_backend_that_counts_padding_or_cuts_is_not_trusted() {
    let reference = reference();
    let started = |does: fn(&Batch<'_>) -> Vec<Vec<i32>>, faults: Faults, rows_max| {
        let factory: BackendFactory = Box::new(move |_| odd(faults.clone(), does));
        let reference = Some(reference.clone());
        let batch = BatchLimits { rows_max, ..BatchLimits::default() };
        try_of_pools(vec![Pool { reference, batch, ..Pool::new(factory) }])
    };
    started(honest, Faults::default(), 64).unwrap();
    // Who takes no such batch is asked for each text alone, and then pads nothing.
    started(padded, Faults::default(), 1).unwrap();
    started(padded, Faults { oom_above_rows: Some(1), ..Faults::default() }, 64).unwrap();
    let told = |does, faults| started(does, faults, 64).unwrap_err().to_string();
    let padding = told(padded, Faults::default());
    assert!(padding.contains("the cosine") && padding.contains("one of 3 in a batch"), "{padding}");
    let cut = told(cut, Faults::default());
    assert!(cut.contains("the cosine"), "{cut}");
    let failing = told(honest, Faults { fail_on_batch: Some(2), ..Faults::default() });
    assert!(
        failing.contains("sim can't be trusted on sim:0: it fails texts of up to"),
        "{failing}"
    );
}

/// Also where there is nothing to compare it with.
#[tokio::test]
async fn a_backend_that_does_not_normalise_is_refused() {
    let started = |model| {
        let factory = |_| {
            Ok(around(sim(Faults::default())?, |sim, batch, out| {
                sim.run(batch, out)?;
                out.iter_mut().for_each(|value| *value *= 2.0);
                Ok(())
            }))
        };
        let pools = pools(Box::new(factory), 1);
        Engine::start(Tokenizer::bytes(INPUT_MAX), model, pools, config(Limits::default()))
    };
    let message = started(model()).unwrap_err().to_string();
    assert!(message.contains("vectors have length 2 where 1 is expected"), "{message}");
    started(ModelShape { normalized: false, ..model() }).unwrap();
}

/// Of a backend that was right, and has others' vectors once this tells so.
fn straying(strays: &Arc<AtomicBool>) -> Pool {
    let strays = Arc::clone(strays);
    let factory: BackendFactory = Box::new(move |_| {
        let strays = Arc::clone(&strays);
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            let other = i32::from(strays.load(Ordering::Relaxed));
            let ids: Vec<i32> = batch.ids.iter().map(|id| id + other).collect();
            sim.run(&Batch { ids: &ids, lengths: batch.lengths }, out)
        }))
    });
    Pool { reference: Some(reference()), ..Pool::new(factory) }
}

#[tokio::test]
async fn a_backend_that_was_right_and_turns_wrong_is_found() {
    let strays = Arc::new(AtomicBool::new(false));
    let started = |check_interval| {
        let config = EngineConfig { check_interval, ..config(Limits::default()) };
        configured(vec![straying(&strays)], config)
    };
    let woken = started(Duration::from_secs(3600));
    let (asked, idle) = (started(Duration::from_secs(3600)), started(Duration::from_millis(2)));
    asked.canary().await.unwrap();
    strays.store(true, Ordering::Relaxed);
    // By the text that the watchdog is fed with, by a look at one that has nothing to do, and after a sleep of the
    // machine.
    let error = asked.canary().await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error}");
    woken.wake();
    let found = async {
        while [&asked, &woken, &idle].iter().any(|engine| engine.stats().worker_restarts == 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.unwrap();
    strays.store(false, Ordering::Relaxed);
    // The first may hear of the last that could not be had.
    let again = async {
        loop {
            if let Ok(reply) = idle.embed(call(1, &["a"])).await {
                return reply;
            }
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await.unwrap();
    assert_eq!(again.vectors, expected("a"));
    let told = idle.descriptions().remove(0).last_error.unwrap_or_default();
    assert!(told.contains("can't be trusted"), "{told}");
}

/// Its proof is the first batch of each backend, and passes.
#[tokio::test]
async fn a_device_that_proves_itself_and_loses_batches_is_given_up_where_another_takes_its_place() {
    let pool = Pool {
        losses_max: Some(2),
        ..Pool::new(Box::new(|_| sim(Faults { die_on_batch: Some(2), ..Faults::default() })))
    };
    let engine = of_pools(vec![pool]);
    let error = engine.embed(call(1, &["a"])).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error:?}");
    // Known by the time that the first call hears of it.
    assert!(engine.is_failing());
    engine.failing().await;
    let losses = engine.losses().unwrap();
    assert!(losses.starts_with("lost 2 batches of late (") && losses.contains("die"), "{losses}");
    let lost = async |times| {
        while engine.stats().worker_restarts < times {
            tokio::task::yield_now().await;
        }
    };
    lost(2).await;
    assert!(matches!(engine.embed(call(1, &["b"])).await, Err(Error::WorkerFailed(_))));
    assert_eq!(engine.stats().worker_restarts, 2, "nothing is tried there any more");

    engine.keep_trying();
    assert_eq!((engine.is_failing(), engine.losses()), (false, None));
    assert!(matches!(engine.embed(call(1, &["c"])).await, Err(Error::WorkerFailed(_))));
    lost(4).await;
}

#[tokio::test]
async fn a_worker_that_was_lost_while_idle_is_replaced_before_it_is_needed() {
    let (made, replaced) = std::sync::mpsc::channel();
    let count = AtomicUsize::new(0);
    let factory = move |_| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        made.send(n).unwrap();
        // The second batch is the first check of an idle worker.
        sim(Faults { die_on_batch: (n == 0).then_some(2), ..Faults::default() })
    };
    let config =
        EngineConfig { check_interval: Duration::from_millis(20), ..EngineConfig::default() };
    let engine = configured(pools(Box::new(factory), 1), config);
    assert_eq!((replaced.recv(), replaced.recv()), (Ok(0), Ok(1)));
    assert_eq!(engine.embed(call(1, &["a"])).await.unwrap().vectors, expected("a"));
    assert_eq!(engine.stats().retries, 0);
}

/// Computes its first batch, the proof, on one device, and all others on the next.
struct Moving(SimBackend, Description);

impl Backend for Moving {
    fn description(&self) -> &Description {
        &self.1
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.1.device = if self.1.device.is_empty() { "sim:0".into() } else { "sim:1".into() };
        self.0.run(batch, out)
    }
}

fn moving() -> BackendFactory {
    Box::new(|_| {
        let sim = SimBackend::new(model().dimensions);
        let description = Description { device: String::new(), ..sim.description().clone() };
        Ok(Box::new(Moving(sim, description)))
    })
}

#[tokio::test]
async fn the_device_of_a_check_is_told_as_that_of_a_batch() {
    let config =
        EngineConfig { check_interval: Duration::from_millis(2), ..config(Limits::default()) };
    let engine = configured(pools(moving(), 1), config);
    let device = || engine.descriptions().remove(0).description.device;
    let moves = async {
        while device() != "sim:1" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), moves).await.expect("nobody calls");
}

#[tokio::test]
async fn who_waits_for_a_worker_to_move_is_told() {
    let engine = start(moving(), Limits::default(), 1);
    let known = engine.devices();
    assert_eq!(known, ["sim:0"]);
    let moved = engine.devices_other_than(&known);
    let moved = tokio::time::timeout(Duration::from_secs(60), moved);
    let (moved, reply) = tokio::join!(moved, engine.embed(call(1, &["a"])));
    moved.expect("nobody tells of it");
    reply.unwrap();
    assert_eq!(engine.devices(), ["sim:1"]);
}

#[tokio::test]
async fn a_backend_that_turns_wrong_and_is_never_idle_is_found() {
    let strays = Arc::new(AtomicBool::new(false));
    let check_interval = Duration::from_millis(50);
    let config = EngineConfig { check_interval, ..config(Limits::default()) };
    let engine = configured(vec![straying(&strays)], config);
    strays.store(true, Ordering::Relaxed);
    let found = async {
        while engine.stats().worker_restarts == 0 {
            // The last may be told that no worker can be had.
            let _ = engine.embed(call(1, &["a"])).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("it answers on");
}

/// They may be on the same device.
#[tokio::test]
async fn when_one_worker_has_turned_wrong_the_others_are_asked() {
    let [strays, has_failed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let Pool { factory, reference, .. } = straying(&strays);
    let failing: BackendFactory = Box::new(move |worker| {
        let has_failed = Arc::clone(&has_failed);
        Ok(around(factory(worker)?, move |straying, batch, out| {
            // Whoever has it first has to prove itself then, and who has it next does not.
            if batch.ids.contains(&i32::from(b'!')) && !has_failed.swap(true, Ordering::Relaxed) {
                return Err(BackendError::Failed("on purpose".into()));
            }
            straying.run(batch, out)
        }))
    });
    let check_interval = Duration::from_secs(3600);
    let config = EngineConfig { check_interval, ..config(Limits::default()) };
    let engine = configured(vec![Pool { reference, workers: 2, ..Pool::new(failing) }], config);
    strays.store(true, Ordering::Relaxed);
    let both = async {
        let _ = engine.embed(call(1, &["!"])).await;
        while engine.descriptions().iter().any(|worker| worker.restarts == 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("one answers on");
}
