//! Refusals: from the bus contract's error names to HTTP, in one table, and in the shape that each
//! family of routes has.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use op_dbus_api::{BUS_NAME, Error, ErrorName, about_text, is_about_text, retry_after};
use serde_json::json;
use zbus::fdo;

/// The word for a service that can't be reached.
const UNAVAILABLE: &str = "service_unavailable";

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub struct Refusal {
    status: StatusCode,
    /// A stable word for programs.
    code: &'static str,
    /// One sentence.
    message: String,
    retry_after_s: Option<u64>,
    /// The argument that it is about, where that is known.
    param: Option<&'static str>,
    /// Whether a list has nothing that must have something.
    is_empty: bool,
}

/// Whose clients ask a route, and so how they are told a refusal.
#[derive(Clone, Copy)]
pub enum Shape {
    /// OpenAI's.
    OpenAi,
    /// Those of text-embeddings-inference.
    Inference,
    /// Any.
    Own,
}

impl Shape {
    /// That of the route at this path.
    pub fn of(path: &str) -> Self {
        match path {
            "/" | "/embed" | "/similarity" | "/rerank" | "/tokenize" | "/info" => Self::Inference,
            path if path.starts_with("/v1/") => Self::OpenAi,
            _ => Self::Own,
        }
    }
}

impl Refusal {
    /// A refusal with its one sentence.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, code, message, retry_after_s: None, param: None, is_empty: false }
    }

    /// The request itself is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// A list has nothing, and must have something.
    pub fn empty(message: impl Into<String>) -> Self {
        Self { is_empty: true, ..Self::invalid(message) }
    }

    /// More than the gateway takes.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// The gateway has its hands full: its client is to come back after 1 s.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message).retry_after(1)
    }

    /// Nothing came for so long that whoever was asked does not even keep the deadline.
    pub fn silent(who: &str, time: Duration) -> Self {
        let message =
            format!("{who} did not answer within {} s; look whether it hangs", time.as_secs());
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }

    /// No model of this name can be had.
    pub fn no_model(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model")
    }

    /// The calls of a request would be of several models.
    pub fn changed() -> Self {
        let message = "the model was changed between two calls of this request; send it again";
        Self::new(StatusCode::CONFLICT, "wrong_space", message)
    }

    /// The gateway ends before the request is answered.
    pub fn leaving() -> Self {
        let message = "the gateway ends and can't wait for this request; send it again in 1 s";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).retry_after(1)
    }

    /// The client is to come back after this many seconds.
    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The same, which is about this argument of the request.
    pub fn about(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// The same, where it is about one text, with what `name` calls that by its number in the call.
    pub fn about_texts(mut self, name: impl FnOnce(usize) -> String) -> Self {
        if let Some(message) = about_text(&self.message, |number| Some(name(number))) {
            self.message = message;
        }
        self
    }

    /// The same, of a call with one text alone, which is the request's text `number`.
    pub fn about_text(mut self, number: usize) -> Self {
        self.message = about_text(&self.message, |_: usize| Some(format!("text {number}")))
            .unwrap_or_else(|| format!("text {number}: {}", self.message));
        self
    }

    /// The same as "not ready", for whoever asks for that.
    pub fn not_ready(mut self) -> Self {
        self.status = StatusCode::SERVICE_UNAVAILABLE;
        self
    }

    /// The same for whoever has no key: the service's sentence may have paths, names and commands.
    pub fn without_reason(mut self) -> Self {
        let code = self.code;
        self.message = format!("the service does not embed now ({code}); ask with the API key why");
        self
    }

    /// A failed call on the bus.
    pub fn of_call(error: &zbus::Error) -> Self {
        if let Some(error) = Error::from_reply(error) {
            return Self::of_service(&error);
        }
        let unavailable = |message| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, message).retry_after(5)
        };
        let zbus::Error::FDO(standard) = error else {
            return unavailable(format!("{BUS_NAME} can't be reached on the bus ({error})"));
        };
        match **standard {
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => unavailable(format!(
                "the service {BUS_NAME} is not on the bus of the gateway (`--bus` names another); \
                 start it there (on the system's: `systemctl start op-dbus`)"
            )),
            _ => unavailable(format!("the service {BUS_NAME} did not answer ({error})")),
        }
    }

    /// A refusal of the service: the one table of names.
    fn of_service(error: &Error) -> Self {
        let (status, code) = match error.name() {
            ErrorName::InvalidArgument => (400, "invalid_request"),
            ErrorName::TooLarge => (413, "too_large"),
            ErrorName::TooLong => (413, "too_long"),
            ErrorName::Overloaded => (429, "overloaded"),
            ErrorName::QuotaExceeded => (429, "quota_exceeded"),
            ErrorName::DeadlineExceeded => (504, "deadline_exceeded"),
            ErrorName::WrongSpace => (409, "wrong_space"),
            ErrorName::Cancelled => (503, "cancelled"),
            ErrorName::Disabled => (503, "disabled"),
            ErrorName::NotReady => (503, "not_ready"),
            ErrorName::ShuttingDown => (503, "shutting_down"),
            ErrorName::ModelNotInstalled => (503, "model_not_installed"),
            ErrorName::ModelCorrupt => (503, "model_corrupt"),
            ErrorName::ProviderUnavailable => (503, "provider_unavailable"),
            ErrorName::OutOfMemory => (503, "out_of_memory"),
            ErrorName::WorkerFailed => (503, "worker_failed"),
            ErrorName::AccessDenied => (503, "access_denied"),
            // Of methods that the gateway does not call.
            ErrorName::Pinned
            | ErrorName::NoSpace
            | ErrorName::UnknownObject
            | ErrorName::InteractiveAuthorizationRequired
            // A fault of the service itself.
            | ErrorName::Failed => (500, "failed"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let refusal = Self::new(status, code, error.message());
        match error.name() {
            ErrorName::Overloaded | ErrorName::QuotaExceeded => {
                refusal.retry_after(seconds(error.message()))
            }
            ErrorName::NotReady | ErrorName::ShuttingDown | ErrorName::Cancelled => {
                refusal.retry_after(1)
            }
            _ => refusal,
        }
    }

    /// Whether nothing came of the service itself: it or the bus can't be reached.
    pub fn is_unreachable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// Whether somebody has their hands full, and others are answered.
    pub fn is_busy(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS
    }

    /// The stable word.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// As OpenAI's routes tell it.
    fn openai(&self) -> serde_json::Value {
        let kind = match self.status.as_u16() {
            429 => "rate_limit_error",
            401 => "authentication_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        let param = self.param.or_else(|| is_about_text(&self.message).then_some("input"));
        json!({"error": {"message": self.message, "type": kind, "param": param, "code": self.code}})
    }

    /// What text-embeddings-inference calls it, if it has a word for it.
    fn inference(&self) -> &'static str {
        match self.status.as_u16() {
            _ if self.is_empty => "Empty",
            400 | 413 => "Validation",
            429 => "Overloaded",
            503 => "Unhealthy",
            500 | 504 => "Backend",
            _ => self.code,
        }
    }

    /// As all routes but OpenAI's tell it.
    fn plain(&self, kind: &str) -> serde_json::Value {
        json!({"error": self.message, "error_type": kind, "code": self.code})
    }
}

/// Without a body: [`shaped`] makes it when it is known which route was asked.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives a refusal its body.
pub fn shaped(mut response: Response, shape: Shape) -> Response {
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else { return response };
    let body = match shape {
        Shape::OpenAi => refusal.openai(),
        Shape::Inference => refusal.plain(refusal.inference()),
        Shape::Own => refusal.plain(refusal.code),
    };
    *response.body_mut() = Body::from(body.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if matches!(shape, Shape::OpenAi) && refusal.status == StatusCode::GATEWAY_TIMEOUT {
        // OpenAI's clients would have the same computed twice more.
        response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

/// The service's hint when to come back, in whole seconds.
fn seconds(message: &str) -> u64 {
    let hint = retry_after(message).unwrap_or_default();
    u64::try_from(hint.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::said_to_post;
    use crate::limits;

    /// The body of what is said without a service.
    fn said(path: &str, body: &str) -> serde_json::Value {
        let said = said_to_post(path, "", body);
        let (_, body) = said.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }

    #[test]
    fn clients_of_text_embeddings_inference_are_told_in_its_words() {
        let pair = r#"{"inputs": {"source_sentence": "a", "sentences": []}}"#;
        for (path, body, kind, code) in [
            ("/embed", r#"{"inputs": "a"}"#, "Unhealthy", "service_unavailable"),
            ("/", r#"{"inputs": true}"#, "Validation", "invalid_request"),
            ("/embed", r#"{"inputs": []}"#, "Empty", "invalid_request"),
            ("/tokenize", r#"{"inputs": []}"#, "Empty", "invalid_request"),
            ("/rerank", r#"{"query": "a", "texts": []}"#, "Empty", "invalid_request"),
            ("/similarity", pair, "Empty", "invalid_request"),
            ("/add", "{}", "invalid_request", "invalid_request"),
        ] {
            let told = said(path, body);
            assert!(told["error_type"] == kind && told["code"] == code, "{path} {body}: {told}");
        }
    }

    #[test]
    fn clients_of_openai_do_not_ask_again_for_what_takes_too_long() {
        let late = || Refusal::silent("the service", limits::ANSWER_TIME).into_response();
        let full = Refusal::busy("full").into_response();
        for (response, shape, told) in [
            (late(), Shape::OpenAi, Some("false")),
            (late(), Shape::Inference, None),
            (full, Shape::OpenAi, None),
        ] {
            let told_header = shaped(response, shape).headers().get("x-should-retry").cloned();
            assert_eq!(told_header.as_ref().map(|value| value.to_str().unwrap()), told);
        }
    }

    #[test]
    fn clients_of_openai_are_told_the_argument() {
        let many = json!({"input": vec!["a"; limits::TEXTS + 1]}).to_string();
        for (body, param) in [
            (r#"{"input": []}"#, json!("input")),
            (r#"{"input": "\u0000"}"#, json!("input")),
            (r#"{"input": "a", "encoding_format": "hex"}"#, json!("encoding_format")),
            (r#"{"input": "a", "model": "\u0000"}"#, json!("model")),
            (r#"{"input": "a"}"#, json!(null)),
            (r#"{"input": 5}"#, json!("input")),
            (r#"{"input": ["a", {}], "model": "low"}"#, json!("input")),
            (r#"{"input": "a", "model": 5}"#, json!("model")),
            (r#"{"dimensions": "384", "input": "a"}"#, json!("dimensions")),
            (r#"{"input": "a", "dimensions": -1}"#, json!("dimensions")),
            (r#"{"input": "a", "user": [{}]}"#, json!("user")),
            // No argument, and no JSON.
            (r#"{"input": "a", "dimension": 1}"#, json!(null)),
            (r#"{"input": "a""#, json!(null)),
            (many.as_str(), json!("input")),
        ] {
            let told = said("/v1/embeddings", body);
            assert_eq!(told["error"]["param"], param, "{told}");
        }
    }

    #[test]
    fn the_hint_when_to_come_back_is_in_seconds() {
        assert_eq!(seconds("the queue is full: 7 of 8 tokens; try again in 2001 ms"), 3);
        assert_eq!(seconds("wait for earlier calls, or try again in 10 ms"), 1);
        assert_eq!(seconds("the bus has not answered; try again in 30 s"), 30);
        assert_eq!(seconds("no hint"), 1);
    }

    #[test]
    fn a_text_is_named_as_the_request_has_it() {
        let said = |sentence| Refusal::invalid(sentence).about_texts(|n| format!("text {}", n + 7));
        for (sentence, right) in [
            ("text 3 has 602 tokens", "text 10 has 602 tokens"),
            ("the size of text 0 in bytes is 2", "the size of text 7 in bytes is 2"),
            ("text can't be read", "text can't be read"),
            ("the queue is full", "the queue is full"),
        ] {
            assert_eq!(said(sentence).message(), right);
        }
        let alone = |sentence| Refusal::too_large(sentence).about_text(7);
        let sentence = "the size of text 0 in bytes is 2";
        assert_eq!(alone(sentence).message(), "the size of text 7 in bytes is 2");
        assert_eq!(
            alone("the reply would be 2 bytes").message(),
            "text 7: the reply would be 2 bytes"
        );
    }

    #[test]
    fn every_error_of_the_contract_is_an_error_of_http() {
        for name in ErrorName::ALL {
            let refusal = Refusal::of_service(&Error::new(*name, "a sentence"));
            assert!(refusal.status.as_u16() >= 400, "{name:?}");
            assert_eq!(refusal.message(), "a sentence");
        }
    }
}
