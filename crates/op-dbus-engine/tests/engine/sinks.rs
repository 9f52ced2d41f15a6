//! Vectors that go to a sink of the caller's, and calls that wait for room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{Backend, BackendError, Call, Error, Limits, RowSink, Truncate};

use crate::around::around;
use crate::support::{DIMENSIONS, call, expected, plain, start};

/// Vectors by text, with the address at which each was handed over.
type Taken = Arc<Mutex<BTreeMap<u32, (usize, Vec<f32>)>>>;

fn sink(taken: &Taken, dimensions: usize) -> Option<RowSink> {
    let taken = taken.clone();
    Some(RowSink::new(move |first, vectors| {
        for (vector, text) in vectors.chunks(dimensions).zip(first..) {
            let vector = (vector.as_ptr().addr(), vector.to_vec());
            let before = taken.lock().unwrap().insert(text, vector);
            assert!(before.is_none(), "text {text} came twice");
        }
    }))
}

#[tokio::test]
async fn a_sink_gets_each_vector_once_and_is_dropped_before_the_reply() {
    let engine = plain();
    let texts: Vec<String> = (0..200).map(|n| "x".repeat(n % 60)).collect();
    for (truncate, dimensions) in
        [(Truncate::End, None), (Truncate::Mean, None), (Truncate::End, Some(4))]
    {
        let call =
            || Call { inputs: texts.clone().into(), truncate, dimensions, ..Call::default() };
        let (taken, whole) = (Taken::default(), engine.embed(call()).await.unwrap());
        let sink = sink(&taken, dimensions.unwrap_or(DIMENSIONS));
        let reply = engine.embed(Call { sink, ..call() }).await.unwrap();
        assert_eq!((reply.rows, reply.vectors.len()), (200, 0));
        assert_eq!((reply.tokens, &reply.truncated), (whole.tokens, &whole.truncated));
        let taken = Arc::into_inner(taken).expect("the sink is gone").into_inner().unwrap();
        let vectors: Vec<f32> = taken.into_values().flat_map(|(_, vector)| vector).collect();
        assert_eq!(vectors, whole.vectors);
    }
}

#[tokio::test]
async fn a_sink_is_handed_what_the_backend_wrote_and_no_copy_of_it() {
    let places = Arc::<Mutex<Vec<_>>>::default();
    let noted = places.clone();
    let noting = move |_| {
        let noted = noted.clone();
        Ok(around(Box::new(SimBackend::new(DIMENSIONS)), move |sim, batch, out| {
            let bytes = out.as_ptr_range();
            noted.lock().unwrap().push(bytes.start.addr()..bytes.end.addr());
            sim.run(batch, out)
        }))
    };
    let engine = start(Box::new(noting), Limits::default(), 1);
    let taken = Taken::default();
    let texts: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let sink = sink(&taken, DIMENSIONS);
    engine.embed(Call { inputs: texts.into(), sink, ..Call::default() }).await.unwrap();
    let places = places.lock().unwrap();
    let taken = taken.lock().unwrap();
    let is_copy = |at: &usize| !places.iter().any(|place| place.contains(at));
    let copies = taken.values().filter(|(at, _)| is_copy(at)).count();
    assert_eq!(taken.len(), 100);
    assert_eq!(copies, 0);
}

#[tokio::test]
async fn texts_that_follow_one_another_in_a_batch_are_handed_over_at_once() {
    let runs = Arc::<Mutex<Vec<(u32, usize)>>>::default();
    let noted = runs.clone();
    let sink = RowSink::new(move |first, vectors| {
        noted.lock().unwrap().push((first, vectors.len() / DIMENSIONS));
    });
    let engine = plain();
    let inputs = vec!["as long as the others".to_owned(); 300].into();
    engine.embed(Call { inputs, sink: Some(sink), ..Call::default() }).await.unwrap();
    let runs = runs.lock().unwrap();
    assert_eq!(runs.iter().map(|(_, rows)| rows).sum::<usize>(), 300);
    // A batch may hold texts of two places: those nearest in length to the one that it begins with.
    assert!(runs.len() as u64 <= 2 * engine.stats().batches, "{runs:?}");
    assert!(runs.len() < 100, "{runs:?}");
}

#[tokio::test]
async fn a_sink_that_panics_ends_its_own_call_alone() {
    let engine = plain();
    for dimensions in [None, Some(4)] {
        let (neighbour, sink) = (call(1, &["a neighbour"]), RowSink::new(|_, _| panic!("a sink")));
        let inputs = vec!["as long as the others".to_owned(); 300].into();
        let call = Call { inputs, dimensions, sink: Some(sink), ..Call::default() };
        let (refused, reply) = tokio::join!(engine.embed(call), engine.embed(neighbour));
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, Error::InvalidArgument(why) if why.contains("sink of the call"))
        );
        assert_eq!(reply.unwrap().vectors, expected("a neighbour"));
    }
    assert_eq!(engine.stats().worker_restarts, 0);
}

#[tokio::test]
async fn a_call_that_waits_is_admitted_where_others_are_refused() {
    let limits = Limits { quota_tokens: 40, queue_tokens_max: 40, ..Limits::default() };
    let backend =
        |_| -> Result<Box<dyn Backend>, BackendError> { Ok(Box::new(SimBackend::new(DIMENSIONS))) };
    let engine = start(Box::new(backend), limits, 1);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let engine = engine.clone();
        let call = Call { wait: true, ..call(1, &["0123456789abcdef"]) };
        calls.spawn(async move { engine.embed(call).await });
    }
    while let Some(reply) = calls.join_next().await {
        assert_eq!(reply.unwrap().unwrap().vectors, expected("0123456789abcdef"));
    }
}
