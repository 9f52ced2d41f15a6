//! Which options do not go together, or would have no effect.

use std::path::PathBuf;

use op_dbus_models::manifest::{self, Reserved};

use super::Builder;
use crate::backend::{CPU, CpuEngine};
use crate::{Error, provider};

/// The most workers, and tokens of a batch, that the service takes as well.
const WORKERS_MAX: usize = 256;
const BATCH_TOKENS_MAX: usize = 1 << 20;

impl Builder {
    /// Refuses what would be passed over in silence.
    pub(super) fn check(&self, candidates: &[String]) -> Result<(), Error> {
        self.check_sizes()?;
        self.check_paths()?;
        if self.is_auto() && !self.fallback.is_empty() {
            let sentence = "fallback is set and provider is auto, which has an order of its own";
            return Err(Error::Option(format!("{sentence}; leave one of them out")));
        }
        if self.level.is_some() && self.model.is_some() {
            let sentence = "level and model are set, each of which says what is served";
            return Err(Error::Option(format!("{sentence}; leave one of them out")));
        }
        if let Some((key, whom)) = self.without_effect(candidates).first() {
            return Err(Error::Option(format!(
                "{key} is set, which means something to {whom} alone, and {} is to compute; leave \
                 it out",
                candidates.join(", ")
            )));
        }
        self.check_of_one(candidates)
    }

    /// Tells the log which options have no effect now that `provider` is the one that computes.
    pub(crate) fn tell_without_effect(&self, provider: &str) {
        for (key, whom) in self.without_effect(&[provider.to_owned()]) {
            tracing::info!(provider, "{key} has no effect: it means something to {whom} alone");
        }
        let cores = cores();
        if let Some(threads) = self.threads.filter(|threads| *threads > cores) {
            tracing::info!("threads is {threads}, and there are {cores} cores, which compute");
        }
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let sizes = [
            ("threads", self.threads, usize::MAX),
            ("workers", self.workers, WORKERS_MAX),
            ("batch_tokens", self.batch_tokens_max, BATCH_TOKENS_MAX),
            ("queue_tokens", self.queue_tokens_max, usize::MAX),
            ("memory_limit", self.memory_limit, usize::MAX),
        ];
        for (key, size, most) in sizes {
            match size {
                Some(0) => return Err(Error::Option(format!("{key} is 0; 1 or more is right"))),
                Some(size) if size > most => {
                    let sentence = format!("{key} is {size}; here {most} or less is right");
                    return Err(Error::Option(sentence));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What is below "" is in the working directory.
    fn check_paths(&self) -> Result<(), Error> {
        let paths = [
            ("model_dir", Some(&self.model_dir)),
            ("cache_dir", self.cache_dir.as_ref()),
            ("runtime", self.own.runtime.as_ref()),
            ("provider_library", self.own.plugin.as_ref()),
        ];
        let empty = |path: &&PathBuf| path.as_os_str().is_empty();
        match paths.iter().find(|(_, path)| path.as_ref().is_some_and(empty)) {
            Some((key, _)) => {
                Err(Error::Option(format!("{key} is empty; name a path or leave it out")))
            }
            None => Ok(()),
        }
    }

    /// The options that are set and mean nothing to any of `candidates`, each with whom it means something to.
    fn without_effect(&self, candidates: &[String]) -> Vec<(&'static str, &'static str)> {
        let cpu = candidates.iter().any(|name| name == CPU);
        let accelerator = candidates.iter().any(|name| name != CPU);
        let native = cpu && self.cpu_engine.unwrap_or_default() == CpuEngine::Native;
        let onnx = accelerator || !native;
        let limited = candidates.iter().any(|name| provider::memory_option(name).is_some());
        let effects = [
            ("cpu_engine", self.cpu_engine.is_some(), cpu, "the CPU"),
            ("threads", self.threads.is_some(), cpu, "the CPU"),
            ("cpu_isa", self.cpu_isa.is_some(), native, "the native engine"),
            ("runtime", self.own.runtime.is_some(), onnx, "ONNX Runtime"),
            ("provider_library", self.own.plugin.is_some(), accelerator, "an accelerator"),
            ("provider_option", !self.provider_options.is_empty(), accelerator, "an accelerator"),
            ("device", self.device.is_some(), accelerator, "an accelerator"),
            ("memory_limit", self.memory_limit.is_some(), limited, "cuda and migraphx"),
            ("io_binding", self.io_binding.is_some(), onnx, "ONNX Runtime"),
        ];
        let unused = effects.into_iter().filter(|(_, set, used, _)| *set && !used);
        unused.map(|(key, _, _, whom)| (key, whom)).collect()
    }

    /// Refuses what can't be meant for each of several accelerators, and what is not for the only one.
    fn check_of_one(&self, candidates: &[String]) -> Result<(), Error> {
        let accelerators: Vec<&String> = candidates.iter().filter(|name| *name != CPU).collect();
        let of_one = [
            ("provider_library", self.own.plugin.is_some()),
            ("provider_option", !self.provider_options.is_empty()),
            ("device", self.device.is_some() && !accelerators.iter().all(|name| is_nvidia(name))),
        ];
        let provider = match (accelerators.first(), of_one.iter().find(|(_, set)| *set)) {
            (Some(_), Some((key, _))) if accelerators.len() > 1 => {
                return Err(Error::Option(format!(
                    "{key} is set, which is for one accelerator, and {} may be tried; name one, or \
                     leave it out",
                    candidates.join(", ")
                )));
            }
            (Some(provider), Some(_)) => provider.as_str(),
            _ => return Ok(()),
        };
        let mut options = self.provider_options.iter();
        match options.find_map(|(key, value)| self.misplaced(provider, key, value)) {
            Some(why) => Err(Error::Option(why)),
            None => Ok(()),
        }
    }

    /// Why an option in the provider's own words is refused.
    fn misplaced(&self, provider: &str, key: &str, value: &str) -> Option<String> {
        if key.contains('\0') || value.contains('\0') {
            return Some(format!(
                "the provider_option {key:?} has the character U+0000; leave it out"
            ));
        }
        if self.own.plugin.is_some() && manifest::plugin_ignores(provider, key) {
            return Some(format!(
                "{provider}'s plugin library ignores the provider_option {key}; write it in \
                 OpenVINO's words as load_config (`device` chooses the device)"
            ));
        }
        let why = match manifest::reserved(key)? {
            Reserved::Device => "`device` chooses the device",
            Reserved::Precision => "`precision` says what is computed in, on every provider",
            // Nobody else says where.
            Reserved::Place => return None,
            Reserved::OneShape => "nearly every batch has a shape of its own",
            Reserved::Address => "it is the address of something in memory",
        };
        Some(format!("the provider_option {key} is not taken, since {why}; leave it out"))
    }
}

/// Whether its devices have the numbers that those of all such providers have.
fn is_nvidia(provider: &str) -> bool {
    ["cuda", "tensorrt"].contains(&provider)
}

/// Cores of this machine that the process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Embedder, Level};

    fn refused(builder: Builder) -> String {
        builder.build().expect_err("a refusal").to_string()
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        let builder = Embedder::builder;
        assert!(refused(builder().device(1)).starts_with("device is set"));
        assert!(refused(builder().runtime("/lib/ort.so")).starts_with("runtime is set"));
        assert!(refused(builder().gpu().threads(1)).contains("cuda is to compute"));
        assert!(refused(builder().cpu_engine(CpuEngine::Ort).cpu_isa("avx2")).contains("cpu_isa"));
        assert!(refused(builder().provider("auto").fallback(["cpu"])).contains("leave one"));
        assert!(refused(builder().level(Level::Low).model("m")).starts_with("level and model"));
        assert!(refused(builder().io_binding(true)).contains("means something to ONNX Runtime"));
        assert!(refused(builder().memory_limit(1 << 30)).contains("to cuda and migraphx alone"));
        let limited = builder().provider("rocm").memory_limit(1 << 30).model_dir("/nowhere");
        assert!(refused(limited).contains("is not installed in /nowhere"));
    }

    /// `auto` and a fallback may come to something else than they begin with.
    #[test]
    fn what_has_no_effect_on_what_computes_is_known() {
        let auto = Embedder::builder().provider("auto");
        let auto = auto.memory_limit(1 << 30).device(1).io_binding(true).threads(1);
        let unused = |builder: &Builder, provider: &str| {
            let unused = builder.without_effect(&[provider.to_owned()]);
            unused.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(unused(&auto, "cuda"), ["threads"]);
        assert_eq!(unused(&auto, CPU), ["device", "memory_limit", "io_binding"]);
        let chain = Embedder::builder().provider("tensorrt").fallback(["cuda"]).memory_limit(1);
        assert_eq!(unused(&chain, "tensorrt"), ["memory_limit"]);
        assert_eq!(unused(&chain, "cuda"), [""; 0]);
    }

    #[test]
    fn sizes_have_bounds() {
        let builder = Embedder::builder;
        assert!(refused(builder().gpu().memory_limit(0)).starts_with("memory_limit is 0"));
        assert_eq!(refused(builder().workers(0)), "workers is 0; 1 or more is right");
        let most = "workers is 257; here 256 or less is right";
        assert_eq!(refused(builder().workers(257)), most);
        let message = refused(builder().batch_tokens(usize::MAX));
        assert!(message.ends_with("here 1048576 or less is right"), "{message}");
    }

    #[test]
    fn an_empty_path_is_not_the_working_directory() {
        let empty = |key| format!("{key} is empty; name a path or leave it out");
        let builder = Embedder::builder;
        assert_eq!(refused(builder().cache_dir("")), empty("cache_dir"));
        assert_eq!(refused(builder().model_dir("")), empty("model_dir"));
        let onnx = || builder().cpu_engine(CpuEngine::Ort);
        assert_eq!(refused(onnx().runtime("")), empty("runtime"));
    }

    #[test]
    fn what_is_for_one_accelerator_is_refused_where_there_are_several() {
        let several = || Embedder::builder().provider("tensorrt").fallback(["cuda", "cpu"]);
        let message = refused(several().fallback(["openvino"]).device(1));
        let right = "device is set, which is for one accelerator, and tensorrt, openvino may be tried; name one, or \
                     leave it out";
        assert_eq!(message, right);
        // Which number the card has with both.
        assert!(refused(several().device(1).model_dir("/nowhere")).contains("not installed"));
        assert!(refused(several().provider_option("a", "b")).starts_with("provider_option is set"));
        assert!(refused(several().provider_library("/p.so")).starts_with("provider_library is"));
        let one = Embedder::builder().provider("auto").device(1).model_dir("/nowhere");
        assert!(refused(one).contains("is not installed in /nowhere"));
    }

    #[test]
    fn an_option_that_is_not_the_providers_own_is_refused() {
        let told = |provider: &str, key: &str, value: &str| {
            let builder = Embedder::builder().provider(provider).model_dir("/nowhere");
            refused(builder.provider_option(key, value))
        };
        for (provider, key, why) in [
            ("cuda", "device_id", "since `device` chooses"),
            ("ggml", "weights", "since `precision` says"),
            ("cuda", "user_compute_stream", "since it is the address"),
            ("tensorrt", "trt_onnx_bytestream", "since it is the address"),
            ("tensorrt", "trt_cuda_graph_enable", "since nearly every batch"),
            ("openvino", "disable_dynamic_shapes", "since nearly every batch"),
            ("cuda", "a\0", "\"a\\0\" has the character U+0000"),
        ] {
            let message = told(provider, key, "1");
            assert!(message.contains(why), "{message}");
        }
        assert!(told("cuda", "a", "\0").contains("U+0000"));
        assert!(told("openvino", "device_type", "GPU").contains("is not installed in /nowhere"));
        let plugin = || Embedder::builder().provider("openvino").provider_library("/p.so");
        let message = refused(plugin().provider_option("device_type", "GPU"));
        assert!(message.contains("plugin library ignores"), "{message}");
        let message = refused(plugin().provider_option("load_config", "{}").model_dir("/nowhere"));
        assert!(message.contains("is not installed in /nowhere"), "{message}");
    }
}
