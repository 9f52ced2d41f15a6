//! The provider's library: there and undamaged, and whether the loader finds what it needs.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use op_dbus_daemon::service::{self, Host};
use op_dbus_daemon::settings::{Loaded, Provider};

use super::check::{Check, State};
use super::facts::{self, Facts};
use super::loader::Loader;

/// What is to be said of what a worker of the provider would load, and the files that it would map: those that the
/// provider comes in, and what the loader finds for them.
pub fn look(
    loaded: &Loaded,
    own_graph: Option<&str>,
    provider: Provider,
    loader: Option<&Loader>,
) -> (Vec<Check>, Vec<PathBuf>) {
    let (facts, settings) = (facts::of(provider), &loaded.settings);
    let mut checks = Vec::new();
    let host = match service::host(provider, loaded, own_graph) {
        Ok(host) => host,
        Err(missing) => {
            checks.push(Check { state: State::Missing, ..told(&missing) });
            checks.extend(opened(facts, loader));
            return (checks, Vec::new());
        }
    };
    let own = files_of(&host, facts);
    let listed: Vec<String> = own.iter().map(|file| file.display().to_string()).collect();
    checks.push(match (service::verify(&host, settings), own.is_empty()) {
        (Err(damaged), _) => told(&damaged),
        (Ok(()), true) if provider == Provider::Remote => {
            Check::ok("library", "none is needed: what computes is elsewhere")
        }
        (Ok(()), true) => Check::ok("library", "none is needed: what computes is in the program"),
        (Ok(()), false) => Check::ok("library", listed.join(", ")),
    });
    let mut files = own.clone();
    match loader {
        Some(loader) => {
            for file in &own {
                let (missing, found) = loader.needed(file);
                checks.extend(needed(file, missing));
                files.extend(found);
            }
        }
        None if own.is_empty() => {}
        None => checks.push(Check::unchecked("needs", "this system has no glibc to ask")),
    }
    checks.extend(opened(facts, loader));
    (checks, files)
}

/// The files that the provider comes in, each of which needs others.
fn files_of(host: &Host, facts: &Facts) -> Vec<PathBuf> {
    let runtime = Some(host.runtime.clone()).filter(|path| !path.as_os_str().is_empty());
    let beside = facts.beside.and_then(|name| Some(host.runtime.parent()?.join(name)));
    // Where a plugin brings the provider, nothing is looked for beside the runtime.
    let brings = host.library.clone().or(beside);
    runtime.into_iter().chain(brings).collect()
}

/// What the service says of it.
fn told(sentence: &str) -> Check {
    Check::of_sentence("library", sentence, "set execution_provider to auto")
}

/// What the loader does not find of what a file lists.
fn needed(file: &Path, missing: Result<Vec<String>, String>) -> Option<Check> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match missing {
        Ok(missing) if missing.is_empty() => None,
        Ok(missing) => {
            let hint = match std::env::var_os("LD_LIBRARY_PATH") {
                Some(path) if !path.is_empty() => " (workers are not given LD_LIBRARY_PATH)",
                _ => "",
            };
            let found = format!("{name} needs {}, not found{hint}", missing.join(", "));
            Some(Check::missing("needs", found, facts::brings(&missing[0])))
        }
        Err(said) => {
            let folder = file.parent().unwrap_or(file).display();
            let next = match runs_nothing(file) {
                true => format!(
                    "have the file system of {folder} mounted without noexec, or set model_dir, or \
                     what names this library, to another place"
                ),
                false => format!("put a library for this machine in the place of {name}"),
            };
            Some(Check::wrong("needs", format!("{name} can't be mapped: {said}"), next))
        }
    }
}

/// Whether what is on the file system of a file can't be run, and so no library mapped.
fn runs_nothing(file: &Path) -> bool {
    statvfs(file).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC))
}

/// What the provider opens by name.
fn opened(facts: &Facts, loader: Option<&Loader>) -> Vec<Check> {
    let Some(loader) = loader else { return Vec::new() };
    let missing = facts.opens.iter().filter(|name| !loader.finds(name));
    let missing: Vec<Check> = missing
        .map(|name| Check::missing("needs", format!("{name} is not found"), facts::brings(name)))
        .collect();
    match missing.is_empty() && !facts.opens.is_empty() {
        true => vec![Check::ok("needs", facts.opens.join(", "))],
        false => missing,
    }
}
