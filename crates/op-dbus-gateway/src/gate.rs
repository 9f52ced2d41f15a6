//! What every request passes: counted, from here, and allowed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, HOST, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Gateway;
use crate::body::unread;
use crate::refusal::{Refusal, Shape, shaped};

/// Routes that tell nothing of anybody: who only reads them needs no key.
const OPEN: [&str; 4] = ["/", "/health", "/ready", "/openapi.json"];

/// What stands for the status of a request whose client left before it was answered, as with other
/// servers.
const CLIENT_LEFT: u16 = 499;

/// Lets a request through or refuses it, and gives refusals of all that is behind their shape.
pub async fn pass(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let shape = Shape::of(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "other".to_owned());
    let mut counted = Counted::new(Arc::clone(&gateway), route);
    let allowed = check_host(&gateway, &request).and_then(|()| check_key(&gateway, &request));
    let response = match allowed {
        Ok(()) => tokio::select! {
            biased;
            response = next.run(request) => response,
            // What is worked on for it ends with it.
            () = gateway.leaving.over.cancelled() => Refusal::leaving().into_response(),
        },
        Err(refusal) => unread(request, refusal).into_response(),
    };
    let mut response = shaped(response, shape);
    let status = response.status();
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        // HTTP demands that a 401 says how to bring the key.
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    counted.status = status.as_u16();
    response
}

/// A request, which is counted when this is dropped: with its answer or without.
struct Counted {
    gateway: Arc<Gateway>,
    route: String,
    started: Instant,
    status: u16,
}

impl Counted {
    /// A request that has no answer yet; dropped as it is, its client has left.
    fn new(gateway: Arc<Gateway>, route: String) -> Self {
        Self { gateway, route, started: Instant::now(), status: CLIENT_LEFT }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let route = std::mem::take(&mut self.route);
        self.gateway.metrics.answered(route, self.status, self.started.elapsed());
    }
}

/// A page from elsewhere can make a browser send requests here by a name of its own that it has
/// point to this machine; the browser then says that name. Of two names a proxy before this may have
/// heeded the other.
fn check_host(gateway: &Gateway, request: &Request) -> Result<(), Refusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Refusal::invalid("the request has more than one header Host; send one"));
    }
    if !gateway.checks_host {
        return Ok(());
    }
    // Whoever asks for a whole address means that one, whatever the header says.
    let host = match (request.uri().authority(), host) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(host)) => host.to_str().unwrap_or_default(),
        (None, None) => return Err(Refusal::invalid("the request has no header Host; send one")),
    };
    if is_local(host) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "wrong_host",
        "the host asked for, in the header Host or before the path, is neither localhost nor an IP \
         address, as it has to be without an API key; ask by IP address, or give the gateway the \
         credential `api-key`",
    ))
}

/// Whether a header `Host` names this machine, or an address, which no name can stand behind.
fn is_local(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    port.bytes().all(|byte| byte.is_ascii_digit())
        && (name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok())
}

fn check_key(gateway: &Gateway, request: &Request) -> Result<(), Refusal> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_open = reads && OPEN.contains(&request.uri().path());
    if is_open || gateway.trusts(request.headers()) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
        "the API key is missing or wrong; send the header `Authorization: Bearer KEY`",
    ))
}

/// What is answered where there is no route.
pub async fn no_route(request: Request) -> Refusal {
    let path: String = request.uri().path().chars().take(80).collect();
    let message = format!("there is no route {path}; /openapi.json lists them");
    unread(request, Refusal::new(StatusCode::NOT_FOUND, "not_found", message))
}

/// What is answered where a route has another method.
pub async fn no_method(request: Request) -> Refusal {
    let method = request.method().as_str().chars().take(20).collect::<String>();
    let message = format!("this route does not take {method}; /openapi.json tells what it takes");
    let status = StatusCode::METHOD_NOT_ALLOWED;
    unread(request, Refusal::new(status, "method_not_allowed", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::said_to;

    #[test]
    fn a_request_names_one_host_and_a_whole_address_counts() {
        for (target, hosts, status) in [
            ("/health", &["localhost"][..], 200),
            ("/health", &["localhost", "evil.example"], 400),
            ("/health", &["localhost", "localhost"], 400),
            ("/health", &[], 400),
            ("/health", &[""], 403),
            ("http://127.0.0.1/health", &[], 200),
            ("http://evil.example/health", &["localhost"], 403),
            ("http://localhost@evil.example/health", &["localhost"], 403),
            ("http://127.0.0.1/health", &["evil.example"], 200),
        ] {
            let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
            let said = said_to(format!("GET {target} HTTP/1.1\r\n{hosts}\r\n").as_bytes());
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{target} {hosts}: {said}");
        }
    }

    #[test]
    fn a_refused_name_is_told_what_would_be_accepted() {
        let said = said_to(b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(
            said.contains("by IP address, or give the gateway the credential `api-key`"),
            "{said}"
        );
    }

    #[test]
    fn names_of_others_are_told_from_addresses() {
        for local in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:0", "[::1]:8080", "[::1]", "10.0.0.7"]
        {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "[::1",
            ":80",
            "localhost:x",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
