//! Fetching files from the model hub with its usual client, which keeps what it has of a file and
//! resumes it.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::Error;
use crate::progress::{Progress, Step};
use crate::staging::{Owner, act_as};

const ENDPOINT: &str = "https://huggingface.co";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One repository at one revision.
pub(crate) struct Hub<'a> {
    progress: &'a Progress,
    pub(crate) endpoint: String,
    pub(crate) offline: bool,
    /// Who makes the files of a download, if not who asks for it.
    pub(crate) owner: Option<Owner>,
    repo: Repo,
    own: Cache,
    /// The cache that other programs of this user fill; read only.
    shared: Option<Cache>,
    /// Made at the first file that no cache has.
    api: Option<ApiRepo>,
}

impl<'a> Hub<'a> {
    /// Downloads go to `partial`, where they survive an interruption.
    pub(crate) fn new(
        repository: &str,
        revision: &str,
        partial: &Path,
        progress: &'a Progress,
    ) -> Self {
        let repo = Repo::with_revision(repository.into(), RepoType::Model, revision.into());
        // Without either variable the client has no home to look in, and says so with a panic.
        let has_home = ["HF_HOME", "HOME"].iter().any(|name| std::env::var_os(name).is_some());
        let own = Cache::new(partial.join("hub"));
        let offline = std::env::var("HF_HUB_OFFLINE").unwrap_or_default().to_lowercase();
        Self {
            progress,
            // An empty one counts as not set.
            endpoint: std::env::var("HF_ENDPOINT")
                .ok()
                .filter(|endpoint| !endpoint.is_empty())
                .unwrap_or_else(|| ENDPOINT.to_owned()),
            offline: ["1", "on", "yes", "true"].contains(&offline.as_str()),
            owner: None,
            repo,
            own,
            shared: has_home.then(Cache::from_env),
            api: None,
        }
    }

    /// The path of a file in a cache, fetched first when it is in none.
    pub(crate) fn file(&mut self, name: &str) -> Result<PathBuf, Error> {
        for cache in [Some(&self.own), self.shared.as_ref()].into_iter().flatten() {
            if let Some(path) = cache.repo(self.repo.clone()).get(name) {
                return path.canonicalize().map_err(|error| Error::io("read", &path, error));
            }
        }
        if self.api.is_none() {
            self.api = Some(self.connect()?);
        }
        let Some(api) = &self.api else { return Err(failure("not connected")) };
        let mut shown = Shown { progress: self.progress, step: None, bytes: 0 };
        let fetched = fetch(api, name, self.owner, &mut shown);
        let result = fetched.map_err(|error| self.by_variable(error))?;
        if let Some(step) = shown.step.take() {
            step.finish(shown.bytes);
        }
        result.canonicalize().map_err(|error| Error::io("read", &result, error))
    }

    /// Removes a file that is ours; others' caches are only copied from. What lies around it is the
    /// owner's, so that root has no more rights for it than he.
    pub(crate) fn release(&self, path: &Path) {
        act_as(self.owner, || self.owns(path).then(|| std::fs::remove_file(path)));
    }

    /// Whether a path is ours to remove.
    pub(crate) fn owns(&self, path: &Path) -> bool {
        self.own.path().canonicalize().is_ok_and(|own| path.starts_with(own))
    }

    /// The same failure, with what was set in place of the usual hub.
    fn by_variable(&self, error: Error) -> Error {
        match error {
            Error::Source { source_name, reason } if self.endpoint != ENDPOINT => {
                let reason = format!("{reason}; HF_ENDPOINT is {}", self.endpoint);
                Error::Source { source_name, reason }
            }
            error => error,
        }
    }

    fn connect(&self) -> Result<ApiRepo, Error> {
        if self.offline {
            return Err(failure("HF_HUB_OFFLINE is set, and the file is in no cache"));
        }
        probe(&self.endpoint).map_err(|error| self.by_variable(error))?;
        let token = self.shared.as_ref().and_then(Cache::token);
        let api = ApiBuilder::from_cache(self.own.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(token)
            .with_progress(false)
            .build()
            .map_err(failure)?;
        Ok(api.repo(self.repo.clone()))
    }
}

/// The client has no connect timeout of its own: a machine behind a silent firewall would wait for
/// minutes. Through a proxy only the proxy can tell.
fn probe(endpoint: &str) -> Result<(), Error> {
    let proxies = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"];
    if proxies.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    let (host, port) = host_and_port(endpoint);
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| failure(format_args!("{host} cannot be resolved ({error})")))?;
    let mut last = failure(format_args!("{host} has no address"));
    for address in addresses.take(2) {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = failure(format_args!("{host} cannot be reached ({error})")),
        }
    }
    Err(last)
}

fn host_and_port(endpoint: &str) -> (&str, u16) {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let authority = rest.split('/').next().unwrap_or(rest);
    let usual = if scheme == "http" { 80 } else { 443 };
    match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().unwrap_or(usual)),
        None => (authority, usual),
    }
}

/// The client panics on some malformed replies, so it runs in a thread of its own, which gets at files as
/// `owner`: the owner resumes what root began, and root follows no link of his.
fn fetch(
    api: &ApiRepo,
    name: &str,
    owner: Option<Owner>,
    shown: &mut Shown<'_>,
) -> Result<PathBuf, Error> {
    act_as(owner, || api.download_with_progress(name, shown))
        .ok_or_else(|| failure("its answer could not be understood"))?
        .map_err(|error| failure(format_args!("{name}: {}", one_line(&error.to_string()))))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

fn failure(reason: impl std::fmt::Display) -> Error {
    Error::Source { source_name: "hub", reason: reason.to_string() }
}

struct Shown<'a> {
    progress: &'a Progress,
    step: Option<Step<'a>>,
    bytes: u64,
}

impl hf_hub::api::Progress for &mut Shown<'_> {
    // Called again when a download resumes.
    fn init(&mut self, size: usize, filename: &str) {
        self.bytes = size as u64;
        let step = self.progress.step(format!("hub: {filename}"), Some(size as u64));
        self.step = Some(step);
    }

    fn update(&mut self, size: usize) {
        if let Some(step) = &self.step {
            step.advance(size as u64);
        }
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_host_and_port() {
        assert_eq!(host_and_port("https://hub.example"), ("hub.example", 443));
        assert_eq!(host_and_port("http://mirror:8080/x"), ("mirror", 8080));
        assert_eq!(host_and_port("http://mirror/hf"), ("mirror", 80));
    }

    #[test]
    fn a_closed_port_fails_with_the_host_in_the_message() {
        // Bound and dropped: the port is closed.
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = probe(&format!("http://127.0.0.1:{port}")).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1 cannot be reached"), "{error}");
    }

    #[test]
    fn a_hub_that_a_variable_names_fails_with_the_variable() {
        let (folder, progress) = (tempfile::tempdir().unwrap(), Progress::silent());
        let mut hub = Hub::new("a/b", "main", folder.path(), &progress);
        hub.endpoint = "mirror".to_owned();
        let told = hub.by_variable(failure("it is gone")).to_string();
        assert!(told.ends_with("it is gone; HF_ENDPOINT is mirror"), "{told}");
        hub.endpoint = ENDPOINT.to_owned();
        assert!(!hub.by_variable(failure("it is gone")).to_string().contains("HF_ENDPOINT"));
    }
}
