//! Which settings have no effect on what serves. The log names them: what nobody says no to is believed to work.

use super::provider::Host;
use super::worker;
use crate::settings::options;
use crate::settings::{CpuEngine, Devices, Loaded, Offload, Origin, Provider};

/// Why what is for ONNX Runtime alone has no effect.
const NOT_ONNX_RUNTIME: &str = "what computes here is not ONNX Runtime";

/// The settings for all providers that `host` can't be told, a sentence each.
pub fn without_effect(host: &Host, loaded: &Loaded) -> Vec<String> {
    let provider = host.provider;
    let keys = options::without_effect(&provider.to_string(), &loaded.settings).into_iter();
    let sentence = |key, why: &str| {
        let (value, from) = (loaded.value(key).unwrap_or_default(), loaded.origin(key));
        format!("{key} is {value} ({from}), which has no effect: {why}")
    };
    let has_none = format!("{provider} has no such option");
    let mut sentences: Vec<String> = keys.map(|key| sentence(key, &has_none)).collect();
    if host.precision(&loaded.settings) != loaded.settings.precision {
        let why = match provider {
            Provider::Remote => "a fleet computes as it does, and has to agree with f32",
            _ => {
                "the CPU's native engine does not compute in it, and does so as with auto; ONNX \
                 Runtime would (cpu_engine = ort)"
            }
        };
        sentences.push(sentence("precision", why));
    }
    let by_onnx_runtime = host.cpu_engine == CpuEngine::Ort && provider != Provider::Remote;
    if loaded.settings.io_binding == "on" && !by_onnx_runtime {
        sentences.push(sentence("io_binding", NOT_ONNX_RUNTIME));
    }
    if provider == Provider::Cpu {
        let cores = worker::cores();
        if loaded.settings.threads.is_some_and(|threads| threads > cores) {
            let why = format!("each worker computes with {cores}, as there are no more CPUs");
            sentences.push(sentence("threads", &why));
        }
        // Where another provider was asked for it named devices of that.
        let is_asked_for = loaded.settings.execution_provider == Provider::Cpu;
        if is_asked_for && loaded.settings.gpu_device != Devices::List(vec![0]) {
            sentences.push(sentence("gpu_device", "the CPU is one device"));
        }
        // What another program's variable offers is a default, and nobody's wish.
        let is_offered = matches!(loaded.origin("runtime"), Origin::Offered(_));
        if loaded.settings.runtime.is_some() && !is_offered && !by_onnx_runtime {
            sentences.push(sentence("runtime", NOT_ONNX_RUNTIME));
        }
    } else if loaded.settings.threads.is_some() && loaded.settings.offload == Offload::Off {
        let why = match provider {
            Provider::Remote => "what computes is elsewhere",
            _ => "an accelerator's worker has one, for what is left to the CPU",
        };
        sentences.push(sentence("threads", why));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::super::provider::host;
    use super::*;
    use crate::settings::{Settings, Sources};

    /// What is said of settings that the CPU can't be told, given by flags.
    fn on_the_cpu(flags: &[(&str, &str)]) -> Vec<String> {
        on(Provider::Cpu, flags)
    }

    fn on(provider: Provider, flags: &[(&str, &str)]) -> Vec<String> {
        let mut sources = Sources::under("/nowhere").with_flags(flags);
        sources.env.insert("ORT_DYLIB_PATH".into(), "/offered.so".into());
        let loaded = Settings::load(&sources).unwrap();
        without_effect(&host(provider, &loaded, None).unwrap(), &loaded)
    }

    #[test]
    fn what_the_cpu_can_not_be_told_is_named() {
        assert_eq!(on_the_cpu(&[]), Vec::<String>::new());
        assert_eq!(on_the_cpu(&[("gpu_device", "0")]), Vec::<String>::new());
        let said = on_the_cpu(&[("gpu_device", "7,8"), ("runtime", "/own.so")]);
        let expected = [
            "gpu_device is 7,8 (flag --gpu-device), which has no effect: the CPU is one device",
            "runtime is /own.so (flag --runtime), which has no effect: what computes here is not \
             ONNX Runtime",
        ];
        assert_eq!(said, expected);
        assert_eq!(on_the_cpu(&[("gpu_device", "all")]).len(), 1);
        for asked_for in ["auto", "ggml", "remote"] {
            let flags = [("execution_provider", asked_for), ("gpu_device", "1")];
            assert_eq!(on_the_cpu(&flags), Vec::<String>::new(), "{asked_for}");
        }
        assert_eq!(on_the_cpu(&[("threads", "1")]), Vec::<String>::new());
        let [many] = on_the_cpu(&[("threads", "1024")]).try_into().unwrap();
        assert!(
            many.starts_with("threads is 1024 (flag --threads), which has no effect"),
            "{many}"
        );
        let by_runtime = on_the_cpu(&[("cpu_engine", "ort"), ("runtime", "/own.so")]);
        assert_eq!(by_runtime, Vec::<String>::new());
    }

    #[test]
    fn threads_are_of_the_cpu_alone() {
        let said = |flags: &[(&str, &str)]| on(Provider::Ggml, flags);
        let expected = "threads is 4 (flag --threads), which has no effect: an accelerator's \
                        worker has one, for what is left to the CPU";
        assert_eq!(said(&[("threads", "4")]), [expected]);
        assert_eq!(said(&[]), Vec::<String>::new());
        assert_eq!(said(&[("threads", "4"), ("offload", "auto")]), Vec::<String>::new());
    }
}
