//! What counts for more than one text.

use nix::sys::signal::Signal;
use serde_json::json;

use super::Stage;
use super::left::told;
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
    // For which there is no room beside these.
    let next = json!({"inputs": vec!["x"; 4096]});
    let behind = async {
        client.counted("in_flight_calls", 2).await?;
        let waits = async {
            told(gateway, "op_dbus_http_requests_waiting 1").await?;
            assert_eq!(client.counter("in_flight_calls").await?, 2);
            stage.daemon.signal_workers(Signal::SIGCONT).await
        };
        let (next, ()) = tokio::try_join!(gateway.post("/embed", &next), waits)?;
        Outcome::Ok(next.status)
    };
    let (first, second, next) = tokio::try_join!(large(), large(), behind)?;
    assert_eq!((first, second, next), (200, 200, 200));
    stage.end().await.map(drop)
}
