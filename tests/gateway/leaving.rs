//! How the gateway ends when somebody watches whether it is ready.

use std::error::Error;

use nix::sys::signal::Signal;
use serde_json::json;

use super::Stage;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    who_watches_is_told_before_the_end: [Bus, Curl],
}

async fn who_watches_is_told_before_the_end() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    let body = json!({"input": "one"});
    assert_eq!(gateway.get("/ready").await?.status, 200);
    let before = gateway.post("/v1/embeddings", &body).await?;
    assert_eq!((before.status, before.headers.get("connection")), (200, None));
    gateway.process.signal(Signal::SIGTERM)?;
    let told = within("the gateway to say that it ends", async {
        loop {
            let ready = gateway.get("/ready").await?;
            if ready.status != 200 {
                return Ok::<_, Box<dyn Error>>(ready);
            }
        }
    })
    .await??;
    assert_eq!((told.status, &told.json()?["error_type"]), (503, &json!("shutting_down")));
    // What comes all the same is answered, and its connection is not used again.
    let late = gateway.post("/v1/embeddings", &body).await?;
    assert_eq!(late.headers.get("connection").map(String::as_str), Some("close"));
    late.ok()?;
    // Told once more, it waits for nobody.
    stage.end().await.map(drop)
}
