//! Whom the token of the hub's usual client is shown: nobody, where others could read it on its way.

use std::net::IpAddr;

use ureq::Proxy;
use ureq::http::Uri;

use super::{Hub, without_credentials};

impl Hub<'_> {
    /// Forgets the token where it would be sent as it is, and says so: what a mirror has for everybody it gives
    /// without.
    pub(crate) fn keep_token(&mut self) {
        if self.offline || self.token.is_empty() || !self.is_readable_on_its_way() {
            return;
        }
        self.token.clear();
        let shown = without_credentials(&self.endpoint);
        self.progress.say(format_args!(
            "hub: the token is not shown to {shown}, as others could read it on its way; write https:// in \
             HF_ENDPOINT if it is to be"
        ));
    }

    /// Whether what is sent to the endpoint leaves this machine as it is.
    fn is_readable_on_its_way(&self) -> bool {
        // What is no URL is sent nothing.
        let Ok(uri) = self.endpoint.parse::<Uri>() else { return false };
        let host = uri.host().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_here = host.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.is_loopback());
        // What goes to this machine by a proxy goes to the proxy's.
        let stays_here = is_here && self.proxy_asked().is_none();
        uri.scheme_str() == Some("http") && !stays_here
    }

    /// The proxy that requests to the endpoint go by.
    pub(super) fn proxy_asked(&self) -> Option<&Proxy> {
        let uri = self.endpoint.parse::<Uri>();
        self.proxy.as_ref().filter(|proxy| !uri.is_ok_and(|uri| proxy.is_no_proxy(&uri)))
    }
}

#[cfg(test)]
mod tests {
    use ureq::ProxyProtocol;

    use super::super::ENDPOINT;
    use super::*;
    use crate::Progress;
    use crate::tests::fixture::Lines;

    #[test]
    fn a_token_leaves_this_machine_under_tls_alone() {
        let proxy = || Proxy::builder(ProxyProtocol::Http).no_proxy("localhost").build().unwrap();
        let cases = [
            (ENDPOINT, true, true),
            ("https://mirror.example/hf", true, true),
            ("http://localhost:8080", true, true),
            ("http://127.0.0.9", true, false),
            ("http://user:pw@[::1]:8080/hf", true, false),
            ("nope", true, true),
            ("http://user:pw@mirror.example/hf", false, false),
            ("HTTP://10.0.0.1:8080", false, false),
            ("http://localhost.example", false, false),
        ];
        let cases = cases.into_iter().flat_map(|(endpoint, is_shown, is_shown_by_proxy)| {
            [(endpoint, None, is_shown), (endpoint, Some(proxy()), is_shown_by_proxy)]
        });
        for (endpoint, proxy, is_shown) in cases {
            let (folder, lines) = (tempfile::tempdir().unwrap(), Lines::default());
            let progress = Progress::lines(lines.clone());
            let mut hub = Hub::new("a/b", "main", folder.path(), &progress);
            (hub.endpoint, hub.proxy) = (endpoint.to_owned(), proxy);
            (hub.offline, hub.token) = (false, "secret".to_owned());
            hub.keep_token();
            let said = lines.text();
            assert_eq!(hub.token == "secret", is_shown, "{endpoint}: {said}");
            assert_eq!(said.is_empty(), is_shown, "{endpoint}: {said}");
            assert!(!said.contains("pw") && !said.contains("secret"), "{endpoint}: {said}");
        }
    }
}
