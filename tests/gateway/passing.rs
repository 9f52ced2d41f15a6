//! Large requests of which the service refuses a later call for now: that one is made again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_api::{BUS_NAME, Error, ErrorName, Info, ROOT_PATH};
use serde_json::json;
use zbus::connection::Builder;
use zbus::{Connection, OwnedVariant};

use super::limits::requests;
use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};

tests! {
    a_later_call_that_is_refused_for_now_is_made_again: [Bus, Curl],
    a_refusal_that_does_not_pass_in_time_ends_the_request: [Bus, Curl],
    who_leaves_while_a_call_is_to_be_made_again_has_left: [Bus, Curl],
}

/// A call that is answered, and what is said to others.
const ANSWERED: &str = "";
const PASSES: &str = "the quota is used up; wait for earlier calls, or try again in 10 ms";
const LASTS: &str = "the quota is used up; wait for earlier calls, or try again in 60 s";
/// Longer than a request may take.
const LASTS_TOO_LONG: &str = "the quota is used up; wait for earlier calls, or try again in 121 s";

/// A token, with where it begins and ends.
type Token = (u32, String, bool, u32, u32);

/// The bus object of a service that refuses some of its calls, by what is said to each.
struct Full {
    said: &'static [&'static str],
    calls: Arc<AtomicUsize>,
}

impl Full {
    fn admit(&self) -> Result<(), Error> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.said.get(call).copied().unwrap_or(ANSWERED) {
            ANSWERED => Ok(()),
            sentence => Err(Error::new(ErrorName::QuotaExceeded, sentence)),
        }
    }
}

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Full {
    /// Each text is a number, and so is its vector.
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        self.admit()?;
        let number = |text: &String| text.parse::<f32>().unwrap_or(f32::NAN).to_le_bytes();
        let bytes = texts.iter().flat_map(number).collect();
        Ok((bytes, texts.len() as u32, 1, Info::default()))
    }

    /// Each text is one token.
    async fn tokenize(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
    ) -> Result<Vec<Vec<Token>>, Error> {
        self.admit()?;
        let tokens = |text: String| {
            let end = text.len() as u32;
            vec![(7, text, false, 0, end)]
        };
        Ok(texts.into_iter().map(tokens).collect())
    }

    #[zbus(property)]
    fn vector_space(&self) -> &str {
        "space-f32"
    }
}

/// Such a service, and how many calls it had.
async fn service(
    bus: &PrivateBus,
    said: &'static [&'static str],
) -> Outcome<(Connection, Arc<AtomicUsize>)> {
    let calls = Arc::<AtomicUsize>::default();
    let full = Full { said, calls: Arc::clone(&calls) };
    let builder = Builder::address(bus.address()).serve_at(ROOT_PATH, full);
    Ok((builder.name(BUS_NAME).build().await?, calls))
}

/// As many as two calls have.
fn numbers() -> Vec<String> {
    (0..2048_u32).map(|number| number.to_string()).collect()
}

async fn a_later_call_that_is_refused_for_now_is_made_again() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let said = &[ANSWERED, PASSES, PASSES, ANSWERED, ANSWERED, PASSES, ANSWERED];
    let (_service, calls) = service(&bus, said).await?;
    let texts = numbers();
    let rows = gateway.post("/embed", &json!({"inputs": texts})).await?.ok()?;
    let rows = rows.as_array().ok_or("no list")?;
    let found: Vec<f64> = rows.iter().filter_map(|row| row[0].as_f64()).collect();
    let right: Vec<f64> = (0..2048_u32).map(f64::from).collect();
    assert_eq!((rows.len(), calls.load(Ordering::Relaxed)), (2048, 4));
    assert!(found == right, "{found:?}");

    let lists = gateway.post("/tokenize", &json!({"inputs": texts})).await?.ok()?;
    let lists = lists.as_array().ok_or("no list")?;
    let found: Vec<&str> = lists.iter().filter_map(|list| list[0]["text"].as_str()).collect();
    assert_eq!((lists.len(), calls.load(Ordering::Relaxed)), (2048, 7));
    assert!(found == texts, "{found:?}");
    gateway.stop().await.map(drop)
}

async fn a_refusal_that_does_not_pass_in_time_ends_the_request() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let said = &[PASSES, ANSWERED, LASTS_TOO_LONG, PASSES, ANSWERED, LASTS_TOO_LONG];
    let (_service, calls) = service(&bus, said).await?;
    let body = json!({"inputs": numbers()});
    // Of what is refused at its first call nothing is there that would be lost.
    for (path, count) in [("/embed", 1), ("/embed", 3), ("/tokenize", 4), ("/tokenize", 6)] {
        let refused = gateway.post(path, &body).await?;
        assert_eq!(refused.status, 429, "{path}: {}", refused.text);
        assert_eq!(calls.load(Ordering::Relaxed), count, "{path}");
    }
    gateway.stop().await.map(drop)
}

async fn who_leaves_while_a_call_is_to_be_made_again_has_left() -> Outcome {
    let bus = PrivateBus::start().await?;
    let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
    let (_service, calls) = service(&bus, &[ANSWERED, LASTS]).await?;
    let texts = numbers();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut waiting = requests(&gateway, 1, &texts)?;
    let is_refused = async || Ok(calls.load(Ordering::Relaxed) == 2);
    eventually("the second call", is_refused).await?;
    for request in &mut waiting {
        request.kill().await?;
    }
    let left = "op_dbus_http_request_seconds_count{route=\"/embed\",status=\"499\"} 1\n";
    let is_told = async || Ok(gateway.get("/metrics").await?.text.contains(left));
    eventually("a request whose client has left", is_told).await?;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    gateway.stop().await.map(drop)
}
