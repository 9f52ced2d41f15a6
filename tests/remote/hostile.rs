//! Endpoints that answer with what no honest one does: each is refused, in time and within bounds.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{fleet, refusal};
use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    wrong_answers_are_told: [Bus, Low],
    an_endless_answer_ends: [Bus, Low],
    silence_ends: [Bus, Low],
    what_is_no_grpc_is_told: [Bus, Low],
    an_answer_over_grpc_that_is_too_long_is_not_read: [Bus, Low],
}

/// An endpoint that answers every request with `answer`, and then goes on sending `more` for ever.
async fn endpoint(answer: String, more: &'static [u8]) -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            // Whoever has heard enough hangs up.
            tokio::spawn(async move { drop(talk(stream, &answer, more).await) });
        }
    });
    Ok(url)
}

async fn talk(mut stream: TcpStream, answer: &str, more: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    let complete = |request: &[u8]| {
        let text = String::from_utf8_lossy(request);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
        });
        Some(body.len() >= length.unwrap_or(0))
    };
    while complete(&request) != Some(true) {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(answer.as_bytes()).await?;
    while !more.is_empty() {
        stream.write_all(more).await?;
    }
    // Until the other end hangs up.
    while stream.read_buf(&mut request).await? > 0 {}
    Ok(())
}

/// An answer of a server that has no more to say.
fn http(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A daemon that asks there. Silence is soon waited for in vain; an answer has all the time that it needs.
fn asking(protocol: &str, url: &str, is_silent: bool) -> Outcome<Setup> {
    let setup = fleet("low", protocol, &[url])?;
    Ok(match is_silent {
        true => setup.setting("providers.remote.request_timeout_s", "2"),
        false => setup,
    })
}

/// What is said of an endpoint that answers so.
async fn said(answer: String, more: &'static [u8]) -> Outcome<String> {
    let is_silent = answer.is_empty();
    let url = endpoint(answer, more).await?;
    let message = refusal(&asking("openai", &url, is_silent)?).await?;
    assert!(message.contains(&url), "{message}");
    Ok(message)
}

async fn wrong_answers_are_told() -> Outcome {
    // 384 numbers of the bytes 0, 0, 0xc0, 0x7f.
    let not_numbers = "AADAfwAAwH8AAMB/".repeat(128);
    let nan = json!({"data": [{"index": 0, "embedding": not_numbers},
        {"index": 1, "embedding": not_numbers}]});
    for (answer, word) in [
        (http("200 OK", "no JSON"), "makes no sense"),
        (http("200 OK", &nan.to_string()), "not finite numbers"),
        (http("302 Found\r\nLocation: http://elsewhere.example/", ""), "it answers 302"),
        (http("500 Oops", "a \u{1b}[31mred\u{1b}[0m sentence"), "500 (a  [31mred [0m sentence)"),
        ("nothing like HTTP\r\n\r\n".to_owned(), "can't be used"),
    ] {
        let message = said(answer, b"").await?;
        assert!(message.contains(word), "{word}: {message}");
    }
    Ok(())
}

async fn an_endless_answer_ends() -> Outcome {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"data\":[";
    let message = said(head.to_owned(), &[b' '; 4096]).await?;
    assert!(message.contains("it is longer than"), "{message}");
    Ok(())
}

async fn silence_ends() -> Outcome {
    let message = said(String::new(), b"").await?;
    assert!(message.contains("timeout"), "{message}");
    Ok(())
}

async fn what_is_no_grpc_is_told() -> Outcome {
    for (answer, word) in [
        (http("200 OK", "{}"), "http2 error"),
        ("nothing like HTTP\r\n\r\n".to_owned(), "http2 error"),
        (String::new(), "timeout"),
    ] {
        let is_silent = answer.is_empty();
        let url = endpoint(answer, b"").await?.replace("http://", "grpc://");
        let message = refusal(&asking("oip", &url, is_silent)?).await?;
        assert!(message.contains(&format!("{url} can't be used: ")), "{message}");
        assert!(message.contains(word), "{word}: {message}");
    }
    Ok(())
}

/// The beginning of a frame of HTTP/2: bytes, kind, flags and stream.
fn frame(bytes: u8, kind: u8, flags: u8, stream: u8) -> [u8; 9] {
    [0, 0, bytes, kind, flags, 0, 0, 0, stream]
}

/// It says that two gigabytes will come.
async fn an_answer_over_grpc_that_is_too_long_is_not_read() -> Outcome {
    const HEADERS: u8 = 1;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("grpc://{}", listener.local_addr()?);
    // `:status: 200`, `content-type: application/grpc`, and a message's length.
    let fields = [&[0x88, 0x0f, 0x10, 16][..], b"application/grpc"].concat();
    let length = [0, 0x7f, 0xff, 0xff, 0xff];
    let settings = frame(0, 4, 0, 0);
    let headers = [&frame(fields.len() as u8, HEADERS, 4, 1)[..], &fields].concat();
    let data = [&frame(length.len() as u8, 0, 0, 1)[..], &length].concat();
    let talk = async move |mut stream: TcpStream| -> std::io::Result<()> {
        stream.write_all(&settings).await?;
        stream.read_exact(&mut [0; 24]).await?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut body).await?;
            if head[3] == HEADERS {
                stream.write_all(&[&headers[..], &data].concat()).await?;
            }
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // Until the other end hangs up.
            drop(talk(stream).await);
        }
    });
    let message = refusal(&fleet("low", "oip", &[&url])?).await?;
    assert!(message.contains("length too large: found 2147483647 bytes"), "{message}");
    Ok(())
}
