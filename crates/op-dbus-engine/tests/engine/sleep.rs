//! What is told of workers that could not be had when the machine goes to sleep.

use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    Absence, BackendError, BackendFactory, LoadErrorKind, Pool, Presence, WorkerState,
};

use super::support::{held, of_pools, sim};

/// Of several, one lets go at once, and another only when its try to load has ended.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_could_not_be_had_are_not_there_by_a_sleep() {
    for (workers, failures, before) in
        [(1, 0, Presence::Loading), (1, 3, Presence::Lost), (2, 3, Presence::Lost)]
    {
        let ((wait, mut loading, hold), made) = (held(), [const { AtomicUsize::new(0) }; 2]);
        let factory: BackendFactory = Box::new(move |worker| {
            let number = made[worker].fetch_add(1, Ordering::SeqCst);
            if number == 0 {
                return sim(Faults::default());
            }
            if worker + 1 == workers && number > failures {
                wait();
            }
            let message = "broken on purpose".to_owned();
            Err(BackendError::Load { kind: LoadErrorKind::Other, message })
        });
        let engine = of_pools(vec![Pool { workers, holds_device: true, ..Pool::new(factory) }]);
        engine.unload().await;
        let load = tokio::spawn({
            let engine = engine.clone();
            async move { engine.load().await }
        });
        loading.recv().await.unwrap();
        while engine.presence() != before {
            tokio::task::yield_now().await;
        }
        engine.begin_sleep();
        let is_there = || {
            let descriptions = engine.descriptions();
            let mut others = descriptions.iter().take(workers - 1);
            others.any(|worker| worker.state != WorkerState::Unloaded)
        };
        while is_there() {
            tokio::task::yield_now().await;
        }
        assert_eq!(engine.presence(), before, "none was loaded");
        drop(hold);
        assert_eq!(engine.presence_other_than(before).await, Presence::Unloaded(Absence::Sleep));
        load.abort();
    }
}
