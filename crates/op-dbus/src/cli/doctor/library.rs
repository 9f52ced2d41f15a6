//! The provider's library: there and undamaged, and whether the loader finds what it needs.

use std::path::PathBuf;

use op_dbus_daemon::service::{self, Host};
use op_dbus_daemon::settings::{Loaded, Provider};

use super::check::Check;
use super::facts::{self, Facts};
use super::loader::Loader;

/// What a worker of the provider would load.
pub fn checks(
    loaded: &Loaded,
    own_graph: Option<&str>,
    provider: Provider,
    loader: Option<&Loader>,
) -> Vec<Check> {
    let (facts, settings) = (facts::of(provider), &loaded.settings);
    let mut checks = Vec::new();
    let host = match service::host(provider, loaded, own_graph) {
        Ok(host) => host,
        Err(missing) => {
            checks.push(absent(&missing));
            checks.extend(opened(facts, loader));
            return checks;
        }
    };
    let files = files_of(&host, facts);
    let listed: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    checks.push(match (service::verify(&host, settings), files.is_empty()) {
        (Err(damaged), _) => {
            let (found, next) = split(&damaged);
            Check::wrong("library", found, next)
        }
        (Ok(()), true) if provider == Provider::Remote => {
            Check::ok("library", "none is needed: what computes is elsewhere")
        }
        (Ok(()), true) => Check::ok("library", "none is needed: what computes is in the program"),
        (Ok(()), false) => Check::ok("library", listed.join(", ")),
    });
    match loader {
        Some(loader) => checks.extend(files.iter().flat_map(|file| needed(file, loader))),
        None if files.is_empty() => {}
        None => checks.push(Check::unchecked("needs", "this system has no glibc to ask")),
    }
    checks.extend(opened(facts, loader));
    checks
}

/// The files that a worker of the provider would map: those that it comes in, and what the loader finds for
/// them.
pub fn files(
    loaded: &Loaded,
    own_graph: Option<&str>,
    provider: Provider,
    loader: Option<&Loader>,
) -> Vec<PathBuf> {
    let host = service::host(provider, loaded, own_graph);
    let mut files = host.map_or_else(|_| Vec::new(), |host| files_of(&host, facts::of(provider)));
    let found = files.iter().flat_map(|file| loader.map_or_else(Vec::new, |one| one.found(file)));
    let found: Vec<PathBuf> = found.collect();
    files.extend(found);
    files
}

/// The files that the provider comes in, each of which needs others.
fn files_of(host: &Host, facts: &Facts) -> Vec<PathBuf> {
    let runtime = Some(host.runtime.clone()).filter(|path| !path.as_os_str().is_empty());
    let beside = facts.beside.and_then(|name| Some(host.runtime.parent()?.join(name)));
    // Where a plugin brings the provider, nothing is looked for beside the runtime.
    let brings = host.library.clone().or(beside);
    runtime.into_iter().chain(brings).collect()
}

fn absent(missing: &str) -> Check {
    let (found, next) = split(missing);
    Check::missing("library", found, next)
}

/// A sentence of the form "what is wrong; what to do" in its halves. One about another system than this has
/// no advice.
fn split(sentence: &str) -> (String, String) {
    let halves = sentence.split_once("; ").filter(|(_, next)| !next.starts_with("this is "));
    let (found, next) = halves.unwrap_or((sentence, "set execution_provider to auto"));
    (found.to_owned(), next.to_owned())
}

/// What the loader does not find of what a file lists.
fn needed(file: &std::path::Path, loader: &Loader) -> Vec<Check> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match loader.missing(file) {
        Ok(missing) if missing.is_empty() => Vec::new(),
        Ok(missing) => {
            let hint = match std::env::var_os("LD_LIBRARY_PATH") {
                Some(path) if !path.is_empty() => " (workers are not given LD_LIBRARY_PATH)",
                _ => "",
            };
            let found = format!("{name} needs {}, not found{hint}", missing.join(", "));
            vec![Check::missing("needs", found, facts::brings(&missing[0]))]
        }
        Err(said) => {
            let next = format!("put a library for this machine in the place of {name}");
            vec![Check::wrong("needs", format!("{name} can't be mapped: {said}"), next)]
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_taken_apart_where_the_advice_begins() {
        let (found, next) =
            split("cuda needs a library, which is not there; type `pull`, or name one");
        assert_eq!(found, "cuda needs a library, which is not there");
        assert_eq!(next, "type `pull`, or name one");
        let elsewhere = "coreml needs macOS; this is linux-x86_64";
        let advice = "set execution_provider to auto";
        assert_eq!(split(elsewhere), (elsewhere.to_owned(), advice.to_owned()));
    }
}
