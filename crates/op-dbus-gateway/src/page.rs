//! The status page: one document with everything in it, which a browser may run and nothing else.

use std::sync::LazyLock;

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page/index.html");

/// What the browser may do for the page: run its own script and style, and ask its own origin.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag| STANDARD.encode(Sha256::digest(inside(tag)));
    format!(
        "default-src 'none'; connect-src 'self'; img-src data:; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style"),
    )
});

/// What stands in the page's one element of this name.
fn inside(tag: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("<{tag}>")).unwrap_or_default();
    rest.split_once(&format!("</{tag}>")).map_or("", |(inside, _)| inside)
}

pub async fn page() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_holds_everything_itself() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1);
            assert!(!inside(tag).trim().is_empty());
        }
        for outside in ["src=", "href=\"http", "url(", " onclick", " style=", "@import", "https://"]
        {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }
}
