//! Requests that ask for work: they wait for their place once all of them is there, and are bounded until their reply is
//! read.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Deserializer, Error};
use serde_path_to_error::Segment;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::Gateway;
use crate::body::{Read, read, unread};
use crate::embed::Embedded;
use crate::held::held;
use crate::limits;
use crate::object::Object;
use crate::places::Place;
use crate::refusal::Refusal;

/// A request's body, and the right to have it answered.
pub struct Work<T> {
    /// What is asked for.
    pub asked: T,
    /// The right; its place is still to be waited for.
    pub permit: Permit,
}

/// The right to have a place for a request, to work for it then, and to have its reply wait until it is read.
pub struct Permit {
    gateway: Arc<Gateway>,
    place: Place,
    /// Bytes of the body or the reply, whichever has more.
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes >= limits::LARGE_BYTES {
            self.gateway.large.notify_one();
        }
    }
}

impl Permit {
    /// Waits for the request's place, with `texts` texts.
    ///
    /// # Errors
    /// 413 for more than a request may have, 429 where others have theirs for too long.
    pub async fn for_texts(&mut self, texts: usize) -> Result<(), Refusal> {
        self.place.take(self.bytes, texts, 0).await
    }

    /// The same for the tokens of `texts` texts, which have so many bytes.
    ///
    /// # Errors
    /// As [`Permit::for_texts`].
    pub async fn for_tokens(&mut self, texts: usize, bytes: usize) -> Result<(), Refusal> {
        let least = bytes / limits::TOKENIZED_BYTES_PER_TEXT;
        self.place.take(self.bytes, texts.max(least), least).await
    }

    /// A reply in JSON. The permit is held until it is sent.
    pub fn reply(self, value: &impl Serialize) -> Result<Response, Refusal> {
        let mut bytes = Vec::new();
        write(&mut bytes, value)?;
        Ok(self.reply_written(bytes))
    }

    /// The same for JSON that is there already.
    pub fn reply_written(mut self, json: Vec<u8>) -> Response {
        let length = json.len();
        self.bytes = self.bytes.max(length);
        self.place.work_is_done(length);
        let mut response = Response::new(Body::from(held(Bytes::from(json), self)));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // So that who reads less of it knows that it is not all.
        headers.insert(CONTENT_LENGTH, length.into());
        response
    }

    /// A reply in JSON that has no place for how the vectors came to be: headers tell it.
    pub fn reply_with(
        self,
        value: &impl Serialize,
        embedded: &Embedded,
    ) -> Result<Response, Refusal> {
        let mut response = self.reply(value)?;
        let headers = response.headers_mut();
        headers.insert(TRUNCATED, embedded.truncated.len().into());
        headers.insert(CACHED, embedded.cached.into());
        Ok(response)
    }
}

/// Writes `value` in JSON behind what `bytes` has.
///
/// # Errors
/// 500, which no value here comes to.
pub fn write(bytes: &mut Vec<u8>, value: &impl Serialize) -> Result<(), Refusal> {
    serde_json::to_writer(bytes, value).map_err(|error| {
        let message = format!("the reply could not be written ({error})");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
    })
}

/// Number of texts that were longer than the model reads, and were cut.
const TRUNCATED: HeaderName = HeaderName::from_static("op-dbus-truncated");
/// Number of texts that were answered from the service's cache.
const CACHED: HeaderName = HeaderName::from_static("op-dbus-cached");

/// Byte order marks: of UTF-8, and of UTF-16 in either order.
const MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// What OpenAI's route takes, by the names that its refusals have.
const ARGUMENTS: [&str; 5] = ["input", "model", "encoding_format", "dimensions", "user"];

/// How serde says that half of a surrogate pair is missing; behind its beginning are words of the client's.
const HALVES: [&str; 2] = ["lone leading surrogate", "unexpected end of hex escape"];

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<Gateway>> for Work<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Refusal> {
        // Whoever can be told before the body is on its way is.
        let free = gateway.places.check();
        let headers = request.headers();
        let right = free.and_then(|()| check_transfer(headers)).and_then(|()| check_type(headers));
        if let Err(refusal) = right {
            return Err(unread(request, refusal));
        }
        let read = read(request, &gateway.places.bodies, &gateway.leaving).await?;
        let (gateway, bytes) = (Arc::clone(gateway), read.bytes.len());
        let permit = Permit { place: gateway.places.place(), gateway, bytes };
        // What is made of a body counts from when the route takes the place. Nothing is awaited before that but the
        // turn of a large one, which counts as read until it is taken apart: so few are in between.
        let asked = match bytes >= limits::LARGE_BYTES {
            true => aside(read, &permit.gateway.parsing).await?,
            false => parsed(&read)?,
        };
        Ok(Self { asked, permit })
    }
}

/// What a large body asks for. It may take a second, in which others are answered, and many times its own room,
/// so that one comes after another.
async fn aside<T>(read: Read, parsing: &Arc<Semaphore>) -> Result<T, Refusal>
where
    T: DeserializeOwned + Send + 'static,
{
    let turn = Arc::clone(parsing).acquire_owned().await;
    let parsed = spawn_blocking(move || {
        // Until it is done, also when the client has left by then.
        let _turn = turn;
        parsed(&read)
    });
    parsed.await.unwrap_or_else(|error| {
        let message = format!("the body could not be read ({error})");
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message))
    })
}

fn parsed<T: DeserializeOwned>(read: &Read) -> Result<T, Refusal> {
    if read.bytes.trim_ascii().is_empty() {
        return Err(Refusal::invalid(
            "the body is empty; send the JSON object that /openapi.json tells of this route",
        ));
    }
    // PowerShell and Windows' editors write one, and JSON has no place for it.
    if MARKS.iter().any(|mark| read.bytes.starts_with(mark)) {
        return Err(Refusal::invalid(
            "the body begins with a byte order mark (BOM); send JSON in UTF-8 without one",
        ));
    }
    let Object(asked) = serde_json::from_slice(&read.bytes).map_err(|error| {
        let sentence = shortened(&error.to_string());
        // Programs that cut a text between two UTF-16 units send half of an emoji.
        let half = match HALVES.iter().any(|half| sentence.starts_with(half)) {
            true => "; half of a surrogate pair, as \\ud83d alone is one, is no character",
            false => "",
        };
        let message = format!("the body is not what this route takes: {sentence}{half}");
        let refusal = Refusal::invalid(message);
        match argument::<T>(&error, &read.bytes) {
            Some(name) => refusal.about(name),
            None => refusal,
        }
    })?;
    Ok(asked)
}

/// The argument that a value was wrong for, where clients are told that. serde knows it only where it keeps account of
/// where it is, which takes its time: so of a body that is refused alone.
fn argument<T: DeserializeOwned>(error: &Error, body: &[u8]) -> Option<&'static str> {
    if !error.is_data() {
        return None;
    }
    let mut body = Deserializer::from_slice(body);
    let again = serde_path_to_error::deserialize::<_, Object<T>>(&mut body).err()?;
    let Some(Segment::Map { key }) = again.path().iter().next() else { return None };
    ARGUMENTS.iter().find(|name| *name == key).copied()
}

/// A sentence of serde's, which repeats a name or value of the client's however long it is: how it begins,
/// with 40 letters of that, and how it ends, with what would be right and where it is.
fn shortened(sentence: &str) -> String {
    const BEGIN: usize = "unknown variant `".len() + 40;
    const END: usize = 240;
    let middle = sentence.chars().count().saturating_sub(BEGIN + END);
    if middle <= 1 {
        return sentence.to_owned();
    }
    let begin = sentence.chars().take(BEGIN);
    begin.chain(['…']).chain(sentence.chars().skip(BEGIN + middle)).collect()
}

/// hyper takes the last of these for all of them.
fn check_transfer(headers: &HeaderMap) -> Result<(), Refusal> {
    let values = headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
    let mut names = values.flat_map(|value| value.split(|byte| *byte == b','));
    // Elements of such a list may be empty (RFC 9110, 5.6.1).
    let is_other =
        |name: &&[u8]| !matches!(&*name.trim_ascii().to_ascii_lowercase(), b"" | b"chunked");
    let Some(found) = names.find(is_other) else { return Ok(()) };
    let found = start(found.trim_ascii());
    let message = format!(
        "the body's transfer encoding is {found:?}; send it as it is, with the header \
         `Content-Length` or with `Transfer-Encoding: chunked` alone"
    );
    Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported_transfer_encoding", message))
}

/// A browser sends JSON to another origin only if that allows it, which the gateway never does; any
/// other type it would send at once. A body that is packed would be no JSON here.
fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let unsupported = |message: String| {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Err(Refusal::new(status, "unsupported_media_type", message))
    };
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    if let Some(found) = encodings.find(|name| !name.eq_ignore_ascii_case(b"identity")) {
        let found = start(found);
        return unsupported(format!(
            "the body's encoding is {found:?}; bodies are taken as they are: send it unpacked, \
             without the header `Content-Encoding`"
        ));
    }
    let found = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let name = found.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if name.eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    let found = start(name);
    unsupported(format!(
        "the body's type is {found:?}; send the header `Content-Type: application/json`"
    ))
}

/// What a header begins with.
fn start(header: &[u8]) -> String {
    String::from_utf8_lossy(header).chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::Value;

    use super::*;
    use crate::fuzz::{said_to, said_to_post};
    use crate::leaving::Leaving;

    #[test]
    fn a_refusal_repeats_a_little_of_a_long_name() {
        let long = "é".repeat(10_000);
        let forty = "é".repeat(40);
        let unknown = format!(r#"{{"{long}": 1}}"#);
        let said = said_to_post("/embed", "", &unknown);
        let (before, after) = said.split_once(&format!("unknown field `{forty}")).expect("named");
        assert!(before.contains("the body is not what this route takes: "), "{said}");
        assert!(after.contains("`, expected one of `inputs`, `normalize`, "), "{said}");
        assert!(after.contains(" at line 1 column 20003"), "{said}");
        assert!(after.chars().count() < 400, "{said}");

        let value = said_to_post("/add", "", &format!(r#"{{"text": "a", "model": ["{long}"]}}"#));
        assert!(value.chars().count() < 800, "{value}");
        let header = format!("Content-Encoding: {}\r\n", "z".repeat(10_000));
        let packed = said_to_post("/add", &header, "{}");
        assert!(packed.starts_with("HTTP/1.1 415 ") && packed.len() < 800, "{packed}");
    }

    #[test]
    fn half_of_a_surrogate_pair_is_named() {
        for half in [r"\ud83d", r"\ud83d!", r"\udc00"] {
            let said = said_to_post("/add", "", &format!(r#"{{"text": "{half}"}}"#));
            assert!(said.starts_with("HTTP/1.1 400 "), "{half}: {said}");
            assert!(said.contains("half of a surrogate pair"), "{half}: {said}");
        }
        let said = said_to_post("/add", "", r#"{"hex escape": 1}"#);
        assert!(said.contains("unknown field `hex escape`"), "{said}");
        assert!(!said.contains("surrogate"), "{said}");
    }

    #[test]
    fn a_packed_body_is_refused_as_one() {
        let said = |header| said_to_post("/add", header, r#"{"text": "a"}"#);
        for header in ["", "Content-Encoding: identity\r\n"] {
            assert!(said(header).starts_with("HTTP/1.1 503 "), "{header}: {}", said(header));
        }
        for header in [
            "Content-Encoding: gzip\r\n",
            "Content-Encoding: identity\r\nContent-Encoding: br\r\n",
            "Content-Encoding: identity, gzip\r\n",
        ] {
            let said = said(header);
            assert!(said.starts_with("HTTP/1.1 415 "), "{header}: {said}");
            assert!(said.contains("bodies are taken as they are"), "{header}: {said}");
        }
    }

    #[test]
    fn a_body_whose_transfer_is_not_undone_here_is_refused() {
        let said = |codings: &str| {
            let head = "POST /add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
            let body = "d\r\n{\"text\": \"a\"}\r\n0\r\n\r\n";
            said_to(format!("{head}\r\nTransfer-Encoding: {codings}\r\n\r\n{body}").as_bytes())
        };
        for codings in ["chunked", "Chunked"] {
            assert!(said(codings).starts_with("HTTP/1.1 503 "), "{codings}: {}", said(codings));
        }
        for (codings, found) in [
            ("foo, chunked", "foo"),
            ("chunked, gzip,chunked", "gzip"),
            ("gzip\r\nTransfer-Encoding: chunked", "gzip"),
        ] {
            let said = said(codings);
            assert!(said.starts_with("HTTP/1.1 501 "), "{codings}: {said}");
            let told = format!(r#"the body's transfer encoding is \"{found}\"; "#);
            assert!(said.contains(&told), "{codings}: {said}");
        }
    }

    #[test]
    fn an_empty_body_is_told_as_one() {
        for body in ["", " \n"] {
            let said = said_to_post("/embed", "", body);
            assert!(said.starts_with("HTTP/1.1 400 "), "{body:?}: {said}");
            assert!(said.contains("the body is empty; send the JSON object"), "{body:?}: {said}");
        }
    }

    #[tokio::test]
    async fn a_large_body_waits_for_the_one_before_it_and_keeps_no_thread() {
        let room = Arc::new(Semaphore::new(100));
        let body = Request::new(Body::from(r#"["one"]"#));
        let body = read(body, &room, &Leaving::default()).await.unwrap();
        let parsing = Arc::new(Semaphore::new(1));
        let before = Arc::clone(&parsing).try_acquire_owned().unwrap();
        let mut asked = Box::pin(aside::<Value>(body, &parsing));
        assert!(asked.as_mut().now_or_never().is_none());
        drop(before);
        let refusal = asked.await.unwrap_err();
        assert!(refusal.message().contains("expected a JSON object"), "{}", refusal.message());
        assert_eq!((parsing.available_permits(), room.available_permits()), (1, 100));
    }
}
