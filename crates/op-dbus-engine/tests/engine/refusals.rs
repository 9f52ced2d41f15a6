//! Backends that refuse a batch: some texts, or everything from then on.

use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{Backend, BackendError, Error, Limits};

use crate::around::around;
use crate::support::*;

#[tokio::test]
async fn a_refused_batch_is_tried_once_more_text_by_text() {
    let faults = Faults { fail_on_batch: Some(2), ..Faults::default() };
    let engine = with_faults(vec![faults], Limits::default());
    engine.embed(call(1, &["a", "b", "c"])).await.unwrap();
    let stats = engine.stats();
    assert_eq!((stats.retries, stats.worker_restarts, stats.batches), (3, 0, 3));
}

/// Refuses a text with a tilde; once it was given so many batches, everything.
fn refuses(mut batches: usize) -> Result<Box<dyn Backend>, BackendError> {
    Ok(around(sim(Faults::default())?, move |sim, batch, out| {
        batches = batches.saturating_sub(1);
        match batches == 0 || batch.ids.contains(&i32::from(b'~')) {
            true => Err(BackendError::Failed("CUDA failure 700".into())),
            false => sim.run(batch, out),
        }
    }))
}

/// As a context of CUDA's in which a kernel has failed: nobody's call ends with it.
#[tokio::test]
async fn a_backend_that_refuses_everything_is_replaced() {
    let made = AtomicUsize::new(0);
    let factory = move |_| match made.fetch_add(1, Ordering::Relaxed) {
        0 => refuses(3),
        _ => refuses(usize::MAX),
    };
    let engine = start(Box::new(factory), Limits::default(), 1);
    for text in ["a", "b", "c"] {
        assert_eq!(engine.embed(call(1, &[text])).await.unwrap().vectors, expected(text));
    }
    let stats = engine.stats();
    assert_eq!((stats.retries, stats.worker_restarts), (1, 1));
    let told = engine.descriptions().remove(0).last_error.unwrap_or_default();
    assert!(told.contains("700") && told.contains("the engine's own text"), "{told}");
}

#[tokio::test]
async fn a_text_that_is_refused_by_itself_costs_no_worker() {
    let engine = start(Box::new(|_| refuses(usize::MAX)), Limits::default(), 1);
    let (bad, good) =
        tokio::join!(engine.embed(call(1, &["bad~"])), engine.embed(call(2, &["good"])));
    assert!(matches!(bad, Err(Error::WorkerFailed(BackendError::Failed(_)))), "{bad:?}");
    assert_eq!(good.unwrap().vectors, expected("good"));
    assert_eq!(engine.stats().worker_restarts, 0);
}
