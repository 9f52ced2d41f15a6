//! Which execution provider runs: what was asked for, or the fallback and the reason for it.

use crate::settings::{Provider, Settings};

/// What runs, and why it is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What runs.
    pub active: Provider,
    /// Why it is not what was asked for; empty where it is.
    pub fallback_reason: String,
}

/// Chooses the provider: the one asked for when it can be used, else the first of the fallbacks.
///
/// # Errors
/// One sentence, when none of them can be used.
pub fn decide(settings: &Settings) -> Result<Decision, String> {
    let requested = match settings.execution_provider {
        // The only one that computes so far is also the best that works.
        Provider::Auto => Provider::Cpu,
        other => other,
    };
    let Some(reason) = unavailable(requested) else {
        return Ok(Decision { active: requested, fallback_reason: String::new() });
    };
    let usable = settings.fallback.iter().find(|provider| unavailable(**provider).is_none());
    match usable {
        Some(active) => Ok(Decision { active: *active, fallback_reason: reason }),
        None if settings.fallback.is_empty() => Err(format!(
            "{reason}, and fallback is none; set execution_provider or fallback to cpu"
        )),
        None => {
            let tried: Vec<String> = settings.fallback.iter().map(Provider::to_string).collect();
            let tried = tried.join(", ");
            Err(format!("{reason}, nor can the fallback {tried} be used; set fallback to cpu"))
        }
    }
}

/// Why `provider` can't be used here; `None` when it can.
pub fn unavailable(provider: Provider) -> Option<String> {
    let needs = match provider {
        Provider::Auto | Provider::Cpu => return None,
        Provider::DirectMl => "Windows",
        Provider::CoreMl => "macOS",
        other => return Some(format!("this version of op-dbus has no {other} support yet")),
    };
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    Some(format!("{provider} needs {needs}; this is {os}-{arch}"))
}
