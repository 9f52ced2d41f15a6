//! What the providers that the settings name lack on this machine, as far as that is known without trying any.

use op_dbus_models::Level;

use super::{host, tried};
use crate::settings::{Loaded, Provider};

/// What has to be there before the providers that the settings name can be tried, and is not: a sentence each. What is
/// said among the warnings of the settings is not said again.
pub fn lacking(loaded: &Loaded) -> Vec<String> {
    let settings = &loaded.settings;
    let sentence = |provider| {
        let why = host(provider, loaded, None).err()?;
        let told = match provider {
            // It names the setting that asks for the library.
            Provider::Cpu => why,
            // Another one may be meant.
            _ if settings.execution_provider == Provider::Auto => return None,
            _ => loaded.names_in_vain(provider, &why),
        };
        let mut warnings = loaded.warnings.iter();
        warnings.all(|warning| !warning.text.starts_with(&told)).then_some(told)
    };
    match settings.vector_level {
        Level::None => Vec::new(),
        _ => tried(settings).filter_map(sentence).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources};

    #[test]
    fn what_the_providers_that_are_named_lack_is_told() {
        let root = tempfile::tempdir().unwrap();
        let lacking = |flags: &[(&str, &str)]| {
            let sources = Sources::under(root.path()).with_flags(flags);
            lacking(&Settings::load(&sources).unwrap())
        };
        let cuda = ("execution_provider", "cuda");
        let [missing] = lacking(&[cuda]).try_into().unwrap();
        let start = "flag --execution-provider: execution_provider is cuda, and cuda needs an ONNX \
                     Runtime library, which is not installed; type `op-dbus runtime pull";
        assert!(missing.starts_with(start), "{missing}");
        let [missing] = lacking(&[("fallback", "ggml,cpu")]).try_into().unwrap();
        assert!(missing.starts_with("flag --fallback: fallback names ggml, and ggml needs"));
        let [missing] = lacking(&[("cpu_engine", "ort")]).try_into().unwrap();
        assert!(missing.starts_with("cpu_engine is ort (flag --cpu-engine), and the"), "{missing}");
        // What is only tried, what is told already, and what nobody needs.
        let (auto, coreml) = (("execution_provider", "auto"), ("execution_provider", "coreml"));
        for flags in [&[auto][..], &[coreml], &[cuda, ("vector_level", "none")], &[]] {
            assert_eq!(lacking(flags), Vec::<String>::new(), "{flags:?}");
        }
    }
}
