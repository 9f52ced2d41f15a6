//! The manager: levels, settings, what runs, and the signals that tell of changes.

use std::collections::HashMap;

use futures_util::StreamExt;
use op_dbus_api::{ErrorName, ROOT_PATH};
use zbus::fdo::PropertiesProxy;
use zbus::{OwnedVariant, Variant};

use super::{pair, pair_under, ready, refusal};

fn text<'a>(dictionary: &'a HashMap<String, OwnedVariant>, key: &str) -> &'a str {
    <&str>::try_from(&dictionary[key]).unwrap()
}

#[tokio::test]
async fn level_none_answers_everything_but_embedding() {
    // A level in a flag would be pinned.
    let pair = pair(&[]).await;
    pair.service.start().await;
    let (embedder, manager) = (pair.embedder().await, pair.manager().await);
    manager.set_vector_level("none").await.unwrap();
    assert_eq!(refusal(embedder.embed("x").await).0, ErrorName::Disabled);
    assert_eq!(refusal(embedder.count_tokens(&["x"]).await).0, ErrorName::Disabled);
    let status = manager.get_status().await.unwrap();
    assert_eq!((text(&status, "state"), text(&status, "level")), ("disabled", "none"));
    let statistics = manager.get_statistics().await.unwrap();
    let failures = HashMap::<String, u64>::try_from(statistics["failures"].clone()).unwrap();
    assert_eq!(failures, HashMap::from([("disabled".to_owned(), 2)]));
    assert_eq!(manager.list_levels().await.unwrap().len(), 4);

    manager.set_vector_level("low").await.unwrap();
    assert!(embedder.embed("x").await.is_ok());
    let kept = std::fs::read_to_string(pair.root.path().join("state.json")).unwrap();
    assert!(kept.contains("low"), "{kept}");
}

#[tokio::test]
async fn a_change_is_one_signal_with_everything_that_changed() {
    let pair = ready(&[]).await;
    let properties = PropertiesProxy::builder(&pair.client)
        .destination("org.opdbus.Embedding1")
        .path(ROOT_PATH)
        .build()
        .await
        .unwrap();
    let mut changes = properties.receive_properties_changed().await.unwrap();
    pair.manager().await.set_vector_level("none").await.unwrap();
    // What the start changed may still be on its way.
    loop {
        let change = changes.next().await.unwrap();
        let change = change.args().unwrap();
        if change.changed_properties().get("State") != Some(&Variant::from("disabled")) {
            continue;
        }
        assert_eq!(change.changed_properties()["VectorLevel"], Variant::from("none"));
        assert_eq!(change.changed_properties()["Dimensions"], Variant::from(0_u32));
        assert!(!change.changed_properties().contains_key("RequestedExecutionProvider"));
        break;
    }
}

#[tokio::test]
async fn a_pinned_level_names_what_pins_it() {
    let pair = pair_under(&[], &[("OP_DBUS_VECTOR_LEVEL", "low")]).await;
    pair.service.start().await;
    let (name, message) = refusal(pair.manager().await.set_vector_level("high").await);
    assert_eq!(name, ErrorName::Pinned);
    assert!(message.contains("OP_DBUS_VECTOR_LEVEL"), "{message}");
    let (name, _) = refusal(pair.manager().await.set_vector_level("hgih").await);
    assert_eq!(name, ErrorName::InvalidArgument);
}

/// The model is served in place of every level but none, which switches it off.
#[tokio::test]
async fn a_model_of_the_settings_can_be_switched_off_and_on() {
    let pair = ready(&[("model", "own")]).await;
    let (embedder, manager) = (pair.embedder().await, pair.manager().await);
    let (name, message) = refusal(manager.set_vector_level("high").await);
    assert_eq!(name, ErrorName::Pinned);
    assert!(message.contains("`model` is own"), "{message}");
    manager.set_vector_level("none").await.unwrap();
    assert_eq!(embedder.state().await.unwrap(), "disabled");
    manager.set_vector_level("none").await.unwrap();
    manager.set_vector_level("medium").await.unwrap();
    assert_eq!(embedder.state().await.unwrap(), "ready");
    assert_eq!(embedder.vector_level().await.unwrap(), "", "that of an imported model");
    assert!(embedder.embed("x").await.is_ok());
}

#[tokio::test]
async fn a_level_that_cannot_be_kept_is_not_taken() {
    let pair = ready(&[("state_file", "/proc/op-dbus/state.json")]).await;
    let (name, message) = refusal(pair.manager().await.set_vector_level("high").await);
    assert_eq!(name, ErrorName::NoSpace, "{message}");
    assert_eq!(pair.embedder().await.vector_level().await.unwrap(), "medium");
    assert!(pair.embedder().await.embed("x").await.is_ok());
}

#[tokio::test]
async fn another_provider_than_asked_for_is_told() {
    let pair = pair(&[("execution_provider", "coreml")]).await;
    let manager = pair.manager().await;
    let mut fallbacks = manager.receive_provider_fallback().await.unwrap();
    pair.service.start().await;
    let fallback = fallbacks.next().await.unwrap();
    let fallback = fallback.args().unwrap();
    assert_eq!((fallback.requested, fallback.active), ("coreml", "sim"));
    assert!(fallback.reason.starts_with("coreml needs macOS; this is linux-"), "{fallback:?}");
    let embedder = pair.embedder().await;
    assert_eq!(embedder.state().await.unwrap(), "degraded");
    assert_eq!(embedder.fallback_reason().await.unwrap(), fallback.reason);
    assert!(embedder.embed("x").await.is_ok());
}

#[tokio::test]
async fn a_strict_provider_that_cannot_run_fails_the_service() {
    let pair = ready(&[("execution_provider", "cuda"), ("fallback", "none")]).await;
    let embedder = pair.embedder().await;
    assert_eq!(embedder.state().await.unwrap(), "failed");
    let (name, message) = refusal(embedder.embed("x").await);
    assert_eq!(name, ErrorName::ProviderUnavailable);
    assert!(message.starts_with("cuda is not tried while cpu_engine is sim"), "{message}");
}

#[tokio::test]
async fn a_missing_model_says_how_to_get_it() {
    let models = tempfile::tempdir().unwrap();
    let dir = models.path().join("models").display().to_string();
    let pair = ready(&[("cpu_engine", "ort"), ("model_dir", &dir)]).await;
    let (name, message) = refusal(pair.embedder().await.embed("x").await);
    assert_eq!(name, ErrorName::ModelNotInstalled);
    assert!(message.contains("op-dbus models pull"), "{message}");
    let levels = pair.manager().await.list_levels().await.unwrap();
    assert_eq!(bool::try_from(&levels[2]["installed"]), Ok(false));
}

#[tokio::test]
async fn other_dimensions_than_expected_are_refused() {
    let pair = ready(&[("expect_dimensions", "768")]).await;
    let (name, message) = refusal(pair.embedder().await.embed("x").await);
    assert_eq!(name, ErrorName::Failed);
    assert!(message.contains("384") && message.contains("768"), "{message}");
}

#[tokio::test]
async fn settings_are_read_again() {
    let root = tempfile::tempdir().unwrap();
    let config = root.path().join("config.toml");
    std::fs::write(&config, "batch_tokens_max = 256\n").unwrap();
    let pair = ready(&[("config", &config.display().to_string())]).await;
    let manager = pair.manager().await;
    let find = async || {
        let settings = manager.get_settings().await.unwrap();
        settings.into_iter().find(|setting| text(setting, "key") == "batch_tokens_max").unwrap()
    };
    let setting = find().await;
    assert_eq!((text(&setting, "value"), text(&setting, "default")), ("256", "auto"));
    assert!(text(&setting, "origin").contains("config.toml"));
    let before = pair.service.now().served().unwrap().clone();

    std::fs::write(&config, "batch_tokens_max = 128\nvector_level = \"high\"\n").unwrap();
    manager.reload().await.unwrap();
    assert_eq!(text(&find().await, "value"), "128");
    assert_eq!(pair.embedder().await.vector_level().await.unwrap(), "high");
    let after = pair.service.now().served().unwrap().clone();
    assert!(!std::sync::Arc::ptr_eq(&before, &after));

    std::fs::write(&config, "batch_tokens_max = \"lots\"\nvector_lvl = \"low\"\n").unwrap();
    let (name, message) = refusal(manager.reload().await);
    assert_eq!(name, ErrorName::InvalidArgument);
    assert!(message.contains("batch_tokens_max") && message.contains("vector_lvl"), "{message}");
    assert!(pair.embedder().await.embed("x").await.is_ok());
}

#[tokio::test]
async fn status_and_statistics_count() {
    let pair = ready(&[]).await;
    pair.embedder().await.embed_batch(&["a", "b"]).await.unwrap();
    let manager = pair.manager().await;
    let status = manager.get_status().await.unwrap();
    assert_eq!((text(&status, "state"), text(&status, "provider")), ("ready", "sim"));
    assert_eq!(u32::try_from(&status["pid"]), Ok(std::process::id()));
    let statistics = manager.get_statistics().await.unwrap();
    assert_eq!(u64::try_from(&statistics["texts"]), Ok(2));
    let providers = manager.list_providers().await.unwrap();
    let cuda = providers.iter().find(|provider| text(provider, "name") == "cuda").unwrap();
    assert_eq!(bool::try_from(&cuda["available"]), Ok(false));
    assert_eq!(cuda["aliases"], OwnedVariant::try_from(Variant::from(vec!["gpu"])).unwrap());
}
