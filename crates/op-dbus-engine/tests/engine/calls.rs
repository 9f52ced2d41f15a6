//! What a call gives back: its own vectors, in order, cut and normalised as asked.

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{
    BatchLayout, BatchLimits, Call, CancellationToken, Engine, EngineConfig, Error, Limits,
    ModelShape, Priority, Tokenizer, Truncate,
};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn each_of_64_concurrent_callers_gets_its_own_vectors() {
    let engine = plain();
    let callers: Vec<_> = (0..64u32)
        .map(|caller| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let texts: Vec<_> = (0..1 + caller % 7).map(|n| format!("{caller}:{n}")).collect();
                let call =
                    Call { uid: caller % 5, inputs: texts.clone().into(), ..Call::default() };
                let reply = engine.embed(call).await.unwrap();
                assert_eq!((reply.rows, reply.dimensions), (texts.len(), DIMENSIONS));
                for (text, vector) in texts.iter().zip(reply.vectors.chunks(DIMENSIONS)) {
                    assert_eq!(vector, expected(text), "{text}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let stats = engine.stats();
    assert_eq!((stats.calls, stats.in_flight_calls, stats.in_flight_tokens), (64, 0, 0));
    assert_eq!((stats.queue_texts, stats.queue_tokens), (0, 0));
    assert_eq!(stats.compute_us.count(), 64);
    assert!(stats.padded_tokens >= stats.tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_call_is_answered_in_the_order_of_its_texts() {
    let engine = plain();
    let texts: Vec<_> = (0..3000).map(|n| "x".repeat(n % 29) + &n.to_string()[..1]).collect();
    let call = Call { inputs: texts.clone().into(), ..Call::default() };
    let reply = engine.embed(call).await.unwrap();
    for (text, vector) in texts.iter().zip(reply.vectors.chunks(DIMENSIONS)) {
        assert_eq!(vector, expected(text), "{text}");
    }
    let tokens: usize = texts.iter().map(|text| text.len() + 2).sum();
    assert_eq!(reply.tokens, tokens as u64);
    assert_eq!(engine.stats().tokens, tokens as u64);
    assert_eq!(reply.provider, "sim");
}

#[tokio::test]
async fn empty_texts_nul_and_no_texts_are_fine() {
    let engine = plain();
    let reply = engine.embed(call(0, &["", "a\0b", "\u{1f600}"])).await.unwrap();
    assert_eq!(reply.vectors[..DIMENSIONS], expected(""));
    assert_eq!(reply.vectors[DIMENSIONS..2 * DIMENSIONS], expected("a\0b"));
    let none = engine.embed(call(0, &[])).await.unwrap();
    assert_eq!((none.rows, none.dimensions, none.provider.as_str()), (0, DIMENSIONS, "sim"));
}

#[tokio::test]
async fn long_texts_are_cut_as_asked_and_reported() {
    let engine = plain();
    let long = "abcdefghijklmnopqrstuvwxyz0123456789";
    let embed = |truncate| {
        let call = Call { truncate, ..call(0, &["short", long]) };
        let engine = &engine;
        async move { engine.embed(call).await }
    };
    let end = embed(Truncate::End).await.unwrap();
    assert_eq!(end.vectors[DIMENSIONS..], expected(&long[..30]));
    assert_eq!((end.truncated, end.tokens), (vec![1], 7 + 32));
    let start = embed(Truncate::Start).await.unwrap();
    assert_eq!(start.vectors[DIMENSIONS..], expected(&long[6..]));
    let mean = embed(Truncate::Mean).await.unwrap();
    let (head, tail) = (expected(&long[..30]), expected(&long[30..]));
    let mut want: Vec<f32> = head.iter().zip(&tail).map(|(a, b)| 30.0 * a + 6.0 * b).collect();
    let norm = want.iter().map(|x| x * x).sum::<f32>().sqrt();
    want.iter_mut().for_each(|x| *x /= norm);
    for (got, want) in mean.vectors[DIMENSIONS..].iter().zip(want) {
        assert!((got - want).abs() < 1e-6);
    }
    assert_eq!((mean.truncated, mean.tokens), (vec![1], 7 + 32 + 8));
    let error = embed(Truncate::Error).await.unwrap_err();
    assert_eq!(error, Error::TooLong { index: 1, tokens: 38, limit: INPUT_MAX });
    assert_eq!(engine.stats().truncated, 3);
    assert_eq!(engine.stats().failures["too-long"], 1);
}

#[tokio::test]
async fn vectors_are_cut_only_to_trained_sizes() {
    let engine = plain();
    let cut = |dimensions| Call { dimensions: Some(dimensions), ..call(0, &["a"]) };
    let reply = engine.embed(cut(4)).await.unwrap();
    assert_eq!(reply.dimensions, 4);
    let norm: f32 = reply.vectors.iter().map(|x| x * x).sum();
    assert!((norm - 1.0).abs() < 1e-5);
    assert_eq!(engine.embed(cut(DIMENSIONS)).await.unwrap().vectors, expected("a"));
    for dimensions in [0, 3, 9, usize::MAX] {
        let error = engine.embed(cut(dimensions)).await.unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument(m) if m.contains("4, 8")), "{error}");
    }
}

/// Vectors of length two: a model that does not normalise.
struct Doubled(SimBackend);

impl op_dbus_engine::Backend for Doubled {
    fn description(&self) -> &op_dbus_engine::Description {
        self.0.description()
    }

    fn run(
        &mut self,
        batch: &op_dbus_engine::Batch<'_>,
        out: &mut [f32],
    ) -> Result<(), op_dbus_engine::BackendError> {
        self.0.run(batch, out)?;
        out.iter_mut().for_each(|x| *x *= 2.0);
        Ok(())
    }
}

#[tokio::test]
async fn normalisation_is_added_but_never_taken_away() {
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt().round();
    let asked = |normalize| Call { normalize, ..call(0, &["a"]) };
    let engine = plain();
    let error = engine.embed(asked(Some(false))).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)));
    assert_eq!(length(&engine.embed(asked(Some(true))).await.unwrap().vectors), 1.0);
    let raw = Engine::start(
        Tokenizer::bytes(INPUT_MAX),
        ModelShape { normalized: false, ..model() },
        pools(Box::new(|_| Ok(Box::new(Doubled(SimBackend::new(DIMENSIONS))))), 1),
        EngineConfig::default(),
    )
    .unwrap();
    for (normalize, want) in [(None, 2.0), (Some(false), 2.0), (Some(true), 1.0)] {
        assert_eq!(length(&raw.embed(asked(normalize)).await.unwrap().vectors), want);
    }
}

#[tokio::test]
async fn tokens_are_counted_before_truncation() {
    let engine = plain();
    let mut texts = vec![String::new(), "ab".into(), "x".repeat(100)];
    assert_eq!(engine.count_tokens(7, texts.clone()).await.unwrap(), [2, 4, 102]);
    texts.resize(500, "y".repeat(50));
    let counts = engine.count_tokens(7, texts).await.unwrap();
    assert_eq!((counts.len(), counts[0], counts[2], counts[499]), (500, 2, 102, 52));
}

#[tokio::test]
async fn batches_form_while_the_worker_is_busy() {
    let gate = Gate::new(Limits::default());
    let embed = |text: &str| gate.begin(call(1, &[text]));
    let first = embed("first");
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), ["first"]);
    let later = [embed("bb"), embed("aa"), embed("cc")];
    tokio::task::yield_now().await;
    gate.go();
    assert_eq!(gate.next_batch(), ["aa", "bb", "cc"]);
    gate.go();
    first.await.unwrap().unwrap();
    for call in later {
        call.await.unwrap().unwrap();
    }
    assert_eq!(gate.engine.stats().batches, 2);
    assert_eq!(gate.engine.descriptions()[0].batches, 2);
}

#[tokio::test]
async fn a_packed_layout_counts_no_padding() {
    for (layout, padded_tokens) in [(BatchLayout::Padded, 2 * 12), (BatchLayout::Packed, 3 + 12)] {
        let batch = BatchLimits { layout, ..BatchLimits::default() };
        let engine = batched(Box::new(|_| sim(Default::default())), Limits::default(), batch, 1);
        let reply = engine.embed(call(1, &["a", "abcdefghij"])).await.unwrap();
        assert_eq!(reply.vectors, [expected("a"), expected("abcdefghij")].concat());
        let stats = engine.stats();
        assert_eq!((stats.batches, stats.tokens, stats.padded_tokens), (1, 15, padded_tokens));
    }
}

#[tokio::test]
async fn interactive_calls_overtake_a_bulk_job() {
    let limits = Limits { bulk_wait_us_max: u64::MAX, ..Limits::default() };
    let batch = BatchLimits { tokens_max: 32, ..BatchLimits::default() };
    // On a device also the next of the job, which is planned by then.
    for (gate, waiting) in
        [(Gate::batched(limits.clone(), batch), 5), (Gate::on_device(limits, batch), 4)]
    {
        let texts = vec!["x".repeat(30); 6];
        let bulk = Call { inputs: texts.into(), priority: Some(Priority::Bulk), ..Call::default() };
        let bulk = gate.begin(bulk);
        tokio::task::yield_now().await;
        gate.next_batch();
        assert_eq!(gate.engine.stats().queue_texts, waiting);
        let quick = gate.begin(call(0, &["quick"]));
        tokio::task::yield_now().await;
        gate.go();
        assert_eq!(gate.next_batch(), ["quick"]);
        gate.go();
        quick.await.unwrap().unwrap();
        (0..5).for_each(|_| gate.go());
        assert_eq!(bulk.await.unwrap().unwrap().rows, 6);
    }
}

#[tokio::test]
async fn bulk_that_has_waited_has_every_second_batch_of_a_device_too() {
    let limits = Limits { bulk_wait_us_max: 0, ..Limits::default() };
    let batch = BatchLimits { tokens_max: 32, ..BatchLimits::default() };
    for gate in [
        Gate::batched(limits.clone(), batch),
        Gate::on_device(limits.clone(), batch),
        Gate::beginning(limits, batch, 1),
    ] {
        let full = |text: &str, count| -> Vec<String> { vec![text.repeat(30); count] };
        let bulk =
            Call { inputs: full("x", 6).into(), priority: Some(Priority::Bulk), ..Call::default() };
        let bulk = gate.begin(bulk);
        tokio::task::yield_now().await;
        // Each has one text.
        let mut began = gate.next_batch().concat()[..1].to_owned();
        let quick = gate.begin(Call { inputs: full("y", 4).into(), ..Call::default() });
        tokio::task::yield_now().await;
        for _ in 1..10 {
            gate.go();
            began += &gate.next_batch().concat()[..1];
        }
        gate.go();
        assert_eq!(began, "xxyxyxyxyx");
        assert_eq!(bulk.await.unwrap().unwrap().rows, 6);
        assert_eq!(quick.await.unwrap().unwrap().rows, 4);
    }
}

#[tokio::test]
async fn a_device_begins_the_next_batch_while_it_computes_if_that_takes_little_time() {
    let batch = BatchLimits { tokens_max: 32, ..BatchLimits::default() };
    for (cost_us, begins) in [(1, true), (10_000_000, false)] {
        let gate = Gate::beginning(Limits::default(), batch, cost_us);
        let texts: Vec<String> = ["a", "b", "c", "d", "e"].map(|text| text.repeat(30)).into();
        let inputs = texts.clone().into();
        let bulk = Call { inputs, priority: Some(Priority::Bulk), ..Call::default() };
        let bulk = gate.begin(bulk);
        tokio::task::yield_now().await;
        for text in &texts {
            assert_eq!(gate.next_batch(), std::slice::from_ref(text));
            let begun = gate.begun_batch().map(|begun| begun.concat());
            let next = texts.iter().find(|next| *next > text);
            assert_eq!(begun.as_ref(), next.filter(|_| begins));
            gate.go();
        }
        let all: Vec<f32> = texts.iter().flat_map(|text| expected(text)).collect();
        assert_eq!(bulk.await.unwrap().unwrap().vectors, all);
    }
}

#[tokio::test]
async fn a_batch_that_would_not_be_full_is_not_planned_ahead() {
    let batch = BatchLimits { tokens_max: 32, ..BatchLimits::default() };
    let gate = Gate::on_device(Limits::default(), batch);
    let first = gate.begin(call(1, &["first"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), ["first"]);
    let second = gate.begin(call(1, &["second"]));
    tokio::task::yield_now().await;
    gate.go();
    first.await.unwrap().unwrap();
    // Planned when the worker was free: whoever came until then would have been part of it.
    assert_eq!(gate.next_batch(), ["second"]);
    let third = gate.begin(call(1, &["third"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.engine.stats().queue_texts, 1);
    (0..2).for_each(|_| gate.go());
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_call_leaves_the_queue() {
    let gate = Gate::new(Limits::default());
    let cancel = CancellationToken::default();
    let running = gate.begin(call(1, &["running"]));
    tokio::task::yield_now().await;
    gate.next_batch();
    let queued = Call { cancel: cancel.clone(), ..call(1, &["cancelled"]) };
    let queued = gate.begin(queued);
    let dropped = gate.begin(call(1, &["dropped"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.engine.stats().queue_texts, 2);
    cancel.cancel();
    dropped.abort();
    assert_eq!(queued.await.unwrap(), Err(Error::Cancelled));
    assert!(dropped.await.unwrap_err().is_cancelled());
    let last = gate.begin(call(1, &["last"]));
    tokio::task::yield_now().await;
    gate.go();
    assert_eq!(gate.next_batch(), ["last"]);
    gate.go();
    running.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(gate.engine.stats().in_flight_tokens, 0);
    let again = Call { cancel, ..call(1, &["again"]) };
    assert_eq!(gate.engine.embed(again).await, Err(Error::Cancelled));
}

#[tokio::test]
async fn a_text_that_cannot_be_tokenized_is_named_by_its_place_in_the_call() {
    let json = br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
        "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,
        "decoder":null,"model":{"type":"WordLevel","unk_token":"missing","vocab":{"The":0,"quick":1,
        "brown":2,"fox":3,"jumps":4,"over":5,"the":6,"lazy":7,"dog":8,".":9,"a":10}}}"#;
    let engine = Engine::start(
        Tokenizer::from_bytes(json, INPUT_MAX).unwrap(),
        model(),
        pools(Box::new(|_| sim(Default::default())), 1),
        config(Limits::default()),
    )
    .unwrap();
    let mut texts = vec!["the lazy dog".to_owned(); 300];
    assert_eq!(engine.count_tokens(7, texts.clone()).await.unwrap(), [3; 300]);
    texts[217] = "the cat".into();
    let call = Call { inputs: texts.clone().into(), ..Call::default() };
    for error in
        [engine.embed(call).await.unwrap_err(), engine.count_tokens(7, texts).await.unwrap_err()]
    {
        assert!(error.to_string().starts_with("text 217 can't be tokenized"), "{error}");
    }
}
