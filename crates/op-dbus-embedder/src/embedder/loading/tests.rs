//! Which refusals leave a provider to the next, and what a provider is told.

use super::*;

#[test]
fn a_provider_without_a_library_is_named_once() {
    let refusal = |provider| {
        let own = provider::Own::default();
        let missing =
            provider::libraries(provider, CpuEngine::Native, &own, "/nowhere/models".as_ref());
        no_library(provider, missing.unwrap_err()).to_string()
    };
    let elsewhere = ModelError::NoLibrary("cuda needs x; name one with OP_DBUS_RUNTIME".to_owned());
    let said = no_library("cuda", elsewhere).to_string();
    assert_eq!(said, "cuda needs x; name one with `runtime`");
    assert!(refusal("coreml").starts_with("coreml needs macOS"));
    assert!(refusal("ggml").starts_with("ggml: ") && refusal("ggml").contains("/nowhere"));
}

#[test]
fn a_device_that_fails_in_whatever_way_leaves_it_to_the_next_provider() {
    let load = |kind| BackendError::Load { kind, message: "a reason".to_owned() };
    let failures = [
        BackendError::OutOfMemory("8 bytes".to_owned()),
        BackendError::Failed("a kernel".to_owned()),
        BackendError::Lost("a thread".to_owned()),
        load(LoadErrorKind::Other),
    ];
    for error in failures {
        let said = format!("cuda does not work here: {error}");
        let on_device = refused("cuda", error.clone());
        assert!(matches!(&on_device, Error::Provider(is) if *is == said), "{on_device:?}");
        let nothing_left = refused(CPU, error);
        assert!(matches!(nothing_left, Error::Backend(_)), "{nothing_left:?}");
    }
    for kind in
        [LoadErrorKind::ModelNotInstalled, LoadErrorKind::ModelCorrupt, LoadErrorKind::Untrusted]
    {
        let everywhere = refused("cuda", load(kind));
        assert!(matches!(everywhere, Error::Backend(_)), "{everywhere:?}");
    }
    // These name their provider themselves.
    for (provider, kind) in [
        ("cuda", LoadErrorKind::ProviderUnavailable),
        ("cuda", LoadErrorKind::Unfit),
        ("cuda", LoadErrorKind::OutOfMemory),
        (CPU, LoadErrorKind::Unfit),
    ] {
        let refusal = refused(provider, load(kind));
        assert!(matches!(&refusal, Error::Provider(is) if is == "a reason"), "{refusal:?}");
    }
}

#[test]
fn a_memory_limit_is_said_in_the_words_of_the_provider() {
    let builder = Embedder::builder().memory_limit(1 << 30);
    let said = |builder: &Builder, provider| options(builder, provider);
    let one = |key: &str| vec![(key.to_owned(), "1073741824".to_owned())];
    assert_eq!(said(&builder, "cuda"), one("gpu_mem_limit"));
    assert_eq!(said(&builder, "migraphx"), one("migraphx_mem_limit"));
    assert_eq!((said(&builder, "ggml"), said(&builder, CPU)), (Vec::new(), Vec::new()));
    let own = builder.provider_option("gpu_mem_limit", "5");
    assert_eq!(said(&own, "cuda"), [("gpu_mem_limit".to_owned(), "5".to_owned())]);
}

#[test]
fn why_neither_precision_is_trusted_is_told() {
    let untrusted = |message: &str| {
        let message = message.to_owned();
        Error::Backend(BackendError::Load { kind: LoadErrorKind::Untrusted, message })
    };
    let told = |again: &str| neither("cosine 0.1", &untrusted(again)).to_string();
    assert_eq!(told("cosine 0.1"), "cosine 0.1; nor in f32");
    assert_eq!(told("cosine 0.2"), "cosine 0.1; nor in f32: cosine 0.2");
}
