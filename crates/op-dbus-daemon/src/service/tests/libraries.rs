//! Which libraries a provider computes with.

use op_dbus_models::manifest;

use super::*;

#[test]
fn a_plugin_of_ones_own_needs_no_more_than_the_plain_runtime() {
    let root = tempfile::tempdir().unwrap();
    let models = root.path().join("models").display().to_string();
    let mut loaded = loaded(&root, &[("cpu_engine", "native"), ("model_dir", &*models)]);
    let own = loaded.settings.providers.entry("migraphx".to_owned()).or_default();
    own.library = Some("/own.so".into());
    let runtime = || host(Provider::MiGraphX, &loaded, None).map(|host| host.runtime);
    let missing = runtime().unwrap_err();
    assert!(missing.contains("runtime pull --provider cpu"), "{missing}");
    for pulled in ["cpu", "migraphx"] {
        let (library, _) = manifest::provider(pulled).unwrap();
        let path = root.path().join("runtime").join(library.folder_name()).join(&library.load);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(runtime(), Ok(path), "{pulled}");
    }
}
