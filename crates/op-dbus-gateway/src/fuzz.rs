//! What the fuzzer of `tests/fuzz` drives here: what a client sends over HTTP.

mod stand_in;

use std::sync::{Arc, LazyLock};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};
use zbus::connection::Builder as Connection;

use crate::{Connect, Gateway, limits, routes};
use stand_in::StandIn;

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[("requests", requests)];

/// What waits between the two ends, so that neither waits for the other: more than a fuzzer sends.
const PIPE_BYTES: usize = 1 << 20;
/// Where no bus is.
const NO_BUS: &str = "unix:path=/dev/null/bus";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// All that a client sends on one connection to a gateway whose service answers everything at once.
fn requests(bytes: &[u8]) -> bool {
    let service = StandIn::default();
    let said = said_before(service.connect(), bytes);
    let wrong = service.wrong();
    assert!(wrong.is_empty(), "it asked for what it may not: {wrong:?}");
    assert!(said.is_empty() || said.starts_with("HTTP/1."), "{said}");
    // Whatever is wrong is the client's mistake.
    let is_work = bytes.starts_with(b"POST ");
    assert!(!said.starts_with("HTTP/1.1 500"), "{said}");
    assert!(!is_work || !said.starts_with("HTTP/1.1 503"), "{said}");
    is_work && said.starts_with("HTTP/1.1 200 ")
}

/// What a gateway that has no bus says to it.
pub fn said_to(bytes: &[u8]) -> String {
    said_before(Arc::new(|| Connection::address(NO_BUS)), bytes)
}

/// What a gateway says to it before the service that `connect` leads to.
fn said_before(connect: Connect, bytes: &[u8]) -> String {
    let gateway = Gateway::new(connect, None, true);
    let service = TowerToHyperService::new(routes::router(Arc::clone(&gateway)));
    let said = RUNTIME.block_on(async {
        let (ours, mut theirs) = duplex(PIPE_BYTES);
        let mut http = http1::Builder::new();
        let connection = http.half_close(true).serve_connection(TokioIo::new(ours), service);
        let client = async {
            let mut said = Vec::new();
            // The gateway may end the connection at any time.
            let _ = theirs.write_all(bytes).await;
            let _ = theirs.shutdown().await;
            let _ = theirs.read_to_end(&mut said).await;
            said
        };
        tokio::join!(connection, client).1
    });
    assert_eq!(gateway.places.requests.available_permits(), limits::REQUESTS);
    assert_eq!(gateway.places.waiting.available_permits(), limits::WAITING);
    assert_eq!(gateway.places.kept.available_permits(), limits::WAITING_BYTES);
    assert_eq!(gateway.places.bodies.available_permits(), limits::BODIES_BYTES);
    assert_eq!(gateway.places.texts.available_permits(), limits::TEXTS_IN_FLIGHT);
    assert_eq!(gateway.places.replies.available_permits(), limits::REPLIES_BYTES);
    String::from_utf8_lossy(&said).into_owned()
}

/// What it says to one request; `more` are lines of its head.
#[cfg(test)]
pub fn said_to_post(path: &str, more: &str, body: &str) -> String {
    let length = body.len();
    said_to(
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{more}\r\n{body}"
        )
        .as_bytes(),
    )
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
