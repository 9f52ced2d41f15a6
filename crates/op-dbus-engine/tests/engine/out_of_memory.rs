//! Batches that do not fit the device.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{BackendError, Error, Limits, Pool};

use crate::around::around;
use crate::support::*;

#[tokio::test]
async fn a_batch_that_does_not_fit_is_halved() {
    let texts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let faults = Faults { oom_above_rows: Some(1), ..Faults::default() };
    let engine = with_faults(vec![faults], Limits::default());
    let reply = engine.embed(call(1, &texts)).await.unwrap();
    assert_eq!(reply.vectors, texts.map(expected).concat());
    assert_eq!(engine.stats().batches, 8);
    assert_eq!(engine.stats().worker_restarts, 0);
}

#[tokio::test]
async fn a_batch_of_which_no_eighth_fits_is_computed_text_by_text() {
    let faults = Faults { oom_above_rows: Some(1), ..Faults::default() };
    let engine = with_faults(vec![faults], Limits::default());
    let texts: Vec<_> = "abcdefghijklmnopqrstuvwxyz".split_inclusive(|_| true).collect();
    let wanted: Vec<_> = texts.iter().flat_map(|text| expected(text)).collect();
    assert_eq!(engine.embed(call(1, &texts)).await.unwrap().vectors, wanted);
    let stats = engine.stats();
    assert_eq!((stats.batches, stats.worker_restarts), (26, 0));
}

/// What does not end is seen in each part, as the watchdog has to.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_batch_is_computed_as_a_batch_is() {
    let ((begun, begins), (go, wait)) = (channel(), channel::<()>());
    let wait = Arc::new(Mutex::new(wait));
    let made = move |_| {
        let (begun, wait) = (begun.clone(), Arc::clone(&wait));
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            if batch.rows() > 1 {
                return Err(BackendError::OutOfMemory("one row fits".into()));
            }
            // The second of the two parts.
            if batch.ids.contains(&i32::from(b'~')) {
                begun.send(()).unwrap();
                // Fails when the test is over.
                let _ = wait.lock().unwrap().recv();
            }
            sim.run(batch, out)
        }))
    };
    let engine = start(Box::new(made), Limits::default(), 1);
    let call = begin(&engine, call(1, &["a", "~"]));
    begins.recv().unwrap();
    assert_eq!(engine.stats().batches, 1, "the first part is done");
    assert!(engine.busy_for().is_some());
    go.send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap().vectors, ["a", "~"].map(expected).concat());
}

/// As a server that says of one text that it is too large: neither do its neighbours fail, nor are later
/// batches smaller.
#[tokio::test]
async fn a_text_that_fits_nowhere_fails_alone() {
    // Has no room for a text with a tilde.
    let made = |_| {
        Ok(around(sim(Faults::default())?, |sim, batch, out| {
            match batch.ids.contains(&i32::from(b'~')) {
                true => Err(BackendError::OutOfMemory("it is too large".into())),
                false => sim.run(batch, out),
            }
        }))
    };
    let engine = of_pools(vec![Pool::new(Box::new(made))]);
    let texts: Vec<_> = "abcdefghijklmnopqrstuvwxy".split_inclusive(|_| true).collect();
    let wanted: Vec<_> = texts.iter().flat_map(|text| expected(text)).collect();
    let with_large = [&texts[..], &["~"]].concat();
    let error = engine.embed(call(1, &with_large)).await.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    // While one batch is computed the texts of both calls wait for the next.
    let (bad, good) = (call(1, &with_large), call(2, &texts));
    let (bad, good) = tokio::join!(engine.embed(bad), engine.embed(good));
    assert!(bad.is_err());
    assert_eq!(good.unwrap().vectors, wanted);
    let before = engine.stats().batches;
    assert_eq!(engine.embed(call(1, &texts)).await.unwrap().vectors, wanted);
    assert_eq!(engine.stats().batches - before, 1, "batches are as large as before");
}

/// As the memory of a device that others fill: what fits a new worker's part of it is computed, and batches
/// stay as small for a time.
#[tokio::test]
async fn a_worker_without_memory_on_its_device_is_replaced_and_gets_smaller_batches() {
    let faults = Faults { oom_above_rows: Some(1), ..Faults::default() };
    let pool = Pool {
        holds_device: true,
        losses_max: Some(2),
        ..Pool::new(Box::new(move |_| sim(faults.clone())))
    };
    let engine = of_pools(vec![pool]);
    let texts: Vec<_> = "abcdefghijklmnopqrstuvwxyz".split_inclusive(|_| true).collect();
    let wanted: Vec<_> = texts.iter().flat_map(|text| expected(text)).collect();
    assert_eq!(engine.embed(call(1, &texts)).await.unwrap().vectors, wanted);
    let restarts = engine.stats().worker_restarts;
    assert!(restarts >= 1);
    for _ in 0..3 {
        assert_eq!(engine.embed(call(1, &texts)).await.unwrap().vectors, wanted);
    }
    assert_eq!(engine.stats().worker_restarts, restarts, "batches are small enough");
    assert!(!engine.is_failing());
}

/// Its worker proves itself and has no memory for a single text.
#[tokio::test]
async fn a_device_that_has_no_memory_for_texts_is_given_up() {
    let made = |_| {
        let mut left = 1_usize;
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            let none = || BackendError::OutOfMemory("none left".into());
            left = left.checked_sub(1).ok_or_else(none)?;
            sim.run(batch, out)
        }))
    };
    let pool = Pool { holds_device: true, losses_max: Some(2), ..Pool::new(Box::new(made)) };
    let engine = of_pools(vec![pool]);
    let error = engine.embed(call(1, &["a"])).await.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    assert!(engine.is_failing());
    let losses = engine.losses().unwrap();
    assert!(losses.starts_with("lost 2 batches of late (out of memory"), "{losses}");
}
