//! What the gateway takes and when it lets go: limits, clients that leave, an end that loses nothing.

mod under_way;

use std::fs;
use std::process::Stdio;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::waiting::Crowded;
use super::{Stage, sentence};
use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::gateway::{Gateway, curl};
use crate::harness::process::{anonymous, send};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};
pub use under_way::{all_answered, requests};

tests! {
    what_is_too_large_is_refused: [Bus, Curl],
    who_is_refused_while_still_sending_reads_why: [Bus, Curl],
    a_full_gateway_says_when_to_come_back: [Bus, Curl],
    a_full_service_says_when_to_come_back: [Bus, Curl],
    idle_connections_keep_nobody_out: [Bus, Curl],
    idle_connections_keep_nobody_out_where_files_are_few: [Bus, Curl],
    heads_without_bodies_keep_nobody_out: [Bus, Curl],
    what_is_not_done_in_time_is_refused_at_once: [Bus, Curl],
    a_client_that_leaves_cancels_its_work: [Bus, Curl],
    what_large_requests_took_is_given_back: [Bus, Curl],
    requests_in_flight_are_finished: [Bus, Curl],
    without_a_service_it_is_alive_and_not_ready: [Bus, Curl],
    a_service_that_hangs_is_told: [Bus, Curl],
    nobody_gets_in_without_the_key: [Bus, Curl],
    a_page_of_another_name_gets_nothing: [Bus, Curl],
}

async fn what_is_too_large_is_refused() -> Outcome {
    let stage = Stage::sim().await?;
    let texts = vec!["x"; 16_385];
    let many = stage.gateway.post("/v1/embeddings", &json!({"input": texts})).await?;
    assert_eq!(many.status, 413);
    assert!(sentence(&many, "/v1/")?.contains("16385 texts, the limit is 16384"), "{}", many.text);
    let body = stage.gateway.post("/embed", &json!({"inputs": "x".repeat(9 << 20)})).await?;
    assert_eq!(body.status, 413);
    assert!(sentence(&body, "/")?.contains("8388608 bytes"), "{}", body.text);
    // Within the gateway's limit, beyond the service's.
    let text = stage.gateway.post("/embed", &json!({"inputs": "x".repeat(2 << 20)})).await?;
    assert_eq!(text.status, 413);
    assert!(sentence(&text, "/")?.contains("text 0"), "{}", text.text);
    stage.end().await.map(drop)
}

/// Bytes of a body: more than is taken, and than sockets hold.
const LARGE: usize = 16 << 20;

/// What a client is told that writes all of a large request before it reads anything.
async fn said_after(gateway: &Gateway, path: &str, more: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(gateway.url("").trim_start_matches("http://")).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\n{more}\r\nContent-Length: {LARGE}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&vec![b' '; LARGE]).await?;
    let mut said = String::new();
    within("the answer", stream.read_to_string(&mut said)).await??;
    Ok(said)
}

const JSON: &str = "Host: localhost\r\nContent-Type: application/json";

async fn who_is_refused_while_still_sending_reads_why() -> Outcome {
    let stage = Stage::sim().await?;
    for (path, more, status, words) in [
        ("/embed", JSON, 413, "8388608 bytes"),
        ("/embed", "Host: localhost\r\nContent-Type: text/plain", 415, "text/plain"),
        ("/embed", "Host: evil.example", 403, "wrong_host"),
        ("/nowhere", JSON, 404, "no route"),
        ("/health", JSON, 405, "does not take POST"),
    ] {
        let said = said_after(&stage.gateway, path, more).await?;
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")) && said.contains(words), "{said}");
    }
    stage.end().await.map(drop)
}

async fn a_full_gateway_says_when_to_come_back() -> Outcome {
    let crowded = Crowded::start().await?;
    // As many as there are connections for.
    let clients = crowded.ask(512, 1).await?;
    crowded.told(64, 256).await?;
    let said = said_after(&crowded.gateway, "/embed", JSON).await?;
    assert!(said.starts_with("HTTP/1.1 429 ") && said.contains("retry-after: 1\r\n"), "{said}");
    // What asks for no work is answered all the same.
    assert_eq!(crowded.gateway.get("/health").await?.status, 200);
    let answers = crowded.answers(clients).await?;
    let (answered, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|said| said.starts_with("HTTP/1.1 200 "));
    assert_eq!(answered.len(), 64 + 256);
    for said in refused {
        assert!(said.starts_with("HTTP/1.1 429 ") && said.contains("retry-after: 1\r\n"), "{said}");
    }
    crowded.gateway.stop().await.map(drop)
}

async fn idle_connections_keep_nobody_out() -> Outcome {
    let stage = Stage::sim().await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = requests(&stage.gateway, 2, &["in flight"])?;
    stage.daemon.client().counted("in_flight_calls", 2).await?;
    let address = stage.gateway.url("").replace("http://", "");
    // As many as this process may have, beside what else it has open: more than the gateway has places for.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let count = most.saturating_sub(500).clamp(600, 10_000);
    let mut idle = Vec::new();
    // Each only connects.
    for _ in 0..count {
        idle.push(TcpStream::connect(&address).await?);
    }
    // The last before any of them is closed for its age, which would be after 30 s.
    let soon = stage.gateway.curl("/health", &["--max-time", "20"], "").await?;
    assert_eq!(soon.status, 200);
    all_answered(&stage, waiting).await?;
    // The first that came is the first that went.
    let mut byte = [0];
    assert_eq!(within("the end of a connection", idle[0].read(&mut byte)).await??, 0);
    println!("figure: {count} idle connections");
    stage.end().await.map(drop)
}

async fn idle_connections_keep_nobody_out_where_files_are_few() -> Outcome {
    let stage = Stage::sim().await?;
    let pid = stage.gateway.process.pid();
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let mut limit = clean("prlimit");
    limit.arg(format!("--pid={pid}")).arg(format!("--nofile={}:", open + 10));
    finish(limit, "").await?.success()?;
    let address = stage.gateway.url("").replace("http://", "");
    let mut idle = Vec::new();
    for _ in 0..30 {
        idle.push(TcpStream::connect(&address).await?);
    }
    // Before any of them is closed for its age.
    let soon = stage.gateway.curl("/health", &["--max-time", "20"], "").await?;
    assert_eq!(soon.status, 200);
    let log = stage.end().await?;
    assert_eq!(log.matches("could not be accepted").count(), 1, "{log}");
    Ok(())
}

async fn heads_without_bodies_keep_nobody_out() -> Outcome {
    let stage = Stage::sim().await?;
    let address = stage.gateway.url("").replace("http://", "");
    let head = format!("POST /embed HTTP/1.1\r\n{JSON}\r\nContent-Length: 17\r\n\r\n");
    let mut slow = Vec::new();
    // As many as are worked on at once, then more than the gateway has connections for.
    for count in [64, 600] {
        while slow.len() < count {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(head.as_bytes()).await?;
            slow.push(stream);
        }
        // Before any of them is refused for its age, which would be after 30 s.
        let body = r#"{"inputs": "one"}"#;
        stage.gateway.curl("/embed", &["--max-time", "20"], body).await?.ok()?;
    }
    // Who gets on with its request is answered, however many others don't.
    let last = slow.last_mut().ok_or("no connection")?;
    last.write_all(br#"{"inputs": "one"}"#).await?;
    let mut said = [0; 12];
    within("the answer", last.read_exact(&mut said)).await??;
    assert_eq!(&said, b"HTTP/1.1 200");
    // The end would wait for their requests.
    drop(slow);
    stage.end().await.map(drop)
}

async fn a_full_service_says_when_to_come_back() -> Outcome {
    let setup = Setup::sim()?;
    let setup = setup.setting("queue_tokens_max", "200").setting("quota_tokens", "200");
    let stage = Stage::of(setup).await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = stage.daemon.client().embed_meanwhile(&"x".repeat(100));
    stage.daemon.client().counted("in_flight_calls", 1).await?;
    let refused = stage.gateway.post("/embed", &json!({"inputs": "x".repeat(100)})).await?;
    assert_eq!(refused.status, 429, "{}", refused.text);
    let seconds: u64 = refused.headers.get("retry-after").ok_or("no Retry-After")?.parse()?;
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert!(["overloaded", "quota_exceeded"].iter().any(|word| refused.text.contains(word)));
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    within("the call that was there first", waiting).await???;
    stage.end().await.map(drop)
}

async fn what_is_not_done_in_time_is_refused_at_once() -> Outcome {
    let stage = Stage::of(Setup::sim()?.setting("batch_tokens_max", "256")).await?;
    let gateway = &stage.gateway;
    let embed = |texts: usize| {
        let mut command = curl();
        let body = json!({"inputs": vec!["x".repeat(100); texts]});
        command.args(["--json", &body.to_string()]).arg(gateway.url("/embed"));
        command.stderr(Stdio::null()).kill_on_drop(true).spawn()
    };
    let client = stage.daemon.client();
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let slow = embed(2)?;
    client.counted("in_flight_calls", 1).await?;
    // For the 10 s until this gives up, so that the service has seen some 20 tokens a second.
    assert_eq!(gateway.get("/ready").await?.status, 503);
    all_answered(&stage, vec![slow]).await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let mut waiting = vec![embed(8)?];
    client.counted("in_flight_calls", 1).await?;
    // 102 tokens a text, of which at most 18 are within three quarters of 120 s.
    let refused = gateway.post("/embed", &json!({"inputs": vec!["x".repeat(100); 12]})).await?;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(sentence(&refused, "/")?.contains("tokens come before"), "{}", refused.text);
    let seconds: u64 = refused.headers.get("retry-after").ok_or("no Retry-After")?.parse()?;
    assert!((2..=60).contains(&seconds), "{seconds}");
    waiting.push(embed(1)?);
    client.counted("in_flight_calls", 2).await?;
    all_answered(&stage, waiting).await?;
    stage.end().await.map(drop)
}

async fn a_client_that_leaves_cancels_its_work() -> Outcome {
    let stage = Stage::sim().await?;
    let client = stage.daemon.client();
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let mut leaving = requests(&stage.gateway, 1, &["in flight"])?;
    client.counted("in_flight_calls", 1).await?;
    // The one before is in the worker's hands already, and this one waits behind it.
    let staying = requests(&stage.gateway, 1, &["in flight"])?;
    client.counted("in_flight_calls", 2).await?;
    for request in &mut leaving {
        request.kill().await?;
    }
    eventually("the cancelled call", async || Ok(client.failures("cancelled").await? >= 1)).await?;
    all_answered(&stage, staying).await?;
    assert_eq!(client.failures("cancelled").await?, 1);
    // It is counted behind what it held.
    let left = "op_dbus_http_request_seconds_count{route=\"/embed\",status=\"499\"} 1\n";
    let is_told = async || Ok(stage.gateway.get("/metrics").await?.text.contains(left));
    eventually("a request whose client has left", is_told).await?;
    stage.end().await.map(drop)
}

async fn what_large_requests_took_is_given_back() -> Outcome {
    let stage = Stage::sim().await?;
    let both = [stage.gateway.process.pid(), stage.daemon.process.pid()];
    let before = both.map(anonymous);
    let body = json!({"inputs": vec!["x".repeat(16_000); 450]});
    let burst = (0..24).map(|_| stage.gateway.post("/embed", &body));
    futures_util::future::try_join_all(burst).await?;
    // Freed in small pieces, it stayed with the C library, some 200 MB of it.
    for (process, before) in both.into_iter().zip(before) {
        let most = before? + (64 << 20);
        eventually("memory to be given back", async || Ok(anonymous(process)? < most)).await?;
    }
    stage.end().await.map(drop)
}

async fn requests_in_flight_are_finished() -> Outcome {
    let stage = Stage::sim().await?;
    stage.daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = requests(&stage.gateway, 3, &["in flight"])?;
    stage.daemon.client().counted("in_flight_calls", 3).await?;
    stage.gateway.process.signal(Signal::SIGTERM)?;
    // It takes no more connections from then on.
    within("the end of listening", async {
        loop {
            let mut late = curl();
            late.arg(stage.gateway.url("/health")).stderr(Stdio::null());
            if !late.status().await?.success() {
                return Ok::<_, std::io::Error>(());
            }
        }
    })
    .await??;
    all_answered(&stage, waiting).await?;
    stage.end().await.map(drop)
}

async fn without_a_service_it_is_alive_and_not_ready() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let gateway = Gateway::start(&bus, &setup).await?;
    assert_eq!(gateway.get("/health").await?.status, 200);
    let ready = gateway.get("/ready").await?;
    assert_eq!(ready.status, 503);
    assert!(sentence(&ready, "/")?.contains("is not on the bus"), "{}", ready.text);
    let metrics = gateway.get("/metrics").await?;
    assert!(metrics.status == 200 && metrics.text.contains("\nop_dbus_up 0\n"), "{}", metrics.text);
    let embed = gateway.post("/v1/embeddings", &json!({"input": "one"})).await?;
    assert_eq!((embed.status, embed.headers.contains_key("retry-after")), (503, true));
    assert_eq!(embed.json()?["error"]["type"], "server_error");

    let daemon = setup.ready(&bus).await?;
    assert_eq!(gateway.get("/ready").await?.ok()?["status"], "ready");
    gateway.post("/v1/embeddings", &json!({"input": "one"})).await?.ok()?;
    daemon.client().manager.set_vector_level("none").await?;
    let ready = gateway.get("/ready").await?;
    assert_eq!((ready.status, &ready.json()?["error_type"]), (503, &json!("disabled")));
    gateway.stop().await?;
    daemon.stop().await
}

/// In time for who scrapes and who balances, and not when a call would have to be answered.
async fn a_service_that_hangs_is_told() -> Outcome {
    let stage = Stage::sim().await?;
    send(Signal::SIGSTOP, stage.daemon.process.pid()).await?;
    let ask = |path| stage.gateway.curl(path, &["--max-time", "60"], "");
    let (ready, metrics, status) = tokio::join!(ask("/ready"), ask("/metrics"), ask("/status"));
    let (ready, metrics, status) = (ready?, metrics?, status?);
    assert!(metrics.status == 200 && metrics.text.contains("\nop_dbus_up 0\n"), "{}", metrics.text);
    assert_eq!((ready.status, status.status), (503, 504));
    for refused in [&ready, &status] {
        assert!(sentence(refused, "/")?.contains("look whether it hangs"), "{}", refused.text);
    }
    stage.daemon.process.signal(Signal::SIGCONT)?;
    assert_eq!(stage.gateway.get("/ready").await?.status, 200);
    stage.end().await.map(drop)
}

async fn nobody_gets_in_without_the_key() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    fs::write(setup.path("api-key"), "a-long-secret\n")?;
    let gateway = Gateway::with_key(&bus, &setup, &setup.path("")).await?;
    let body = r#"{"input": "one"}"#;
    for header in ["X: y", "Authorization: Bearer a-long", "Authorization: Basic a-long-secret"] {
        let refused = gateway.curl("/v1/embeddings", &["-H", header], body).await?;
        assert_eq!(refused.status, 401, "{header}");
        assert_eq!(refused.json()?["error"]["type"], "authentication_error");
        assert_eq!(refused.headers.get("www-authenticate").map(String::as_str), Some("Bearer"));
    }
    for path in ["/status", "/metrics", "/v1/models"] {
        assert_eq!(gateway.get(path).await?.status, 401, "{path}");
    }
    for path in ["/", "/health", "/ready", "/openapi.json"] {
        assert_eq!(gateway.get(path).await?.status, 200, "{path}");
    }
    // What is open to read is not to work.
    assert_eq!(gateway.post("/", &json!({"inputs": "one"})).await?.status, 401);
    let words = ["-H", "Authorization: Bearer a-long-secret", "-H", "Host: embed.example"];
    gateway.curl("/v1/embeddings", &words, body).await?.ok()?;
    let log = gateway.stop().await?;
    assert!(!log.contains("a-long-secret"), "{log}");
    daemon.stop().await
}

async fn a_page_of_another_name_gets_nothing() -> Outcome {
    let stage = Stage::sim().await?;
    let rebound = ["-H", "Host: evil.example:8080"];
    for (path, body) in [("/", ""), ("/status", ""), ("/embed", r#"{"inputs": "one"}"#)] {
        let refused = stage.gateway.curl(path, &rebound, body).await?;
        assert_eq!(refused.status, 403, "{path}");
        assert!(sentence(&refused, path)?.contains("Host"), "{}", refused.text);
    }
    let whole = ["--request-target", "http://evil.example/status", "-H", "Host: localhost"];
    assert_eq!(stage.gateway.curl("/status", &whole, "").await?.status, 403);
    let words = ["-H", "Host: localhost", "-H", "Origin: https://evil.example"];
    let foreign = stage.gateway.curl("/embed", &words, r#"{"inputs": "one"}"#).await?;
    assert!(!foreign.headers.keys().any(|name| name.starts_with("access-control")));
    let words = ["-X", "OPTIONS", "-H", "Origin: https://evil.example"];
    let preflight = stage.gateway.curl("/embed", &words, "").await?;
    assert_eq!(preflight.status, 405);
    assert!(!preflight.headers.keys().any(|name| name.starts_with("access-control")));
    stage.end().await.map(drop)
}
