//! Which model answers a request that names one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use op_dbus_api::{BUS_NAME, Error, ErrorName, Info, ROOT_PATH};
use serde_json::json;
use zbus::connection::Builder;
use zbus::{Connection, OwnedVariant, Variant};

use super::{Stage, sentence};
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::{Answer, Gateway};
use crate::harness::registry::tests;

tests! {
    models_are_found_by_their_names: [Bus, Curl],
    a_model_that_is_named_is_not_replaced_by_a_later_services: [Bus, Curl],
    a_model_that_is_being_loaded_is_not_unknown: [Bus, Curl],
    a_level_that_is_not_installed_is_told_as_an_unknown_model: [Bus, Curl],
    a_model_of_other_dimensions_is_neither_listed_nor_found: [Bus, Curl, Low, High],
}

/// The answer to a request that names this model.
async fn ask(gateway: &Gateway, model: &str) -> Outcome<Answer> {
    gateway.post("/v1/embeddings", &json!({"input": "one", "model": model})).await
}

async fn models_are_found_by_their_names() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    for model in ["default", "low", "paraphrase-MiniLM-L3-v2"] {
        assert_eq!(ask(gateway, model).await?.ok()?["model"], "sim", "{model}");
    }
    let unknown = ask(gateway, "text-embedding-3-small").await?;
    assert_eq!(unknown.status, 404);
    let error = &unknown.json()?["error"];
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("model_not_found"), &json!("invalid_request_error"))
    );
    let message = error["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("text-embedding-3-small") && message.contains("default, low"),
        "{message}"
    );

    let models = gateway.get("/v1/models").await?.ok()?;
    let ids: Vec<&str> =
        models["data"].as_array().into_iter().flatten().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["default", "low", "paraphrase-MiniLM-L3-v2"]);
    assert_eq!(gateway.get("/v1/models/low").await?.ok()?["dimensions"], 384);
    for unknown in ["/v1/models/gpt", "/v1/models/%FF"] {
        let refused = gateway.get(unknown).await?;
        assert_eq!((refused.status, sentence(&refused, "/v1/").is_ok()), (404, true), "{unknown}");
    }
    stage.end().await.map(drop)
}

type Dictionary = HashMap<&'static str, Variant<'static>>;

/// Vectors of this model.
fn by(model: &str) -> Info {
    Info { model: model.to_owned(), ..Info::default() }
}

/// The bus objects of a service that has one level: `medium`, with this model.
struct Service(&'static str);

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Service {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        options: HashMap<String, OwnedVariant>,
    ) -> (Vec<u8>, u32, u32, Info) {
        assert!(options.contains_key("level"), "{options:?}");
        (vec![0; 4 * texts.len()], texts.len() as u32, 1, by(self.0))
    }

    #[zbus(property)]
    fn model(&self) -> &str {
        "of-another-level"
    }
}

struct Levels(&'static str);

#[zbus::interface(name = "org.opdbus.Embedding1.Manager")]
impl Levels {
    async fn list_levels(&self) -> Vec<Dictionary> {
        let level =
            [("name", "medium".into()), ("model", self.0.into()), ("installed", true.into())];
        vec![HashMap::from(level)]
    }

    async fn get_status(&self) -> Dictionary {
        HashMap::from([("state", "ready".into())])
    }

    async fn get_settings(&self) -> Vec<Dictionary> {
        Vec::new()
    }
}

/// A version of the service whose medium level has this model. Its objects listen before it has the name: those that
/// are added to a finished connection do some time later, and a call that comes before is never answered.
async fn service(bus: &PrivateBus, model: &'static str) -> Outcome<Connection> {
    let builder = Builder::address(bus.address()).serve_at(ROOT_PATH, Service(model));
    Ok(builder.serve_at(ROOT_PATH, Levels(model)).name(BUS_NAME).build().await?)
}

async fn a_model_that_is_named_is_not_replaced_by_a_later_services() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let first = service(&bus, "first").await?;
    for name in ["first", "medium"] {
        assert_eq!(ask(&gateway, name).await?.ok()?["model"], "first", "{name}");
    }
    first.release_name(BUS_NAME).await?;
    let second = service(&bus, "second").await?;
    for said in
        ["first was asked for and second has taken its place", "ask for one of medium, second"]
    {
        let refused = ask(&gateway, "first").await?;
        assert_eq!(refused.status, 404, "{}", refused.text);
        assert!(sentence(&refused, "/v1/")?.contains(said), "{}", refused.text);
    }
    assert_eq!(ask(&gateway, "second").await?.ok()?["model"], "second");
    second.release_name(BUS_NAME).await?;
    let _third = service(&bus, "third").await?;
    // A level is whatever it is by now, and a new name is found at once.
    for name in ["medium", "third"] {
        assert_eq!(ask(&gateway, name).await?.ok()?["model"], "third", "{name}");
    }
    gateway.stop().await.map(drop)
}

/// The bus objects of a service that has no levels and one model, `own`, by whether that is loaded.
struct Imported(Arc<AtomicBool>);

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Imported {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        if !self.0.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorName::NotReady, "own is being loaded"));
        }
        Ok((vec![0; 4 * texts.len()], texts.len() as u32, 1, by("own")))
    }

    #[zbus(property)]
    fn model(&self) -> &str {
        if self.0.load(Ordering::Relaxed) { "own" } else { "" }
    }
}

struct NoLevels(Arc<AtomicBool>);

#[zbus::interface(name = "org.opdbus.Embedding1.Manager")]
impl NoLevels {
    async fn list_levels(&self) -> Vec<Dictionary> {
        Vec::new()
    }

    async fn get_status(&self) -> Dictionary {
        let (state, model) = match self.0.load(Ordering::Relaxed) {
            true => ("ready", "own"),
            false => ("loading", ""),
        };
        HashMap::from([("state", state.into()), ("model", model.into())])
    }

    async fn get_settings(&self) -> Vec<Dictionary> {
        Vec::new()
    }
}

/// What becomes of a 404 is for clients to see to; they try again after a 503.
async fn a_model_that_is_being_loaded_is_not_unknown() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let is_loaded = Arc::new(AtomicBool::new(false));
    let service = Builder::address(bus.address());
    let service = service.serve_at(ROOT_PATH, Imported(Arc::clone(&is_loaded)));
    let service = service.serve_at(ROOT_PATH, NoLevels(Arc::clone(&is_loaded)));
    let _service = service.name(BUS_NAME).build().await?;
    for name in ["default", "own"] {
        let early = ask(&gateway, name).await?;
        assert_eq!(early.status, 503, "{name}: {}", early.text);
        assert_eq!(sentence(&early, "/v1/")?, "own is being loaded");
        assert!(early.headers.contains_key("retry-after"), "{name}: {early:?}");
    }
    is_loaded.store(true, Ordering::Relaxed);
    assert_eq!(ask(&gateway, "own").await?.ok()?["model"], "own");
    let unknown = ask(&gateway, "other").await?;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    assert!(sentence(&unknown, "/v1/")?.contains("ask for one of default, own"), "{unknown:?}");
    gateway.stop().await.map(drop)
}

/// The bus objects of a service that serves `low` and was not given the model of `high`.
struct WithoutHigh;

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl WithoutHigh {
    async fn embed_packed(
        &self,
        _texts: Vec<String>,
        options: HashMap<String, OwnedVariant>,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        assert!(options.contains_key("level"), "{options:?}");
        let sentence = "large is not installed in /srv/store; type `op-dbus models pull high`";
        Err(Error::new(ErrorName::ModelNotInstalled, sentence))
    }

    #[zbus(property)]
    fn model(&self) -> &str {
        "small"
    }
}

struct TwoLevels;

#[zbus::interface(name = "org.opdbus.Embedding1.Manager")]
impl TwoLevels {
    async fn list_levels(&self) -> Vec<Dictionary> {
        let level = |name: &'static str, model: &'static str, installed: bool| {
            let name = ("name", name.into());
            HashMap::from([name, ("model", model.into()), ("installed", installed.into())])
        };
        vec![level("low", "small", true), level("high", "large", false)]
    }

    async fn get_status(&self) -> Dictionary {
        let told = [("state", "ready".into()), ("level", "low".into()), ("model", "small".into())];
        HashMap::from(told)
    }

    async fn get_settings(&self) -> Vec<Dictionary> {
        Vec::new()
    }
}

/// Where the store is, and what its administrator types, is nothing for a client.
async fn a_level_that_is_not_installed_is_told_as_an_unknown_model() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let service = Builder::address(bus.address()).serve_at(ROOT_PATH, WithoutHigh);
    let _service = service.serve_at(ROOT_PATH, TwoLevels).name(BUS_NAME).build().await?;
    for name in ["high", "large"] {
        is_unknown(&ask(&gateway, name).await?, name, "default, low, small")?;
    }
    is_unknown(&gateway.get("/v1/models/zz").await?, "zz", "default, low, small")?;
    gateway.stop().await.map(drop)
}

/// Whether this is what is told of a name that can't be asked for, where these can.
fn is_unknown(answer: &Answer, name: &str, others: &str) -> Outcome {
    assert_eq!(answer.status, 404, "{name}: {}", answer.text);
    let error = &answer.json()?["error"];
    assert!(error["code"] == "model_not_found" && error["param"] == "model", "{error}");
    let advice = format!("is no model that can be asked for here; ask for one of {others}");
    assert_eq!(sentence(answer, "/v1/")?, format!("{name:?} {advice}"));
    Ok(())
}

async fn a_model_of_other_dimensions_is_neither_listed_nor_found() -> Outcome {
    let stage = Stage::of(Setup::real("low")?.setting("expect_dimensions", "384")).await?;
    let models = stage.gateway.get("/v1/models").await?.ok()?;
    let models = models["data"].as_array().ok_or("no list")?;
    assert!(models.iter().all(|model| model["dimensions"] == 384), "{models:?}");
    let ids: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
    assert!(ids.starts_with(&["default", "low"]), "{ids:?}");
    for name in ["high", "all-mpnet-base-v2"] {
        is_unknown(&ask(&stage.gateway, name).await?, name, &ids.join(", "))?;
        assert_eq!(stage.gateway.get(&format!("/v1/models/{name}")).await?.status, 404, "{name}");
    }
    // What else is wrong is told of a level that can be asked for.
    let wrong = json!({"input": [[u32::MAX]], "model": "low"});
    let wrong = stage.gateway.post("/v1/embeddings", &wrong).await?;
    assert_eq!((wrong.status, &wrong.json()?["error"]["param"]), (400, &json!("input")));
    stage.end().await.map(drop)
}
