//! What single settings accept.

use figment::value::Value;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{MAIN, Tree};
use crate::settings::kind::plain;
use crate::settings::{Bus, CpuEngine, Devices, Kind, Provider, ROWS, row};

/// The canonical form of a value that a flag gives.
fn parsed(key: &str, text: &str) -> Option<String> {
    row(key).unwrap().kind.parse(&Value::from(text)).ok().map(|value| plain(&value))
}

#[test]
fn aliases_become_the_canonical_name() {
    let pairs = [
        ("gpu", "cuda"),
        ("trt", "tensorrt"),
        ("wgpu", "webgpu"),
        ("rocm", "migraphx"),
        ("dml", "directml"),
    ];
    for (alias, name) in pairs {
        assert_eq!(parsed("execution_provider", alias).as_deref(), Some(name));
        assert_eq!(parsed("fallback", &format!("{alias},cpu")), Some(format!("{name},cpu")));
    }
}

#[test]
fn a_fallback_is_an_ordered_list_or_none() {
    let fallback = |toml: &str| {
        let tree = Tree::new(&[(MAIN, toml)]);
        tree.load().map(|loaded| loaded.settings.fallback).ok()
    };
    assert_eq!(fallback("fallback = \"none\""), Some(vec![]));
    assert_eq!(fallback("fallback = [\"none\"]"), Some(vec![]));
    let both = Some(vec![Provider::Cuda, Provider::Cpu]);
    assert_eq!(fallback("fallback = [\"gpu\", \"cpu\"]"), both);
    assert_eq!(fallback("fallback = \"cuda, cpu\""), both);
    for wrong in
        ["[]", "[\"cpu\", \"cpu\"]", "\"cuda,gpu\"", "\"auto\"", "\"cpu,none\"", "\"\"", "3"]
    {
        assert_eq!(fallback(&format!("fallback = {wrong}")), None, "{wrong}");
    }
}

#[test]
fn devices_are_numbers_or_all() {
    let devices = |toml: &str| {
        let tree = Tree::new(&[(MAIN, toml)]);
        tree.load().map(|loaded| loaded.settings.gpu_device).ok()
    };
    assert_eq!(devices("gpu_device = 1"), Some(Devices::List(vec![1])));
    assert_eq!(devices("gpu_device = [2, 0]"), Some(Devices::List(vec![2, 0])));
    assert_eq!(devices("gpu_device = \"2, 0\""), Some(Devices::List(vec![2, 0])));
    assert_eq!(devices("gpu_device = \"all\""), Some(Devices::All));
    for wrong in ["-1", "\"+1\"", "[]", "\"0,all\"", "\"\"", "4294967296", "1.0", "true", "[[0]]"] {
        assert_eq!(devices(&format!("gpu_device = {wrong}")), None, "{wrong}");
    }
    let long = vec!["x".repeat(20_000); 3].join(",");
    let why = Kind::Devices.parse(&Value::from(long)).unwrap_err();
    assert!(why.contains("x\"… is not a device number") && why.len() < 400, "{why}");
}

#[test]
fn sizes_have_units() {
    let parse = |text: &str| {
        let kind = Kind::Bytes { min: 0, word: Some("none") };
        kind.parse(&Value::from(text)).ok().map(|value| plain(&value))
    };
    assert_eq!(parse("512").as_deref(), Some("512"));
    assert_eq!(parse("64KiB").as_deref(), Some("65536"));
    assert_eq!(parse("1GiB").as_deref(), Some("1073741824"));
    assert_eq!(parse("none").as_deref(), Some("none"));
    for wrong in
        ["", "KiB", "-1", "1.5GiB", "1 GiB", "1GB", "1gib", "99999999TiB", "9223372036854775808"]
    {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_worker_has_some_memory_at_least() {
    assert_eq!(parsed("worker_memory_max", "16MiB").as_deref(), Some("16777216"));
    assert_eq!(parsed("worker_memory_max", "auto").as_deref(), Some("auto"));
    assert_eq!(parsed("gpu_memory_limit", "0"), None);
    let text = Tree::new(&[(MAIN, "worker_memory_max = 512\n")]).mistakes();
    assert!(
        text.ends_with(
            "line 1: worker_memory_max = 512 is not accepted; write `auto`, or a size \
                            of at least `16MiB`, such as `536870912`, `512MiB` or `1GiB`"
        ),
        "{text}"
    );
}

#[test]
fn what_is_wrong_is_told_as_it_is_written() {
    let told = |toml: &str| {
        let mistakes = Tree::new(&[(MAIN, toml)]).mistakes();
        mistakes.rsplit_once("config.toml, ").unwrap().1.to_owned()
    };
    let count = "is not accepted; write `auto`, or 1 to 1024";
    assert_eq!(told("threads = 2.0"), format!("line 1: threads = 2.0 {count}"));
    let size = "is not accepted; write a size such as `536870912`, `512MiB` or `1GiB`";
    assert_eq!(told("cache_bytes = 1e9"), format!("line 1: cache_bytes = 1000000000.0 {size}"));
    assert_eq!(told("threads = 2026-01-01"), format!("line 1: threads = 2026-01-01 {count}"));
    let twice = "it is not TOML: duplicate key";
    assert_eq!(told("threads = 2\n\nthreads = 3"), format!("line 3: {twice} `threads`"));
    assert_eq!(told("models.a = {b = 1, b = 2}"), format!("line 1: {twice} `b`"));
}

#[test]
fn a_boolean_has_four_forms() {
    for (text, value) in [("true", "true"), ("1", "true"), ("false", "false"), ("0", "false")] {
        assert_eq!(parsed("core_dumps", text).as_deref(), Some(value));
    }
    for wrong in ["", "yes", "TRUE", "2", "on"] {
        assert_eq!(parsed("core_dumps", wrong), None, "{wrong}");
    }
}

#[test]
fn a_bus_is_named_or_an_address() {
    let bus = |text: &str| Tree::new(&[]).flag("bus", text).load().map(|l| l.settings.bus).ok();
    assert_eq!(bus("system"), Some(Bus::System));
    assert_eq!(bus("session"), Some(Bus::Session));
    let address = "unix:path=/run/user/1000/bus";
    assert_eq!(bus(address), Some(Bus::Address(address.to_owned())));
    let refused = |text: &str| Tree::new(&[]).flag("bus", text).load().map(drop).unwrap_err();
    let meant = "; write `system`, `session`, or a D-Bus address";
    for wrong in ["sesion", "SESSION"] {
        assert_eq!(bus(wrong), None);
        // As a client's flag has it, and as a setting, where it is not said twice.
        let sentences = [wrong.parse::<Bus>().unwrap_err(), refused(wrong).to_string()];
        for sentence in sentences {
            assert_eq!(sentence.matches(meant).count(), 1, "{sentence}");
        }
    }
    let list = refused("unix:path=/a;unix:path=/b").to_string();
    assert!(list.contains("--bus") && list.contains("only one may be named"), "{list}");
    assert!(bus("unix:path=/a%3bb").is_some());
    assert_eq!(bus(""), None);
}

#[test]
fn paths_are_absolute_but_flags_may_be_relative() {
    assert_eq!(parsed("model_dir", "models"), None);
    assert_eq!(parsed("model_dir", ""), None);
    assert_eq!(parsed("runtime", "").as_deref(), Some(""));
    let loaded = Tree::new(&[]).flag("model_dir", "models").loaded();
    assert_eq!(loaded.settings.model_dir, std::env::current_dir().unwrap().join("models"));
}

#[test]
fn a_model_is_a_name_and_not_a_path() {
    assert_eq!(parsed("model", "my-model_2.1").as_deref(), Some("my-model_2.1"));
    for wrong in ["../x", "/x", "a/b", ".hidden", "a b", "ä"] {
        assert_eq!(parsed("model", wrong), None, "{wrong}");
    }
}

/// Settings are told over D-Bus, which ends the connection of who sends it.
#[test]
fn no_setting_has_the_character_zero() {
    let paths = ["model_dir", "cache_dir", "runtime", "state_file"].map(|key| (key, "/x\0"));
    let others = [("log", "info,[a{b=\0}]=debug"), ("bus", "unix:path=/x,y=\0"), ("model", "x\0")];
    for (key, text) in paths.into_iter().chain(others) {
        assert!(parsed(key, &text.replace('\0', "z")).is_some(), "{key}");
        assert_eq!(parsed(key, text), None, "{key}");
    }
    for (line, path) in [
        ("[models.a]\nprompts = { q = \"Z\" }", "models.a.prompts.q"),
        ("[models.a]\nprompts = { \"Z\" = \"\" }", "models.a.prompts.Z"),
        ("[models.\"Z\"]", "models.Z"),
        ("[providers.cuda]\nlibrary = \"/Z\"", "providers.cuda.library"),
        ("[providers.cuda.options]\na = \"Z\"", "providers.cuda.options.a"),
    ] {
        let with = |letter| Tree::new(&[(MAIN, line.replace('Z', letter).as_str())]);
        with("x").loaded();
        let told = format!("{} has the character U+0000", path.replace('Z', "\\0"));
        assert!(with("\\u0000").mistakes().contains(&told), "{told}");
    }
}

#[test]
fn a_log_filter_is_checked() {
    let tree = Tree::new(&[(MAIN, "log = \"inof\"\n")]);
    let text = tree.env("OP_DBUS_LOG", "info,op_dbus_engin=debug").mistakes();
    for expected in [
        "line 1: log = \"inof\" is not accepted, since `inof` is not a level (did you mean `info`?); \
         write `error`, `warn`",
        "OP_DBUS_LOG: \"info,op_dbus_engin=debug\" is not accepted, since nothing logs as \
         `op_dbus_engin` (did you mean `op_dbus_engine`?); write",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn the_native_engine_is_built_in_and_others_are_named() {
    let engine = |tree: Tree| tree.loaded().settings.cpu_engine;
    assert_eq!(engine(Tree::new(&[])), CpuEngine::Native);
    for (name, expected) in
        [("native", CpuEngine::Native), ("ort", CpuEngine::Ort), ("sim", CpuEngine::Sim)]
    {
        assert_eq!(engine(Tree::new(&[]).flag("cpu_engine", name)), expected);
    }
    let text = Tree::new(&[]).flag("cpu_engine", "natvie").load().unwrap_err().to_string();
    assert!(text.ends_with("(did you mean `native`?); write `native`, `ort`, `sim`"), "{text}");
}

#[test]
fn an_instruction_set_is_one_that_some_processor_has() {
    for name in ["auto", "portable", "avx512-bf16", "neon-i8mm"] {
        let loaded = Tree::new(&[]).flag("cpu_isa", name).loaded();
        assert_eq!(loaded.settings.cpu_isa, name);
    }
    let text = Tree::new(&[]).flag("cpu_isa", "avx512bf16").load().unwrap_err().to_string();
    assert!(text.contains("(did you mean `avx512-bf16`?)"), "{text}");
}

#[test]
fn a_models_table_says_how_it_is_used() {
    let tree = Tree::new(&[
        (MAIN, "[models.a]\ndefault_prompt = \"q\"\n[models.a.prompts]\nq = \"query: \"\n"),
        ("etc/op-dbus/conf.d/10.toml", "[models.a.prompts]\np = \"passage: \"\n"),
    ]);
    let loaded = tree.loaded();
    let model = &loaded.settings.models["a"];
    assert_eq!(model.default_prompt.as_deref(), Some("q"));
    assert_eq!(model.prompts.keys().collect::<Vec<_>>(), ["p", "q"]);
    let keys: Vec<String> = loaded.show().into_iter().map(|shown| shown.key).collect();
    assert!(keys.ends_with(&[
        "models.a.prompts.p".to_owned(),
        "models.a.prompts.q".to_owned(),
        "models.a.default_prompt".to_owned()
    ]));
}

#[test]
fn what_is_said_of_models_that_are_not_installed_is_told() {
    let tree = Tree::new(&[
        (MAIN, "model = \"nope\"\n\n[models.all-MiniLM-L6-v3]\n[models.all-MiniLM-L6-v2]\n"),
        ("etc/op-dbus/conf.d/10.toml", "[models.mine]\n"),
        ("var/lib/op-dbus/models/mine/op-dbus.json", ""),
    ]);
    let told = |tree: &Tree| {
        let warnings = tree.loaded().warnings;
        assert!(warnings.iter().all(|warning| warning.message_id.is_none()));
        let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        texts.join("\n").replace(&tree.path().display().to_string(), "")
    };
    assert_eq!(
        told(&tree),
        "model is nope (/etc/op-dbus/config.toml, line 1), and nope is not installed in \
         /var/lib/op-dbus/models; type `op-dbus models import PATH --name nope \
         --model-dir /var/lib/op-dbus/models`\n\
         /etc/op-dbus/config.toml, line 3: [models.all-MiniLM-L6-v3] has no effect, as \
         /var/lib/op-dbus/models has no such model; did you mean `all-MiniLM-L6-v2`?"
    );
    assert_eq!(told(&tree.flag("cpu_engine", "sim")), "");
}

#[test]
fn tables_are_checked() {
    let tree = Tree::new(&[(
        MAIN,
        "[models.a]\ndefault_promt = \"q\"\nprompts = { q = 1 }\n\
         [providers.cuda]\nstream = 1\n[providers.cdua]\n[batching]\nx = 1\n\
         [providers.webgpu]\nlibrary = \"here\"\noptions = { a = 1 }\n\
         [models.medium]\n[models.all-minilm-l6-v2]\n[providers.gpu]\n[providers.auto]\n\
         [providers.cpu]\nlibrary = \"/x.so\"\n\
         [models.b]\nprompts = { q = \"\", \"\" = \"x\" }\ndefault_prompt = \"\"\n",
    )]);
    let text = tree.mistakes();
    for expected in [
        "line 2: `models.a.default_promt` is not a setting; did you mean `default_prompt`?",
        "line 3: models.a.prompts.q = 1 is not accepted; write a text",
        "line 5: `providers.cuda.stream` is not a setting; what it lacks a setting for is told",
        "line 10: providers.webgpu.library = \"here\" is not accepted; write an absolute path",
        "line 11: providers.webgpu.options.a = 1 is not accepted; write a text",
        "line 6: `cdua` is not the name of an execution provider; did you mean `cuda`?",
        "line 7: `batching` is not a setting",
        "line 12: `medium` is not the name of a model; did you mean `all-MiniLM-L6-v2`?",
        "line 13: `all-minilm-l6-v2` is not the name of a model; did you mean `all-MiniLM-L6-v2`?",
        "line 14: `gpu` is not the name of an execution provider; did you mean `cuda`?",
        "line 15: `auto` is no provider of its own",
        "line 16: `cpu` has no table; its settings are `cpu_engine`",
        "line 19: models.b.prompts has a prompt with the name \"\", which is how a call asks for none;",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

proptest! {
    /// No text makes the parser panic, and what it accepts it accepts again in its own form.
    #[test]
    fn what_is_accepted_stays_the_same(
        index in 0..ROWS.len(),
        text in ".{0,40}|[0-9,]{1,12}|[a-z,0-9]{1,9}",
    ) {
        let key = ROWS[index].key;
        if let Some(canonical) = parsed(key, &text) {
            prop_assert_eq!(parsed(key, &canonical), Some(canonical));
        }
    }

    #[test]
    fn any_bytes_as_a_file_give_settings_or_mistakes(bytes in vec(any::<u8>(), 0..200)) {
        let tree = Tree::new(&[]);
        tree.write(MAIN, &bytes);
        let _ = tree.load();
    }

    #[test]
    fn a_size_is_its_number_times_its_unit(number in 0u64..1 << 30, unit in 0usize..4) {
        let name = ["", "KiB", "MiB", "GiB"][unit];
        let bytes = 1u64 << (10 * unit);
        let kind = Kind::Bytes { min: 0, word: None };
        let value = kind.parse(&Value::from(format!("{number}{name}"))).unwrap();
        prop_assert_eq!(plain(&value), (number * bytes).to_string());
    }
}
