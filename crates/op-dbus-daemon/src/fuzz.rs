//! What the fuzzer of `tests/fuzz` drives here: options, texts in descriptors, direct connections, the state, settings.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::bus;
use crate::settings::{Origin, Settings, Sources};
use crate::state::StateFile;

#[path = "../../../tests/fuzz/file.rs"]
mod file;

use file::as_file;

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[
    ("options", bus::fuzz::options),
    ("texts", bus::fuzz::texts),
    ("direct", bus::fuzz::direct),
    ("state", state),
    ("settings", settings),
];

/// Where no file is, nor can be.
const NOWHERE: &str = "/proc/none";

/// The state file: what is taken from one that is whole is there again once it was written.
fn state(bytes: &[u8]) -> bool {
    let (_file, path) = as_file(bytes);
    let (state, unusable) = StateFile::read(&path);
    if let Some(why) = unusable {
        assert!(state.settings().is_empty() && why.contains("is not used"), "{why}");
        return false;
    }
    let written = state.document().expect("what was read");
    let (_file, path) = as_file(written.as_bytes());
    let (again, unusable) = StateFile::read(&path);
    assert_eq!(unusable, None, "{written}");
    assert_eq!(again.settings(), state.settings());
    true
}

/// A `config.toml`, a NUL, and variables, `NAME=VALUE`, with a NUL after each; `OP_DBUS_` is put before.
fn settings(bytes: &[u8]) -> bool {
    let mut parts = bytes.split(|byte| *byte == 0);
    let (_file, path) = as_file(parts.next().unwrap_or_default());
    let variable = |part: &[u8]| {
        let at = part.iter().position(|byte| *byte == b'=')?;
        let name = [b"OP_DBUS_", &part[..at]].concat();
        Some((OsString::from(OsStr::from_bytes(&name)), OsStr::from_bytes(&part[at + 1..]).into()))
    };
    let flags = BTreeMap::from([("config".to_owned(), path.to_string_lossy().into_owned())]);
    let env = parts.filter_map(variable).collect();
    let sources = Sources { env, flags, ..Sources::under(PathBuf::from(NOWHERE)) };
    match Settings::load(&sources) {
        Ok(loaded) => {
            assert!(loaded.settings.queue_tokens_max > 0);
            loaded.origins.values().any(|origin| matches!(origin, Origin::File(..)))
        }
        Err(mistakes) => {
            assert!(!mistakes.to_string().is_empty());
            false
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
