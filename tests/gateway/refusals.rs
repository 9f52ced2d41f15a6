//! What a refusal of the service says, where a request is several of its calls.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{Stage, sentence};
use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    a_refused_text_is_named_as_the_request_has_it: [Bus, Curl],
    a_model_that_changes_between_two_calls_is_told: [Bus, Curl, Low, Medium],
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
