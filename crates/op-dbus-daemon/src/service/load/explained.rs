//! Why workers were not started, for whoever can mend it.

use op_dbus_engine::{BackendError, Error as EngineError, LoadErrorKind};

use crate::service::Error;
use crate::settings::{Loaded, Origin, Provider};

/// Settings that may be why a worker does not load, or not prove itself, each with what is said of it then: who says it
/// knows the value and not who asked for it. The first counts.
const AT_FAULT: [(&str, &str); 9] = [
    ("cpu_engine", "or set cpu_engine to native"),
    ("cpu_isa", "which cpu_isa asks for"),
    ("gpu_device", "gpu_device names"),
    ("gpu_device", "invalid device ordinal"),
    ("gpu_memory_limit", "is smaller than requested bytes of"),
    ("load_timeout_s", "did not load: it said nothing for"),
    ("batch_timeout_s", "it said nothing for"),
    ("runtime", "set `runtime` to another library"),
    ("worker_memory_max", "worker_memory_max is"),
];

/// How it begins where a worker has not computed a batch of a caller's in time.
const LOST_LATE: &str = "the worker was lost: it said nothing for";

/// The same error, with where the setting comes from that it is about; of one that nobody set nothing is said.
pub(super) fn with_origin(mut error: BackendError, loaded: &Loaded) -> BackendError {
    let (BackendError::Load { message, .. }
    | BackendError::OutOfMemory(message)
    | BackendError::Lost(message)) = &mut error
    else {
        return error;
    };
    let at_fault = AT_FAULT.iter().find(|(key, said)| match *key {
        // Who serves a fleet may say the same, behind other words.
        "batch_timeout_s" => message.starts_with(said),
        _ => message.contains(said),
    });
    if let Some((key, origin)) = at_fault.map(|(key, _)| (key, loaded.origin(key)))
        && *origin != Origin::Default
    {
        message.push_str(&format!(" ({key} comes from: {origin})"));
    }
    error
}

/// The error of a call; where its workers were ended, as they took longer for its batch than they may, with the setting
/// that says so.
pub(in crate::service) fn late(mut error: EngineError, loaded: &Loaded) -> EngineError {
    if let EngineError::WorkerFailed(failure) = &mut error
        && failure.to_string().starts_with(LOST_LATE)
        && let BackendError::Lost(why) | BackendError::Failed(why) = failure
    {
        let (limit, origin) = (loaded.settings.batch_timeout_s, loaded.origin("batch_timeout_s"));
        let advice = "raise it, or set batch_tokens_max lower, if the device is only slow";
        why.push_str(&format!("; batch_timeout_s is {limit} ({origin}): {advice}"));
    }
    error
}

/// A worker that was to compute on a device and crashes, hangs or is lost leaves it to the next provider, as one that
/// says that it can't.
pub(super) fn explained(error: BackendError, provider: Provider, loaded: &Loaded) -> Error {
    let error = with_origin(error, loaded);
    match error {
        BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message } => {
            Error::Provider(message)
        }
        BackendError::Load { kind: LoadErrorKind::Unfit, message } => Error::Unfit(message),
        BackendError::Load { kind: LoadErrorKind::OutOfMemory, message } => Error::NoRoom(message),
        // What it computes is what others are measured against.
        BackendError::Load { kind: LoadErrorKind::Untrusted, message }
            if provider == Provider::Cpu =>
        {
            BackendError::Lost(message).into()
        }
        BackendError::Load {
            kind:
                LoadErrorKind::ModelNotInstalled
                | LoadErrorKind::ModelCorrupt
                | LoadErrorKind::Untrusted,
            ..
        } => error.into(),
        error if provider != Provider::Cpu => {
            let reason = format!("{provider} does not work here: {error}");
            match error {
                BackendError::OutOfMemory(_) => Error::NoRoom(reason),
                _ => Error::Provider(reason),
            }
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources};

    #[test]
    fn a_setting_that_is_at_fault_is_told_with_its_place() {
        let flags = [
            ("cpu_engine", "ort"),
            ("load_timeout_s", "1"),
            ("batch_timeout_s", "2"),
            ("gpu_device", "0,1"),
            ("gpu_memory_limit", "1MiB"),
        ];
        let mut sources = Sources::under("/nowhere").with_flags(&flags);
        sources.env.insert("OP_DBUS_RUNTIME".into(), "/no.so".into());
        let loaded = Settings::load(&sources).unwrap();
        let told = |message: &str| {
            let kind = LoadErrorKind::ProviderUnavailable;
            let error = BackendError::Load { kind, message: message.to_owned() };
            explained(error, Provider::Cpu, &loaded).to_string()
        };
        let late = "the worker did not load: it said nothing for 1 s; process 7 ended";
        assert_eq!(
            told(late),
            format!("{late} (load_timeout_s comes from: flag --load-timeout-s)")
        );
        let library = "the file /no.so does not exist; set `runtime` to another library";
        let variable = "(runtime comes from: environment variable OP_DBUS_RUNTIME)";
        assert_eq!(told(library), format!("{library} {variable}"));
        let graph = "the compiled graph would be too large; or set cpu_engine to native";
        assert_eq!(told(graph), format!("{graph} (cpu_engine comes from: flag --cpu-engine)"));
        for absent in ["has one device, 0, and gpu_device names 1", "101: invalid device ordinal"] {
            let place = "(gpu_device comes from: flag --gpu-device)";
            assert_eq!(told(absent), format!("{absent} {place}"));
        }
        let of_a_fleet = "remote: grpc://a:1 can't be used: it said nothing for 10.0 s";
        assert_eq!(told(of_a_fleet), of_a_fleet);
        let late = BackendError::Lost("it said nothing for 2 s; process 7 ended".to_owned());
        let late = explained(late, Provider::Cuda, &loaded).to_string();
        let limit = "process 7 ended (batch_timeout_s comes from: flag --batch-timeout-s)";
        assert!(late.ends_with(limit), "{late}");
        let lost = BackendError::Lost("it closed its socket".to_owned());
        assert!(!explained(lost, Provider::Cuda, &loaded).to_string().contains("comes from"));
        let memory = "out of memory; worker_memory_max is 16 bytes";
        assert_eq!(told(memory), memory, "nobody has set it");
        let arena = BackendError::OutOfMemory(
            "Available memory of 0 is smaller than requested bytes of 2048".to_owned(),
        );
        let error = explained(arena, Provider::Cuda, &loaded).to_string();
        let limit = "of 2048 (gpu_memory_limit comes from: flag --gpu-memory-limit)";
        assert!(error.starts_with("cuda does not work here: out of memory: "), "{error}");
        assert!(error.ends_with(limit), "{error}");
    }

    #[test]
    fn an_instruction_set_that_is_not_there_is_told_with_its_place() {
        let sources = Sources::under("/nowhere").with_flags(&[("cpu_isa", "amx")]);
        let loaded = Settings::load(&sources).unwrap();
        let message = "this CPU has no amx, which cpu_isa asks for".to_owned();
        let error = BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message };
        let told = explained(error, Provider::Cpu, &loaded).to_string();
        assert!(told.ends_with("(cpu_isa comes from: flag --cpu-isa)"), "{told}");
    }

    #[test]
    fn a_call_whose_batch_takes_too_long_is_told_which_setting_says_so() {
        let sources = Sources::under("/nowhere").with_flags(&[("batch_timeout_s", "2")]);
        let loaded = Settings::load(&sources).unwrap();
        let told = |lost| late(EngineError::WorkerFailed(lost), &loaded).to_string();
        let hung = BackendError::Lost("it said nothing for 2 s; process 7 ended".to_owned());
        // Once nobody computes any more it is told in the words of the last loss.
        for failure in [hung.clone(), BackendError::Failed(hung.to_string())] {
            let told = told(failure);
            let limit = "batch_timeout_s is 2 (flag --batch-timeout-s): raise it";
            assert!(told.contains(&format!("({hung}; {limit}")), "{told}");
        }
        for other in ["it closed its socket", "it did not load: it said nothing for 2 s"] {
            let told = told(BackendError::Lost(other.to_owned()));
            assert!(!told.contains("batch_timeout_s"), "{told}");
        }
    }
}
