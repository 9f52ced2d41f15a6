//! How the gateway ends when somebody watches whether it is ready.

use std::error::Error;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Stage, sentence};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};

tests! {
    who_watches_is_told_before_the_end: [Bus, Curl],
    who_is_watched_ends_by_itself: [Bus, Curl],
    whose_request_takes_longer_than_the_end_is_told: [Bus, Curl],
    half_a_head_is_not_waited_for: [Bus, Curl],
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

/// Told once, as systemd tells it.
async fn who_is_watched_ends_by_itself() -> Outcome {
    let mut stage = Stage::sim().await?;
    assert_eq!(stage.gateway.get("/ready").await?.status, 200);
    stage.gateway.process.signal(Signal::SIGTERM)?;
    let status = stage.gateway.process.ended().await?;
    let log = stage.gateway.process.stderr();
    assert!(status.success() && log.contains("for 8 s more requests are taken"), "{status}: {log}");
    stage.daemon.stop().await
}

async fn whose_request_takes_longer_than_the_end_is_told() -> Outcome {
    let stage = Stage::sim().await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let body = json!({"input": "one"});
    let ending = async {
        client.counted("in_flight_calls", 1).await?;
        gateway.process.signal(Signal::SIGTERM)
    };
    let (told, ()) = tokio::try_join!(gateway.post("/v1/embeddings", &body), ending)?;
    assert_eq!((told.status, &told.json()?["error"]["code"]), (503, &json!("shutting_down")));
    assert!(sentence(&told, "/v1/")?.contains("send it again"), "{}", told.text);
    assert!(told.headers.contains_key("retry-after"), "{told:?}");
    // Nobody waits for it any more.
    eventually("the cancelled call", async || Ok(client.failures("cancelled").await? == 1)).await?;
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    let log = stage.end().await?;
    assert!(log.contains("not all requests were finished in 20 s"), "{log}");
    Ok(())
}

async fn half_a_head_is_not_waited_for() -> Outcome {
    let stage = Stage::sim().await?;
    let address = stage.gateway.url("").replace("http://", "");
    let mut half = TcpStream::connect(&address).await?;
    half.write_all(b"GET /health HTTP/1.1\r\nHost: lo").await?;
    // Behind a reply as well, which the gateway has read up to there by then.
    let mut next = TcpStream::connect(&address).await?;
    let head = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he";
    next.write_all(head.as_bytes()).await?;
    let mut said = [0; 12];
    within("a reply", next.read_exact(&mut said)).await??;
    assert_eq!(&said, b"HTTP/1.1 200");
    assert_eq!(stage.gateway.get("/health").await?.status, 200);
    let log = stage.end().await?;
    assert!(!log.contains("not all requests were finished"), "{log}");
    Ok(())
}
