//! The API key: read from a credential, compared in constant time.

use std::fs::{self, File};
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
    /// A credential that can't be read, is no key, or has nearly its name, and a folder that is none.
    pub fn read(credentials: Option<&Path>) -> Result<Option<Self>, Fatal> {
        // An empty variable counts as not set.
        let Some(folder) = credentials.filter(|folder| !folder.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let path = folder.join(NAME);
        let wrong = |what: String| {
            Fatal::NotConfigured(format!("the credential {}: {what}", path.display()))
        };
        let mut file = match File::open(&path) {
            Ok(file) => file.take(limits::KEY_BYTES as u64 + 1),
            // A link that leads nowhere is a key that was meant to be there.
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => {
                return nearly(folder).map_or(Ok(None), |what| Err(Fatal::NotConfigured(what)));
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

/// What is said of a folder without the credential, if one seems to be meant: without a key everybody is let in.
fn nearly(folder: &Path) -> Option<String> {
    let named = format!("environment variable CREDENTIALS_DIRECTORY: {}", folder.display());
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        // systemd, too, leaves no folder where it finds nothing of what the unit may do without.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Some(format!(
                "{named} is not there: no credential of the unit was found, or the variable names \
                 a wrong folder; store the key where the unit's line looks for it, or name the \
                 folder with the credential `{NAME}`; leave out that line, or the variable, to \
                 have no key"
            ));
        }
        Err(error) => {
            return Some(format!(
                "{named} can't be looked into ({error}); name the folder with the credential `{NAME}`, \
                 or leave the variable out to have no key"
            ));
        }
    };
    let mut names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    let name = names.find(|name| {
        let letters = name.chars().filter(|c| c.is_ascii_alphanumeric());
        letters.map(|c| c.to_ascii_lowercase()).eq("apikey".chars())
    })?;
    Some(format!("{named} has no credential `{NAME}`, but `{name}`; call that `{NAME}`"))
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

    #[test]
    fn a_credential_that_is_looked_for_in_vain_is_told() {
        let refused = |folder: &Path| match Key::read(Some(folder)) {
            Err(Fatal::NotConfigured(message)) => message,
            _ => panic!("{} is done without", folder.display()),
        };
        let folder = tempfile::tempdir().unwrap();
        let nowhere = refused(&folder.path().join("nope"));
        assert!(nowhere.contains("CREDENTIALS_DIRECTORY"), "{nowhere}");
        let says = "/nope is not there: no credential of the unit was found, or the variable";
        assert!(nowhere.contains(says), "{nowhere}");
        for name in ["api_key", "apikey", "API-KEY"] {
            let file = folder.path().join(name);
            fs::write(&file, "secret").unwrap();
            let near = refused(folder.path());
            assert!(near.ends_with(&format!("but `{name}`; call that `api-key`")), "{near}");
            fs::remove_file(file).unwrap();
        }
        // Credentials of others are no reason.
        fs::write(folder.path().join("remote-token"), "secret").unwrap();
        assert!(matches!(Key::read(Some(folder.path())), Ok(None)));
        assert!(matches!(Key::read(Some(Path::new(""))), Ok(None)));
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
