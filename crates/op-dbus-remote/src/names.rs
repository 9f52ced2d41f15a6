//! The files by which the C library looks up the addresses of endpoints that are named.
//!
//! Who confines this process may do so by the very files that are there then, so that one which somebody
//! puts in their place later can't be read. Nothing here can change that; a new process can read it.

use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;

use ureq::http::Uri;

const FILES: [&str; 3] = ["/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"];

/// The files that were not kept from this process at the beginning.
#[derive(Debug, Default)]
pub struct Names {
    readable: Vec<&'static str>,
}

impl Names {
    /// Those that are needed for these endpoints: none if all have addresses.
    pub fn of(endpoints: &[String]) -> Self {
        match endpoints.iter().any(|url| is_named(url)) {
            true => Self { readable: FILES.into_iter().filter(|path| !is_kept(path)).collect() },
            false => Self::default(),
        }
    }

    /// A file that was put in the place of one that could be read, if there is one.
    pub fn replaced(&self) -> Option<&'static str> {
        self.readable.iter().copied().find(|path| is_kept(path))
    }
}

fn is_named(url: &str) -> bool {
    let uri = url.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_err()
}

fn is_kept(path: &str) -> bool {
    File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_an_address_needs_no_file() {
        for url in ["http://10.0.0.1:8000", "grpc://[::1]:8001", "https://10.0.0.1/a"] {
            assert!(!is_named(url), "{url}");
        }
        assert!(is_named("grpcs://embed.example") && is_named("http://localhost:1/a"));
        assert!(Names::of(&["http://10.0.0.1:1".to_owned()]).readable.is_empty());
        assert_eq!(Names::of(&["http://localhost:1".to_owned()]).replaced(), None);
    }
}
