//! Fetching files from the model hub with its usual client, which keeps what it has of a file and
//! resumes it.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::Error;
use crate::progress::Progress;
use crate::staging::{Owner, act_as, begin_as};

const ENDPOINT: &str = "https://huggingface.co";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// One repository at one revision.
pub(crate) struct Hub<'a> {
    progress: &'a Progress,
    pub(crate) endpoint: String,
    pub(crate) offline: bool,
    /// Who makes the files of a download, if not who asks for it.
    pub(crate) owner: Option<Owner>,
    /// How long the hub may send nothing before a download fails.
    pub(crate) silence_max: Duration,
    repo: Repo,
    own: Cache,
    /// The cache that other programs of this user fill; read only.
    pub(crate) shared: Option<Cache>,
    /// Whether files are looked for there.
    pub(crate) use_shared: bool,
    /// Made at the first file that no cache has.
    api: Option<Api>,
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
            silence_max: SILENCE_MAX,
            repo,
            own,
            shared: has_home.then(Cache::from_env),
            use_shared: true,
            api: None,
        }
    }

    /// The path of a file in a cache, fetched first when it is in none; the right one has `bytes`.
    pub(crate) fn file(&mut self, name: &str, bytes: u64) -> Result<PathBuf, Error> {
        let shared = self.shared.as_ref().filter(|_| self.use_shared);
        for cache in [Some(&self.own), shared].into_iter().flatten() {
            if let Some(path) = cached(cache, &self.repo, name) {
                return path.canonicalize().map_err(|error| Error::io("read", &path, error));
            }
        }
        let api = match &self.api {
            Some(api) => api.clone(),
            None => self.api.insert(self.connect()?).clone(),
        };
        let mut fetched = self.fetch(api.repo(self.repo.clone()), name);
        // The hub has nothing to add to a whole part, and refuses to.
        if fetched.is_err() && self.remove_whole_parts(bytes) {
            fetched = self.fetch(api.repo(self.repo.clone()), name);
        }
        let path = fetched.map_err(|error| self.by_variable(error))?;
        path.canonicalize().map_err(|error| Error::io("read", &path, error))
    }

    /// The client has no timeouts and panics on some malformed replies, so it runs in a thread of its
    /// own, which is left behind when it hears nothing. It gets at files as the owner: he resumes what
    /// root began, and root follows no link of his.
    fn fetch(&self, api: ApiRepo, name: &str) -> Result<PathBuf, Error> {
        let (events, told) = channel();
        let wanted = name.to_owned();
        begin_as(self.owner, move || {
            let fetched = api.download_with_progress(&wanted, Told(events.clone()));
            let fetched = fetched.map_err(|error| one_line(&error.to_string()));
            // Nobody may wait for it any more.
            events.send(Event::Done(fetched)).ok();
        });
        let (mut step, mut bytes) = (None, 0);
        loop {
            match told.recv_timeout(self.silence_max) {
                // Again when a download resumes.
                Ok(Event::Begun(total)) => {
                    bytes = total;
                    step = Some(self.progress.step(format!("hub: {name}"), Some(total)));
                }
                Ok(Event::Came(more)) => {
                    if let Some(step) = &step {
                        step.advance(more);
                    }
                }
                Ok(Event::Done(fetched)) => {
                    let path = fetched.map_err(|why| failure(format_args!("{name}: {why}")))?;
                    if let Some(step) = step {
                        step.finish(bytes);
                    }
                    return Ok(path);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = self.silence_max.as_secs();
                    return Err(failure(format_args!(
                        "{name}: nothing came for {seconds} s; the next pull goes on where this \
                         one stopped"
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failure("its answer could not be understood"));
                }
            }
        }
    }

    /// Removes, as the owner, unfinished downloads that have all of a file's bytes or more; whether
    /// there were any.
    fn remove_whole_parts(&self, bytes: u64) -> bool {
        let blobs = self.own.repo(self.repo.clone()).blob_path("");
        let is_whole = |path: &PathBuf| {
            let meta = std::fs::symlink_metadata(path);
            path.extension().is_some_and(|e| e == "part") && meta.is_ok_and(|m| m.len() >= bytes)
        };
        let remove = || {
            let entries = std::fs::read_dir(blobs).into_iter().flatten().flatten();
            let whole = entries.map(|entry| entry.path()).filter(is_whole);
            whole.filter(|path| std::fs::remove_file(path).is_ok()).count()
        };
        act_as(self.owner, remove).is_some_and(|removed| removed > 0)
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
                let shown = without_credentials(&self.endpoint);
                let reason = reason.replace(&self.endpoint, &shown);
                let reason = format!("{reason}; HF_ENDPOINT is {shown}");
                Error::Source { source_name, reason }
            }
            error => error,
        }
    }

    fn connect(&self) -> Result<Api, Error> {
        if self.offline {
            return Err(failure("HF_HUB_OFFLINE is set, and the file is in no cache"));
        }
        probe(&self.endpoint).map_err(|error| self.by_variable(error))?;
        let token = self.shared.as_ref().and_then(Cache::token);
        ApiBuilder::from_cache(self.own.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(token)
            .with_progress(false)
            .build()
            .map_err(failure)
    }
}

/// A file that is in a cache. Python's client makes a ref for a branch and none for a commit, which
/// is all that this one goes by.
fn cached(cache: &Cache, repo: &Repo, name: &str) -> Option<PathBuf> {
    let found = cache.repo(repo.clone());
    let of_commit = || Some(found.pointer_path(repo.revision()).join(name)).filter(|p| p.exists());
    found.get(name).or_else(of_commit)
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
    let usual = if endpoint.starts_with("http://") { 80 } else { 443 };
    let authority = authority(endpoint);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // The address of IPv6 has colons of its own.
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.trim_start_matches(':')),
        None => authority.rsplit_once(':').unwrap_or((authority, "")),
    };
    (host, port.parse().unwrap_or(usual))
}

fn authority(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
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

/// What the thread of a download tells.
enum Event {
    /// The size of the whole file, in bytes.
    Begun(u64),
    /// So many bytes more.
    Came(u64),
    Done(Result<PathBuf, String>),
}

struct Told(Sender<Event>);

impl Told {
    fn tell(&self, event: Event) {
        if self.0.send(event).is_err() {
            // Nobody waits any more: the client ends here, and writes nothing into the next one's file.
            std::panic::resume_unwind(Box::new("nobody waits"));
        }
    }
}

impl hf_hub::api::Progress for Told {
    fn init(&mut self, size: usize, _: &str) {
        self.tell(Event::Begun(size as u64));
    }

    fn update(&mut self, size: usize) {
        self.tell(Event::Came(size as u64));
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
        assert_eq!(host_and_port("mirror"), ("mirror", 443));
        assert_eq!(host_and_port("http://[::1]:8080/x"), ("::1", 8080));
        assert_eq!(host_and_port("https://[::1]"), ("::1", 443));
        assert_eq!(host_and_port("http://user:p@w@mirror"), ("mirror", 80));
        assert_eq!(host_and_port("http://user:pw@[::1]:8080"), ("::1", 8080));
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
        hub.endpoint = "http://user:pw@mirror/hf".to_owned();
        let told = hub.by_variable(failure("http://user:pw@mirror/hf is gone")).to_string();
        assert_eq!(told, "hub: http://mirror/hf is gone; HF_ENDPOINT is http://mirror/hf");
        hub.endpoint = ENDPOINT.to_owned();
        assert!(!hub.by_variable(failure("it is gone")).to_string().contains("HF_ENDPOINT"));
    }
}
