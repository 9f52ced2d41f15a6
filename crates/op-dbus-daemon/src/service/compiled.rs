//! The folder in which a provider keeps what it has compiled, such as TensorRT's engines.

use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::worker::Blueprint;
use crate::settings::Settings;
use crate::settings::options::Told;

/// The folder for what is compiled for these workers, below their model's own. Its name holds what makes the
/// content valid. What else does, the device and the versions of the provider's own libraries, providers keep in
/// the names or the content of their files.
pub(super) fn folder(blueprint: &Blueprint, settings: &Settings) -> PathBuf {
    let name = name(blueprint, &depends_on(blueprint));
    let folder = blueprint.cache(settings).join("compiled").join(name);
    if let Err(error) = fs::create_dir_all(&folder) {
        // The worker goes on without, and its provider may say so.
        tracing::warn!("no folder {} for what is compiled: {error}", folder.display());
    }
    folder
}

/// What both compiled code and measured costs of these workers depend on, in words: the model, this program, which
/// compiles the graph, ONNX Runtime's library, the plugin, and what the provider is told.
pub(super) fn depends_on(blueprint: &Blueprint) -> String {
    let Blueprint { space, precision, host, .. } = blueprint;
    let mut words = format!("op-dbus {} space {space} {precision}\n", env!("CARGO_PKG_VERSION"));
    // Writing to a String can't fail.
    for library in [Some(&host.runtime), host.library.as_ref()].into_iter().flatten() {
        let _ = writeln!(words, "library {:?}", state(library));
    }
    for (name, told) in &host.options {
        if let Told::Value(value) = told {
            let _ = writeln!(words, "option {name}={value}");
        }
    }
    words
}

/// The name of what is kept for these workers and depends on `words`. Another hash of another version of the
/// standard library costs making it once more.
pub(super) fn name(blueprint: &Blueprint, words: &str) -> String {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    format!("{}-{:016x}", blueprint.host.provider, hasher.finish())
}

/// A file as it is now: another version of a library has other ones.
fn state(path: &Path) -> (&Path, u64, Option<SystemTime>) {
    let about = fs::metadata(path).ok();
    let changed = about.as_ref().and_then(|about| about.modified().ok());
    (path, about.map_or(0, |about| about.len()), changed)
}

#[cfg(test)]
mod tests {
    use super::super::costs::tests::{blueprint, settings};
    use super::super::provider::Host;
    use super::super::worker::WorkerProgram;
    use super::*;
    use crate::settings::Provider;

    #[test]
    fn whatever_the_content_depends_on_changes_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let settings = settings(&root);
        let runtime = root.path().join("libonnxruntime.so");
        fs::write(&runtime, "1").unwrap();
        let told = |value: &str| {
            vec![
                ("trt_fp16_enable".to_owned(), Told::Value(value.to_owned())),
                ("trt_engine_cache_path".to_owned(), Told::Folder),
            ]
        };
        let blueprint = blueprint();
        let host = Host { runtime: runtime.clone(), options: told("0"), ..blueprint.host.clone() };
        let blueprint = Blueprint { host, ..blueprint };
        let first = folder(&blueprint, &settings);
        assert!(first.is_dir() && first.starts_with(blueprint.cache(&settings)));
        assert_eq!(folder(&blueprint, &settings), first);
        let mut others = vec![first];
        let mut add = |blueprint: &Blueprint| others.push(folder(blueprint, &settings));
        add(&Blueprint { space: "bb".to_owned(), ..blueprint.clone() });
        add(&Blueprint {
            host: Host { options: told("1"), ..blueprint.host.clone() },
            ..blueprint.clone()
        });
        add(&Blueprint {
            host: Host { provider: Provider::OpenVino, ..blueprint.host.clone() },
            ..blueprint.clone()
        });
        fs::write(&runtime, "12").unwrap();
        add(&blueprint);
        let unique: std::collections::HashSet<_> = others.iter().collect();
        assert_eq!(unique.len(), others.len(), "{others:?}");
    }

    #[test]
    fn workers_of_two_models_have_no_folder_in_common() {
        let root = tempfile::tempdir().unwrap();
        let settings = settings(&root);
        let host = Host {
            options: vec![("trt_engine_cache_path".to_owned(), Told::Folder)],
            ..blueprint().host
        };
        let one = Blueprint { host, ..blueprint() };
        let other = Blueprint { model: "other".to_owned(), ..one.clone() };
        let folders = [&one, &other].map(|blueprint| {
            let config = blueprint.configs(&settings)(0);
            let command = WorkerProgram::this().command(&config, blueprint.host.provider).unwrap();
            let options = config.backend.provider_options.iter().map(|(_, told)| Path::new(told));
            let environment = command.get_envs().filter_map(|(_, value)| value).map(Path::new);
            let told = options.chain(environment).chain([config.backend.cache_dir.as_path()]);
            let told: Vec<_> = told.filter(|path| path.starts_with(&settings.cache_dir)).collect();
            // The folder itself, that of temporary files, three for drivers, and what is compiled.
            assert_eq!(told.len(), 6, "{told:?}");
            let own = blueprint.cache(&settings);
            assert!(own.is_dir() && told.iter().all(|path| path.starts_with(&own)), "{told:?}");
            own
        });
        assert!(!folders[0].starts_with(&folders[1]) && !folders[1].starts_with(&folders[0]));
    }
}
