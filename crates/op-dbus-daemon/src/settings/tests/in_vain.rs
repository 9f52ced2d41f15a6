//! What is said of settings, and of files, that come to nothing.

use super::{MAIN, Tree};

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
        (&[("model_dir", "FILE")], "/file, which is no folder"),
        (&[("model_dir", "FILE/models")], "/file/models, which is no folder, or lies below a file"),
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
    // What a model reads that is not there is not known.
    let (text, nothing) = told(&[("quota_tokens", "3"), ("model", "mine")]);
    assert!(!nothing && !text.contains("quota_tokens"), "{text}");
    // The CPU is behind it.
    let (text, nothing) = told(&[("execution_provider", "cpu"), ("fallback", "coreml")]);
    assert!(!nothing && text.contains("fallback names coreml, and coreml needs"), "{text}");
    assert_eq!(told(&[]), (String::new(), false));
}
