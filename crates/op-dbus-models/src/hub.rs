//! Fetching files from the model hub. Where they are written the manifest says, never the hub: what it
//! answers besides a file's bytes names nothing here.

mod cache;
mod token;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, ProxyBuilder, ProxyProtocol, Timeout};

use crate::progress::Progress;
use crate::staging::{Owner, act_as};
use crate::{Error, FileRecord, digest, regular};

const ENDPOINT: &str = "https://huggingface.co";
/// Through a proxy and with TLS: a machine behind a silent firewall is told soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// What names a proxy, in the order in which the client looks.
const PROXIES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// One repository at one revision.
pub(crate) struct Hub<'a> {
    progress: &'a Progress,
    pub(crate) endpoint: String,
    pub(crate) offline: bool,
    /// Who makes the files of a download, if not who asks for it.
    pub(crate) owner: Option<Owner>,
    /// How long the hub may send nothing before a download fails.
    pub(crate) silence_max: Duration,
    repository: String,
    revision: String,
    partial: PathBuf,
    /// The folder of the hub's usual client, whose cache is only read.
    pub(crate) home: Option<PathBuf>,
    /// What that client shows the hub of its user; empty for nothing.
    pub(crate) token: String,
    /// The proxy that the environment names, with whom its `NO_PROXY` excepts.
    proxy: Option<Proxy>,
}

impl<'a> Hub<'a> {
    /// Downloads go to `partial`, where they survive an interruption.
    pub(crate) fn new(
        repository: &str,
        revision: &str,
        partial: &Path,
        progress: &'a Progress,
    ) -> Self {
        // An empty one counts as not set.
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = cache::home(set);
        let offline = set("HF_HUB_OFFLINE").unwrap_or_default().to_lowercase();
        let token = home.as_ref().and_then(|home| std::fs::read_to_string(home.join("token")).ok());
        Self {
            progress,
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()),
            offline: ["1", "on", "yes", "true"].contains(&offline.as_str()),
            owner: None,
            silence_max: SILENCE_MAX,
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            partial: partial.to_owned(),
            home,
            token: token.unwrap_or_default().trim().to_owned(),
            proxy: Proxy::try_from_env(),
        }
    }

    /// The path of a file that was downloaded, now or by an earlier pull that broke off; it has the right
    /// size, and its digest was not looked at. The owner downloads it: he goes on with what root began,
    /// and root follows no link of his.
    pub(crate) fn download(&self, record: &FileRecord) -> Result<PathBuf, Error> {
        let part = self.partial.join(format!("{}.part", record.sha256));
        let roots = roots()?;
        act_as(self.owner, || self.complete(&part, record, roots))
            .unwrap_or_else(|error| Err(Error::io("fetch", &part, error)))?;
        Ok(part)
    }

    /// What is whole already needs nobody, whatever endpoint and proxies the environment names.
    fn complete(&self, part: &Path, record: &FileRecord, roots: RootCerts) -> Result<(), Error> {
        let mut start = std::fs::metadata(part).map_or(0, |meta| meta.len());
        if start == record.bytes {
            return Ok(());
        }
        if self.offline {
            return Err(failure("HF_HUB_OFFLINE is set, and the file is in no cache"));
        }
        self.check_endpoint()?;
        check_proxy(&self.endpoint, |name| std::env::var_os(name))?;
        if start > record.bytes {
            start = 0;
        }
        self.fetch(part, record, start, roots).map_err(|error| self.by_variable(error))
    }

    fn fetch(
        &self,
        part: &Path,
        record: &FileRecord,
        mut start: u64,
        roots: RootCerts,
    ) -> Result<(), Error> {
        let fail = |error| Error::io("write", part, error);
        let (name, bytes) = (&record.path, record.bytes);
        let asked = self.ask(name, start, roots).inspect_err(|error| {
            // It has less of the file than there is: that was another one's.
            if matches!(error, ureq::Error::StatusCode(416)) {
                std::fs::remove_file(part).ok();
            }
        });
        let mut answer = asked.map_err(|error| self.told(name, &self.silence(), error))?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            start = 0;
        }
        if let Some(said) = answer.body().content_length().filter(|said| *said != bytes - start) {
            let said = said.saturating_add(start);
            return Err(failure(format_args!(
                "its {name} has {said} bytes and should have {bytes}"
            )));
        }
        std::fs::create_dir_all(&self.partial).map_err(fail)?;
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        let mut file = regular::open(&options, OFlag::empty(), part).map_err(fail)?;
        file.set_len(start).map_err(fail)?;
        let step = self.progress.step(format!("hub: {name}"), Some(bytes));
        step.advance(start);
        let mut body = answer.body_mut().as_reader();
        let copied = digest::copy(&mut body, &mut file, bytes - start, |more| step.advance(more));
        let (came, _) = copied.map_err(|error| match digest::is_unwritten(&error) {
            true => fail(error),
            false => self.told(name, "it broke off", error.into()),
        })?;
        if came > bytes - start {
            std::fs::remove_file(part).map_err(fail)?;
            return Err(failure(format_args!("its {name} has more than {bytes} bytes")));
        }
        if came < bytes - start {
            let reached = start + came;
            let reason = format!("{name}: it broke off ({reached} of {bytes} bytes came)");
            return Err(failure(reason));
        }
        step.finish(bytes);
        Ok(())
    }

    fn ask(&self, name: &str, start: u64, roots: RootCerts) -> Result<Response<Body>, ureq::Error> {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(self.silence_max))
            .user_agent(concat!("op-dbus/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .proxy(self.proxy.clone())
            // The hub sends on to storage of others, which must not see the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        let (endpoint, of) = (self.endpoint.trim_end_matches('/'), &self.repository);
        let url = format!("{endpoint}/{of}/resolve/{}/{name}", self.revision);
        let request = config.new_agent().get(url).header("Range", format!("bytes={start}-"));
        match self.token.as_str() {
            "" => request.call(),
            token => request.header("Authorization", format!("Bearer {token}")).call(),
        }
    }

    /// Removes a file that was downloaded. What lies around it is the owner's, so that root has no more
    /// rights for it than he.
    pub(crate) fn release(&self, part: &Path) {
        act_as(self.owner, || std::fs::remove_file(part).ok()).ok();
    }

    /// Refuses what the client would call an answer that did not come.
    fn check_endpoint(&self) -> Result<(), Error> {
        let uri = self.endpoint.parse::<Uri>().ok();
        if uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https"))) {
            return Ok(());
        }
        let shown = without_credentials(&self.endpoint);
        Err(failure(format_args!("HF_ENDPOINT is {shown}, which is no URL; write https://HOST")))
    }

    /// Whom no answer came from: the hub sends on to others, by a proxy that the environment names.
    fn silence(&self) -> String {
        let by = self.proxy_asked().map(|proxy| {
            let (host, port) = (proxy.host(), proxy.port());
            format!(", by the proxy {host}:{port} of the environment")
        });
        let (host, by) = (host(&self.endpoint), by.unwrap_or_default());
        format!("no answer from {host} or where that sends on to{by}")
    }

    fn told(&self, name: &str, what: &str, error: ureq::Error) -> Error {
        let seconds = self.silence_max.as_secs();
        match error {
            ureq::Error::Timeout(Timeout::PerRead) => failure(format_args!(
                "{name}: nothing came for {seconds} s; the next pull goes on where this one stopped"
            )),
            ureq::Error::StatusCode(_) => failure(format_args!("{name}: {error}")),
            error => {
                let why = one_line(&error.into_io().to_string());
                failure(format_args!("{name}: {what} ({why})"))
            }
        }
    }

    /// The same failure, with what was set in place of the usual hub.
    fn by_variable(&self, error: Error) -> Error {
        match error {
            Error::Source { source_name, reason } if self.endpoint != ENDPOINT => {
                let shown = without_credentials(&self.endpoint);
                let reason = reason.replace(&self.endpoint, &shown);
                let reason = format!("{reason}; HF_ENDPOINT is {shown}");
                Error::Source { source_name, reason }
            }
            error => error,
        }
    }
}

/// Refuses proxies of which none can be read: the client passes over such, and would go without in the end. That is not
/// what who names one means, unless by `NO_PROXY` for this endpoint; where that sends on to is not known yet. A proxy
/// may have a password and is not shown.
fn check_proxy(endpoint: &str, set: impl Fn(&str) -> Option<OsString>) -> Result<(), Error> {
    let text = |name: &str| set(name)?.into_string().ok();
    let is_read = |name: &str| text(name).is_some_and(|value| Proxy::new(&value).is_ok());
    // An empty one counts as not set.
    let is_set = |name: &str| set(name).is_some_and(|value| !value.is_empty());
    let Some(name) = PROXIES.into_iter().find(|name| is_set(name)) else { return Ok(()) };
    let listed = ["NO_PROXY", "no_proxy"].into_iter().find_map(text).unwrap_or_default();
    // Any will do: only a proxy can be asked for whom it is not.
    let any = Proxy::builder(ProxyProtocol::Http);
    let any = listed.split(',').fold(any, ProxyBuilder::no_proxy).build();
    let is_passed = |uri| any.is_ok_and(|any| any.is_no_proxy(&uri));
    if PROXIES.into_iter().any(is_read) || endpoint.parse::<Uri>().is_ok_and(is_passed) {
        return Ok(());
    }
    Err(failure(format_args!("{name} names no proxy; write http://HOST:PORT, or unset it")))
}

fn authority(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// The authorities that this machine trusts, with those of its owner; Mozilla's where it has none.
fn roots() -> Result<RootCerts, Error> {
    let found = rustls_native_certs::load_native_certs();
    let named = |name| Some((name, std::env::var_os(name)?));
    // An empty one is set for those who read it.
    let set = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find_map(named);
    match (found.certs.is_empty(), set) {
        (true, Some((name, value))) => {
            let why = found.errors.first().map(|error| format!(" ({error})"));
            Err(failure(format_args!(
                "{name} is {}, where no certificate can be read{}; name a file of certificates in \
                 PEM, or unset it",
                value.display(),
                why.unwrap_or_default()
            )))
        }
        (true, None) => Ok(RootCerts::WebPki),
        (false, _) => {
            let certificates = found.certs.iter();
            Ok(certificates.map(|der| Certificate::from_der(der).to_owned()).into())
        }
    }
}

/// The host of an endpoint, with the port that it names.
fn host(endpoint: &str) -> &str {
    let authority = authority(endpoint);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// An endpoint as it may be shown.
fn without_credentials(endpoint: &str) -> String {
    match authority(endpoint).rsplit_once('@') {
        Some((credentials, _)) => endpoint.replacen(&format!("{credentials}@"), "", 1),
        None => endpoint.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

fn failure(reason: impl std::fmt::Display) -> Error {
    Error::Source { source_name: "hub", reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_a_host() {
        assert_eq!(host("https://hub.example"), "hub.example");
        assert_eq!(host("http://mirror:8080/x"), "mirror:8080");
        assert_eq!(host("mirror"), "mirror");
        assert_eq!(host("http://user:p@w@[::1]:8080"), "[::1]:8080");
    }

    /// What is said of a hub where these variables are set.
    fn refusal(endpoint: &str, set: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let found = set.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        check_proxy(endpoint, value).err().map(|error| error.to_string())
    }

    #[test]
    fn a_proxy_that_cant_be_read_is_refused_by_its_variable_and_not_shown() {
        for right in ["", "http://proxy:3128", "user:pw@proxy:3128", "socks5://proxy"] {
            assert_eq!(refusal(ENDPOINT, &[("HTTPS_PROXY", right)]), None, "{right}");
        }
        let told = "hub: HTTPS_PROXY names no proxy; write http://HOST:PORT, or unset it";
        for wrong in ["garbage:::", "http://", "ftp://user:pw@proxy:1"] {
            let set = |other| [("HTTPS_PROXY", wrong), other];
            for nothing in [("http_proxy", wrong), ("ALL_PROXY", ""), ("NO_PROXY", "localhost")] {
                let said = refusal(ENDPOINT, &set(nothing));
                assert_eq!(said.as_deref(), Some(told), "{wrong} {nothing:?}");
            }
            // The client looks for one that it can read, before and behind.
            for name in ["ALL_PROXY", "http_proxy"] {
                let said = refusal(ENDPOINT, &set((name, "http://proxy:3128")));
                assert_eq!(said, None, "{wrong} {name}");
            }
        }
    }

    #[test]
    fn a_hub_that_is_asked_without_a_proxy_needs_none_that_can_be_read() {
        let mirror = "https://user:pw@mirror.example:8443/hf";
        for (listed, is_passed) in [
            ("*", true),
            ("localhost,mirror.example", true),
            (".example", true),
            ("", false),
            ("localhost,.mirror.example", false),
        ] {
            for variable in ["NO_PROXY", "no_proxy"] {
                let said = refusal(mirror, &[("ALL_PROXY", "garbage:::"), (variable, listed)]);
                assert_eq!(said.is_none(), is_passed, "{variable} {listed}: {said:?}");
            }
        }
    }

    #[test]
    fn an_endpoint_that_is_no_url_is_told_as_that() {
        let (folder, progress) = (tempfile::tempdir().unwrap(), Progress::silent());
        let mut hub = Hub::new("a/b", "main", folder.path(), &progress);
        hub.offline = false;
        let record = FileRecord { path: "x".into(), bytes: 1, sha256: digest::of_bytes(b"x") };
        for wrong in ["nope", "nope:80", "ftp://hub", "https://"] {
            hub.endpoint = wrong.to_owned();
            let told = hub.download(&record).unwrap_err().to_string();
            let expected = "which is no URL; write https://HOST";
            assert!(told.contains("HF_ENDPOINT") && told.ends_with(expected), "{told}");
        }
        // What is there whole is asked of nobody.
        let part = folder.path().join(format!("{}.part", record.sha256));
        std::fs::write(&part, b"x").unwrap();
        assert_eq!(hub.download(&record).unwrap(), part);
        hub.endpoint = "http://user:pw@[::1]:8080/hf".to_owned();
        hub.check_endpoint().unwrap();
    }

    #[test]
    fn a_hub_that_a_variable_names_fails_with_the_variable() {
        let (folder, progress) = (tempfile::tempdir().unwrap(), Progress::silent());
        let mut hub = Hub::new("a/b", "main", folder.path(), &progress);
        hub.endpoint = "mirror".to_owned();
        let told = hub.by_variable(failure("it is gone")).to_string();
        assert!(told.ends_with("it is gone; HF_ENDPOINT is mirror"), "{told}");
        hub.endpoint = "http://user:pw@mirror/hf".to_owned();
        let told = hub.by_variable(failure("http://user:pw@mirror/hf is gone")).to_string();
        assert_eq!(told, "hub: http://mirror/hf is gone; HF_ENDPOINT is http://mirror/hf");
        hub.endpoint = ENDPOINT.to_owned();
        assert!(!hub.by_variable(failure("it is gone")).to_string().contains("HF_ENDPOINT"));
    }
}
