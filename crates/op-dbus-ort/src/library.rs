//! Finds out whether a file is an ONNX Runtime that this process can use, and loads it once.

use std::error::Error as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use op_dbus_engine::{BackendError, LoadErrorKind};
use ort::LoadDynamicError;
use ort::environment::Environment;

/// What every message about an unusable library ends in.
const REMEDY: &str = "run `op-dbus runtime pull`, or set `runtime` to another library";

/// The library of this process: ONNX Runtime allows one environment, once.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

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
            "this process already runs the ONNX Runtime {} and can't load {} as well; restart it",
            first.display(),
            path.display()
        )));
    }
    check_header(&path)?;
    let builder = ort::init_from(&path).map_err(|error| not_loaded(&path, &error))?;
    let environment =
        builder.with_name("op-dbus").with_telemetry(false).build().map_err(|error| {
            unusable(format!("ONNX Runtime {} does not start: {error}", path.display()))
        })?;
    *loaded = Some((path, environment.clone()));
    Ok(environment)
}

fn unusable(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}

fn unreadable(path: &Path, error: &std::io::Error) -> BackendError {
    let path = path.display();
    unusable(match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("the ONNX Runtime library {path} does not exist; {REMEDY}")
        }
        _ => format!("the ONNX Runtime library {path} can't be read ({error}); {REMEDY}"),
    })
}

/// Looks at the file before the dynamic linker does, whose own words for a library of another
/// machine are hard to understand.
fn check_header(path: &Path) -> Result<(), BackendError> {
    let mut header = Vec::with_capacity(20);
    File::open(path)
        .and_then(|file| file.take(20).read_to_end(&mut header))
        .map_err(|error| unreadable(path, &error))?;
    match header_problem(&header) {
        Some(problem) => {
            Err(unusable(format!("the file {} is {problem}; {REMEDY}", path.display())))
        }
        None => Ok(()),
    }
}

/// What speaks against a file that begins with `header`; other systems' formats are left to their
/// own linkers.
fn header_problem(header: &[u8]) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let (Some(b"\x7fELF"), Some(&[low, high])) = (header.get(..4), header.get(18..20)) else {
        return Some("not a shared library".to_owned());
    };
    let little = header[5] == 1;
    let machine =
        if little { u16::from_le_bytes([low, high]) } else { u16::from_be_bytes([low, high]) };
    let found = architecture(machine);
    let expected = std::env::consts::ARCH;
    (found != expected).then(|| format!("a library for {found}, but this program needs {expected}"))
}

/// Name, as in [`std::env::consts::ARCH`], of an ELF machine number.
fn architecture(machine: u16) -> String {
    let known = match machine {
        3 => "x86",
        21 => "powerpc64",
        22 => "s390x",
        40 => "arm",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        258 => "loongarch64",
        _ => return format!("machine {machine}"),
    };
    known.to_owned()
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

    fn elf(machine: u16) -> Vec<u8> {
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(18, 0);
        header.extend_from_slice(&machine.to_le_bytes());
        header
    }

    #[test]
    fn a_header_tells_the_machine() {
        assert_eq!(
            header_problem(b"not ELF at all, but long enough"),
            Some("not a shared library".into())
        );
        assert_eq!(header_problem(b"\x7fELF"), Some("not a shared library".into()));
        let foreign = if cfg!(target_arch = "s390x") { 62 } else { 22 };
        let problem = header_problem(&elf(foreign)).unwrap();
        assert!(problem.contains(std::env::consts::ARCH), "{problem}");
        assert!(problem.contains(&architecture(foreign)), "{problem}");
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let error = environment(Path::new("/nowhere/libonnxruntime.so")).unwrap_err();
        let BackendError::Load { kind, message } = error else { panic!("{error}") };
        assert_eq!(kind, LoadErrorKind::ProviderUnavailable);
        assert!(message.contains("/nowhere/libonnxruntime.so"), "{message}");
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
}
