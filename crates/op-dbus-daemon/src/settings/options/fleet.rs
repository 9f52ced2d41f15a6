//! The endpoints of the remote provider: what an address may be, and what goes with which.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::Settings;
use super::super::kind::digits;
use super::super::mistakes::Origin;
use super::option;

/// The provider.
pub const REMOTE: &str = "remote";
/// Options that the daemon itself heeds; the others are for the worker.
const OUR_OWN: [&str; 2] = ["allow_http", "rows_max"];

/// What is accepted as an address, for people.
pub const ACCEPTED: &str =
    "URLs such as `https://embed.example:8000` or `grpc://127.0.0.1:8001`, each once";
/// Longest list of addresses, in bytes.
const URLS_BYTES_MAX: usize = 8192;

/// Where servers answer, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether what travels can be read on the way.
    pub plain: bool,
    /// Whether it is spoken to by gRPC.
    pub grpc: bool,
    /// The machine: a name or an address, without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Takes a URL apart; nothing for one with a user, a query, or of another scheme.
    fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (plain, grpc) = match scheme {
            "http" => (true, false),
            "https" => (false, false),
            "grpc" => (true, true),
            "grpcs" => (false, true),
            _ => return None,
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let letters = |text: &str, more: &str| {
            text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (address, port)
            }
            None => {
                let at = authority.find(':').unwrap_or(authority.len());
                let (name, port) = authority.split_at(at);
                (name, port)
            }
        };
        let port = match (port.strip_prefix(':'), port.is_empty(), plain) {
            (Some(port), ..) => digits(port)?.try_into().ok().filter(|port| *port > 0)?,
            (None, true, true) => 80,
            (None, true, false) => 443,
            (None, false, _) => return None,
        };
        let right = !host.is_empty()
            && letters(host, ".-:_")
            && letters(path, "/._~-")
            && (path.is_empty() || !grpc);
        right.then(|| Self { plain, grpc, host: host.to_owned(), port })
    }

    /// Whether what is sent to it stays on this machine, by what its URL says alone.
    fn is_here(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Whether its address has to be looked up.
    pub fn is_named(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }
}

/// Whether a text is a list of URLs, each once.
pub fn is_right(text: &str) -> bool {
    // The backend leaves such an end out.
    let urls: Vec<&str> = text.split(',').map(|url| url.trim_end_matches('/')).collect();
    let once = |(position, url): (usize, &&str)| !urls[..position].contains(url);
    text.len() <= URLS_BYTES_MAX
        && urls.iter().all(|url| Endpoint::parse(url).is_some())
        && urls.iter().enumerate().all(once)
}

/// Whether a text can be the name of a model on a server, where it is part of a path.
pub fn is_model(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    !text.is_empty() && text.len() <= 256 && text.chars().all(letters) && !text.contains("..")
}

/// The endpoints of the settings, in their order.
pub fn endpoints(settings: &Settings) -> Vec<Endpoint> {
    value(settings, "endpoints").split(',').filter_map(Endpoint::parse).collect()
}

/// Why no batch can be sent, where the settings name no endpoint.
pub fn no_endpoint(settings: &Settings) -> Option<String> {
    endpoints(settings).is_empty().then(|| {
        "remote has nowhere to send batches, as nothing says where servers answer; set endpoints in a table \
         [providers.remote] of a file"
            .to_owned()
    })
}

/// Rows of one request.
pub fn rows_max(settings: &Settings) -> usize {
    value(settings, "rows_max").parse().expect("it was checked, and so was what it is by itself")
}

/// What an option is, by the table or else by itself.
fn value<'a>(settings: &'a Settings, key: &str) -> &'a str {
    let said = settings.providers.get(REMOTE).and_then(|own| own.checked.get(key));
    said.map_or(option(REMOTE, key).map_or("", |option| option.default), String::as_str)
}

/// Whether texts are sent, and not token ids.
pub fn sends_texts(settings: &Settings) -> bool {
    value(settings, "inputs") == "texts"
}

/// Whether an option is for the worker.
pub fn is_for_worker(key: &str) -> bool {
    !OUR_OWN.contains(&key)
}

/// Why the options don't go together.
pub(super) fn contradiction(
    settings: &Settings,
    origins: &BTreeMap<&'static str, Origin>,
) -> Option<String> {
    settings.providers.get(REMOTE)?;
    let seconds = |key| value(settings, key).parse::<u64>().ok();
    let (request, batch) = (seconds("request_timeout_s")?, seconds("batch_timeout_s")?);
    if request > batch {
        return Some(format!(
            "request_timeout_s is {request} and batch_timeout_s, in which all requests of a batch \
             have to fit, is {batch}; set the first no larger than the second"
        ));
    }
    let all = settings.batch_timeout_s;
    if all < batch {
        let origin = origins.get("batch_timeout_s").cloned().unwrap_or(Origin::Default);
        return Some(format!(
            "batch_timeout_s is {batch}, and the setting batch_timeout_s, after which a worker is ended \
             whatever it still tries, is {all} ({origin}); set the first no larger than the second"
        ));
    }
    let endpoints = endpoints(settings);
    if let Some(one) = endpoints.iter().find(|one| one.grpc)
        && value(settings, "protocol") == "openai"
    {
        return Some(format!(
            "endpoints has grpc for {}, and protocol is openai, which is spoken over http and https; \
             write one of these, or set protocol to oip",
            one.host
        ));
    }
    if value(settings, "allow_http") == "true" {
        return None;
    }
    let open = endpoints.into_iter().find(|one| one.plain && !one.is_here())?;
    let (open_scheme, scheme) = if open.grpc { ("grpc", "grpcs") } else { ("http", "https") };
    Some(format!(
        "endpoints has {open_scheme} for {}, which is neither localhost nor a loopback address, so that \
         everybody on the way can read what is sent; write {scheme}, or set allow_http to true",
        open.host
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let parsed = |url| Endpoint::parse(url).map(|one| (one.plain, one.host, one.port));
        let endpoint = |plain, host: &str, port| Some((plain, host.to_owned(), port));
        assert_eq!(parsed("http://10.0.0.1:8000"), endpoint(true, "10.0.0.1", 8000));
        assert_eq!(parsed("https://embed.example/a/v1/"), endpoint(false, "embed.example", 443));
        assert_eq!(parsed("http://[::1]"), endpoint(true, "::1", 80));
        assert_eq!(parsed("grpc://10.0.0.1:8001"), endpoint(true, "10.0.0.1", 8001));
        assert_eq!(parsed("grpcs://embed.example"), endpoint(false, "embed.example", 443));
        for wrong in [
            "",
            "embed.example",
            "ftp://a",
            "grpc://a/b",
            "http://",
            "http://:80",
            "http://a:0",
            "http://a:x",
            "http://a:+80",
            "http://a:80:80",
            "http://u@a",
            "http://u:p@a",
            "http://a/?k=1",
            "http://a/#b",
            "http://[::1",
            "http://[x]:1",
            "http://a b",
            "https://a\n",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_here_and_what_is_named() {
        let of = |url| Endpoint::parse(url).map(|one| (one.is_here(), one.is_named()));
        assert_eq!(of("http://localhost:1"), Some((true, true)));
        assert_eq!(of("http://127.1.2.3:1"), Some((true, false)));
        assert_eq!(of("http://[::1]:1"), Some((true, false)));
        assert_eq!(of("http://10.0.0.1:1"), Some((false, false)));
        assert_eq!(of("http://localhost.example"), Some((false, true)));
    }

    #[test]
    fn a_list_has_each_address_once() {
        assert!(is_right("http://a,https://a"));
        for wrong in
            ["", "http://a,", "http://a,http://a", "http://a,http://a/", "http://a;http://b"]
        {
            assert!(!is_right(wrong), "{wrong}");
        }
        assert!(is_model("sentence-transformers/all-MiniLM-L6-v2"));
        assert!(!is_model("") && !is_model("a b") && !is_model("../x"));
    }
}
