//! Which source wins, and what is said about mistakes in each.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::{MAIN, STATE, Tree};
use crate::settings::{ChangeError, Devices, Loaded, Origin, Provider};
use op_dbus_models::Level;

#[test]
fn an_empty_tree_gives_the_built_in_values() {
    let tree = Tree::new(&[]);
    let loaded = tree.loaded();
    assert_eq!(loaded.settings.vector_level, Level::Medium);
    assert_eq!(loaded.settings.execution_provider, Provider::Cpu);
    assert_eq!(loaded.settings.fallback, [Provider::Cpu]);
    assert_eq!(loaded.settings.gpu_device, Devices::List(vec![0]));
    assert_eq!(loaded.settings.runtime, None);
    assert_eq!(loaded.settings.threads, None);
    assert_eq!(loaded.settings.state_file, tree.path().join(STATE));
    assert!(loaded.origins.values().all(|origin| *origin == Origin::Default));
    assert!(loaded.warnings.is_empty());
}

#[test]
fn defaults_agree_with_the_engine() {
    let settings = Tree::new(&[]).loaded().settings;
    let limits = op_dbus_engine::Limits::default();
    assert_eq!(settings.batch_delay_us_max, limits.batch_delay_us_max);
    assert_eq!(settings.queue_tokens_max, limits.queue_tokens_max);
    assert_eq!(settings.quota_tokens, limits.quota_tokens);
}

/// Adds the sources one by one, lowest first: each takes over, and says where its value is.
#[test]
fn each_source_wins_over_those_before_it() {
    let mut tree = Tree::new(&[]);
    let quoted = |level: &str| format!("# comment\nvector_level = {level:?}\n");
    let check = |tree: &Tree, level: &str, origin: &str| {
        let loaded = tree.loaded();
        assert_eq!(loaded.value("vector_level"), Some(level));
        let shown = loaded.origins["vector_level"].to_string();
        assert_eq!(shown.replace(&tree.path().display().to_string(), ""), origin);
    };
    check(&tree, "medium", "default");
    tree.write("usr/lib/op-dbus/config.toml", quoted("low").as_bytes());
    check(&tree, "low", "/usr/lib/op-dbus/config.toml, line 2");
    tree.write(MAIN, quoted("high").as_bytes());
    check(&tree, "high", "/etc/op-dbus/config.toml, line 2");
    tree.write("etc/op-dbus/conf.d/20-b.toml", quoted("none").as_bytes());
    tree.write("etc/op-dbus/conf.d/10-a.toml", quoted("medium").as_bytes());
    check(&tree, "none", "/etc/op-dbus/conf.d/20-b.toml, line 2");
    tree.write(STATE, br#"{"version":1,"settings":{"vector_level":"low"}}"#);
    check(&tree, "low", "state file /var/lib/op-dbus/state.json");
    assert_eq!(tree.loaded().pinned_by("vector_level"), None);
    tree = tree.env("OP_DBUS_VECTOR_LEVEL", "medium");
    check(&tree, "medium", "environment variable OP_DBUS_VECTOR_LEVEL");
    tree = tree.flag("vector_level", "high");
    check(&tree, "high", "flag --vector-level");
    let by = tree.loaded().pinned_by("vector_level");
    assert_eq!(by.as_deref(), Some("flag --vector-level"));
}

#[test]
fn every_sources_mistakes_are_told_in_one_message() {
    let tree = Tree::new(&[
        ("usr/lib/op-dbus/config.toml", "batch_tokens_max = 1.5\n"),
        (MAIN, "vector_levle = \"low\"\nvector_level = \"hgih\"\n\nthreads = \"lots\"\n"),
        ("etc/op-dbus/conf.d/10-a.toml", "queue_tokens_max = [1]\n"),
        ("etc/op-dbus/conf.d/20-b.toml", "log = \"info\nbus = 1\n"),
    ]);
    let tree = tree.env("OP_DBUS_GPU_DEVICE", "0,0").env("OP_DBUS_EXECUTION_PROVIDR", "cpu");
    // The flag overrides a wrong value, which is told all the same.
    let tree = tree.flag("threads", "2").flag("precision", "f61");
    let expected = "there are 9 mistakes in the settings:
  /etc/op-dbus/conf.d/20-b.toml, line 1: it is not TOML: invalid basic string, expected `\"`
  /usr/lib/op-dbus/config.toml, line 1: batch_tokens_max = 1.5 is not accepted; write `auto`, or 16 to 1048576
  /etc/op-dbus/config.toml, line 1: `vector_levle` is not a setting; did you mean `vector_level`?
  /etc/op-dbus/config.toml, line 2: vector_level = \"hgih\" is not accepted (did you mean \
`high`?); write `none`, `low`, `medium`, `high`
  /etc/op-dbus/config.toml, line 4: threads = \"lots\" is not accepted; write `auto`, or 1 to 1024
  /etc/op-dbus/conf.d/10-a.toml, line 1: queue_tokens_max = [1] is not accepted; write 1 to \
4294967296
  environment variable OP_DBUS_EXECUTION_PROVIDR: there is no such setting; did you mean \
`OP_DBUS_EXECUTION_PROVIDER`?
  environment variable OP_DBUS_GPU_DEVICE: \"0,0\" is not accepted, since device 0 is named \
twice; write `0`, a list such as `0,1`, or `all`
  flag --precision: \"f61\" is not accepted (did you mean `f16`?); write `auto`, `f32`, `f16`, \
`bf16`, `int8`";
    assert_eq!(tree.mistakes(), expected);
    assert_eq!(tree.load().unwrap_err().exit_code(), 6);
}

#[test]
fn an_empty_variable_is_not_set() {
    let tree = Tree::new(&[]).env("OP_DBUS_VECTOR_LEVEL", "").env("OP_DBUS_NO_SUCH", "");
    assert_eq!(tree.loaded().origins["vector_level"], Origin::Default);
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let mut tree = Tree::new(&[]);
    let value = std::ffi::OsString::from_vec(vec![0xff, 0xfe]);
    tree.sources.env.insert("OP_DBUS_LOG".into(), value);
    assert!(tree.mistakes().ends_with("OP_DBUS_LOG: its value is not UTF-8 text"));
}

#[test]
fn a_variable_in_small_letters_overrules_none() {
    let tree = Tree::new(&[]).env("OP_DBUS_THREADS", "2").env("OP_DBUS_threads", "3");
    let expected = "OP_DBUS_threads: names of settings are in capital letters in the environment";
    assert!(tree.mistakes().contains(expected));
}

#[test]
fn the_tree_may_be_odd_but_the_message_is_clear() {
    let tree = Tree::new(&[(MAIN, "")]);
    let folder = tree.path().join("etc/op-dbus");
    symlink("/nowhere", folder.join("dangling.toml")).unwrap();
    std::fs::create_dir_all(folder.join("conf.d/10-folder.toml")).unwrap();
    symlink("/nowhere", folder.join("conf.d/15-dangling.toml")).unwrap();
    tree.write("etc/op-dbus/conf.d/20-bytes.toml", b"log = \"\xff\"");
    tree.write("etc/op-dbus/conf.d/30-large.toml", &vec![b'#'; (1 << 20) + 1]);
    tree.write("etc/op-dbus/conf.d/40-deep.toml", &[b"x = ".as_slice(), &[b'['; 9999]].concat());
    let dotted = ["x"; 9999].join(".") + " = 1";
    tree.write("etc/op-dbus/conf.d/50-dotted.toml", dotted.as_bytes());
    let long = format!("{} = 1", "x".repeat(9999));
    tree.write("etc/op-dbus/conf.d/60-long.toml", long.as_bytes());
    tree.write("etc/op-dbus/conf.d/.hidden.toml", b"nonsense");
    tree.write("etc/op-dbus/conf.d/backup.toml~", b"nonsense");
    let text = tree.mistakes();
    let start = "there are 7 mistakes in the settings:
  /etc/op-dbus/conf.d/10-folder.toml: it cannot be read: it is not a regular file
  /etc/op-dbus/conf.d/15-dangling.toml: it cannot be read: it is a link to what is not there
  /etc/op-dbus/conf.d/20-bytes.toml: it cannot be read: it is not UTF-8 text
  /etc/op-dbus/conf.d/30-large.toml: it cannot be read: it is larger than 1048576 bytes
  /etc/op-dbus/conf.d/40-deep.toml, line 1: it is not TOML: ";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("/50-dotted.toml: it is not TOML: recursion limit"), "{text}");
    assert!(text.contains("/60-long.toml: `xxx"), "{text}");
}

#[test]
fn a_named_file_replaces_the_administrators_own() {
    let tree = Tree::new(&[
        (MAIN, "log = \"nonsense=nonsense\""),
        ("etc/op-dbus/conf.d/10-a.toml", "nonsense = 1"),
        ("usr/lib/op-dbus/config.toml", "threads = 3"),
        ("mine.toml", "vector_level = \"low\""),
    ]);
    let mine = tree.path().join("mine.toml");
    let tree = tree.env("OP_DBUS_CONFIG", mine.to_str().unwrap());
    let loaded = tree.loaded();
    assert_eq!(loaded.settings.vector_level, Level::Low);
    assert_eq!(loaded.settings.threads, Some(3));
    assert_eq!(loaded.settings.config, mine);
    let tree = tree.flag("config", "/dev/null");
    assert_eq!(tree.loaded().settings.vector_level, Level::Medium);
    let tree = tree.flag("config", "/no/such/file");
    assert!(tree.mistakes().ends_with("flag --config: there is no file /no/such/file"));
    // What keeps us from looking is told as it is.
    let tree = tree.flag("config", mine.join("c.toml").to_str().unwrap());
    let text = tree.mistakes();
    let expected = "flag --config: /mine.toml/c.toml cannot be read: Not a directory";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_file_cannot_name_another_file() {
    let text = Tree::new(&[(MAIN, "config = \"/x\"")]).mistakes();
    assert!(text.ends_with("`config` is set by OP_DBUS_CONFIG or --config, not in a file"));
}

#[test]
fn other_programs_variables_offer_defaults() {
    let env = |tree: Tree| {
        tree.env("CACHE_DIRECTORY", "/var/cache/a:/var/cache/b").env("ORT_DYLIB_PATH", "/o.so")
    };
    let mut tree = env(Tree::new(&[]));
    let by_hand = tree.loaded();
    assert_eq!(by_hand.settings.runtime, Some(PathBuf::from("/o.so")));
    assert_eq!(by_hand.origins["runtime"].to_string(), "default from ORT_DYLIB_PATH");
    assert_eq!(by_hand.settings.cache_dir, tree.path().join("var/cache/op-dbus"));
    for relative in ["libonnxruntime.so", ""] {
        let theirs = Tree::new(&[]).env("ORT_DYLIB_PATH", relative);
        assert_eq!(theirs.loaded().settings.runtime, None);
    }
    let colon = Tree::new(&[]).env("ORT_DYLIB_PATH", "/a:b/o.so");
    assert_eq!(colon.loaded().settings.runtime, Some(PathBuf::from("/a:b/o.so")));
    tree.sources.service = true;
    let service = tree.loaded();
    assert_eq!(service.settings.runtime, None);
    assert_eq!(service.settings.cache_dir, PathBuf::from("/var/cache/a"));
    tree.write(MAIN, b"cache_dir = \"/mine\"");
    assert_eq!(tree.loaded().settings.cache_dir, PathBuf::from("/mine"));
}

#[test]
fn the_state_file_may_be_named_anywhere_but_in_itself() {
    let tree = Tree::new(&[("s.json", r#"{"version":1,"settings":{"vector_level":"low"}}"#)]);
    let state = tree.path().join("s.json").display().to_string();
    tree.write(MAIN, format!("state_file = {state:?}").as_bytes());
    assert_eq!(tree.loaded().settings.vector_level, Level::Low);
    let tree = tree.flag("state_file", "/no/such/state.json");
    assert_eq!(tree.loaded().settings.vector_level, Level::Medium);
}

#[test]
fn a_reload_stays_with_what_is_read_at_the_start() {
    let state = |level: &str| format!(r#"{{"version":1,"settings":{{"vector_level":{level:?}}}}}"#);
    let tree = Tree::new(&[(STATE, &state("low")), ("other.json", &state("high"))]);
    let loaded = tree.loaded();
    let other = tree.path().join("other.json");
    let text = format!("state_file = {:?}\nbus = \"session\"\n", other.to_str().unwrap());
    tree.write(MAIN, text.as_bytes());
    let again = loaded.reload().unwrap();
    let told = |loaded: &Loaded| {
        let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        told.join("\n").replace(&tree.path().display().to_string(), "")
    };
    let waiting = "\
bus is session by now (/etc/op-dbus/config.toml, line 2), and is read at the start only; restart the service \
to apply it
state_file is /other.json by now (/etc/op-dbus/config.toml, line 1), and is read at the start only; restart \
the service to apply it";
    assert_eq!(told(&again), waiting);
    assert_eq!(told(&again.reload().unwrap()), waiting, "for as long as it is so");
    // What is told is what the service runs with, also after a change.
    let mut changed = again;
    set(&mut changed, "vector_level", "none").unwrap();
    for key in ["state_file", "bus", "core_dumps"] {
        assert_eq!(changed.value(key), loaded.value(key));
        assert_eq!(changed.origins[key], loaded.origins[key]);
    }
    assert_eq!(changed.settings.bus, loaded.settings.bus);
    assert_eq!(std::fs::read_to_string(other).unwrap(), state("high"));
    assert_eq!(changed.reload().unwrap().settings.vector_level, Level::None);
    assert_eq!(tree.loaded().settings.vector_level, Level::High, "a restart");
    tree.write(MAIN, b"");
    assert_eq!(told(&changed.reload().unwrap()), "", "as at the start");
}

#[test]
fn what_a_file_says_in_vain_is_told() {
    let state = r#"{"version":1,"settings":{"vector_level":"low"}}"#;
    let told = |tree: &Tree| {
        let warnings = tree.loaded().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let tree = Tree::new(&[(STATE, state), (MAIN, "\nvector_level = \"high\"\n")]);
    assert_eq!(
        told(&tree).replace(&format!("{}/", tree.path().display()), "/"),
        "/etc/op-dbus/config.toml, line 2: vector_level = high has no effect: it was changed to low \
         over the bus, which the state file /var/lib/op-dbus/state.json keeps; change it over the \
         bus to have it otherwise"
    );
    tree.write(MAIN, b"vector_level = \"low\"");
    assert_eq!(told(&tree), "");
    tree.write(MAIN, b"vector_level = \"high\"");
    assert_eq!(told(&tree.flag("vector_level", "medium")), "", "neither has an effect");
}

#[test]
fn a_fleet_without_an_address_is_told() {
    let told = |files: &str| {
        let told = Tree::new(&[(MAIN, files)]).loaded().warnings;
        told.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let why = "remote, and remote has nowhere to send batches, as nothing says where servers answer; set \
               endpoints in a table [providers.remote] of a file";
    let first = told("execution_provider = \"remote\"");
    assert!(first.ends_with(&format!("line 1: execution_provider is {why}")), "{first}");
    let behind = told("fallback = [\"remote\", \"cpu\"]");
    assert!(behind.ends_with(&format!("line 1: fallback names {why}")), "{behind}");
    let table = "execution_provider = \"remote\"\n[providers.remote]\n\
                 endpoints = \"https://embed.example\"";
    assert_eq!(told(table), "");
}

#[test]
fn a_variable_that_is_nearly_a_settings_is_told() {
    let tree = Tree::new(&[])
        .env("OPDBUS_VECTOR_LEVEL", "high")
        .env("op_dbus_threads", "2")
        .env("OPDBUS_LOG", "")
        .env("OPDBUS_HOME", "/opt/opdbus")
        .env("OP_DBUS_LOG", "debug");
    let loaded = tree.loaded();
    let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "environment variable OPDBUS_VECTOR_LEVEL has no effect; did you mean \
             `OP_DBUS_VECTOR_LEVEL`?",
            "environment variable op_dbus_threads has no effect; did you mean `OP_DBUS_THREADS`?",
        ]
    );
    assert_eq!(loaded.settings.vector_level, Level::Medium);
}

#[test]
fn what_is_wrong_in_the_state_is_told_ignored_and_kept() {
    let state = r#"{"version":1,"settings":
        {"vector_level":"huge","novelty":{"a":[1]},"log":"debug","gpu_device":"0,1"}}"#;
    let tree = Tree::new(&[(STATE, state)]);
    let mut loaded = tree.loaded();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let warnings = warnings.join("\n").replace(&tree.path().display().to_string(), "");
    let expected = "\
state file /var/lib/op-dbus/state.json: `log` cannot be changed while the service \
runs; it is ignored
state file /var/lib/op-dbus/state.json: `novelty` is not a setting; it is ignored
state file /var/lib/op-dbus/state.json: vector_level = \"huge\" is not accepted; write \
`none`, `low`, `medium`, `high`; it is ignored";
    assert_eq!(warnings, expected);
    assert_eq!(loaded.settings.gpu_device, Devices::List(vec![0, 1]));
    set(&mut loaded, "vector_level", "low").unwrap();
    let text = std::fs::read_to_string(tree.path().join(STATE)).unwrap();
    assert!(text.contains("novelty") && text.contains("\"vector_level\": \"low\""), "{text}");
}

#[test]
fn a_damaged_state_stays_until_everything_else_is_right() {
    let mut tree = Tree::new(&[(STATE, "damaged"), (MAIN, "threads = \"many\"")]);
    tree.sources.repair_state = true;
    let state = tree.path().join(STATE);
    // A value that is wrong by itself, and one beside another.
    let mistakes = ["threads = \"many\"", "cpu_engine = \"ort\"\ncpu_isa = \"avx2\""];
    for mistake in mistakes {
        tree.write(MAIN, mistake.as_bytes());
        assert!(!tree.mistakes().contains("state.json"), "it is told as if it were moved");
        assert!(state.exists(), "nobody is told that it was moved");
    }
    tree.write(MAIN, b"");
    let told = tree.loaded().warnings;
    assert!(told[0].text.contains("it was moved to"), "{told:?}");
    assert!(!state.exists());
}

/// Changes a setting as the service does.
fn set(loaded: &mut Loaded, key: &str, value: &str) -> Result<(), ChangeError> {
    let mut changed = loaded.with(key, value)?;
    changed.save()?;
    *loaded = changed;
    Ok(())
}

#[test]
fn a_change_is_kept_and_shown() {
    let tree = Tree::new(&[(STATE, r#"{"version":1,"settings":{}}"#)]);
    let mut loaded = tree.loaded();
    set(&mut loaded, "execution_provider", "gpu").unwrap();
    assert_eq!(loaded.settings.execution_provider, Provider::Cuda);
    assert!(matches!(loaded.origins["execution_provider"], Origin::State(_)));
    let again = loaded.reload().unwrap();
    assert_eq!(again.settings, loaded.settings);
    assert_eq!(again.show(), loaded.show());
}

#[test]
fn what_cannot_be_changed_says_why_and_changes_nothing() {
    let tree = Tree::new(&[(STATE, r#"{"version":1,"settings":{}}"#)]);
    let tree = tree.env("OP_DBUS_VECTOR_LEVEL", "low");
    let mut loaded = tree.loaded();
    let before = loaded.show();
    let refuse = |result: Result<(), ChangeError>| result.unwrap_err().to_string();
    assert_eq!(
        refuse(set(&mut loaded, "vector_level", "high")),
        "`vector_level` is pinned by the environment variable OP_DBUS_VECTOR_LEVEL; remove it \
         there and restart the service"
    );
    assert_eq!(
        refuse(set(&mut loaded, "execution_provider", "cpuu")),
        "execution_provider = \"cpuu\" is not accepted (did you mean `cpu`?); write `auto`, `cpu`, \
         `cuda` (`gpu`), `tensorrt` (`trt`), `webgpu` (`wgpu`), `ggml`, `openvino`, `migraphx` (`rocm`), \
         `directml` (`dml`), `coreml`, `remote`"
    );
    assert_eq!(
        refuse(set(&mut loaded, "log", "debug")),
        "`log` cannot be changed while the service runs; set it in a file, by OP_DBUS_LOG or by \
         --log"
    );
    assert_eq!(refuse(set(&mut loaded, "nonsense", "1")), "`nonsense` is not a setting");
    std::fs::remove_dir_all(tree.path().join("var")).unwrap();
    tree.write("var", b"no folder");
    assert!(refuse(set(&mut loaded, "gpu_device", "all")).contains("could not be written"));
    assert_eq!(loaded.show(), before);
}
