//! Where the HTTP gateway answers.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where the HTTP gateway answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    None,
    /// At an address of an interface.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

const UNIX: &str = "unix:";
/// What the address of a Unix socket holds, less the zero behind it.
const UNIX_BYTES_MAX: usize = 107;

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let Some(path) = text.strip_prefix(UNIX) else {
            let no_address = |_| "it is not an IP address with a port".to_owned();
            return text.parse().map(Self::Tcp).map_err(no_address);
        };
        if !Path::new(path).is_absolute() || path.contains('\0') {
            return Err("its path is not absolute".to_owned());
        }
        if path.len() > UNIX_BYTES_MAX {
            let found = path.len();
            return Err(format!(
                "the path has {found} bytes and the kernel takes {UNIX_BYTES_MAX}"
            ));
        }
        Ok(Self::Unix(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_comes_back_as_it_was() {
        for text in ["none", "127.0.0.1:0", "[::1]:8080", "0.0.0.0:80", "unix:/run/a/http.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("unix:/{}", "x".repeat(107));
        for text in ["", "8080", "localhost:8080", "127.0.0.1", "unix:http.sock", long.as_str()] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
