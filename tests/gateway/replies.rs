//! Replies that their clients read slowly.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{Stage, sentence};
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    replies_that_are_read_slowly_keep_nobody_from_working: [Bus, Curl],
    a_reply_that_is_read_is_not_cut_off_for_who_only_connects: [Bus, Curl],
    replies_that_nobody_reads_keep_nobody_out: [Bus, Curl],
    a_reply_that_would_be_too_large_is_refused: [Bus, Curl],
}

/// Asks for so many vectors and reads the beginning of the reply. Returns with the connection how many bytes
/// are still to come: more than the systems at both ends keep of them.
async fn begun(gateway: &Gateway, texts: usize) -> Outcome<(TcpStream, usize)> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let address = gateway.url("").trim_start_matches("http://").parse()?;
    let mut stream = socket.connect(address).await?;
    let body = json!({"inputs": vec!["x"; texts]}).to_string();
    let head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    within("the head of a reply", async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        Ok::<_, std::io::Error>(())
    })
    .await??;
    let head = String::from_utf8(head)?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    Ok((stream, length.ok_or("no length")?.parse()?))
}

/// Reads the rest of a reply.
async fn rest((mut stream, bytes): (TcpStream, usize)) -> Outcome {
    let mut rest = vec![0; bytes];
    within("the rest of a reply", stream.read_exact(&mut rest)).await??;
    assert!(rest.ends_with(b"]]"), "the reply ends as it should");
    Ok(())
}

async fn replies_that_are_read_slowly_keep_nobody_from_working() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    // As many texts as may be in flight. Together: none is unread for as long as a busy machine makes the other.
    let (first, second) = tokio::try_join!(begun(gateway, 16_384), begun(gateway, 16_384))?;
    let metrics = gateway.get("/metrics").await?.text;
    assert!(metrics.contains("op_dbus_http_requests_in_flight 0\n"), "{metrics}");
    gateway.post("/embed", &json!({"inputs": ["one", "more"]})).await?.ok()?;
    tokio::try_join!(rest(first), rest(second))?;
    stage.end().await.map(drop)
}

async fn a_reply_that_is_read_is_not_cut_off_for_who_only_connects() -> Outcome {
    let stage = Stage::sim().await?;
    let reply = begun(&stage.gateway, 4096).await?;
    let address = stage.gateway.url("").replace("http://", "");
    let mut idle = Vec::new();
    // More than the gateway has places for.
    for _ in 0..600 {
        idle.push(TcpStream::connect(&address).await?);
    }
    let mut byte = [0];
    // The first of these has made room, by when the reply would have.
    assert_eq!(within("the end of a connection", idle[0].read(&mut byte)).await??, 0);
    rest(reply).await?;
    stage.end().await.map(drop)
}

async fn replies_that_nobody_reads_keep_nobody_out() -> Outcome {
    let stage = Stage::sim().await?;
    let address = stage.gateway.url("").trim_start_matches("http://").parse()?;
    // Of each connection more replies than the systems at both ends keep.
    let asked = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    let mut unread = Vec::new();
    // More than the gateway has places for.
    for _ in 0..600 {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let mut stream = socket.connect(address).await?;
        // It may have made room for another by now.
        let _ = stream.write_all(asked.as_bytes()).await;
        unread.push(stream);
    }
    // Before any of them is let go because it reads nothing, which would be after 30 s.
    let soon = stage.gateway.curl("/health", &["--max-time", "20"], "").await?;
    assert_eq!(soon.status, 200);
    drop(unread);
    stage.end().await.map(drop)
}

async fn a_reply_that_would_be_too_large_is_refused() -> Outcome {
    let stage = Stage::sim().await?;
    // Each letter is a token here, which takes some 60 bytes of the reply.
    let texts = json!({"inputs": vec!["x".repeat(1000); 3000]});
    let refused = stage.gateway.post("/tokenize", &texts).await?;
    assert_eq!(refused.status, 413, "{} bytes", refused.text.len());
    assert!(sentence(&refused, "/")?.contains("larger than 134217728 bytes"), "{}", refused.text);
    // Nothing of it keeps a place.
    let metrics = stage.gateway.get("/metrics").await?.text;
    assert!(metrics.contains("op_dbus_http_requests_in_flight 0\n"), "{metrics}");
    stage.end().await.map(drop)
}
