//! Requests that come at once, of which more wait than are worked on.

use std::collections::HashMap;
use std::sync::Arc;

use nix::sys::signal::Signal;
use op_dbus_api::{BUS_NAME, Info, ROOT_PATH};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use zbus::connection::Builder;
use zbus::{Connection, OwnedVariant};

use super::left::told;
use crate::harness::bus::PrivateBus;
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};

tests! {
    two_hundred_requests_at_once_are_all_answered: [Bus, Curl],
    who_leaves_gives_its_turn_up: [Bus, Curl],
    who_waits_at_the_end_is_answered: [Bus, Curl],
    requests_that_wait_for_their_texts_keep_no_small_one_waiting: [Bus, Curl],
    who_asks_for_what_can_not_be_had_does_not_wait: [Bus, Curl],
}

/// A text that the service answers when the test says so.
const HELD: &str = "held";

/// The bus object of a service that has some calls wait, until this is closed.
struct Slow(Arc<Semaphore>);

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Slow {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
    ) -> (Vec<u8>, u32, u32, Info) {
        if texts.first().is_some_and(|text| text == HELD) {
            // It has no permits: this ends when it is closed.
            let _ = self.0.acquire().await;
        }
        (vec![0; 4 * texts.len()], texts.len() as u32, 1, Info::default())
    }
}

/// A gateway before such a service.
pub struct Crowded {
    pub gateway: Gateway,
    held: Arc<Semaphore>,
    // Kept until the gateway has ended.
    _service: Connection,
    _bus: PrivateBus,
}

impl Crowded {
    pub async fn start() -> Outcome<Self> {
        let bus = PrivateBus::start().await?;
        let gateway = Gateway::start(&bus, &Setup::sim()?).await?;
        let held = Arc::new(Semaphore::new(0));
        let builder = Builder::address(bus.address()).serve_at(ROOT_PATH, Slow(Arc::clone(&held)));
        let service = builder.name(BUS_NAME).build().await?;
        Ok(Self { gateway, held, _service: service, _bus: bus })
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.gateway.url("").trim_start_matches("http://")).await
    }

    /// So many clients that have sent a request with so many held texts.
    pub async fn ask(&self, clients: usize, texts: usize) -> Outcome<Vec<TcpStream>> {
        let body = json!({"inputs": vec![HELD; texts]}).to_string();
        let head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        let length = body.len();
        let request =
            format!("{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        let mut asked = Vec::new();
        for _ in 0..clients {
            let mut client = self.connect().await?;
            client.write_all(request.as_bytes()).await?;
            asked.push(client);
        }
        Ok(asked)
    }

    /// Waits until so many are worked on, and so many wait.
    pub async fn told(&self, worked_on: usize, waiting: usize) -> Outcome {
        told(&self.gateway, &format!("op_dbus_http_requests_in_flight {worked_on}")).await?;
        told(&self.gateway, &format!("op_dbus_http_requests_waiting {waiting}")).await
    }

    /// Has the service answer, and tells what these clients were answered.
    pub async fn answers(&self, clients: Vec<TcpStream>) -> Outcome<Vec<String>> {
        self.held.close();
        let mut answers = Vec::new();
        for mut client in clients {
            let mut said = String::new();
            within("an answer", client.read_to_string(&mut said)).await??;
            answers.push(said);
        }
        Ok(answers)
    }

    /// The same for clients that must all have their vectors.
    async fn all_answered(&self, clients: Vec<TcpStream>) -> Outcome {
        for said in self.answers(clients).await? {
            assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("]]"), "{said}");
        }
        Ok(())
    }
}

async fn two_hundred_requests_at_once_are_all_answered() -> Outcome {
    let crowded = Crowded::start().await?;
    let clients = crowded.ask(200, 1).await?;
    crowded.told(64, 136).await?;
    crowded.all_answered(clients).await?;
    crowded.told(0, 0).await?;
    crowded.gateway.stop().await.map(drop)
}

async fn who_leaves_gives_its_turn_up() -> Outcome {
    let crowded = Crowded::start().await?;
    let mut clients = crowded.ask(64, 1).await?;
    crowded.told(64, 0).await?;
    let mut behind = crowded.ask(3, 1).await?;
    crowded.told(64, 3).await?;
    // One of those that wait.
    drop(behind.remove(0));
    crowded.told(64, 2).await?;
    clients.extend(behind);
    crowded.all_answered(clients).await?;
    crowded.gateway.stop().await.map(drop)
}

async fn who_waits_at_the_end_is_answered() -> Outcome {
    let crowded = Crowded::start().await?;
    let clients = crowded.ask(100, 1).await?;
    crowded.told(64, 36).await?;
    crowded.gateway.process.signal(Signal::SIGTERM)?;
    eventually("the end of listening", async || Ok(crowded.connect().await.is_err())).await?;
    crowded.all_answered(clients).await?;
    crowded.gateway.stop().await.map(drop)
}

async fn requests_that_wait_for_their_texts_keep_no_small_one_waiting() -> Outcome {
    let crowded = Crowded::start().await?;
    // As many texts as are taken, but for a few that these would have to share.
    let mut clients = crowded.ask(2, 16_384).await?;
    crowded.told(2, 0).await?;
    // As many requests as there are places for.
    clients.extend(crowded.ask(64, 1000).await?);
    crowded.told(2, 64).await?;
    let small = json!({"inputs": vec!["small"; 63]});
    crowded.gateway.post("/embed", &small).await?.ok()?;
    crowded.all_answered(clients).await?;
    crowded.told(0, 0).await?;
    crowded.gateway.stop().await.map(drop)
}

async fn who_asks_for_what_can_not_be_had_does_not_wait() -> Outcome {
    let crowded = Crowded::start().await?;
    let clients = crowded.ask(64, 1).await?;
    crowded.told(64, 0).await?;
    let compared = json!({"source_sentence": "one", "sentences": ["two"]});
    for (path, asked) in [
        ("/embed", json!({"inputs": "one", "prompt_name": "\0"})),
        ("/similarity", json!({"inputs": compared, "parameters": {"prompt_name": "\0"}})),
        ("/tokenize", json!({"inputs": "one", "prompt_name": "\0"})),
        ("/add", json!({"text": "\0"})),
    ] {
        let refused = crowded.gateway.post(path, &asked).await?;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
    }
    crowded.all_answered(clients).await?;
    crowded.gateway.stop().await.map(drop)
}
