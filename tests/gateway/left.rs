//! Clients that leave, and what they leave behind.

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::Stage;
use crate::harness::daemon::Setup;
use crate::harness::gateway::{Gateway, command};
use crate::harness::process::send;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};

tests! {
    bytes_behind_a_body_hide_no_client_that_leaves: [Bus, Curl],
    bytes_behind_a_body_do_no_harm_to_who_stays: [Bus, Curl],
    who_closes_only_its_sending_side_is_answered: [Bus, Curl],
    who_asks_for_work_and_closes_its_sending_side_has_left: [Bus, Curl],
}

/// A request to embed a text, with something behind it that is no request yet.
fn request(behind: &str) -> String {
    let body = json!({"inputs": "one"}).to_string();
    let length = body.len();
    format!(
        "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}{behind}"
    )
}

async fn connect(gateway: &Gateway) -> Outcome<TcpStream> {
    Ok(TcpStream::connect(gateway.url("").trim_start_matches("http://")).await?)
}

async fn bytes_behind_a_body_hide_no_client_that_leaves() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let tcp = Gateway::start(&bus, &setup).await?;
    let path = setup.path("http.sock");
    let listen = format!("unix:{}", path.display());
    let unix = Gateway::start_command(command(&bus, &setup, &listen)?).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    for (count, behind) in ["", "x", "\r\n"].into_iter().enumerate() {
        leaves(&tcp, connect(&tcp).await?, behind, count + 1).await?;
        leaves(&unix, UnixStream::connect(&path).await?, behind, count + 1).await?;
    }
    daemon.signal_workers(Signal::SIGCONT).await?;
    tcp.stop().await?;
    unix.stop().await?;
    daemon.stop().await
}

/// A client that asks and leaves, as the `count`th of this gateway's.
async fn leaves(
    gateway: &Gateway,
    mut client: impl AsyncWrite + Unpin,
    behind: &str,
    count: usize,
) -> Outcome {
    client.write_all(request(behind).as_bytes()).await?;
    told(gateway, "op_dbus_http_requests_in_flight 1").await?;
    drop(client);
    let left = "op_dbus_http_request_seconds_count{route=\"/embed\",status=\"499\"}";
    told(gateway, &format!("{left} {count}")).await?;
    told(gateway, "op_dbus_http_requests_in_flight 0").await
}

/// Waits for this line of the metrics.
pub async fn told(gateway: &Gateway, line: &str) -> Outcome {
    let is_told = async || Ok(gateway.get("/metrics").await?.text.lines().any(|had| had == line));
    eventually(line, is_told).await
}

async fn bytes_behind_a_body_do_no_harm_to_who_stays() -> Outcome {
    let stage = Stage::sim().await?;
    let mut stream = connect(&stage.gateway).await?;
    // Two requests at once, and a line's end behind each, as RFC 9112 (section 2.2) lets clients send it.
    stream.write_all([request("\r\n"), request("\r\n")].concat().as_bytes()).await?;
    for _ in 0..2 {
        answered(&mut stream).await?;
    }
    stage.end().await.map(drop)
}

/// Reads one reply.
async fn answered(stream: &mut TcpStream) -> Outcome {
    let mut said = Vec::new();
    within("a reply", async {
        while !said.ends_with(b"]]") {
            said.push(stream.read_u8().await?);
        }
        Ok::<_, std::io::Error>(())
    })
    .await??;
    assert!(said.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&said));
    Ok(())
}

/// What is said to this request by a client that closes its sending side before the gateway has seen any of it.
async fn said_to_half(gateway: &Gateway, request: &str) -> Outcome<String> {
    let pid = gateway.process.pid();
    send(Signal::SIGSTOP, pid).await?;
    let mut client = connect(gateway).await?;
    client.write_all(request.as_bytes()).await?;
    client.shutdown().await?;
    send(Signal::SIGCONT, pid).await?;
    let mut said = String::new();
    // The connection ends by itself.
    within("the end of a connection", client.read_to_string(&mut said)).await??;
    Ok(said)
}

async fn who_closes_only_its_sending_side_is_answered() -> Outcome {
    let stage = Stage::sim().await?;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (path, status, words) in [
        ("/health", 200, "alive"),
        ("/nowhere", 404, "no route"),
        ("/status", 200, "statistics"),
        ("/v1/models", 200, "default"),
        ("/metrics", 200, "op_dbus_up"),
    ] {
        let said = said_to_half(&stage.gateway, &get(path)).await?;
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {said:?}");
        assert!(said.contains(words), "{path}: {said}");
    }
    // One behind the other.
    let said = said_to_half(&stage.gateway, &get("/health").repeat(2)).await?;
    assert_eq!(said.matches("alive").count(), 2, "{said}");
    let counted = "op_dbus_http_request_seconds_count{route=\"/health\",status=\"200\"} 3";
    told(&stage.gateway, counted).await?;
    stage.end().await.map(drop)
}

async fn who_asks_for_work_and_closes_its_sending_side_has_left() -> Outcome {
    let stage = Stage::sim().await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    assert_eq!(said_to_half(&stage.gateway, &request("")).await?, "");
    let left = "op_dbus_http_request_seconds_count{route=\"/embed\",status=\"499\"} 1";
    told(&stage.gateway, left).await?;
    told(&stage.gateway, "op_dbus_http_requests_in_flight 0").await?;
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    stage.end().await.map(drop)
}
