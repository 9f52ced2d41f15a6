//! The runtime store: only the pinned bytes are ever taken for a library.

use std::fs;
use std::path::Path;

use super::fixture::{self, Files, Lines};
use crate::manifest::{self, Build, Library, Plugin};
use crate::runtime::beside;
use crate::{Error, FileRecord, Progress, RuntimeStore, Source, digest};

const RUNTIME: &[u8] = b"the runtime";
const BESIDE: &[u8] = b"what it loads from beside itself";
const PLATFORM: &str = "manylinux_1_machine";

/// A store, and a folder to pull from.
struct Bench {
    dir: tempfile::TempDir,
    store: RuntimeStore,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        let store = RuntimeStore::open(dir.path().join("runtime"));
        Self { dir, store }
    }

    fn from(&self) -> std::path::PathBuf {
        self.dir.path().join("from")
    }

    /// Puts a wheel of the library into the folder to pull from.
    fn add_wheel(&self, files: &Files) {
        let name = format!("some_runtime-1.0-cp312-cp312-{PLATFORM}.whl");
        fs::write(self.from().join(name), fixture::zip(files)).unwrap();
    }

    fn pull(&self, library: &Library, lines: &Lines) -> Result<std::path::PathBuf, Error> {
        let sources = [Source::Folder(self.from()), Source::Hub];
        self.store.bring(library, &sources, &Progress::lines(lines.clone()))
    }

    /// Why a pull failed, after a check that it left nothing.
    fn refusal(&self, library: &Library) -> String {
        let error = self.pull(library, &Lines::default()).unwrap_err();
        assert!(matches!(error, Error::Sources { .. }), "{error:?}");
        assert!(!self.folder().exists());
        assert!(matches!(self.store.verify_files(library), Err(Error::NotInstalled { .. })));
        error.to_string()
    }

    fn folder(&self) -> std::path::PathBuf {
        self.dir.path().join("runtime/some-runtime-1.0")
    }
}

/// A library of two files, made for this machine.
pub(super) fn library() -> Library {
    let record = |path: &str, bytes: &[u8]| FileRecord {
        path: path.to_owned(),
        bytes: bytes.len() as u64,
        sha256: digest::of_bytes(bytes),
    };
    Library {
        package: "some-runtime".to_owned(),
        version: "1.0".to_owned(),
        folder: "some/capi".to_owned(),
        load: "lib.so".to_owned(),
        plugin: None,
        providers: manifest::libraries()[1].providers.clone(),
        builds: vec![Build {
            arch: std::env::consts::ARCH.to_owned(),
            platform: PLATFORM.to_owned(),
            files: vec![record("lib.so", RUNTIME), record("beside/more.so.2", BESIDE)],
        }],
    }
}

pub(super) fn files(prefix: &str) -> Files {
    let entries = [("lib.so", RUNTIME), ("beside/more.so.2", BESIDE)];
    entries.map(|(path, bytes)| (format!("{prefix}{path}"), bytes.to_vec())).into()
}

#[test]
fn the_runtime_lies_beside_the_models() {
    let path = beside(Path::new("/var/lib/op-dbus/models"));
    assert_eq!(path, Path::new("/var/lib/op-dbus/runtime"));
    // Not in a folder of models.
    for here in [".", "..", "/srv/models/low/.."] {
        assert_eq!(beside(Path::new(here)), Path::new(here).join("../runtime"));
    }
}

#[test]
fn a_wheel_delivers_and_the_files_keep_their_places() {
    let bench = Bench::new();
    bench.add_wheel(&files("some/capi/"));
    let lines = Lines::default();
    let path = bench.pull(&library(), &lines).unwrap();
    assert_eq!(path, bench.folder().join("lib.so"));
    assert_eq!(fs::read(bench.folder().join("beside/more.so.2")).unwrap(), BESIDE);
    assert_eq!(bench.store.verify_files(&library()).unwrap(), path);
    let text = lines.text();
    assert!(text.contains("some-runtime-1.0: beside/more.so.2 (32 B)"), "{text}");
}

#[test]
fn a_folder_with_the_files_themselves_delivers() {
    for inside in ["", "some-runtime-1.0"] {
        let bench = Bench::new();
        fixture::write_folder(&bench.from().join(inside), &files(""));
        bench.pull(&library(), &Lines::default()).unwrap();
        bench.store.verify_files(&library()).unwrap();
    }
}

#[test]
fn a_second_pull_does_nothing() {
    let bench = Bench::new();
    bench.add_wheel(&files("some/capi/"));
    let first = bench.pull(&library(), &Lines::default()).unwrap();
    fs::remove_dir_all(bench.from()).unwrap();
    let lines = Lines::default();
    assert_eq!(bench.pull(&library(), &lines).unwrap(), first);
    assert_eq!(lines.text(), "some-runtime-1.0: installed and undamaged\n");
}

#[test]
fn a_damaged_file_is_named_and_the_next_pull_mends_it() {
    let bench = Bench::new();
    bench.add_wheel(&files("some/capi/"));
    bench.pull(&library(), &Lines::default()).unwrap();
    let beside = bench.folder().join("beside/more.so.2");
    let damages: [(&[u8], &str); 2] =
        [(b"short", "5 bytes and should have 32"), (&[7; 32], "SHA-256")];
    for (bytes, expected) in damages {
        fs::write(&beside, bytes).unwrap();
        let error = bench.store.verify_files(&library()).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { file, .. } if *file == beside), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(expected), "{message}");
        assert!(
            message.contains("type `op-dbus runtime pull --provider cuda --model-dir "),
            "{message}"
        );
        bench.pull(&library(), &Lines::default()).unwrap();
        assert_eq!(fs::read(&beside).unwrap(), BESIDE);
    }
    fs::remove_file(&beside).unwrap();
    let message = bench.store.verify_files(&library()).unwrap_err().to_string();
    assert!(message.contains("it is missing"), "{message}");
}

#[test]
fn a_wrong_file_is_not_installed() {
    let bench = Bench::new();
    let mut wrong = files("some/capi/");
    wrong.insert("some/capi/beside/more.so.2".to_owned(), vec![7; 32]);
    bench.add_wheel(&wrong);
    let message = bench.refusal(&library());
    assert!(message.contains("its beside/more.so.2 has the SHA-256 "), "{message}");
    assert!(message.contains("hub: it has no ONNX Runtime"), "{message}");
}

#[test]
fn a_missing_or_overlong_member_is_not_installed() {
    let bench = Bench::new();
    let mut lacking = files("some/capi/");
    lacking.remove("some/capi/beside/more.so.2");
    bench.add_wheel(&lacking);
    let message = bench.refusal(&library());
    assert!(message.contains("there is no beside/more.so.2 in"), "{message}");

    let mut long = files("some/capi/");
    long.insert("some/capi/lib.so".to_owned(), vec![7; 1 << 10]);
    bench.add_wheel(&long);
    let message = bench.refusal(&library());
    assert!(message.contains("it has 1024 bytes, and not 11"), "{message}");
}

#[test]
fn of_several_wheels_the_one_that_pip_would_fetch_is_taken() {
    let bench = Bench::new();
    for python in ["cp311", "cp313", "cp314"] {
        let name = format!("some_runtime-1.0-{python}-{python}-{PLATFORM}.whl");
        fs::write(bench.from().join(name), fixture::zip(&Files::new())).unwrap();
    }
    bench.add_wheel(&files("some/capi/"));
    bench.pull(&library(), &Lines::default()).unwrap();
}

#[test]
fn a_wheel_of_another_platform_is_not_taken() {
    let bench = Bench::new();
    let name = "some_runtime-1.0-cp312-cp312-win_amd64.whl";
    fs::write(bench.from().join(name), fixture::zip(&files("some/capi/"))).unwrap();
    let message = bench.refusal(&library());
    assert!(message.contains("no wheel of some-runtime 1.0 for manylinux_1_machine"), "{message}");
    fs::remove_dir_all(bench.from()).unwrap();
    let message = bench.refusal(&library());
    assert!(message.contains("does not exist"), "{message}");
    fs::write(bench.from(), "").unwrap();
    let message = bench.refusal(&library());
    assert!(message.contains("is a file, and no wheel of some-runtime 1.0"), "{message}");
}

#[test]
fn another_processor_is_refused_before_anything_is_written() {
    let bench = Bench::new();
    let mut library = library();
    library.builds[0].arch = "z80".to_owned();
    let error = bench.pull(&library, &Lines::default()).unwrap_err();
    assert!(matches!(error, Error::NoLibrary(_)), "{error:?}");
    let message = error.to_string();
    assert!(message.starts_with("cuda, tensorrt needs linux-z80, and this is "), "{message}");
    assert!(!bench.dir.path().join("runtime").exists());
}

/// Puts a file of no use where the library of a provider is looked for.
fn pretend(store: &Path, provider: &str) -> std::path::PathBuf {
    let (library, _) = manifest::provider(provider).unwrap();
    let path = store.join(library.folder_name()).join(&library.load);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, b"not it").unwrap();
    path
}

#[test]
fn a_provider_is_loaded_from_its_own_runtime_or_as_a_plugin_of_the_cpus() {
    let dir = tempfile::tempdir().unwrap();
    let store = RuntimeStore::open(dir.path());
    for provider in manifest::provider_names() {
        assert_eq!(store.runtime(provider), None);
        assert_eq!(store.plugin(provider), None);
    }
    let plugin = pretend(dir.path(), "webgpu");
    assert_eq!(store.runtime("webgpu"), None, "a plugin is no runtime");
    let cpu = pretend(dir.path(), "cpu");
    let cuda = pretend(dir.path(), "cuda");
    assert_eq!(store.runtime("cpu"), Some(cpu.clone()));
    assert_eq!(store.runtime("webgpu"), Some(cpu.clone()));
    assert_eq!(store.runtime("ggml"), Some(cpu));
    assert_eq!(store.runtime("gpu"), Some(cuda.clone()));
    assert_eq!(store.runtime("tensorrt"), Some(cuda));
    let found = store.plugin("wgpu").unwrap();
    assert_eq!(found.library, plugin);
    assert_eq!(found.register_as, "webgpu");
    assert_eq!(found.execution_provider, "WebGpuExecutionProvider");
    assert_eq!(store.plugin("cuda"), None);
    assert_eq!(store.plugin("ggml"), None);
}

#[test]
fn removing_takes_the_whole_library() {
    let dir = tempfile::tempdir().unwrap();
    let store = RuntimeStore::open(dir.path());
    let (cuda, cpu) = (pretend(dir.path(), "cuda"), pretend(dir.path(), "cpu"));
    store.remove("tensorrt").unwrap();
    assert!(!cuda.parent().unwrap().exists());
    assert!(cpu.exists());
    let error = store.remove("cuda").unwrap_err();
    assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
    assert!(error.to_string().contains("type `op-dbus runtime list"), "{error}");
}

#[test]
fn other_versions_of_a_library_go_with_its_pull() {
    let bench = Bench::new();
    bench.add_wheel(&files("some/capi/"));
    let store = bench.dir.path().join("runtime");
    // The second one finds it installed.
    for _ in 0..2 {
        for name in ["0.9", "1.0.1", "1.0.bak", "1.0-own", "gpu-0.9", "of-mine"] {
            fs::create_dir_all(store.join(format!("some-runtime-{name}"))).unwrap();
        }
        let lines = Lines::default();
        bench.pull(&library(), &lines).unwrap();
        let expected = "some-runtime-0.9: removed, as some-runtime-1.0 takes its place\n";
        assert!(lines.text().contains(expected), "{}", lines.text());
        let names = fs::read_dir(&store).unwrap().flatten().map(|entry| entry.file_name());
        let names = names.map(|name| name.into_string().unwrap());
        let mut left: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        left.sort();
        let kept = ["1.0", "1.0-own", "1.0.bak", "gpu-0.9", "of-mine"];
        assert_eq!(left, kept.map(|name| format!("some-runtime-{name}")));
    }
}

#[test]
fn a_library_of_another_version_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = RuntimeStore::open(dir.path());
    let [cpu, cuda] = ["", "-gpu"].map(|kind| dir.path().join(format!("onnxruntime{kind}-0.1")));
    for old in [&cpu, &cuda] {
        fs::create_dir(old).unwrap();
    }
    assert_eq!(store.remove("cpu").unwrap(), ["onnxruntime-0.1"]);
    assert!(!cpu.exists() && cuda.exists());
    let error = store.remove("cpu").unwrap_err();
    assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
}

#[test]
fn a_provider_without_a_library_is_answered_exactly() {
    let answer = |name| manifest::provider(name).unwrap_err().to_string();
    let here = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    assert_eq!(answer("coreml"), format!("coreml needs macOS; this is {here}"));
    assert_eq!(answer("dml"), format!("directml needs Windows; this is {here}"));
    assert_eq!(
        answer("abacus"),
        "`abacus` is not a provider that has a library to pull; known are cpu, cuda, tensorrt, \
         webgpu, openvino, ggml, migraphx"
    );
}

#[test]
fn the_list_of_libraries_is_sound() {
    for library in manifest::libraries() {
        assert!(!library.providers.is_empty(), "{}", library.package);
        for build in &library.builds {
            assert!(build.platform.ends_with(&build.arch));
            assert!(build.files.iter().any(|file| file.path == library.load));
            for file in &build.files {
                let is_digest = |c: char| matches!(c, '0'..='9' | 'a'..='f');
                assert!(file.sha256.len() == 64 && file.sha256.chars().all(is_digest));
                assert!(file.bytes > 0 && !file.path.starts_with('/'));
            }
        }
        if let Some(Plugin { host, .. }) = &library.plugin {
            let (host, _) = manifest::provider(host).unwrap();
            assert!(host.plugin.is_none(), "{} is loaded by a plugin", library.package);
        }
    }
    let mut names: Vec<_> = manifest::provider_names().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), manifest::provider_names().count());
    let archs: Vec<_> = manifest::libraries()[0].builds.iter().map(|b| b.arch.as_str()).collect();
    assert_eq!(archs, ["x86_64", "aarch64"]);
}
