//! A worker in reserve: what interactive callers have of it, and nobody else.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    BackendError, BackendFactory, Call, Error, Pool, Priority, Reply, WorkerState,
};
use tokio::task::JoinHandle;

use crate::around::around;
use crate::support::*;

fn bulk(text: &str) -> Call {
    Call { priority: Some(Priority::Bulk), ..call(1, &[text]) }
}

/// A gate behind which a batch of bulk is kept, and the call that waits for it.
fn keeping_bulk(gate: &Gate) -> JoinHandle<Result<Reply, Error>> {
    let call = gate.begin(bulk("bulk"));
    assert_eq!(gate.next_batch(), ["bulk"]);
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn interactive_texts_pass_a_bulk_batch_that_runs_and_bulk_does_not() {
    let gate = Gate::reserved(|| sim(Faults::default()));
    let first = keeping_bulk(&gate);
    assert_eq!(gate.engine.descriptions().len(), 1, "a reserve that nobody needs is not there");
    let second = gate.begin(bulk("more"));
    for text in ["a", "b"] {
        let reply = gate.engine.embed(call(2, &[text])).await.unwrap();
        assert_eq!(reply.vectors, expected(text));
    }
    let workers = gate.engine.descriptions();
    let seen: Vec<_> = workers.iter().map(|worker| (worker.reserved, worker.batches)).collect();
    assert_eq!(seen, [(false, 0), (true, 2)]);
    gate.go();
    assert_eq!(gate.next_batch(), ["more"]);
    gate.go();
    assert_eq!(first.await.unwrap().unwrap().vectors, expected("bulk"));
    assert_eq!(second.await.unwrap().unwrap().vectors, expected("more"));
    assert_eq!(gate.engine.descriptions()[1].batches, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_leaves_what_an_idle_worker_can_do() {
    let gate = Gate::reserved(|| sim(Faults::default()));
    let first = keeping_bulk(&gate);
    gate.engine.embed(call(2, &["a"])).await.unwrap();
    gate.go();
    first.await.unwrap().unwrap();
    let alone = gate.begin(call(2, &["b"]));
    assert_eq!(gate.next_batch(), ["b"]);
    gate.go();
    assert_eq!(alone.await.unwrap().unwrap().vectors, expected("b"));
    assert_eq!(gate.engine.descriptions()[1].batches, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_cannot_be_had_costs_nobody_a_vector() {
    let gate = Gate::reserved(|| Err(BackendError::Lost("there is no room for another".into())));
    let first = keeping_bulk(&gate);
    let waits = gate.begin(call(2, &["a"]));
    // It waits for the worker that is there.
    gate.go();
    assert_eq!(gate.next_batch(), ["a"]);
    gate.go();
    assert_eq!(first.await.unwrap().unwrap().vectors, expected("bulk"));
    assert_eq!(waits.await.unwrap().unwrap().vectors, expected("a"));
    let workers = gate.engine.descriptions();
    assert_eq!(workers.len(), 1);
    assert!(matches!(workers[0].state, WorkerState::Idle | WorkerState::Busy));
    assert!(!gate.engine.is_failing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_goes_with_the_others() {
    let gate = Gate::reserved(|| sim(Faults::default()));
    let first = keeping_bulk(&gate);
    gate.engine.embed(call(2, &["a"])).await.unwrap();
    gate.go();
    first.await.unwrap().unwrap();
    gate.engine.unload().await;
    let workers = gate.engine.descriptions();
    assert_eq!(
        workers.iter().map(|worker| worker.state).collect::<Vec<_>>(),
        [WorkerState::Unloaded]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_computes_while_the_worker_that_it_stands_beside_is_replaced() {
    let ((say, said), (go, wait)) = (channel(), channel::<()>());
    let (wait, mut is_first) = (Arc::new(Mutex::new(wait)), true);
    // The first worker is lost with its first batch, and the one in its place takes its time.
    let ordinary = Mutex::new(move || {
        let pause = {
            let (say, wait) = (say.clone(), Arc::clone(&wait));
            move |at| {
                say.send(at).unwrap();
                // Fails when the test is over.
                let _ = wait.lock().unwrap().recv();
            }
        };
        if !std::mem::take(&mut is_first) {
            pause("loads");
            return sim(Faults::default());
        }
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            if batch.ids.contains(&i32::from(b'~')) {
                pause("computes");
                return Err(BackendError::Lost("it is out of order".into()));
            }
            sim.run(batch, out)
        }))
    });
    let factory: BackendFactory = Box::new(move |number| match number {
        0 => (ordinary.lock().unwrap())(),
        _ => sim(Faults::default()),
    });
    let engine = of_pools(vec![Pool { reserved: 1, ..Pool::new(factory) }]);
    let first = begin(&engine, bulk("~"));
    assert_eq!(said.recv().unwrap(), "computes");
    engine.embed(call(2, &["a"])).await.unwrap();
    go.send(()).unwrap();
    assert_eq!(said.recv().unwrap(), "loads");
    assert_eq!(engine.embed(call(2, &["b"])).await.unwrap().vectors, expected("b"));
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().vectors, expected("~"));
}
