//! The embedder: vectors in every form, options, refusals, callers that leave, a model of the settings.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use op_dbus_api::{ErrorName, ROOT_PATH};
use tracing::subscriber::DefaultGuard;
use zbus::message::Message;

use super::{on_bus, ready, refusal};
use crate::bus::bulk::Budget;
use crate::bus::caller::Callers;
use crate::bus::calls::{Asked, Calls};
use crate::bus::reply::Form;
use crate::service::Options;

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

/// What is logged from now on, until the guard goes.
fn logged() -> (tempfile::NamedTempFile, DefaultGuard) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    // Our own lines alone: a span of zbus may outlive this test.
    let subscriber = tracing_subscriber::fmt().with_env_filter("op_dbus_daemon=info");
    let subscriber = subscriber.with_writer(writer).with_ansi(false).finish();
    (log, tracing::subscriber::set_default(subscriber))
}

/// The lines there that tell of one text that was cut.
fn cut(log: &tempfile::NamedTempFile) -> Vec<String> {
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(!log.contains("xxx"), "{log}");
    let is_cut = |line: &&str| line.contains("were cut") && line.contains(" 1 of ");
    log.lines().filter(is_cut).map(str::to_owned).collect()
}

/// The replies of these methods have no place for it.
#[tokio::test]
async fn a_text_that_is_cut_without_a_word_to_its_caller_is_told_in_the_log() {
    let long = "x".repeat(1000);
    let (log, _guard) = logged();
    let told = || cut(&log).len();
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
async fn texts_of_one_user_that_are_cut_hide_none_of_another() {
    let (log, _guard) = logged();
    let pair = ready(&[]).await;
    let callers = Arc::<Callers>::default();
    let calls = Calls::new(pair.service.clone(), callers.clone());
    let message = Message::method_call(ROOT_PATH, "Embed").build(&()).unwrap();
    for uid in [4711, 4712, 4711] {
        let mut caller = callers.enter(&pair.client, &message.header()).await.unwrap();
        caller.uid = uid;
        let (inputs, options) = (vec!["x".repeat(1000)].into(), Options::default());
        let asked = Asked { inputs, options, form: Form::Doubles };
        calls.embed(&caller, asked, |_| ()).await.unwrap();
    }
    let told = cut(&log);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("user 4711 ") && told[1].contains("user 4712 "), "{told:?}");
}

/// The reply is small, and the vectors of a few such calls are all the memory that a service has.
#[tokio::test]
async fn the_vectors_of_a_call_count_until_its_reply_is_made_of_them() {
    let pair = ready(&[]).await;
    let (callers, texts) = (Arc::<Callers>::default(), 1_000);
    let bytes = texts as u64 * 384 * 4;
    let mut calls = Calls::new(pair.service.clone(), callers.clone());
    // Of which one user's may have an eighth.
    calls.budget = Arc::new(Budget::of(Some(8 * bytes), None));
    let message = Message::method_call(ROOT_PATH, "Rank").build(&()).unwrap();
    let caller = callers.enter(&pair.client, &message.header()).await.unwrap();
    let asked = || {
        let (inputs, options) = (vec!["a".to_owned(); texts].into(), Options::default());
        Asked { inputs, options, form: Form::Ranks(1) }
    };
    let another = || calls.budget.vectors(caller.uid, bytes);
    let beside = calls.embed(&caller, asked(), |_| another().map(drop)).await.unwrap();
    assert_eq!(beside.unwrap_err().name(), ErrorName::QuotaExceeded);
    let held = another().unwrap();
    let error = calls.embed(&caller, asked(), |_| ()).await.unwrap_err();
    assert_eq!(error.name(), ErrorName::QuotaExceeded);
    drop(held);
    calls.embed(&caller, asked(), |_| ()).await.unwrap();
    let served = pair.service.now().served().unwrap().clone();
    assert_eq!(served.engine.stats().calls, 2, "what is refused is not computed");
}

#[tokio::test]
async fn a_panic_is_answered() {
    let pair = ready(&[]).await;
    let calls = Calls::new(pair.service.clone(), Arc::default());
    let message = Message::method_call(ROOT_PATH, "Embed").build(&()).unwrap();
    let broken = async |_: Calls, _| -> Result<(), _> { panic!("on purpose") };
    let refusal = calls.run(&pair.client, &message.header(), broken).await.unwrap_err();
    let error = &refusal.error;
    assert_eq!(error.name(), ErrorName::Failed);
    assert!(error.message().contains("Embed"), "{error}");
}

/// zbus has room for a call twice, and copies it.
#[tokio::test]
async fn a_call_is_small_however_large_its_work() {
    let pair = ready(&[]).await;
    let calls = Calls::new(pair.service.clone(), Arc::default());
    let message = Message::method_call(ROOT_PATH, "Embed").build(&()).unwrap();
    let large = async |_: Calls, _| -> Result<(), _> {
        let bytes = [0_u8; 1 << 16];
        tokio::task::yield_now().await;
        std::hint::black_box(&bytes);
        Ok(())
    };
    let header = message.header();
    let call = calls.run(&pair.client, &header, large);
    assert!(size_of_val(&call) < 1 << 13, "{} bytes", size_of_val(&call));
    call.await.unwrap();
}

/// The bus does not tell whose it is.
#[tokio::test]
async fn a_call_of_nobody_is_counted_as_refused() {
    let pair = ready(&[]).await;
    let calls = Calls::new(pair.service.clone(), Arc::default());
    let (server, bus, mut asked) = on_bus().await;
    let refuses = async {
        let question = asked.next().await.unwrap().unwrap();
        let name = "org.freedesktop.DBus.Error.NameHasNoOwner";
        bus.reply_error(&question.header(), name, &"nobody").await.unwrap();
    };
    let call = Message::method_call(ROOT_PATH, "Embed").sender(":1.7").build(&()).unwrap();
    let header = call.header();
    let work = async |_: Calls, _| -> Result<(), _> { Ok(()) };
    let (refusal, ()) = tokio::join!(calls.run(&server, &header, work), refuses);
    assert_eq!(refusal.unwrap_err().error.name(), ErrorName::AccessDenied);
    assert_eq!(pair.service.failures().get("access-denied"), Some(&1));
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

/// The model is served in place of every level but none, which switches it off.
#[tokio::test]
async fn a_model_of_the_settings_can_be_switched_off_and_on() {
    let pair = ready(&[("model", "own")]).await;
    let (embedder, manager) = (pair.embedder().await, pair.manager().await);
    let (name, message) = refusal(manager.set_vector_level("high").await);
    assert_eq!(name, ErrorName::Pinned);
    assert!(message.contains("`model` is own"), "{message}");
    manager.set_vector_level("none").await.unwrap();
    assert_eq!(embedder.state().await.unwrap(), "disabled");
    manager.set_vector_level("none").await.unwrap();
    manager.set_vector_level("medium").await.unwrap();
    assert_eq!(embedder.state().await.unwrap(), "ready");
    assert_eq!(embedder.vector_level().await.unwrap(), "", "that of an imported model");
    assert!(embedder.embed("x").await.is_ok());
}
