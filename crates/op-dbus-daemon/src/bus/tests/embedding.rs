//! The embedder: vectors in every form, options, refusals, callers that leave.

use std::collections::HashMap;
use std::sync::Arc;

use op_dbus_api::{ErrorName, ROOT_PATH};
use zbus::Variant;
use zbus::message::Message;

use super::{pair, ready, refusal};
use crate::bus::caller::Callers;
use crate::bus::calls::Calls;

#[tokio::test]
async fn every_form_has_the_same_vectors() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let one = embedder.embed("disk full").await.unwrap();
    let many = embedder.embed_batch(&["disk full", "fan stopped"]).await.unwrap();
    let (bytes, rows, dimensions, info) =
        embedder.embed_packed(&["disk full", "fan stopped"], HashMap::new()).await.unwrap();

    assert_eq!((one.len(), many.len(), rows, dimensions), (384, 2, 2, 384));
    assert_eq!(one, many[0]);
    let packed: Vec<f64> = bytes
        .chunks_exact(4)
        .map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap())))
        .collect();
    assert_eq!(packed, many.concat());
    assert_eq!(info.len(), 12);
    assert_eq!(<&str>::try_from(&info["provider"]).unwrap(), "sim");
    assert_eq!(<&str>::try_from(&info["level"]).unwrap(), "medium");
    assert_eq!(
        <&str>::try_from(&info["space"]).unwrap(),
        embedder.vector_space().await.unwrap().as_str()
    );
}

#[tokio::test]
async fn no_texts_give_no_vectors() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    assert!(embedder.embed_batch(&[]).await.unwrap().is_empty());
    let (bytes, rows, dimensions, _) = embedder.embed_packed(&[], HashMap::new()).await.unwrap();
    assert_eq!((bytes.len(), rows, dimensions), (0, 0, 384));
    assert!(embedder.rank("query", &[], 5).await.unwrap().is_empty());
    assert!(embedder.count_tokens(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn likeness_and_ranks() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    assert!((embedder.similarity("same", "same").await.unwrap() - 1.0).abs() < 1e-6);
    let ranks = embedder.rank("b", &["a", "b", "c"], 2).await.unwrap();
    assert_eq!((ranks.len(), ranks[0].0), (2, 1));
    assert!(ranks[0].1 >= ranks[1].1);
    // The simulator has a token for each byte and two special ones.
    assert_eq!(embedder.count_tokens(&["abc", ""]).await.unwrap(), [5, 2]);
}

#[tokio::test]
async fn a_reply_beyond_the_limit_is_refused_before_any_work() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let texts = vec!["x"; 11_000];
    let (name, message) = refusal(embedder.embed_batch(&texts).await);
    assert_eq!(name, ErrorName::TooLarge);
    assert!(message.contains("EmbedToFd"), "{message}");
    let (name, message) = refusal(embedder.embed_packed(&texts, HashMap::new()).await);
    assert_eq!(name, ErrorName::TooLarge);
    assert!(message.contains("EmbedToFd"), "{message}");
    let served = pair.service.now().served().unwrap().clone();
    assert_eq!(served.engine.stats().texts, 0);
}

#[tokio::test]
async fn options_are_honoured_or_refused() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let space = embedder.vector_space().await.unwrap();
    let other_precision = format!("{}-f16", space.split('-').next().unwrap());
    let accepted = [
        ("level", Variant::from("high")),
        ("expect_space", Variant::from(other_precision)),
        ("device", Variant::from("sim:0")),
        ("truncate", Variant::from("mean")),
        ("deadline_ms", Variant::from(60_000_u32)),
    ];
    for option in accepted {
        let shown = format!("{option:?}");
        let reply = embedder.embed_packed(&["x"], HashMap::from([option])).await;
        assert!(reply.is_ok(), "{shown}: {reply:?}");
    }
    let refused = [
        ("level", Variant::from("none"), ErrorName::InvalidArgument),
        ("expect_space", Variant::from("0123-f32"), ErrorName::WrongSpace),
        ("device", Variant::from("cuda:0"), ErrorName::InvalidArgument),
        ("prompt", Variant::from("query"), ErrorName::InvalidArgument),
        ("encoding", Variant::from("i4"), ErrorName::InvalidArgument),
        ("deadline_ms", Variant::from(0_u32), ErrorName::DeadlineExceeded),
        ("dimensions", Variant::from(64_u32), ErrorName::InvalidArgument),
        ("level", Variant::from(1_u32), ErrorName::InvalidArgument),
        ("colour", Variant::from("red"), ErrorName::InvalidArgument),
    ];
    for (key, value, expected) in refused {
        let options = HashMap::from([(key, value)]);
        let (name, message) = refusal(embedder.embed_packed(&["x"], options).await);
        assert_eq!(name, expected, "{key}: {message}");
    }
}

#[tokio::test]
async fn a_long_text_is_reported_or_refused() {
    let pair = ready(&[]).await;
    let embedder = pair.embedder().await;
    let long = "x".repeat(1000);
    let texts = ["short", &long];
    let (.., info) = embedder.embed_packed(&texts, HashMap::new()).await.unwrap();
    let truncated = Vec::<u32>::try_from(info["truncated"].try_clone().unwrap()).unwrap();
    assert_eq!(truncated, [1]);
    let options = HashMap::from([("truncate", Variant::from("error"))]);
    let (name, _) = refusal(embedder.embed_packed(&texts, options).await);
    assert_eq!(name, ErrorName::TooLong);
}

/// The replies of these methods have no place for it.
#[tokio::test]
async fn a_text_that_is_cut_without_a_word_to_its_caller_is_told_in_the_log() {
    let long = "x".repeat(1000);
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    // Our own lines alone: a span of zbus may outlive this test.
    let subscriber = tracing_subscriber::fmt().with_env_filter("op_dbus_daemon=info");
    let subscriber = subscriber.with_writer(writer).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let told = || {
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert!(!log.contains("xxx"), "{log}");
        log.lines().filter(|line| line.contains("were cut") && line.contains(" 1 of ")).count()
    };
    for (before, method) in ["Embed", "EmbedBatch", "Similarity", "Rank"].into_iter().enumerate() {
        let pair = ready(&[]).await;
        let embedder = pair.embedder().await;
        embedder.embed_packed(&[&long], HashMap::new()).await.unwrap();
        embedder.embed("short").await.unwrap();
        assert_eq!(told(), before, "{method}");
        // Not a line each.
        for _ in 0..2 {
            match method {
                "Embed" => drop(embedder.embed(&long).await.unwrap()),
                "EmbedBatch" => drop(embedder.embed_batch(&["short", &long]).await.unwrap()),
                "Similarity" => drop(embedder.similarity("short", &long).await.unwrap()),
                _ => drop(embedder.rank("short", &[&long], 1).await.unwrap()),
            }
            assert_eq!(told(), before + 1, "{method}");
        }
    }
}

#[tokio::test]
async fn calls_are_answered_before_during_and_after() {
    let pair = pair(&[]).await;
    let embedder = pair.embedder().await;
    assert_eq!(refusal(embedder.embed("x").await).0, ErrorName::NotReady);
    pair.service.start().await;
    assert!(embedder.embed("x").await.is_ok());
    pair.service.drain(std::time::Instant::now()).await;
    assert_eq!(refusal(embedder.embed("x").await).0, ErrorName::ShuttingDown);
}

#[tokio::test]
async fn a_panic_is_answered() {
    let pair = ready(&[]).await;
    let calls = Calls::new(pair.service.clone(), Arc::default(), Arc::default(), Arc::default());
    let message = Message::method_call(ROOT_PATH, "Embed").build(&()).unwrap();
    let broken = async |_: Calls, _| -> Result<(), _> { panic!("on purpose") };
    let error = calls.run(&pair.client, &message.header(), broken).await.unwrap_err();
    assert_eq!(error.name(), ErrorName::Failed);
    assert!(error.message().contains("Embed"), "{error}");
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_its_calls() {
    let pair = ready(&[]).await;
    let callers = Arc::<Callers>::default();
    let call = |sender: &'static str| {
        Message::method_call(ROOT_PATH, "Embed").sender(sender).build(&()).unwrap()
    };
    let (one, other) = (call(":1.7"), call(":1.8"));
    let first = callers.enter(&pair.client, &one.header()).await.unwrap();
    let second = callers.enter(&pair.client, &other.header()).await.unwrap();
    assert_eq!(first.uid, nix::unistd::geteuid().as_raw());
    callers.left(":1.7");
    assert!(first.cancel.is_cancelled());
    assert!(!second.cancel.is_cancelled());
    drop((first, second));
    assert!(callers.idle(), "calls that have ended are forgotten");
}
