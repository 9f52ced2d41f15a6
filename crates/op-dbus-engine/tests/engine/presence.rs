//! Unloading and loading again, sleeping, and giving memory back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use op_dbus_engine::sim::{Faults, SimBackend};
use op_dbus_engine::{
    Absence, Backend, BackendError, BackendFactory, Batch, Description, Engine, Error, Footprint,
    Limits, LoadErrorKind, Pool, Presence, WorkerState,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::support::{DIMENSIONS, Gate, begin, call, expected, held, of_pools, pools, sim};

/// Backends that are counted, and can be told not to load.
#[derive(Clone, Default)]
struct Backends {
    made: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Backends {
    fn factory(&self) -> BackendFactory {
        let backends = self.clone();
        Box::new(move |_| {
            backends.made.fetch_add(1, Ordering::SeqCst);
            if backends.broken.load(Ordering::SeqCst) {
                let message = "broken on purpose".to_owned();
                return Err(BackendError::Load { kind: LoadErrorKind::Other, message });
            }
            sim(Faults::default())
        })
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    /// An engine with two workers, which may hold a device.
    fn engine(&self, holds_device: bool) -> Engine {
        of_pools(vec![Pool { workers: 2, holds_device, ..Pool::new(self.factory()) }])
    }
}

fn are_all(engine: &Engine, state: WorkerState) -> bool {
    engine.descriptions().iter().all(|worker| worker.state == state)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_engine_answers_and_calls_share_one_load() {
    let backends = Backends::default();
    let engine = backends.engine(false);
    engine.unload().await;
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Asked));
    assert!(are_all(&engine, WorkerState::Unloaded));
    assert_eq!(engine.count_tokens(7, vec!["ab".into()]).await.unwrap(), [4]);
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Asked), "counting needs no worker");

    let calls: Vec<_> = (0..16).map(|uid| begin(&engine, call(uid, &["text"]))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().vectors, expected("text"));
    }
    engine.load().await.unwrap();
    assert_eq!(engine.presence(), Presence::Loaded);
    assert_eq!(backends.made(), 4, "each worker once, and once again");
    assert_eq!(engine.stats().worker_restarts, 0, "none was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_engine_that_ends_is_not_loaded_by_that() {
    let engine = Backends::default().engine(false);
    engine.unload().await;
    engine.drain(Instant::now() + Duration::from_secs(10)).await;
    assert!(are_all(&engine, WorkerState::Stopped));
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Asked));
    engine.unload().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_does_not_wait_for_a_backend_in_place_of_a_lost_one() {
    let ((wait, mut loading, hold), made) = (held(), AtomicUsize::new(0));
    let factory: BackendFactory = Box::new(move |_| {
        if made.fetch_add(1, Ordering::SeqCst) == 0 {
            return sim(Faults { die_on_batch: Some(2), ..Faults::default() });
        }
        wait();
        sim(Faults::default())
    });
    let engine = of_pools(pools(factory, 1));
    let lost = begin(&engine, call(1, &["text"]));
    loading.recv().await.unwrap();
    engine.canary().await.unwrap();
    drop(hold);
    lost.await.unwrap().unwrap();
}

/// Nor are those that are still on their way.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_could_not_be_had_are_not_there_by_an_unload() {
    for (failures, before) in [(0, Presence::Loading), (3, Presence::Lost)] {
        let ((wait, mut loading, hold), made) = (held(), AtomicUsize::new(0));
        let factory: BackendFactory = Box::new(move |_| {
            let number = made.fetch_add(1, Ordering::SeqCst);
            if number == 0 {
                return sim(Faults::default());
            }
            if number > failures {
                wait();
            }
            let message = "broken on purpose".to_owned();
            Err(BackendError::Load { kind: LoadErrorKind::Other, message })
        });
        let engine = of_pools(pools(factory, 1));
        engine.unload().await;
        let load = tokio::spawn({
            let engine = engine.clone();
            async move { engine.load().await }
        });
        loading.recv().await.unwrap();
        assert_eq!(engine.presence(), before);
        engine.begin_unload().await;
        assert_eq!(engine.presence(), before, "none was loaded");
        drop(hold);
        assert_eq!(engine.presence_other_than(before).await, Presence::Unloaded(Absence::Asked));
        load.abort();
    }
}

/// Nobody has to wait for it, be it on its way or given up.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_there_with_one_of_its_workers() {
    let ((wait, mut loading, hold), made) = (held(), AtomicUsize::new(0));
    let factory: BackendFactory = Box::new(move |number| {
        if number == 0 || made.fetch_add(1, Ordering::SeqCst) == 0 {
            return sim(Faults::default());
        }
        wait();
        Err(BackendError::Lost("broken on purpose".to_owned()))
    });
    let engine = of_pools(pools(factory, 2));
    engine.unload().await;
    let all = tokio::spawn({
        let engine = engine.clone();
        async move { engine.load().await }
    });
    loading.recv().await.unwrap();
    let there = engine.presence_other_than(Presence::Loading);
    let there = tokio::time::timeout(Duration::from_secs(60), there).await;
    assert_eq!(there.expect("one of them is there"), Presence::Loaded);
    drop(hold);
    all.await.unwrap().unwrap();
    assert_eq!(engine.presence(), Presence::Loaded);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_idle_only_without_calls() {
    let gate = Gate::new(Limits::default());
    let embedding = gate.begin(call(1, &["slow"]));
    gate.next_batch();
    assert_eq!(gate.engine.idle_for(), None);
    assert!(!gate.engine.unload_idle(Duration::ZERO));
    gate.go();
    embedding.await.unwrap().unwrap();
    assert!(!gate.engine.unload_idle(Duration::from_secs(3600)), "the call has just ended");
    assert!(gate.engine.unload_idle(Duration::ZERO));
    let presence = gate.engine.presence_other_than(Presence::Loaded).await;
    assert_eq!(presence, Presence::Unloaded(Absence::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_neither_loads_an_engine_nor_keeps_it() {
    let backends = Backends::default();
    let engine = backends.engine(false);
    engine.canary().await.unwrap();
    let idle = engine.idle_for().unwrap();
    engine.canary().await.unwrap();
    assert!(engine.idle_for().unwrap() >= idle, "its own text counted as a call");
    // Neither does who counts tokens, which takes no worker.
    engine.count_tokens(1, vec!["x".repeat(32 << 10)]).await.unwrap();
    assert!(engine.idle_for().unwrap() >= idle, "a look counted as a call");
    engine.unload().await;
    engine.canary().await.unwrap();
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Asked));
    assert_eq!(backends.made(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn unloading_under_fire_loses_no_call() {
    let backends = Backends::default();
    let engine = backends.engine(false);
    let calls: Vec<_> = (0..4)
        .map(|uid| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for n in 0..200 {
                    let text = format!("{uid} {n}");
                    let reply = engine.embed(call(uid, &[&text])).await.unwrap();
                    assert_eq!(reply.vectors, expected(&text));
                    if n % 8 == 0 {
                        engine.unload_idle(Duration::ZERO);
                        engine.canary().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    // Whatever they have left, nothing is in flight now.
    engine.load().await.unwrap();
    let made = backends.made();
    engine.unload().await;
    engine.embed(call(1, &["last"])).await.unwrap();
    engine.load().await.unwrap();
    assert_eq!(backends.made(), made + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_load_again_says_why_and_recovers() {
    let backends = Backends::default();
    let engine = backends.engine(false);
    engine.unload().await;
    backends.broken.store(true, Ordering::SeqCst);
    let error = engine.embed(call(1, &["text"])).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error}");
    assert!(engine.load().await.is_err());
    engine.failing().await;
    // Unloaded, it forgets what failed, and tries again when it is needed.
    engine.unload().await;
    backends.broken.store(false, Ordering::SeqCst);
    let reply = engine.embed(call(1, &["text"])).await.unwrap();
    assert_eq!(reply.vectors, expected("text"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_let_go_for_a_sleep_and_calls_wait() {
    let backends = Backends::default();
    let engine = backends.engine(true);
    engine.sleep().await;
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Sleep));
    let waiting = begin(&engine, call(1, &["text"]));
    while engine.stats().queue_texts == 0 {
        tokio::task::yield_now().await;
    }
    assert!(are_all(&engine, WorkerState::Unloaded));
    engine.wake();
    assert_eq!(waiting.await.unwrap().unwrap().vectors, expected("text"));
    engine.load().await.unwrap();
    assert_eq!(backends.made(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_stays_for_a_sleep_and_proves_itself_after_it() {
    let engine = Backends::default().engine(false);
    engine.sleep().await;
    assert_eq!(engine.presence(), Presence::Loaded);
    engine.embed(call(1, &["meanwhile"])).await.unwrap();
    engine.wake();
    engine.embed(call(1, &["after"])).await.unwrap();
    // One that would not compute any more is lost in its check, before anybody's batch.
    let dies = Faults { die_on_batch: Some(2), ..Faults::default() };
    let engine = super::support::with_faults(vec![dies], Limits::default());
    engine.sleep().await;
    engine.wake();
    while engine.stats().worker_restarts == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(engine.embed(call(1, &["text"])).await.unwrap().vectors, expected("text"));
    assert_eq!(engine.stats().retries, 0, "no caller's batch has met it");
}

/// Which is nothing that anybody has to be told of.
#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_beside_a_device_answers_while_that_is_let_go() {
    let pool = |holds_device| {
        let factory: BackendFactory = Box::new(|_| sim(Faults::default()));
        Pool { holds_device, ..Pool::new(factory) }
    };
    let engine = of_pools(vec![pool(true), pool(false)]);
    engine.sleep().await;
    assert_eq!(engine.descriptions()[0].state, WorkerState::Unloaded);
    assert_eq!(engine.presence(), Presence::Loaded);
    let reply = engine.embed(call(1, &["meanwhile"])).await.unwrap();
    assert_eq!(reply.vectors, expected("meanwhile"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_engine_that_slept_stays_unloaded() {
    let backends = Backends::default();
    let engine = backends.engine(true);
    engine.unload().await;
    engine.sleep().await;
    engine.wake();
    engine.trim().await;
    assert_eq!(engine.presence(), Presence::Unloaded(Absence::Asked));
    assert_eq!(backends.made(), 2);
}

/// A backend that tells when it is asked for memory, and gives back [`GIVEN`] when the test lets it.
struct Trimmed {
    sim: SimBackend,
    asked: UnboundedSender<()>,
    go: Arc<Mutex<mpsc::Receiver<()>>>,
}

const GIVEN: Footprint = Footprint { given_back: 7, resident: 100 };

impl Backend for Trimmed {
    fn description(&self) -> &Description {
        self.sim.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.sim.run(batch, out)
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        self.asked.send(()).unwrap();
        self.go.lock().unwrap().recv().unwrap();
        Ok(GIVEN)
    }
}

/// An engine with such a worker.
fn trimmed() -> (Engine, UnboundedReceiver<()>, mpsc::Sender<()>) {
    let (asked, begun) = unbounded_channel();
    let (go, wait) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let factory: BackendFactory = Box::new(move |_| {
        let (sim, asked, go) = (SimBackend::new(DIMENSIONS), asked.clone(), Arc::clone(&wait));
        Ok(Box::new(Trimmed { sim, asked, go }))
    });
    (of_pools(pools(factory, 1)), begun, go)
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_given_back_for_nobody_is_not_told_again() {
    let (engine, mut begun, go) = trimmed();
    tokio::select! {
        biased;
        _ = engine.trim() => panic!("nothing was given back yet"),
        _ = begun.recv() => {}
    }
    (0..2).for_each(|_| go.send(()).unwrap());
    // Behind the first.
    engine.embed(call(1, &["text"])).await.unwrap();
    assert_eq!(engine.trim().await, GIVEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_memory_at_the_same_time_is_told_the_same() {
    let (engine, mut begun, go) = trimmed();
    let begin = async {
        begun.recv().await;
        go.send(()).unwrap();
    };
    let (one, other, ()) = tokio::join!(biased; engine.trim(), engine.trim(), begin);
    assert_eq!((one, other), (GIVEN, GIVEN));
}
