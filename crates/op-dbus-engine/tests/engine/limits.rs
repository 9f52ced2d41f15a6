//! Limits: refusals that come at once, deadlines, and the end.

use std::time::{Duration, Instant};

use op_dbus_engine::sim::Faults;
use op_dbus_engine::{
    BackendFactory, BatchLimits, Call, Error, Excess, Inputs, Limits, Truncate, WorkerState,
};

use crate::support::*;

/// Room for three texts of ten bytes, two of them of one user.
fn tight() -> Limits {
    Limits { queue_tokens_max: 36, quota_tokens: 24, ..Limits::default() }
}

const TEN: &str = "ten bytes.";

#[tokio::test]
async fn a_full_queue_and_a_full_quota_refuse_at_once() {
    let gate = Gate::new(tight());
    let embed = |uid, texts: &'static [&'static str]| gate.begin(call(uid, texts));
    let first = embed(1, &[TEN, TEN]);
    tokio::task::yield_now().await;
    gate.next_batch();
    let error = embed(1, &[TEN]).await.unwrap().unwrap_err();
    assert!(
        matches!(error, Error::QuotaExceeded { uid: 1, needed: 12, in_flight: 24, limit: 24, .. }),
        "{error:?}"
    );
    let error = embed(2, &[TEN, TEN]).await.unwrap().unwrap_err();
    let Error::Overloaded { needed: 24, in_flight: 24, limit: 36, retry_after_ms } = error else {
        panic!("{error:?}");
    };
    assert!(retry_after_ms > 0);
    let second = embed(2, &[TEN]);
    tokio::task::yield_now().await;
    gate.go();
    gate.go();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let third = embed(2, &[TEN, TEN]);
    gate.go();
    third.await.unwrap().unwrap();
    let failures = gate.engine.stats().failures;
    assert_eq!((failures["overloaded"], failures["quota-exceeded"]), (1, 1));
}

#[tokio::test]
async fn who_is_refused_is_told_to_come_back_when_there_is_room() {
    let gate = Gate::new(Limits { quota_tokens: 480, ..Limits::default() });
    let first = gate.begin(call(1, &[TEN; 40]));
    tokio::task::yield_now().await;
    let error = gate.engine.embed(call(1, &[TEN; 40])).await.unwrap_err();
    // Of 5000 tokens a second, until a batch was seen.
    assert!(
        matches!(error, Error::QuotaExceeded { in_flight: 480, retry_after_ms: 96, .. }),
        "{error:?}"
    );
    gate.go();
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_refused_is_counted_whatever_was_asked_for() {
    let limits = Limits { text_bytes_max: 8, ..Limits::default() };
    let engine = start(Box::new(|_| sim(Faults::default())), limits, 1);
    let refused =
        |error: Error| assert!(matches!(error, Error::TooLarge { limit: 8, .. }), "{error}");
    refused(engine.embed(call(1, &[TEN])).await.unwrap_err());
    refused(engine.count_tokens(1, vec![TEN.into()]).await.unwrap_err());
    refused(engine.tokenize(1, vec!["ten ".into()], "bytes").await.unwrap_err());
    // All of them as one text, where it is pieces that are asked for.
    refused(engine.tokenize(1, vec!["bytes".into(); 2], "").await.unwrap_err());
    assert_eq!(engine.stats().failures["too-large"], 4);
}

#[tokio::test]
async fn what_can_never_be_accepted_is_too_large() {
    let limits =
        Limits { texts_per_call_max: 4, text_bytes_max: 50, call_bytes_max: 90, ..tight() };
    let engine = start(Box::new(|_| sim(Default::default())), limits, 1);
    let long = "x".repeat(51);
    let excess = |texts: &[&str]| {
        let (engine, call) = (engine.clone(), call(1, texts));
        async move {
            match engine.embed(call).await.unwrap_err() {
                Error::TooLarge { excess, found, limit } => (excess, found, limit),
                error => panic!("{error:?}"),
            }
        }
    };
    assert_eq!(excess(&["a"; 5]).await, (Excess::Texts, 5, 4));
    assert_eq!(excess(&["a", &long]).await, (Excess::TextBytes { index: 1 }, 51, 50));
    assert_eq!(excess(&[&long[..40]; 3]).await, (Excess::CallBytes, 120, 90));
    assert_eq!(excess(&[TEN; 3]).await, (Excess::QuotaTokens, 36, 24));
    assert_eq!(excess(&[TEN; 4]).await, (Excess::QueueTokens, 48, 36));
    // What stands before each text counts as its part.
    let before = |texts: &[&str], bytes| Call { prefix: "x".repeat(bytes), ..call(1, texts) };
    let error = engine.embed(before(&["a", &long[..20]], 31)).await.unwrap_err();
    let text = Excess::TextBytes { index: 1 };
    assert_eq!(error, Error::TooLarge { excess: text, found: 51, limit: 50 });
    let error = engine.embed(before(&["a"; 3], 30)).await.unwrap_err();
    assert_eq!(error, Error::TooLarge { excess: Excess::CallBytes, found: 93, limit: 90 });
    let error = engine.tokenize(7, vec!["a".to_owned(); 3], &long[..30]).await.unwrap_err();
    assert_eq!(error, Error::TooLarge { excess: Excess::CallBytes, found: 93, limit: 50 });
    let error = engine.tokenize(7, vec![long.clone()], "").await.unwrap_err();
    assert!(error.to_string().ends_with("split the text"), "{error}");
    let message = engine.embed(call(1, &[&long])).await.unwrap_err().to_string();
    let expected =
        "the size of text 0 in bytes with any prompt is 51, the limit is 50; split the text";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn token_ids_that_are_too_many_are_told_in_ids() {
    let limits =
        Limits { texts_per_call_max: 4, text_bytes_max: 50, call_bytes_max: 90, ..tight() };
    let engine = start(Box::new(|_| sim(Default::default())), limits, 1);
    for (lists, told) in [
        (
            vec![vec![1]; 5],
            "the number of lists of token ids in the call is 5, the limit is 4; send the lists in \
             several calls",
        ),
        (
            vec![vec![1; 12], vec![1; 13]],
            "the size of text 1 in token ids is 13, the limit is 12; split the list of ids",
        ),
        (
            vec![vec![1; 12]; 2],
            "the size of all lists in token ids is 24, the limit is 22; send the lists in several \
             calls",
        ),
        (
            vec![vec![1; 11]; 2],
            "the call's share of its user's quota in tokens is 26, the limit is 24; send less in a \
             call, or raise quota_tokens",
        ),
    ] {
        let refused = engine.embed(Call { inputs: Inputs::Tokens(lists), ..call(1, &[]) }).await;
        assert_eq!(refused.unwrap_err().to_string(), told);
    }
}

#[tokio::test]
async fn who_counts_tokens_of_long_texts_has_a_quota_as_well() {
    let gate = Gate::new(Limits { quota_tokens: 1 << 10, ..Limits::default() });
    let engine = &gate.engine;
    let texts = |bytes: usize| vec!["x".repeat(bytes)];
    let most = 32 << 10;
    assert_eq!(engine.count_tokens(1, texts(most)).await.unwrap().len(), 1);
    let error = engine.count_tokens(1, texts(most + 32)).await.unwrap_err();
    let excess = Excess::QuotaTokens;
    assert_eq!(error, Error::TooLarge { excess, found: (1 << 10) + 1, limit: 1 << 10 });
    // Each takes memory while it waits, whatever it has.
    let error = engine.count_tokens(1, vec![String::new(); (1 << 10) + 1]).await.unwrap_err();
    assert_eq!(error, Error::TooLarge { excess, found: (1 << 10) + 1, limit: 1 << 10 });
    // Beside a call of the same user that is under way it is one too many.
    let running = gate.begin(call(1, &["running"]));
    tokio::task::yield_now().await;
    gate.next_batch();
    for refused in [
        engine.count_tokens(1, texts(most)).await.err(),
        engine.tokenize(1, texts(most), "").await.err(),
    ] {
        assert!(matches!(refused, Some(Error::QuotaExceeded { uid: 1, .. })), "{refused:?}");
    }
    assert!(engine.count_tokens(2, texts(most)).await.is_ok());
    gate.go();
    running.await.unwrap().unwrap();
    assert_eq!(engine.stats().in_flight_tokens, 0);
}

#[tokio::test]
async fn a_deadline_ends_the_wait() {
    let gate = Gate::new(Limits::default());
    let running = gate.begin(call(1, &["running"]));
    tokio::task::yield_now().await;
    gate.next_batch();
    let soon = Call { deadline: Some(Instant::now()), ..call(1, &["too late"]) };
    assert_eq!(gate.engine.embed(soon).await, Err(Error::DeadlineExceeded));
    let later = Instant::now() + Duration::from_millis(2);
    let queued = Call { deadline: Some(later), ..call(1, &["too late"]) };
    assert_eq!(gate.engine.embed(queued).await, Err(Error::DeadlineExceeded));
    gate.go();
    running.await.unwrap().unwrap();
    let next = gate.begin(call(1, &["next"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), ["next"]);
    gate.go();
    next.await.unwrap().unwrap();
}

#[tokio::test]
async fn draining_finishes_what_is_queued_and_refuses_the_rest() {
    let gate = Gate::new(Limits::default());
    let embed = |text: &str| gate.begin(call(1, &[text]));
    let running = embed("running");
    tokio::task::yield_now().await;
    gate.next_batch();
    let queued = embed("queued");
    tokio::task::yield_now().await;
    let engine = gate.engine.clone();
    let refused = async {
        assert_eq!(engine.embed(call(1, &["late"])).await, Err(Error::ShuttingDown));
        assert_eq!(engine.count_tokens(7, vec![]).await, Err(Error::ShuttingDown));
        assert_eq!(engine.canary().await, Err(Error::ShuttingDown));
        gate.go();
        gate.go();
    };
    tokio::join!(gate.engine.drain(Instant::now() + Duration::from_secs(60)), refused);
    running.await.unwrap().unwrap();
    queued.await.unwrap().unwrap();
    assert_eq!(gate.engine.descriptions()[0].state, WorkerState::Stopped);
}

#[tokio::test]
async fn draining_gives_up_at_its_deadline() {
    let gate = Gate::new(Limits::default());
    let embed = |text: &str| gate.begin(call(1, &[text]));
    let running = embed("running");
    tokio::task::yield_now().await;
    gate.next_batch();
    let queued = embed("queued");
    tokio::task::yield_now().await;
    gate.engine.drain(Instant::now()).await;
    assert_eq!(queued.await.unwrap(), Err(Error::ShuttingDown));
    // Its batch may take as long as it likes.
    assert_eq!(running.await.unwrap(), Err(Error::ShuttingDown));
    gate.go();
}

#[tokio::test]
async fn closing_ends_calls_and_waits_for_the_batch_that_runs() {
    let gate = Gate::new(Limits::default());
    let running = gate.begin(call(1, &["running"]));
    tokio::task::yield_now().await;
    gate.next_batch();
    let engine = gate.engine.clone();
    let closed = tokio::spawn(async move { engine.close().await });
    assert_eq!(running.await.unwrap(), Err(Error::ShuttingDown));
    assert!(!closed.is_finished());
    gate.go();
    closed.await.unwrap();
    assert_eq!(gate.engine.descriptions()[0].state, WorkerState::Stopped);
    assert_eq!(gate.engine.embed(call(1, &["late"])).await, Err(Error::ShuttingDown));
}

#[tokio::test]
async fn the_canary_needs_no_quota() {
    let limits = Limits { queue_tokens_max: 0, quota_tokens: 0, ..Limits::default() };
    let engine = start(Box::new(|_| sim(Default::default())), limits, 2);
    engine.canary().await.unwrap();
    assert!(matches!(engine.embed(call(1, &["a"])).await, Err(Error::TooLarge { .. })));
}

#[tokio::test]
async fn an_idle_worker_waits_for_more_if_told_to() {
    let limits = Limits { batch_delay_us_max: 2_000, ..Limits::default() };
    let gate = Gate::new(limits);
    let only = gate.begin(call(1, &["only"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), ["only"]);
    gate.go();
    assert!(only.await.unwrap().unwrap().queue_us >= 2_000);
}

#[tokio::test]
async fn what_is_not_done_by_its_deadline_is_refused_at_once_and_the_rest_is_done() {
    // A hundred tokens a second, of which a batch has 40.
    let slow = Faults { us_per_token: Some(10_000), ..Faults::default() };
    let batch = BatchLimits { tokens_max: 40, ..BatchLimits::default() };
    let factory: BackendFactory = Box::new(move |_| sim(slow.clone()));
    let engine = batched(factory, Limits::default(), batch, 1);
    let embed = |texts: usize, ms: u64| {
        let deadline = Some(Instant::now() + Duration::from_millis(ms));
        begin(&engine, Call { deadline, ..call(1, &vec![TEN; texts]) })
    };
    // Until a full batch was seen nobody is refused for it.
    let (first, second) = (embed(10, 60_000), embed(10, 60_000));
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    // 12 tokens a text: some 6 s together.
    let (before, behind) = (embed(40, 60_000), embed(10, 60_000));
    while engine.stats().in_flight_calls < 2 {
        tokio::task::yield_now().await;
    }
    let error = embed(10, 5_000).await.unwrap().unwrap_err();
    let Error::Late { needed: 120, before: 600, retry_after_ms, .. } = error else {
        panic!("{error:?}");
    };
    assert!(retry_after_ms > 0);
    assert_eq!(engine.stats().failures["overloaded"], 1);
    assert_eq!(engine.stats().in_flight_calls, 2, "it did not wait for the others");
    before.await.unwrap().unwrap();
    behind.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_computed_of_a_long_call_lets_others_be_in_time() {
    let batch = BatchLimits { tokens_max: 1024, ..BatchLimits::default() };
    // A hundred tokens a second, as far as is known.
    let gate = Gate::beginning(Limits::default(), batch, 10_000_000);
    let text = "x".repeat(INPUT_MAX - 2);
    // 32 tokens each: some 19 s.
    let long = gate.begin(call(1, &[text.as_str(); 60]));
    tokio::task::yield_now().await;
    gate.next_batch();
    let in_time = || {
        let deadline = Some(Instant::now() + Duration::from_secs(18));
        Call { deadline, ..call(1, &[&text]) }
    };
    let late = gate.engine.embed(in_time()).await;
    assert!(matches!(late, Err(Error::Late { before: 1920, .. })), "{late:?}");
    gate.go();
    // What the first batch made is delivered before the next one is shown.
    gate.next_batch();
    let next = gate.begin(in_time());
    tokio::task::yield_now().await;
    assert_eq!(gate.engine.stats().in_flight_calls, 2);
    (0..9).for_each(|_| gate.go());
    next.await.unwrap().unwrap();
    assert_eq!(long.await.unwrap().unwrap().tokens, 1920);
}

#[tokio::test]
async fn a_call_that_is_over_holds_no_room_while_no_worker_comes_by() {
    let gate = Gate::new(Limits { quota_tokens: 40, ..Limits::default() });
    let running = gate.begin(call(1, &["run"]));
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), ["run"]);
    let deadline = Some(Instant::now() + Duration::from_millis(1));
    let over = gate.engine.embed(Call { deadline, ..call(1, &[TEN; 2]) }).await;
    assert_eq!(over, Err(Error::DeadlineExceeded));
    let next = gate.begin(call(1, &[TEN; 2]));
    tokio::task::yield_now().await;
    assert_eq!(gate.engine.stats().in_flight_calls, 2);
    gate.go();
    assert_eq!(gate.next_batch(), [TEN; 2]);
    gate.go();
    running.await.unwrap().unwrap();
    next.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_left_of_a_call_that_is_over_makes_room_before_the_next_batch() {
    const HOUR_US: u64 = 3_600_000_000;
    let limits = Limits { quota_tokens: 64, batch_delay_us_max: HOUR_US, ..Limits::default() };
    let batch = BatchLimits { tokens_max: INPUT_MAX, ..BatchLimits::default() };
    let engine = batched(Box::new(|_| sim(Default::default())), limits, batch, 1);
    let begin = |uid, text| begin(&engine, call(uid, &[text]));
    let over = begin(1, "over");
    tokio::task::yield_now().await;
    over.abort();
    assert!(over.await.unwrap_err().is_cancelled());
    // The worker comes by, and waits for more.
    let _waiting = begin(2, "waiting");
    tokio::task::yield_now().await;
    // All that the user may have, and as much as no batch waits for.
    let text = "x".repeat(INPUT_MAX - 2);
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    let all = Call { wait: true, deadline, ..call(1, &[&text, &text]) };
    assert_eq!(engine.embed(all).await.unwrap().rows, 2);
}

#[tokio::test]
async fn a_text_that_is_cut_counts_by_its_memory_while_it_waits() {
    let gate = Gate::new(Limits { quota_tokens: 120, ..Limits::default() });
    let long = "x".repeat(2048);
    let cut = |text: &str| Call { truncate: Truncate::End, ..call(1, &[text]) };
    let first = gate.begin(cut(&long));
    tokio::task::yield_now().await;
    assert_eq!(gate.next_batch(), [&long[..INPUT_MAX - 2]]);
    let error = gate.engine.embed(cut(&long)).await.unwrap_err();
    let Error::QuotaExceeded { needed: 64, in_flight: 64, .. } = error else { panic!("{error:?}") };
    gate.go();
    first.await.unwrap().unwrap();
}
