//! The API key: read from a credential, compared in constant time.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use crate::Fatal;
use crate::limits;

/// The credential's name.
const NAME: &str = "api-key";

/// What a client must send as `Authorization: Bearer KEY`.
pub struct Key(Vec<u8>);

impl Key {
    /// Reads the credential; without one there is no key.
    ///
    /// # Errors
    /// A credential that can't be read or is no key.
    pub fn read(credentials: Option<&Path>) -> Result<Option<Self>, Fatal> {
        let Some(path) = credentials.map(|folder| folder.join(NAME)) else { return Ok(None) };
        let wrong = |what: String| {
            Fatal::NotConfigured(format!("the credential {}: {what}", path.display()))
        };
        let mut file = match File::open(&path) {
            Ok(file) => file.take(limits::KEY_BYTES as u64 + 1),
            // A link that leads nowhere is a key that was meant to be there.
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => {
                return Ok(None);
            }
            Err(error) => return Err(wrong(format!("it can't be read ({error})"))),
        };
        let mut key = Vec::new();
        file.read_to_end(&mut key).map_err(|error| wrong(format!("it can't be read ({error})")))?;
        let key = key.trim_ascii().to_vec();
        if key.is_empty() || key.len() > limits::KEY_BYTES || !key.iter().all(u8::is_ascii_graphic)
        {
            return Err(wrong(format!(
                "it must be one line of 1 to {} letters, digits and signs; write a new one, for \
                 example with `openssl rand -hex 32`",
                limits::KEY_BYTES
            )));
        }
        Ok(Some(Self(key)))
    }

    /// Whether a request brings this key. How long it takes does not tell how much of a wrong key
    /// is right.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let Some((scheme, found)) = value.and_then(|value| value.split_at_checked(7)) else {
            return false;
        };
        // One space or several, says RFC 9110 (section 11.4).
        let found = found.trim_ascii_start();
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(found.ct_eq(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_meant_to_be_there_is_not_done_without() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Key::read(Some(folder.path())), Ok(None)));
        std::os::unix::fs::symlink("nowhere", folder.path().join(NAME)).unwrap();
        assert!(Key::read(Some(folder.path())).is_err());
    }

    fn is_right(header: &str) -> bool {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        Key(b"secret".to_vec()).is_in(&headers)
    }

    #[test]
    fn only_the_whole_key_opens() {
        assert!(is_right("Bearer secret"));
        assert!(is_right("bearer  secret"));
        for wrong in ["", "secret", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret"] {
            assert!(!is_right(wrong), "{wrong:?}");
        }
        assert!(!Key(b"secret".to_vec()).is_in(&HeaderMap::new()));
    }
}
