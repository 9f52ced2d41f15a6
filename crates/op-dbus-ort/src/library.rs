//! Finds out whether a file is an ONNX Runtime that this process can use, and loads it once.

use std::error::Error as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use op_dbus_engine::{BackendError, LoadErrorKind};
use ort::LoadDynamicError;
use ort::environment::Environment;

use crate::elf;

/// What every message about an unusable library ends in.
/// What was pulled is used only where `runtime` is not set.
const REMEDY: &str = "unset `runtime` where it is set and run `op-dbus runtime pull`, or \
                      set `runtime` to another library";

/// Has ONNX Runtime tell nobody that it runs, when it is `1` before the library starts.
const QUIET: &str = "ORT_DISABLE_TELEMETRY";

/// The library of this process: ONNX Runtime allows one environment, once.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// The library that this process has loaded, if it has one.
pub fn loaded() -> Option<PathBuf> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.as_ref().map(|(path, _)| path.clone())
}

/// The environment of the library at `path`, loaded at the first call.
///
/// # Errors
/// A file that is missing, unreadable, no library, for another machine, not ONNX Runtime or too
/// old; or another library than the one this process already uses.
pub(crate) fn environment(path: &Path) -> Result<Environment, BackendError> {
    let path = path.canonicalize().map_err(|error| unreadable(path, &error))?;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((first, environment)) = loaded.as_ref() {
        if *first == path {
            return Ok(environment.clone());
        }
        return Err(unusable(format!(
            "this process already runs the ONNX Runtime {} and can't load {} as well; build what needs \
             that one first, or in another process",
            first.display(),
            path.display()
        )));
    }
    check_file(&path)?;
    keep_quiet();
    let builder = ort::init_from(&path).map_err(|error| not_loaded(&path, &error))?;
    let environment =
        builder.with_name("op-dbus").with_telemetry(false).build().map_err(|error| {
            unusable(format!("ONNX Runtime {} does not start: {error}", path.display()))
        })?;
    *loaded = Some((path, environment.clone()));
    Ok(environment)
}

/// Microsoft's builds of ONNX Runtime make an identifier of the machine, keep it in the user's home, and tell
/// Microsoft that they were started. `with_telemetry` comes too late for that.
fn keep_quiet() {
    if std::env::var_os(QUIET).is_none_or(|value| value != "1") {
        // SAFETY: Rust's readers and writers of the environment wait for each other. C code of another thread
        // that reads it at this very moment is in danger only where the environment was changed before, and
        // once in a process, as this is under the lock of `LOADED`. Workers get the variable from who starts
        // them and never come here; nor does a program that sets it itself, as the library's page advises.
        unsafe { std::env::set_var(QUIET, "1") };
    }
}

fn unusable(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}

fn unreadable(path: &Path, error: &io::Error) -> BackendError {
    let path = path.display();
    unusable(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("the ONNX Runtime library {path} does not exist; {REMEDY}")
        }
        _ => format!("the ONNX Runtime library {path} can't be read ({error}); {REMEDY}"),
    })
}

fn check_file(path: &Path) -> Result<(), BackendError> {
    match problem(path).map_err(|error| unreadable(path, &error))? {
        Some(problem) => {
            Err(unusable(format!("the file {} is {problem}; {REMEDY}", path.display())))
        }
        None => Ok(()),
    }
}

/// What the dynamic linker would refuse in words that are hard to understand, wait for, or die of; in words that
/// follow "the file is".
pub(crate) fn problem(path: &Path) -> io::Result<Option<String>> {
    // Other systems' libraries are left to their own linkers.
    if !cfg!(target_os = "linux") {
        return Ok(None);
    }
    match std::fs::metadata(path)?.is_file() {
        true => elf::problem(&mut File::open(path)?),
        false => Err(io::Error::other("it is not a file")),
    }
}

fn not_loaded(path: &Path, error: &LoadDynamicError) -> BackendError {
    let path = path.display();
    unusable(match error {
        LoadDynamicError::Dlopen { error, .. } => {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("the ONNX Runtime library {path} can't be loaded ({reason}); {REMEDY}")
        }
        LoadDynamicError::BadVersion { version_str, .. } => format!(
            "the ONNX Runtime {path} is version {version_str}, but at least 1.{}.0 is needed; \
             {REMEDY}",
            ort::MINOR_VERSION
        ),
        LoadDynamicError::MissingApi { .. } => {
            format!("the library {path} is not ONNX Runtime; {REMEDY}")
        }
        LoadDynamicError::InvalidVersionString => {
            format!("the ONNX Runtime {path} does not tell its version; {REMEDY}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let error = environment(Path::new("/nowhere/libonnxruntime.so")).unwrap_err();
        let BackendError::Load { kind, message } = error else { panic!("{error}") };
        assert_eq!(kind, LoadErrorKind::ProviderUnavailable);
        assert!(message.contains("/nowhere/libonnxruntime.so"), "{message}");
        assert!(message.contains("unset `runtime`"), "{message}");
        assert!(message.contains("op-dbus runtime pull"), "{message}");
    }

    #[test]
    fn a_library_that_is_not_onnx_runtime_is_refused() {
        let library = std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .find(|path| path.contains("libc.so"))
            .map(PathBuf::from)
            .unwrap();
        let error = environment(&library).unwrap_err().to_string();
        assert!(error.contains("is not ONNX Runtime"), "{error}");
    }

    #[test]
    fn a_library_that_is_too_old_is_told_by_its_version() {
        let path = PathBuf::from("/old/libonnxruntime.so");
        let old =
            LoadDynamicError::BadVersion { version_str: "1.17.3".to_owned(), path: path.clone() };
        let message = not_loaded(&path, &old).to_string();
        assert!(message.contains("version 1.17.3"), "{message}");
        assert!(message.contains("at least 1.24.0"), "{message}");
    }
}
