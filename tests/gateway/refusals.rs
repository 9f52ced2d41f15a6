//! What a request is told of a refusal of the service, of which it may be several calls.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{Stage, sentence, vectors};
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;

tests! {
    a_refused_text_is_named_as_the_request_has_it: [Bus, Curl],
    a_model_that_changes_between_two_calls_is_told: [Bus, Curl, Low, Medium],
    a_call_that_is_too_large_for_the_queue_is_made_smaller: [Bus, Curl],
    nothing_is_offered_where_no_model_is_to_serve: [Bus, Curl, Low],
    a_model_that_could_not_be_loaded_is_not_unknown: [Bus, Curl],
    a_head_that_is_too_large_is_refused: [Bus, Curl],
}

async fn a_refused_text_is_named_as_the_request_has_it() -> Outcome {
    let stage = Stage::sim().await?;
    let long = "word ".repeat(2000);
    // Two calls on the bus.
    let mut texts = vec!["x"; 1500];
    texts[1200] = &long;
    let pair = json!({"source_sentence": "a", "sentences": ["b", long]});
    for (path, body, words) in [
        ("/embed", json!({"inputs": texts, "truncate": false}), "text 1200 has "),
        ("/v1/embeddings", json!({"input": ["a", [1], "b", [u32::MAX]]}), "text 3 has the token"),
        ("/rerank", json!({"query": "a", "texts": ["b", long], "truncate": false}), "text 1 has "),
        ("/rerank", json!({"query": long, "texts": ["b"], "truncate": false}), "query has "),
        ("/rerank", json!({"query": "a", "texts": ["b", "\0"]}), "text 1 has the character"),
        ("/similarity", json!({"inputs": pair, "parameters": {"truncate": false}}), "text 1 has "),
    ] {
        let refused = stage.gateway.post(path, &body).await?;
        assert!(refused.status >= 400, "{path}: {}", refused.status);
        assert!(sentence(&refused, path)?.starts_with(words), "{path}: {}", refused.text);
    }
    stage.end().await.map(drop)
}

async fn a_model_that_changes_between_two_calls_is_told() -> Outcome {
    let stage = Stage::of(Setup::real("low")?).await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let texts = vec!["x"; 1500];
    let body = json!({"inputs": texts});
    let answer = stage.gateway.post("/embed", &body);
    let change = async {
        stage.daemon.client().counted("in_flight_calls", 1).await?;
        let workers = stage.daemon.workers().await?;
        stage.daemon.client().manager.set_vector_level("medium").await?;
        for pid in workers {
            nix::sys::signal::kill(pid, Signal::SIGCONT)?;
        }
        Ok(())
    };
    let (answer, ()) = tokio::try_join!(answer, change)?;
    assert_eq!(answer.status, 409);
    let again = "the model was changed between two calls of this request; send it again";
    assert_eq!(sentence(&answer, "/")?, again);
    stage.end().await.map(drop)
}

async fn a_call_that_is_too_large_for_the_queue_is_made_smaller() -> Outcome {
    let setup = Setup::sim()?.setting("quota_tokens", "1500").setting("queue_tokens_max", "3000");
    let stage = Stage::of(setup).await?;
    let gateway = &stage.gateway;
    let mut texts: Vec<String> = (0..600).map(|n| format!("text {n}")).collect();
    let body = gateway.post("/v1/embeddings", &json!({"input": texts})).await?.ok()?;
    let found = vectors(&body)?;
    assert_eq!(found.len(), 600);
    let some = [0, 299, 300, 599];
    let expected = stage.daemon.client().vectors(&some.map(|n| &texts[n])).await?;
    assert_eq!(some.map(|n| found[n].clone()).to_vec(), expected);
    let lists = vec![[1, 2, 3]; 600];
    let body = gateway.post("/v1/embeddings", &json!({"input": lists})).await?.ok()?;
    assert_eq!(vectors(&body)?.len(), 600);
    let ranks = gateway.post("/rerank", &json!({"query": "text 7", "texts": texts})).await?.ok()?;
    assert_eq!((ranks.as_array().map(Vec::len), &ranks[0]["index"]), (Some(600), &json!(7)));

    texts[500] = "x".repeat(1000);
    let request = json!({"inputs": texts, "truncate": false});
    let refused = gateway.post("/embed", &request).await?;
    assert!(sentence(&refused, "/")?.starts_with("text 500 has "), "{}", refused.text);
    stage.end().await.map(drop)
}

async fn nothing_is_offered_where_no_model_is_to_serve() -> Outcome {
    let stage = Stage::of(Setup::real("low")?).await?;
    let gateway = &stage.gateway;
    let offered = gateway.get("/v1/models").await?.ok()?;
    assert_eq!(offered["data"][0]["id"], "default");
    stage.daemon.client().manager.set_vector_level("none").await?;
    let offered = gateway.get("/v1/models").await?.ok()?;
    assert_eq!(offered["data"], json!([]));
    for (model, status, said) in [
        ("default", 503, "none"),
        ("low", 503, "none"),
        ("no-such", 404, "can be asked for here; there is none now"),
    ] {
        let body = json!({"model": model, "input": "a"});
        let refused = gateway.post("/v1/embeddings", &body).await?;
        assert_eq!(refused.status, status, "{model}: {}", refused.text);
        assert!(sentence(&refused, "/v1/")?.contains(said), "{model}: {}", refused.text);
    }
    stage.end().await.map(drop)
}

async fn a_model_that_could_not_be_loaded_is_not_unknown() -> Outcome {
    let setup = Setup::sim()?.setting("cpu_engine", "native").setting("model", "own");
    let (bus, setup, daemon) = setup.alone_as("failed").await?;
    let gateway = Gateway::start(&bus, &setup).await?;
    for model in ["default", "own"] {
        let refused =
            gateway.post("/v1/embeddings", &json!({"model": model, "input": "a"})).await?;
        assert_eq!(refused.status, 503, "{model}: {}", refused.text);
        assert!(sentence(&refused, "/v1/")?.contains("own"), "{model}: {}", refused.text);
    }
    gateway.stop().await?;
    daemon.stop().await
}

async fn a_head_that_is_too_large_is_refused() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    for (bytes, status) in [(31 << 10, 200), (33 << 10, 431)] {
        let header = format!("Cookie: {}", "x".repeat(bytes));
        let answer = gateway.curl("/health", &["-H", &header], "").await?;
        assert_eq!(answer.status, status, "{bytes}");
    }
    gateway.stop().await.map(drop)
}
