//! What every provider needs, but for the folders: the model, settings that fit it, the bus's policy, the CPU.

use std::fs;

use op_dbus_daemon::service::wanted;
use op_dbus_daemon::settings::{Bus, CpuEngine, Loaded};
use op_dbus_models::{Error as StoreError, Model, Store, named};
use op_dbus_native::Isa;

use super::super::config::lacking_isa;
use super::check::{Check, State};
use super::facts;
use super::machine::Root;

/// Where a bus reads which service may be called by whom.
const POLICIES: [&str; 2] = ["/usr/share/dbus-1/system.d", "/etc/dbus-1/system.d"];
const POLICY: &str = "org.opdbus.Embedding1.conf";
/// What the service asks dbus-daemon about clients that do not read.
const STATS: &str = "GetConnectionStats";

/// The model, compared with its digests, and what the store says of it.
pub fn model(loaded: &Loaded) -> (Check, Option<Model>) {
    let settings = &loaded.settings;
    let is_simulated = settings.cpu_engine == CpuEngine::Sim;
    let Some(choice) = wanted(settings).filter(|_| !is_simulated) else {
        let why = match is_simulated {
            true => "none is needed: vectors are simulated (cpu_engine is sim)",
            false => "none is needed: vector_level is none",
        };
        return (Check::unchecked("model", why), None);
    };
    let undamaged = |model: Model| model.verify().map(|()| model);
    let name = choice.model();
    match Store::open(&settings.model_dir).get(name).and_then(undamaged) {
        Ok(model) => {
            let found = format!("{} is installed and undamaged", model.name);
            (Check::ok("model", found), Some(model))
        }
        Err(error) => {
            let pull = format!("type `op-dbus models pull {name}{}`", named(&settings.model_dir));
            let mut check = Check::of_sentence("model", &error.to_string(), &pull);
            if matches!(error, StoreError::NotInstalled { .. } | StoreError::NoFolder { .. }) {
                check.state = State::Missing;
            }
            // Of a level the line at the end tells; this one is named nowhere else.
            if let (Some(name), Some(origin)) = (&settings.model, loaded.origins.get("model")) {
                check.found = format!("model is {name} ({origin}); {}", check.found);
            }
            (check, None)
        }
    }
}

/// What the settings say that this model can't be served with, or that leaves no room for its texts: no worker is
/// needed to see that.
pub fn fit(loaded: &Loaded, model: &Model) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(reason) = loaded.wrong_dimensions(&model.name, model.dimensions) {
        let mut check = Check::of_sentence("dimensions", &reason, "");
        check.next = facts::known(&check.found).map(str::to_owned).or(check.next);
        checks.push(check);
    }
    let prompt = loaded.missing_prompt(model).or_else(|| loaded.full_prompt());
    checks.extend(prompt.map(|sentence| Check::of_sentence("prompt", &sentence, "")));
    let limits = loaded.short_limits();
    checks.extend(limits.iter().map(|sentence| Check::of_sentence("limits", sentence, "")));
    checks
}

/// The policy without which the system bus lets nobody own the name.
pub fn policy(root: &Root, bus: &Bus) -> Check {
    if *bus != Bus::System {
        return Check::unchecked("policy", format!("the bus is {bus}, not the system's"));
    }
    let places = POLICIES.map(|folder| format!("{folder}/{POLICY}"));
    match places.iter().find(|path| root.path(path).is_file()) {
        Some(path)
            if fs::read_to_string(root.path(path)).is_ok_and(|text| !text.contains(STATS)) =>
        {
            Check::wrong(
                "policy",
                format!(
                    "{path} is of another version: the service may not ask the bus what clients leave unread"
                ),
                format!(
                    "install dbus-policy/{POLICY} of this version, and type systemctl reload dbus"
                ),
            )
        }
        Some(path) => Check::ok("policy", path),
        None => Check::missing(
            "policy",
            format!("the system bus has no {POLICY}, so nobody may be the service"),
            format!("install the package, or dbus-policy/{POLICY} as {}", places[0]),
        ),
    }
}

/// What the native engine has of this CPU, where it is to compute.
pub fn cpu(loaded: &Loaded) -> Check {
    match loaded.settings.cpu_engine {
        CpuEngine::Native => {}
        CpuEngine::Ort => {
            let why = "ONNX Runtime chooses its instructions itself (cpu_engine is ort)";
            return Check::unchecked("cpu", why);
        }
        CpuEngine::Sim => {
            return Check::unchecked("cpu", "vectors are simulated (cpu_engine is sim)");
        }
    }
    match (lacking_isa(loaded), loaded.settings.cpu_isa.as_str()) {
        (Some(sentence), _) => Check::of_sentence("cpu", &sentence, ""),
        (None, "auto") => {
            let available: Vec<&str> = Isa::available().into_iter().map(Isa::as_str).collect();
            let best = Isa::best().as_str();
            Check::ok("cpu", format!("{best} (has {})", available.join(", ")))
        }
        (None, wanted) => Check::ok("cpu", wanted),
    }
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::{Settings, Sources};

    use super::*;

    fn loaded(root: &std::path::Path, flags: &[(&str, &str)]) -> Loaded {
        let mut sources = Sources::under(root);
        sources.flags.extend(flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        Settings::load(&sources).unwrap()
    }

    #[test]
    fn the_policy_is_found_in_both_places_and_needed_on_the_system_bus_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        assert_eq!(policy(&root, &Bus::System).state, State::Missing);
        assert_eq!(policy(&root, &Bus::Session).state, State::Unchecked);
        let etc = root.path(POLICIES[1]);
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join(POLICY), "").unwrap();
        assert_eq!(policy(&root, &Bus::System).state, State::Wrong);
        fs::write(etc.join(POLICY), STATS).unwrap();
        assert_eq!(policy(&root, &Bus::System).state, State::Ok);
    }

    #[test]
    fn a_model_that_is_not_there_names_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models").display().to_string();
        let (check, _) = model(&loaded(folder.path(), &[("model_dir", &models)]));
        assert_eq!(check.state, State::Missing);
        assert!(check.next.is_some_and(|next| next.contains("op-dbus models pull")));
        // One that a setting names is told with the place of the setting.
        let named = loaded(folder.path(), &[("model_dir", &models), ("model", "nope")]);
        let (check, _) = model(&named);
        let found = "model is nope (flag --model); nope is not installed in ";
        assert!(check.found.starts_with(found), "{}", check.found);
        assert!(check.next.is_some_and(|next| next.contains("op-dbus models import")));
    }

    #[test]
    fn the_instruction_set_is_one_that_the_cpu_has() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(cpu(&loaded(folder.path(), &[])).state, State::Ok);
        assert_eq!(cpu(&loaded(folder.path(), &[("cpu_isa", "portable")])).state, State::Ok);
        let lacking = Isa::ALL.iter().find(|isa| !isa.is_available()).unwrap().as_str();
        let wrong = cpu(&loaded(folder.path(), &[("cpu_isa", lacking)]));
        assert_eq!(wrong.state, State::Wrong);
        assert_eq!(wrong.next.as_deref(), Some("set cpu_isa to one of these, or to auto"));
        // Nothing depends on it where the native engine does not compute.
        let simulated = loaded(folder.path(), &[("cpu_isa", lacking), ("cpu_engine", "sim")]);
        assert_eq!(cpu(&simulated).state, State::Unchecked);
        let by_runtime = loaded(folder.path(), &[("cpu_engine", "ort")]);
        assert_eq!(cpu(&by_runtime).state, State::Unchecked);
    }
}
