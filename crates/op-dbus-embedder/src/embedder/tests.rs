//! What is put before a text, what computes, and what is said of a call that fails.

use std::fs;
use std::path::Path;

use op_dbus_engine::{BackendError, Error as CallError};
use op_dbus_models::{ImportOptions, OnnxFacts, Progress};
use tokio::task::coop;

use super::*;

/// A store with the model `asks`, which has a default prompt.
fn store() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tiny-bert");
    let source = root.path().join("source");
    fs::create_dir_all(source.join("1_Pooling")).unwrap();
    let files = ["config.json", "model.safetensors", "modules.json", "sentence_bert_config.json"];
    let others = ["tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"];
    for file in files.into_iter().chain(others) {
        fs::copy(tiny.join(file), source.join(file)).unwrap();
    }
    let prompts =
        r#"{"prompts": {"plain": "", "query": "query: "}, "default_prompt_name": "query"}"#;
    fs::write(source.join("config_sentence_transformers.json"), prompts).unwrap();
    let options = ImportOptions {
        inspect: &|_| Ok(OnnxFacts { dimensions: None, pooled: true, finished: true }),
        tokenizer: &|_, _| Ok(()),
        model: &|_| Ok(()),
        progress: &Progress::silent(),
        pooling: None,
        dimensions: None,
        max_input_tokens: None,
    };
    Store::open(root.path().join("models")).import(&source, "asks", &options).unwrap();
    root
}

fn builder(root: &tempfile::TempDir) -> Builder {
    let builder = Embedder::builder().model("asks").threads(1).batch_tokens(64);
    builder.model_dir(root.path().join("models")).cache_dir(root.path().join("cache"))
}

#[test]
fn a_text_has_the_default_prompt_or_the_one_that_is_named_before_it() {
    let root = store();
    let asks = builder(&root).build().unwrap();
    let plain = builder(&root).prompt("").build().unwrap();
    assert_eq!([asks.prompt(), plain.prompt()], ["query: ", ""]);
    assert_eq!(asks.prompts()["query"], "query: ");
    let vector = plain.embed_blocking("query: why?").unwrap();
    assert_eq!(asks.embed_blocking("why?").unwrap(), vector);
    let vector = plain.embed_blocking("why?").unwrap();
    assert_ne!(asks.embed_blocking("why?").unwrap(), vector);
    // A call says itself what is put before its texts.
    let call = Call { inputs: vec!["why?".to_owned()].into(), ..Call::default() };
    assert_eq!(futures_executor::block_on(asks.call(call)).unwrap().vectors, vector);
    let named = builder(&root).prompt("plain").build().unwrap();
    assert_eq!(named.embed_blocking("why?").unwrap(), vector);
}

#[test]
fn a_prompt_that_the_model_does_not_have_is_refused_with_those_that_it_has() {
    let refused = builder(&store()).prompt("passage").build().unwrap_err().to_string();
    let right = "prompt is \"passage\", which asks does not have; it has plain, query";
    assert_eq!(refused, right);
}

/// No library of an accelerator is beside the store.
#[test]
fn auto_comes_to_the_cpu_where_nothing_else_computes_and_gives_no_reason() {
    let root = store();
    let auto = builder(&root).provider("auto").build().unwrap();
    assert_eq!([auto.provider(), auto.device(), auto.fallback_reason()], ["cpu", "cpu:0", ""]);
    assert_eq!(auto.embed_blocking("why?").unwrap().len(), auto.dimensions());
    let asked = builder(&root).provider("cuda").fallback(["cpu"]).build().unwrap();
    assert_eq!([asked.provider(), asked.device()], ["cpu", "cpu:0"]);
    assert!(asked.fallback_reason().contains("cuda"), "{}", asked.fallback_reason());
}

/// There is none.
#[test]
fn a_call_that_fails_speaks_of_no_service() {
    let root = store();
    let asks = builder(&root).queue_tokens(512).build().unwrap();
    let large = asks.embed_batch_blocking(&["why?"; 600]).unwrap_err().to_string();
    assert!(large.starts_with("the call's share of the queue in tokens is "), "{large}");
    assert!(large.ends_with("; send less in a call, or raise queue_tokens"), "{large}");
    asks.clone().close();
    let closed = asks.embed_blocking("why?").unwrap_err().to_string();
    assert_eq!(closed, "the embedder was closed; build another");
    let lost = CallError::WorkerFailed(BackendError::Lost("it died".to_owned()));
    let told =
        "no worker could embed the texts (the worker was lost: it died); see the log (tracing)";
    assert_eq!(Error::from(lost).to_string(), told);
    let full = CallError::OutOfMemory(BackendError::OutOfMemory("2 GiB".to_owned()));
    assert!(Error::from(full).to_string().contains("; lower batch_tokens, shorten"));
    let (needed, in_flight, limit, retry_after_ms) = (300, 301, 512, 1);
    let busy = CallError::QuotaExceeded { uid: 0, needed, in_flight, limit, retry_after_ms };
    let busy = Error::from(busy).to_string();
    assert!(busy.starts_with("301 tokens are in flight and this call needs 300"), "{busy}");
    assert!(busy.ends_with("or raise queue_tokens") && !busy.contains("user"), "{busy}");
}

#[test]
fn a_task_of_tokios_may_block_however_much_it_has_done() {
    let root = store();
    let asks = builder(&root).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        assert!(block_on(async { coop::has_budget_remaining() }));
        for _ in 0..129 {
            asks.embed_blocking("why?").unwrap();
        }
        assert_eq!(asks.embed_batch_blocking(&["why?"]).unwrap().rows, 1);
        asks.close();
    });
}
