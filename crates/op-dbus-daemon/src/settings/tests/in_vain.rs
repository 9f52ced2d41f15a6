//! What is said of settings, and of files, that come to nothing.

use super::{MAIN, Tree};

/// What is told of the settings of a file, with `HERE` for the folder of the tree, and of flags; and whether nothing
/// is embedded with them.
fn told(file: &str, flags: &[(&str, &str)]) -> (String, bool) {
    let mut tree = Tree::new(&[("var/lib/op-dbus/models/own/op-dbus.json", GRAPH)]);
    tree.write(MAIN, file.replace("HERE", &tree.path().display().to_string()).as_bytes());
    for (key, value) in flags {
        tree = tree.flag(key, value);
    }
    let loaded = tree.loaded();
    let texts: Vec<_> = loaded.warnings.iter().map(|warning| warning.text.as_str()).collect();
    let text = texts.join("\n").replace(&tree.path().display().to_string(), "");
    (text, loaded.serves_nothing(true))
}

/// What the store says of an ONNX graph of the user's own.
const GRAPH: &str = r#"{
    "version": 1, "name": "own", "family": "onnx", "pooling": "mean", "normalize": true,
    "dimensions": 8, "max_input_tokens": 48, "source": "here", "revision": "", "files": [
        {"path": "model.onnx", "bytes": 1, "sha256":
         "0000000000000000000000000000000000000000000000000000000000000000"},
        {"path": "tokenizer.json", "bytes": 1, "sha256":
         "0000000000000000000000000000000000000000000000000000000000000000"}
    ]
}"#;

const GGML: (&str, &str) = ("execution_provider", "ggml");
const STRICT: (&str, &str) = ("fallback", "none");

#[test]
fn a_precision_that_a_provider_lacks_is_told() {
    let of = |precision: &str, flags: &[(&str, &str)]| {
        told("", &[&[("precision", precision)][..], flags].concat())
    };
    let (text, nothing) = of("int8", &[GGML, STRICT]);
    let said = "flag --execution-provider: execution_provider is ggml, and precision is int8 (flag \
                --precision), which it does not compute in; set precision to auto";
    assert_eq!((&*text, nothing), (said, true));
    // The CPU is behind it, or before it.
    assert_eq!(of("int8", &[GGML]), (said.to_owned(), false));
    let (text, nothing) = of("bf16", &[("fallback", "ggml")]);
    assert!(text.contains("fallback names ggml, and precision is bf16 (") && !nothing, "{text}");
    for provider in ["openvino", "tensorrt", "auto", "cpu"] {
        let (text, nothing) = of("bf16", &[("execution_provider", provider)]);
        assert_eq!((text, nothing), (String::new(), false), "{provider}");
    }
    assert_eq!(of("f16", &[GGML, STRICT]), (String::new(), false));
    // Servers are asked for no more than they have, unless they are what was asked for.
    let table = "[providers.remote]\nendpoints = \"https://embed.example\"\n";
    let halves = ("precision", "f16");
    let behind = [("fallback", "remote"), halves];
    assert_eq!(told(table, &behind), (String::new(), false));
    let (text, nothing) = told(table, &[("execution_provider", "remote"), STRICT, halves]);
    assert!(nothing && text.contains("is remote, and precision is f16"), "{text}");
}

#[test]
fn a_graph_that_nothing_named_computes_is_told() {
    let of = |flags: &[(&str, &str)]| told("", &[&[("model", "own")][..], flags].concat());
    let (text, nothing) = of(&[]);
    let said = "own (flag --model) is an ONNX graph, which ONNX Runtime computes, and cpu_engine is native \
                (default); set OP_DBUS_CPU_ENGINE=ort";
    assert_eq!((text, nothing), (format!("default: execution_provider is cpu, and {said}"), true));
    assert_eq!(of(&[GGML]), (format!("default: fallback names cpu, and {said}"), false));
    let auto = ("execution_provider", "auto");
    let (text, nothing) = of(&[auto]);
    assert!(!nothing && text.ends_with(&format!("is auto, and {said}")), "{text}");
    assert_eq!(of(&[GGML, STRICT]), (String::new(), false));
    let by_runtime = ("cpu_engine", "ort");
    assert_eq!(of(&[by_runtime]), (String::new(), false));
    for flags in [&[by_runtime][..], &[GGML, STRICT]] {
        let (text, nothing) = of(&[flags, &[("precision", "f16")]].concat());
        let said = "precision is f16 (flag --precision), and own (flag --model) is an ONNX graph";
        assert!(nothing && text.contains(said), "{text}");
    }
}

#[test]
fn what_tables_say_of_providers_in_vain_is_told() {
    let library = "[providers.ggml]\nlibrary = \"HERE/no.so\"\n";
    let (text, nothing) = told(library, &[GGML, STRICT]);
    assert_eq!(
        text,
        "/etc/op-dbus/config.toml, line 2: providers.ggml.library is /no.so, which does not exist; \
         name a file that does"
    );
    assert!(!nothing, "it may come");
    let (text, nothing) = told("[providers.ggml]\nfaults = \"die_on_batch=3\"\n", &[GGML]);
    let said = "/etc/op-dbus/config.toml, line 2: providers.ggml.faults is die_on_batch=3, so that \
                workers of ggml fail on purpose";
    assert!(!nothing && text.starts_with(said), "{text}");
    let hint = "[providers.openvino.options]\n\
                load_config = '{\"CPU\": {\"inference_precision_hint\": \"f32\"}}'\n";
    let openvino = ("execution_provider", "openvino");
    let (text, nothing) = told(hint, &[openvino, STRICT]);
    let said = "is openvino, and providers.openvino.options.load_config (/etc/op-dbus/config.toml, line 2) \
                says INFERENCE_PRECISION_HINT for CPU, which the setting precision decides";
    assert!(nothing && text.contains(said), "{text}");
    assert!(!told(hint, &[openvino]).1);
    assert_eq!(told(hint, &[]), (String::new(), false), "nobody asks for it");
}

#[test]
fn a_provider_behind_itself_is_told() {
    let (text, nothing) = told("", &[GGML, ("fallback", "ggml")]);
    assert_eq!(
        text,
        "flag --fallback: fallback is ggml, which has no effect while execution_provider is ggml (flag \
         --execution-provider), which is the same; name another provider, such as cpu, or none"
    );
    assert!(!nothing);
    for flags in [&[GGML, ("fallback", "ggml,cpu")][..], &[("fallback", "cpu")], &[GGML, STRICT]] {
        assert_eq!(told("", flags), (String::new(), false), "{flags:?}");
    }
}

/// What is in the folder of drop-ins and is none may be meant to be one.
#[test]
fn files_beside_the_drop_ins_are_told() {
    let mut tree = Tree::new(&[]);
    let names = ["10.conf", "20", "30.TOML", "40.toml", "50.toml.bak", "60.toml~", ".70.conf"];
    let put_aside = ["80.toml.dpkg-old", "80.toml.rpmsave", "90.toml.swp", "README"];
    for name in names.into_iter().chain(put_aside) {
        tree.write(&format!("etc/op-dbus/conf.d/{name}"), b"cache_bytes = 1\n");
    }
    let told = |tree: &Tree| -> Vec<String> {
        let warnings = tree.loaded().warnings.into_iter().map(|warning| warning.text);
        warnings.map(|text| text.replace(&tree.path().display().to_string(), "")).collect()
    };
    let sentence = |name: &str, meant: &str| {
        format!(
            "/etc/op-dbus/conf.d/{name}: it is not read, as the names of drop-ins end in .toml; call \
             it {meant} if it has settings"
        )
    };
    let expected = [("10.conf", "10.toml"), ("20", "20.toml"), ("30.TOML", "30.toml")]
        .map(|(a, b)| sentence(a, b));
    assert_eq!(told(&tree), expected);
    // None of them is read where a file is named in their place.
    let own = tree.path().join("own.toml").display().to_string();
    tree.write("own.toml", b"");
    tree = tree.flag("config", &own);
    assert_eq!(told(&tree), Vec::<String>::new());
}

#[test]
fn what_is_asked_of_a_model_while_the_level_is_none_is_told() {
    let tree = Tree::new(&[(MAIN, "vector_level = \"none\"\nexpect_dimensions = 384\n")]);
    let tree = tree.flag("model", "mine").flag("cpu_engine", "sim");
    let warnings = tree.loaded().warnings;
    let told: Vec<String> = warnings
        .iter()
        .map(|warning| warning.text.replace(&tree.path().display().to_string(), ""))
        .collect();
    let off = "has no effect while vector_level is none (/etc/op-dbus/config.toml, line 1)";
    let expected = [
        format!("flag --model: model is mine, which {off}"),
        format!("/etc/op-dbus/config.toml, line 2: expect_dimensions is 384, which {off}"),
    ];
    assert_eq!(told, expected);
    let tree = tree.flag("vector_level", "low");
    assert!(tree.loaded().warnings.is_empty());
}

#[test]
fn a_chain_beside_auto_is_told() {
    let tree = Tree::new(&[(MAIN, "fallback = \"none\"\nexecution_provider = \"auto\"\n")]);
    let [warning] = &tree.loaded().warnings[..] else { panic!("{:?}", tree.loaded().warnings) };
    assert_eq!(
        warning.text.replace(&tree.path().display().to_string(), ""),
        "/etc/op-dbus/config.toml, line 1: fallback is none, which has no effect while \
         execution_provider is auto (/etc/op-dbus/config.toml, line 2), as that ends with the CPU"
    );
    let tree = tree.flag("execution_provider", "cpu");
    assert!(tree.loaded().warnings.is_empty());
}

#[test]
fn settings_with_which_nothing_is_embedded_are_told() {
    let told = |flags: &[(&str, &str)]| {
        let tree = Tree::new(&[("file", "")]);
        let file = tree.path().join("file").display().to_string();
        let put =
            |tree: Tree, (key, value): &(&str, &str)| tree.flag(key, &value.replace("FILE", &file));
        let tree = flags.iter().fold(tree, put);
        let loaded = tree.loaded();
        let texts: Vec<_> = loaded.warnings.iter().map(|warning| warning.text.clone()).collect();
        (texts.join("\n"), loaded.serves_nothing(true))
    };
    let strict = ("fallback", "none");
    for (flags, said) in [
        (&[("quota_tokens", "1")][..], "flag --quota-tokens: quota_tokens is 1, and a long text"),
        (&[("queue_tokens_max", "1")], "queue_tokens_max is 1, and a long text of "),
        (&[("quota_tokens", "2"), ("model", "mine")], "2, and even a short text counts as 3"),
        (&[("quota_tokens", "2"), ("cpu_engine", "sim")], "2, and even a short text counts as 3"),
        (&[("model_dir", "FILE")], "/file (flag --model-dir), which is no folder"),
        (
            &[("model_dir", "FILE/models")],
            "/file/models (flag --model-dir), which is no folder, or",
        ),
        (
            &[("execution_provider", "directml"), strict],
            "flag --execution-provider: execution_provider is directml, and directml needs Windows",
        ),
    ] {
        let (text, nothing) = told(flags);
        assert!(nothing && text.contains(said), "{flags:?}: {text}");
        // Who embeds nothing needs none of it.
        let off = [flags, &[("vector_level", "none")]].concat();
        assert!(!told(&off).1, "{off:?}");
    }
    let directml = [("execution_provider", "directml"), ("vector_level", "none")];
    assert!(told(&directml).0.contains("directml needs Windows"), "whatever is embedded");
    // What a model reads that is not there is not known.
    let (text, nothing) = told(&[("quota_tokens", "3"), ("model", "mine")]);
    assert!(!nothing && !text.contains("quota_tokens"), "{text}");
    // The CPU is behind it.
    let (text, nothing) = told(&[("execution_provider", "cpu"), ("fallback", "coreml")]);
    assert!(!nothing && text.contains("fallback names coreml, and coreml needs"), "{text}");
    assert_eq!(told(&[]), (String::new(), false));
}
