//! Requests that ask for work: admitted before their body is read, bounded until their reply is
//! sent.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::Gateway;
use crate::embed::Embedded;
use crate::limits::LIMITS;
use crate::object::Object;
use crate::refusal::Refusal;

/// A request's body, and the right to have it answered.
pub struct Work<T> {
    /// What is asked for.
    pub asked: T,
    /// The right.
    pub permit: Permit,
}

/// The right to work for a request; given back when its reply is sent.
pub struct Permit {
    gateway: Arc<Gateway>,
    held: Vec<OwnedSemaphorePermit>,
}

impl Permit {
    /// The right to `texts` texts as well.
    ///
    /// # Errors
    /// 413 for more than a request may have, 429 while others have theirs in flight.
    pub fn for_texts(&mut self, texts: usize) -> Result<(), Refusal> {
        if texts > LIMITS.texts {
            let limit = LIMITS.texts;
            return Err(Refusal::too_large(format!(
                "the request has {texts} texts, the limit is {limit}; send several requests"
            )));
        }
        let wanted = u32::try_from(texts).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.gateway.texts).try_acquire_many_owned(wanted);
        self.held.push(permit.map_err(|_| {
            Refusal::busy("the gateway has as many texts in flight as it takes; try again in 1 s")
        })?);
        Ok(())
    }

    /// A reply in JSON. The permit is held until it is sent.
    pub fn reply(self, value: &impl Serialize) -> Result<Response, Refusal> {
        let mut bytes = Vec::new();
        write(&mut bytes, value)?;
        Ok(self.reply_written(bytes))
    }

    /// The same for JSON that is there already.
    pub fn reply_written(self, json: Vec<u8>) -> Response {
        let length = json.len();
        let body = Full::new(Bytes::from(json)).map_frame(move |frame| {
            let _ = &self.held;
            frame
        });
        let mut response = Response::new(Body::new(body));
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

impl<T: DeserializeOwned> FromRequest<Arc<Gateway>> for Work<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Refusal> {
        let permit = Arc::clone(&gateway.requests).try_acquire_owned().map_err(|_| {
            let limit = LIMITS.requests;
            Refusal::busy(format!(
                "the gateway works on {limit} requests, which is its limit; try again in 1 s"
            ))
        });
        let permit = match permit.and_then(|permit| check_type(request.headers()).map(|()| permit))
        {
            Ok(permit) => Permit { gateway: Arc::clone(gateway), held: vec![permit] },
            Err(refusal) => return Err(unread(request, refusal)),
        };
        let body = read(request).await?;
        let Object(asked) = serde_json::from_slice(&body).map_err(|error| {
            Refusal::invalid(format!("the body is not what this route takes: {error}"))
        })?;
        Ok(Self { asked, permit })
    }
}

/// The body of a request, within its bounds.
async fn read(request: Request) -> Result<Bytes, Refusal> {
    let asks_first = request.headers().contains_key(EXPECT);
    let mut body = request.into_body();
    let too_large = || {
        let limit = LIMITS.body_bytes;
        Refusal::too_large(format!(
            "the body is larger than {limit} bytes; send the texts in several requests"
        ))
    };
    // Who asks whether to send it has nothing on its way.
    if asks_first && body.size_hint().lower() > LIMITS.body_bytes as u64 {
        return Err(too_large());
    }
    let limited = Limited::new(&mut body, LIMITS.body_bytes).collect();
    let read = timeout(LIMITS.body_time, limited).await.map_err(|_| {
        let seconds = LIMITS.body_time.as_secs();
        let message = format!("the body did not come within {seconds} s");
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    })?;
    match read {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            tokio::spawn(discard(body));
            Err(too_large())
        }
        Err(error) => Err(Refusal::invalid(format!("the body could not be read ({error})"))),
    }
}

/// Refuses a request whose body nobody has read, and takes what a client sends of it all the same.
pub fn unread(request: Request, refusal: Refusal) -> Refusal {
    // Who asks whether to send it has nothing on its way.
    let asks_first = request.headers().contains_key(EXPECT);
    let body = request.into_body();
    if !asks_first && !body.is_end_stream() {
        tokio::spawn(discard(body));
    }
    refusal
}

/// Takes for a while what a client still sends: where a connection ends with bytes that nobody has read,
/// the client's system may drop the reply before the client has seen it, and many clients take a
/// connection that breaks while they send for all that there is to know.
async fn discard(mut body: Body) {
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    // Whoever sends for longer is not waited for.
    let _ = timeout(LIMITS.discard_time, all).await;
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
        let found = String::from_utf8_lossy(found);
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
    let found = String::from_utf8_lossy(name);
    unsupported(format!(
        "the body's type is {found:?}; send the header `Content-Type: application/json`"
    ))
}

#[cfg(test)]
mod tests {
    use crate::fuzz::said_to_post;

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
}
