//! Vectors that are kept: the same bits, in the right places, computed once, and nobody else's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    BackendFactory, BatchLimits, Cache, Call, Engine, EngineConfig, Error, Excess, Inputs, Limits,
    Pool, RowSink, Truncate,
};

use crate::around::around;
use crate::support::{begin, call, config, configured, expected, pools, reference, sim};

const ROOM: u64 = 1 << 20;

fn caching(limits: Limits) -> (Engine, Arc<Cache>) {
    let cache = Arc::new(Cache::new(ROOM));
    let config = EngineConfig { cache: cache.clone(), ..config(limits) };
    (configured(pools(Box::new(|_| sim(Faults::default())), 2), config), cache)
}

#[tokio::test]
async fn what_was_computed_is_not_computed_again() {
    let (engine, cache) = caching(Limits::default());
    let first = engine.embed(call(1, &["one", "two"])).await.unwrap();
    assert_eq!((first.cached, first.tokens), (0, 10));
    let before = engine.stats();
    let again = engine.embed(call(1, &["two", "one"])).await.unwrap();
    assert_eq!((again.cached, again.tokens, again.compute_us), (2, first.tokens, 0));
    assert_eq!(again.vectors, [expected("two"), expected("one")].concat());
    assert_eq!((&again.provider, &again.device), (&first.provider, &first.device));
    assert_eq!(again.precision, first.precision);
    let after = engine.stats();
    assert_eq!((after.tokens, after.batches), (before.tokens, before.batches));
    assert_eq!((after.cached, after.calls, after.texts), (2, 2, 4));
    assert_eq!(after.compute_us.count(), 1, "no time is told of a call without a batch");
    assert_eq!(cache.kept().vectors, 2);
}

#[tokio::test]
async fn what_is_kept_counts_against_the_quota_as_well() {
    let (engine, _cache) = caching(Limits { quota_tokens: 8, ..Limits::default() });
    engine.embed(call(1, &["text"])).await.unwrap();
    assert_eq!(engine.embed(call(1, &["text"; 8])).await.unwrap().cached, 8);
    let error = engine.embed(call(1, &["text"; 9])).await.unwrap_err();
    assert_eq!(error, Error::TooLarge { excess: Excess::QuotaTokens, found: 9, limit: 8 });
}

/// Whoever calls keeps its text, in the message that it came with, while others are computed.
#[tokio::test]
async fn what_is_kept_counts_by_its_memory_beside_what_is_computed() {
    let (engine, _cache) = caching(Limits { quota_tokens: 68, ..Limits::default() });
    let long = "x".repeat(2048);
    engine.embed(call(1, &[&long])).await.unwrap();
    assert_eq!(engine.embed(call(1, &[long.as_str(); 3])).await.unwrap().cached, 3);
    let error = engine.embed(call(1, &[&long, "new"])).await.unwrap_err();
    assert_eq!(error, Error::TooLarge { excess: Excess::QuotaTokens, found: 69, limit: 68 });
}

#[tokio::test]
async fn kept_and_computed_vectors_are_in_the_order_of_the_texts() {
    let (engine, _cache) = caching(Limits::default());
    let texts: Vec<String> = (0..300).map(|n| format!("text {n}")).collect();
    let odd: Vec<&str> = texts.iter().skip(1).step_by(2).map(String::as_str).collect();
    engine.embed(call(1, &odd)).await.unwrap();
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    let reply = engine.embed(call(1, &all)).await.unwrap();
    assert_eq!((reply.cached, reply.rows), (150, 300));
    let tokens = reply.tokens;
    let wanted: Vec<f32> = texts.iter().flat_map(|text| expected(text)).collect();
    assert_eq!(reply.vectors, wanted);
    // The same through a sink, which all rows reach once.
    let taken = Arc::new(Mutex::new(vec![Vec::new(); 300]));
    let sink = {
        let taken = Arc::clone(&taken);
        RowSink::new(move |text, vector| {
            taken.lock().unwrap()[text as usize].extend_from_slice(vector)
        })
    };
    let reply = engine.embed(Call { sink: Some(sink), ..call(1, &all) }).await.unwrap();
    assert_eq!((reply.cached, reply.tokens), (300, tokens));
    assert_eq!(taken.lock().unwrap().concat(), wanted);
}

#[tokio::test]
async fn another_user_computes_anew() {
    let (engine, cache) = caching(Limits::default());
    engine.embed(call(1, &["secret"])).await.unwrap();
    let other = engine.embed(call(2, &["secret"])).await.unwrap();
    assert_eq!((other.cached, other.tokens), (0, 8));
    assert_eq!(cache.kept().vectors, 2);
    // Nor does another engine of the same cache find it.
    let config = EngineConfig { cache: cache.clone(), ..config(Limits::default()) };
    let second = configured(pools(Box::new(|_| sim(Faults::default())), 1), config);
    assert_eq!(second.embed(call(1, &["secret"])).await.unwrap().cached, 0);
    assert_eq!(cache.kept().vectors, 3);
    drop(second);
    assert_eq!(cache.kept().vectors, 2, "an engine that ends leaves nothing");
}

#[tokio::test]
async fn options_that_change_a_vector_are_another_vector() {
    let (engine, _cache) = caching(Limits::default());
    let long = "x".repeat(100);
    let texts = [long.as_str(), "short"];
    let calls = || {
        let plain = || call(1, &texts);
        [
            plain(),
            Call { truncate: Truncate::Start, ..plain() },
            Call { truncate: Truncate::Mean, ..plain() },
            Call { dimensions: Some(4), ..plain() },
        ]
    };
    let mut replies = Vec::new();
    for call in calls() {
        let reply = engine.embed(call).await.unwrap();
        assert_eq!((reply.cached, &reply.truncated), (0, &vec![0]));
        replies.push(reply);
    }
    for (call, first) in calls().into_iter().zip(&replies) {
        let again = engine.embed(call).await.unwrap();
        assert_eq!((again.cached, &again.vectors), (2, &first.vectors));
        assert_eq!(again.truncated, [0], "that a text was cut is told again");
    }
    let strict = Call { truncate: Truncate::Error, ..call(1, &texts) };
    assert!(matches!(engine.embed(strict).await, Err(Error::TooLong { index: 0, .. })));
}

fn ids_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test]
async fn token_ids_are_kept_as_texts_are() {
    let (engine, _cache) = caching(Limits::default());
    let tokens = || Inputs::Tokens(vec![ids_of("one"), ids_of("two")]);
    let embed = || engine.embed(Call { uid: 1, inputs: tokens(), ..Call::default() });
    let first = embed().await.unwrap();
    let again = embed().await.unwrap();
    assert_eq!((first.cached, again.cached), (0, 2));
    assert_eq!(first.vectors, again.vectors);
    assert_eq!(first.vectors, [expected("one"), expected("two")].concat());
}

#[tokio::test]
async fn a_kept_text_counts_as_one_token_of_the_quota() {
    let quota = Limits { quota_tokens: 24, queue_tokens_max: 24, ..Limits::default() };
    let (engine, _cache) = caching(quota);
    let (first, second) = ("a".repeat(20), "b".repeat(20));
    for text in [&first, &second] {
        engine.embed(call(1, &[text])).await.unwrap();
    }
    assert_eq!(engine.embed(call(1, &[&first, &second])).await.unwrap().cached, 2);
    let refused = engine.embed(call(2, &[&first, &second])).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "another user has nothing kept");
}

#[tokio::test]
async fn what_is_unloaded_or_off_keeps_nothing() {
    let (engine, cache) = caching(Limits::default());
    engine.embed(call(1, &["one"])).await.unwrap();
    engine.unload().await;
    assert_eq!(cache.kept().vectors, 0);
    assert_eq!(engine.embed(call(1, &["one"])).await.unwrap().cached, 0);
    cache.resize(0);
    for _ in 0..2 {
        assert_eq!(engine.embed(call(1, &["one"])).await.unwrap().cached, 0);
    }
    assert_eq!(cache.kept().bytes, 0);
}

/// Since when it computes others nobody knows.
#[tokio::test]
async fn what_a_worker_made_is_forgotten_once_its_vectors_are_wrong() {
    let strays = Arc::new(AtomicBool::new(false));
    let is_straying = Arc::clone(&strays);
    let factory: BackendFactory = Box::new(move |_| {
        let strays = Arc::clone(&is_straying);
        Ok(around(sim(Faults::default())?, move |sim, batch, out| {
            sim.run(batch, out)?;
            if strays.load(Ordering::Relaxed) {
                out.reverse();
            }
            Ok(())
        }))
    });
    let pool = Pool { reference: Some(reference()), ..Pool::new(factory) };
    let cache = Arc::new(Cache::new(ROOM));
    let config = EngineConfig { cache: cache.clone(), ..config(Limits::default()) };
    let engine = configured(vec![pool], config);
    strays.store(true, Ordering::Relaxed);
    assert_ne!(engine.embed(call(1, &["a"])).await.unwrap().vectors, expected("a"));
    assert_eq!(cache.kept().vectors, 1);
    engine.wake();
    let lost = async {
        while engine.stats().worker_restarts == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), lost).await.unwrap();
    assert_eq!(cache.kept().vectors, 0);
    strays.store(false, Ordering::Relaxed);
    // The first may hear of the last that could not be had.
    let again = async {
        loop {
            if let Ok(reply) = engine.embed(call(1, &["a"])).await {
                return reply;
            }
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await.unwrap();
    assert_eq!((again.vectors, again.cached), (expected("a"), 0));
}

#[tokio::test]
async fn what_is_kept_as_a_whole_is_in_time_whatever_is_queued() {
    // Twenty tokens a second, of which a batch has 40.
    let slow = Faults { us_per_token: Some(50_000), ..Faults::default() };
    let factory: BackendFactory = Box::new(move |_| sim(slow.clone()));
    let batch = BatchLimits { tokens_max: 40, ..BatchLimits::default() };
    let pool = Pool { batch, ..Pool::new(factory) };
    let config = EngineConfig { cache: Arc::new(Cache::new(ROOM)), ..config(Limits::default()) };
    let engine = configured(vec![pool], config);
    let texts =
        |from: usize| (from..from + 10).map(|n| format!("text no {n:02}")).collect::<Vec<_>>();
    let begin = |texts: Vec<String>| begin(&engine, Call { inputs: texts.into(), ..call(1, &[]) });
    // After a batch that was full it is known how long others take.
    begin(texts(0)).await.unwrap().unwrap();
    // 12 tokens a text: some 6 s.
    let queued = begin(texts(10));
    while engine.stats().in_flight_calls < 1 {
        tokio::task::yield_now().await;
    }
    let in_time = |texts: Vec<String>| {
        let deadline = Some(Instant::now() + Duration::from_secs(4));
        engine.embed(Call { inputs: texts.into(), deadline, ..call(1, &[]) })
    };
    let late = in_time(texts(20)).await;
    assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
    assert_eq!(in_time(texts(0)).await.unwrap().cached, 10);
    queued.await.unwrap().unwrap();
}
