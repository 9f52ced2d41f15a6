//! Workers that prove themselves and lose batches: when they are given up.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, BatchLimits, Engine, Error, Limits, Pool,
};

use crate::around::around;
use crate::support::*;

fn dies_on_batch(n: u64) -> Faults {
    Faults { die_on_batch: Some(n), ..Faults::default() }
}

/// One worker, in whose place another pool could come. The proof is the first batch of each backend.
fn replaceable(factory: BackendFactory) -> Engine {
    let batch = BatchLimits { tokens_max: 512, ..BatchLimits::default() };
    of_pools(vec![Pool { losses_max: Some(2), batch, ..Pool::new(factory) }])
}

/// Embeds one text after the other until one fails, or all are there.
async fn embed(engine: &Engine, texts: usize) -> Result<(), Error> {
    for n in 0..texts {
        let text = n.to_string();
        assert_eq!(engine.embed(call(1, &[&text])).await?.vectors, expected(&text));
    }
    Ok(())
}

#[tokio::test]
async fn losses_with_few_batches_in_between_give_a_worker_up() {
    let engine = replaceable(Box::new(|_| sim(dies_on_batch(30))));
    let error = embed(&engine, 60).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error:?}");
    assert!(engine.is_failing());
    let losses = engine.losses().unwrap();
    assert!(losses.starts_with("lost 2 batches of late ("), "{losses}");
}

#[tokio::test]
async fn losses_with_many_batches_in_between_give_nobody_up() {
    let engine = replaceable(Box::new(|_| sim(dies_on_batch(40))));
    embed(&engine, 160).await.unwrap();
    assert!(engine.stats().worker_restarts >= 3 && !engine.is_failing());
}

/// Whoever does so may stop.
#[tokio::test]
async fn a_worker_that_is_killed_now_and_then_is_kept() {
    let engine = replaceable(Box::new(|_| {
        let mut left = 3_usize;
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            let killed = || BackendError::Killed("on purpose".into());
            left = left.checked_sub(1).ok_or_else(killed)?;
            sim.run(batch, out)
        }))
    }));
    embed(&engine, 12).await.unwrap();
    assert!(engine.stats().worker_restarts >= 3 && !engine.is_failing());
}

/// Its neighbours are computed in between, one by one: it is for whoever takes the place of these workers.
#[tokio::test]
async fn a_text_that_is_lost_twice_gives_the_pool_up() {
    let made = AtomicUsize::new(0);
    let engine = replaceable(Box::new(move |_| {
        let is_first = made.fetch_add(1, Ordering::Relaxed) == 0;
        sim(dies_on_batch(if is_first { 2 } else { 40 }))
    }));
    // As long as one another: one batch.
    let texts: Vec<String> = (10..70).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let error = engine.embed(call(1, &texts)).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error:?}");
    assert_eq!(engine.descriptions()[0].batches, 38);
    assert!(engine.is_failing());
}

/// The first time somebody killed it.
#[tokio::test]
async fn a_text_that_is_lost_once_by_the_device_itself_gives_nobody_up() {
    let made = AtomicUsize::new(0);
    let engine = replaceable(Box::new(move |_| {
        let is_first = made.fetch_add(1, Ordering::Relaxed) == 0;
        let mut batches = 0;
        let around_it = around(sim(dies_on_batch(40))?, move |sim, batch, out| {
            batches += 1;
            match is_first && batches == 2 {
                true => Err(BackendError::Killed("on purpose".into())),
                false => sim.run(batch, out),
            }
        });
        Ok(around_it)
    }));
    let texts: Vec<String> = (10..70).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    // The one that it is lost with the second time fails.
    assert!(engine.embed(call(1, &texts)).await.is_err());
    assert!(!engine.is_failing());
}

/// Its worker was lost before as well, long ago and with another one.
#[tokio::test]
async fn a_text_that_is_refused_and_then_lost_gives_nobody_up() {
    // After the text is refused, 46 is the engine's own and 47 the text alone.
    let refuses = Faults { fail_on_batch: Some(45), ..dies_on_batch(47) };
    let faults = Mutex::new([dies_on_batch(2), refuses].into_iter());
    let engine =
        replaceable(Box::new(move |_| sim(faults.lock().unwrap().next().unwrap_or_default())));
    let error = embed(&engine, 60).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error:?}");
    assert_eq!(engine.descriptions()[0].batches, 43);
    assert!(!engine.is_failing());
}

/// Backends that can't hold the values of "!".
fn overflows(_: usize) -> Result<Box<dyn Backend>, BackendError> {
    Ok(around(sim(Faults::default())?, |sim, batch, out| {
        sim.run(batch, out)?;
        if batch.ids.contains(&i32::from(b'!')) {
            out.fill(f32::NAN);
        }
        Ok(())
    }))
}

/// Another backend of this kind makes no more of it.
#[tokio::test]
async fn a_text_without_numbers_costs_one_worker_and_gives_the_pool_up() {
    let engine = replaceable(Box::new(overflows));
    let error = engine.embed(call(1, &["!"])).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(BackendError::Lost(_))), "{error:?}");
    assert!(engine.is_failing(), "it is for whoever takes the place of these workers");
    let alone = start(Box::new(overflows), Limits::default(), 1);
    for _ in 0..2 {
        alone.embed(call(1, &["!"])).await.unwrap_err();
        assert_eq!(alone.embed(call(1, &["a"])).await.unwrap().vectors, expected("a"));
    }
    assert_eq!(alone.stats().worker_restarts, 2, "more than one for each text");
}

/// Two of these workers are given up for it, and the third computes for all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_two_of_three_workers_lose_fails_alone() {
    let faults = Faults { die_on_token: Some(i32::from(b'!')), ..Faults::default() };
    let factory: BackendFactory = Box::new(move |_| sim(faults.clone()));
    let engine = of_pools(vec![Pool { losses_max: Some(2), workers: 3, ..Pool::new(factory) }]);
    let error = engine.embed(call(1, &["!"])).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(BackendError::Lost(_))), "{error:?}");
    assert!(!engine.is_failing());
    embed(&engine, 8).await.unwrap();
}

/// What both fail is the text's fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_two_pools_lose_gives_neither_up() {
    let pool = |losses_max| {
        let faults = Faults { die_on_token: Some(i32::from(b'!')), ..Faults::default() };
        Pool { losses_max, ..Pool::new(Box::new(move |_| sim(faults.clone()))) }
    };
    let engine = of_pools(vec![pool(Some(2)), pool(None)]);
    let error = engine.embed(call(1, &["!"])).await.unwrap_err();
    assert!(matches!(error, Error::WorkerFailed(_)), "{error:?}");
    while engine.stats().worker_restarts < 2 {
        tokio::task::yield_now().await;
    }
    assert!(engine.descriptions().iter().all(|worker| worker.restarts == 1));
    assert!(!engine.is_failing());
}
