//! What counts for more than one text.

use nix::sys::signal::Signal;
use serde_json::json;

use super::Stage;
use crate::harness::Outcome;
use crate::harness::registry::tests;

tests! {
    long_lists_of_token_ids_count_for_more_than_one_text: [Bus, Curl],
}

async fn long_lists_of_token_ids_count_for_more_than_one_text() -> Outcome {
    let stage = Stage::sim().await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    // 7.9 MB, which counts for 15,360 texts.
    let list = format!("[{}]", vec!["1"; 262_144].join(","));
    let body = format!("{{\"inputs\": [{}]}}", vec![list; 15].join(","));
    let large = async || Outcome::Ok(gateway.curl("/embed", &[], &body).await?.status);
    let meanwhile = async {
        client.counted("in_flight_calls", 2).await?;
        let refused = gateway.post("/embed", &json!({"inputs": vec!["x"; 4096]})).await?;
        stage.daemon.signal_workers(Signal::SIGCONT).await?;
        Ok(refused)
    };
    let (first, second, refused) = tokio::try_join!(large(), large(), meanwhile)?;
    assert_eq!((first, second, refused.status), (200, 200, 429), "{}", refused.text);
    assert!(refused.text.contains("as many texts in flight as it takes"), "{}", refused.text);
    stage.end().await.map(drop)
}
