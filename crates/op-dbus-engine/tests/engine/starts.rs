//! How engines start: with some of their workers, or not at all.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    BackendError, BackendFactory, LoadErrorKind, Pool, Presence, Tokenizer, WorkerState,
};

use crate::support::*;

fn broken() -> BackendError {
    BackendError::Load { kind: LoadErrorKind::Other, message: "broken on purpose".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_that_does_not_load_is_tried_again_while_others_compute() {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let factory: BackendFactory = Box::new(move |number| match number {
        0 if !is_mended.load(Ordering::Relaxed) => Err(broken()),
        _ => sim(Faults::default()),
    });
    let devices = ["gpu:0", "gpu:1"].map(str::to_owned).to_vec();
    let engine = of_pools(vec![Pool { workers: 2, devices, ..Pool::new(factory) }]);
    let first = engine.descriptions().remove(0);
    let about = (first.state, first.description.device.as_str(), first.description.pid);
    assert_eq!(about, (WorkerState::Restarting, "gpu:0", 0));
    assert_eq!(first.last_error.as_deref(), Some("broken on purpose"));
    assert_eq!((engine.presence(), engine.is_failing()), (Presence::Loaded, false));
    assert_eq!(engine.embed(call(1, &["a"])).await.unwrap().vectors, expected("a"));
    mended.store(true, Ordering::Relaxed);
    while engine.descriptions()[0].state == WorkerState::Restarting {
        tokio::task::yield_now().await;
    }
}

/// Another kind does not make up for those that were asked for, nor they for it.
#[test]
fn a_kind_of_which_no_worker_loads_fails_the_start() {
    let pool = |is_broken| {
        let factory: BackendFactory =
            Box::new(move |_| if is_broken { Err(broken()) } else { sim(Faults::default()) });
        Pool { workers: 2, ..Pool::new(factory) }
    };
    of_pools(vec![pool(false), pool(false)]);
    for broken_first in [true, false] {
        let error = try_of_pools(vec![pool(broken_first), pool(!broken_first)]).unwrap_err();
        assert_eq!(error, broken());
    }
}

/// Before the others begin, and not as one that was lost.
#[test]
fn a_worker_that_is_not_done_without_fails_the_start() {
    let made = |number: usize| if number == 1 { Err(broken()) } else { sim(Faults::default()) };
    let pool = |devices: [&str; 2]| {
        let devices = devices.map(str::to_owned).to_vec();
        Pool { workers: 2, devices, ..Pool::new(Box::new(made)) }
    };
    of_pools(vec![pool(["gpu:0", "gpu:0"])]);
    let whole = Pool { whole: true, ..pool(["gpu:0", "gpu:0"]) };
    assert_eq!(try_of_pools(vec![whole]).unwrap_err(), broken());
    // The simulator tells of one device.
    assert_eq!(try_of_pools(vec![pool(["gpu:0", "gpu:1"])]).unwrap_err(), broken());
}

/// In a process of its own, where each thread would have a stack that is larger than all there is.
#[test]
fn a_reference_for_which_no_thread_can_be_had_is_refused() {
    const OWN: &str = "WITHOUT_THREADS";
    const NAME: &str = "starts::a_reference_for_which_no_thread_can_be_had_is_refused";
    if env::var_os(OWN).is_some() {
        let factory: BackendFactory = Box::new(|_| sim(Faults::default()));
        let tokenizer = Tokenizer::bytes(INPUT_MAX);
        let made = op_dbus_engine::reference(&tokenizer, &model(), &factory, 0.9999);
        let why = made.unwrap_err().to_string();
        assert!(why.starts_with("a thread could not be started"), "{why}");
        return;
    }
    let mut own = Command::new(env::current_exe().unwrap());
    own.args(["--exact", NAME, "--test-threads=1"]);
    own.env(OWN, "1").env("RUST_MIN_STACK", (1_u64 << 62).to_string());
    let said = String::from_utf8(own.output().unwrap().stdout).unwrap();
    assert!(said.contains("1 passed"), "{said}");
}
