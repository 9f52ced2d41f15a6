//! Requests over HTTP: one pool of connections, every time and size bounded.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Error, RequestBuilder, Timeout, http};

use crate::Token;
use crate::failure::Failure;

/// What of a connection's time may go into its making.
pub const CONNECT: Duration = Duration::from_secs(3);
/// Bytes of an answer that says what is wrong.
const REFUSAL_BYTES_MAX: u64 = 4096;
/// Characters of it that are told.
const REFUSAL_CHARS_MAX: usize = 200;

/// A client of all endpoints. It follows no redirect, which could lead anywhere, and takes no proxy from
/// the environment.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    token: Option<Token>,
}

/// A body, and what is said of it.
#[derive(Debug)]
pub struct Message {
    /// The bytes.
    pub body: Vec<u8>,
    /// How many of these are JSON, where others follow.
    pub json_bytes: Option<usize>,
}

/// How much of what a server says of its refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote {
    /// The beginning: nothing of a caller's was sent.
    Words,
    /// The status alone: servers quote what they were sent.
    Status,
}

/// The header of the Open Inference Protocol's binary extension.
const JSON_BYTES: &str = "Inference-Header-Content-Length";
/// The header of a server that wants to be asked later, in seconds.
const LATER: &str = "Retry-After";

impl Client {
    /// A client that trusts the certificates in `roots` (PEM), or else Mozilla's list.
    pub fn new(roots: Option<&[u8]>, token: Option<&Token>) -> Self {
        let roots = roots.map_or(RootCerts::WebPki, certificates);
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .user_agent(concat!("op-dbus/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .build();
        Self { agent: config.new_agent(), token: token.cloned() }
    }

    /// `GET`, of which the answer has `most` bytes at most.
    ///
    /// # Errors
    /// It fails in any way.
    pub fn get(&self, url: &str, time: Duration, most: usize) -> Result<Message, Failure> {
        let request = self.authorized(self.agent.get(url), time);
        answered(request.call(), (url, time), most, Quote::Words)
    }

    /// `POST`, of which the answer has `most` bytes at most.
    ///
    /// # Errors
    /// It fails in any way.
    pub fn post(
        &self,
        url: &str,
        message: &Message,
        (time, most): (Duration, usize),
        quote: Quote,
    ) -> Result<Message, Failure> {
        let request = self.authorized(self.agent.post(url), time);
        let request = match message.json_bytes {
            Some(bytes) => request
                .header(JSON_BYTES, bytes.to_string())
                .header("Content-Type", "application/octet-stream"),
            None => request.header("Content-Type", "application/json"),
        };
        answered(request.send(&message.body[..]), (url, time), most, quote)
    }

    /// A request that may take so much `time`, with what lets us in.
    fn authorized<B>(&self, request: RequestBuilder<B>, time: Duration) -> RequestBuilder<B> {
        let request = request.config().timeout_global(Some(time)).build();
        match &self.token {
            Some(token) => request.header("Authorization", token.authorization()),
            None => request,
        }
    }
}

fn certificates(pem: &[u8]) -> RootCerts {
    RootCerts::from(parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    }))
}

fn answered(
    answer: Result<http::Response<Body>, Error>,
    (url, time): (&str, Duration),
    most: usize,
    quote: Quote,
) -> Result<Message, Failure> {
    let mut answer = answer.map_err(|error| Failure::absent(told(error, url, time)))?;
    let status = answer.status();
    if status != http::StatusCode::OK {
        let words = match quote {
            Quote::Words => words(&mut answer),
            Quote::Status => String::new(),
        };
        let later = answer.headers().get(LATER).and_then(|value| value.to_str().ok());
        let later = later.and_then(|seconds| seconds.trim().parse().ok());
        return Err(refusal(status, later.map(Duration::from_secs), &words));
    }
    let json_bytes = match answer.headers().get(JSON_BYTES) {
        Some(value) => {
            let bytes = value.to_str().ok().and_then(|text| text.parse().ok());
            Some(bytes.ok_or_else(|| Failure::nonsense("the length of its JSON is no number"))?)
        }
        None => None,
    };
    let mut body = Vec::new();
    let read = answer.body_mut().as_reader().take(most as u64 + 1).read_to_end(&mut body);
    read.map_err(|error| {
        Failure::Absent(format!("its answer broke off ({})", told(error.into(), url, time)))
    })?;
    if body.len() > most {
        return Err(Failure::nonsense(format_args!("it is longer than {most} bytes")));
    }
    Ok(Message { body, json_bytes })
}

/// Why there is no answer of `url`, which had so much `time`.
fn told(error: Error, url: &str, time: Duration) -> String {
    match error {
        Error::Timeout(Timeout::Connect) => {
            format!("timeout: its connection took longer than {:.1} s", CONNECT.as_secs_f32())
        }
        Error::Timeout(_) => format!("timeout: it took longer than {:.1} s", time.as_secs_f32()),
        Error::Io(error) if error.kind() != ErrorKind::UnexpectedEof => error.to_string(),
        Error::Io(_) if url.starts_with("http:") => {
            "it hung up, as one does that has a certificate and wants https".to_owned()
        }
        Error::Io(_) => "it hung up".to_owned(),
        error => error.to_string(),
    }
}

/// What the status means for the batch; `later` is when the server wants to be asked again. Most statuses
/// may be for this batch alone, as those of what stands before a server and looks into texts.
fn refusal(status: http::StatusCode, later: Option<Duration>, words: &str) -> Failure {
    let said = format!("it answers {}{words}", status.as_u16());
    match (status.as_u16(), later) {
        (413, _) => Failure::TooLarge(said),
        (400 | 422, _) => Failure::Refused(said),
        (429 | 503, Some(later)) => Failure::Busy(said, later),
        (401 | 429 | 503, _) => Failure::Away(said),
        (300..=499 | 501 | 505, _) => Failure::Declined(said),
        _ => Failure::Failed(said),
    }
}

/// The beginning of what a server says.
fn words(answer: &mut http::Response<Body>) -> String {
    let mut said = Vec::new();
    let reader = answer.body_mut().as_reader();
    // Whatever came until it failed.
    let _ = reader.take(REFUSAL_BYTES_MAX).read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    let said: String = said.trim().chars().take(REFUSAL_CHARS_MAX).collect();
    if said.is_empty() { said } else { format!(" ({said})") }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// What is told of a server that does this with what begins so, within `time`.
    fn said(
        scheme: &str,
        serve: impl Fn(&mut TcpStream) + Send + 'static,
        time: Duration,
    ) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Who hangs up with something unread would reset the connection.
                let _ = stream.read(&mut [0; 4096]);
                serve(&mut stream);
            }
        });
        let client = Client::new(None, None);
        client.get(&url, time, 4096).unwrap_err().to_string()
    }

    #[test]
    fn what_ends_a_connection_is_told_plainly() {
        const LONG: Duration = Duration::from_secs(120);
        let hangs_up = |_: &mut TcpStream| {};
        assert!(said("http", hangs_up, LONG).ends_with("wants https"));
        assert_eq!(said("https", hangs_up, LONG), "it hung up");
        let plain = |stream: &mut TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 400 x\r\nContent-Length: 0\r\n\r\n");
        };
        let said_plainly = said("https", plain, LONG);
        assert!(said_plainly.ends_with("the URL of a server without has http or grpc"));
        let silent = |stream: &mut TcpStream| drop(stream.read(&mut [0]));
        let time = Duration::from_millis(100);
        assert_eq!(said("http", silent, time), "timeout: it took longer than 0.1 s");
        let slow = |stream: &mut TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\n1");
            let _ = stream.read(&mut [0]);
        };
        let broke_off = "its answer broke off (timeout: it took longer than 2.0 s)";
        // On a busy machine it may not even begin in that time, and not five times.
        assert!((0..5).any(|_| said("http", slow, Duration::from_secs(2)) == broke_off));
    }

    #[test]
    fn a_status_says_whether_it_may_be_the_batch() {
        let told = |status, later: Option<u64>| {
            let status = http::StatusCode::from_u16(status).unwrap();
            refusal(status, later.map(Duration::from_secs), "")
        };
        assert!(matches!(told(413, None), Failure::TooLarge(said) if said == "it answers 413"));
        for status in [400, 422] {
            assert!(matches!(told(status, None), Failure::Refused(_)), "{status}");
        }
        for status in [302, 403, 404, 406, 408, 415, 424, 431, 501, 505] {
            assert!(matches!(told(status, None), Failure::Declined(_)), "{status}");
        }
        // One in between answers 502 also when what is behind it dies of the batch.
        for status in [204, 500, 502, 504, 520] {
            assert!(matches!(told(status, None), Failure::Failed(_)), "{status}");
        }
        for status in [401, 429, 503] {
            assert!(matches!(told(status, None), Failure::Away(_)), "{status}");
        }
        assert!(matches!(told(401, Some(1)), Failure::Away(_)));
        for status in [429, 503] {
            assert!(matches!(told(status, Some(1)), Failure::Busy(..)), "{status}");
        }
    }
}
