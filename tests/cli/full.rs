//! `op-dbus embed` and `rank` with a queue that is full, with one that is smaller than their calls, and with a service
//! that hangs.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use op_dbus_api::{BUS_NAME, Error, ErrorName, Info, ROOT_PATH};
use zbus::object_server::Interface;
use zbus::{Connection, OwnedVariant};

use super::json_lines;
use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::command::{cli, cli_with_input};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    later_calls_wait_until_there_is_room: [Bus],
    a_service_that_hangs_is_given_up_by_the_deadline: [Bus],
    room_after_the_deadline_is_not_waited_for: [Bus],
    a_call_that_is_too_large_is_made_smaller: [Bus],
}

/// How often a call is refused.
const REFUSALS: usize = 20;

/// A service that has room for the first call at once, and for each later one after some refusals, but for those that
/// find it on its way out, for good or to come back, and the one after which it is gone. Its vectors have one dimension:
/// the length of each text.
#[derive(Default)]
struct Full {
    /// The first texts of calls, as they came.
    tries: Arc<Mutex<Vec<String>>>,
}

impl Full {
    /// Counts a try in; how many there were of this text before.
    fn tried(&self, text: &str) -> usize {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        tries.push(text.to_owned());
        tries.iter().filter(|other| *other == text).count() - 1
    }
}

pub fn lengths(texts: &[String]) -> (Vec<u8>, u32, u32, Info) {
    let bytes = texts.iter().flat_map(|text| (text.len() as f32).to_le_bytes()).collect();
    (bytes, texts.len() as u32, 1, Info::default())
}

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Full {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(Vec<u8>, u32, u32, Info), Error> {
        let before = self.tried(&texts[0]);
        if texts[0] == "never" {
            let sentence = "the queue is full; try again in 6000 ms";
            return Err(Error::new(ErrorName::Overloaded, sentence));
        }
        if texts[0] == "later" && before < 2 {
            let sentence = "the queue is full; try again in 60000 ms";
            return Err(Error::new(ErrorName::Overloaded, sentence));
        }
        if ["back", "gone", "last"].contains(&&*texts[0]) && before == 0 {
            // When its caller hears of it, nobody has the name any more.
            connection.release_name(BUS_NAME).await.expect("the bus takes the name back");
        }
        if ["back", "gone"].contains(&&*texts[0]) && before == 0 {
            return Err(Error::new(ErrorName::ShuttingDown, "it is shutting down"));
        }
        if texts[0] == "back" && before == 1 {
            return Err(Error::new(ErrorName::NotReady, "the model is being loaded"));
        }
        if !["first", "later", "back", "last", "more"].contains(&&*texts[0]) && before < REFUSALS {
            let sentence = "wait for earlier calls, or try again in 1 ms";
            return Err(Error::new(ErrorName::QuotaExceeded, sentence));
        }
        Ok(lengths(&texts))
    }

    #[zbus(property)]
    fn texts_per_call_max(&self) -> u32 {
        2
    }

    #[zbus(property)]
    fn text_bytes_max(&self) -> u32 {
        1 << 20
    }

    #[zbus(property)]
    fn inline_reply_bytes_max(&self) -> u32 {
        16 << 20
    }
}

/// Such a service on the bus, and the tries of its callers.
pub async fn full(bus: &PrivateBus) -> Outcome<(Connection, Arc<Mutex<Vec<String>>>)> {
    let service = Full::default();
    let tries = Arc::clone(&service.tries);
    Ok((serve(bus, service).await?, tries))
}

/// A service on the bus that has no name yet.
pub async fn nameless(bus: &PrivateBus, service: impl Interface) -> Outcome<Connection> {
    let builder = zbus::connection::Builder::address(bus.address());
    Ok(builder.serve_at(ROOT_PATH, service).build().await?)
}

pub async fn serve(bus: &PrivateBus, service: impl Interface) -> Outcome<Connection> {
    let connection = nameless(bus, service).await?;
    connection.request_name(BUS_NAME).await?;
    Ok(connection)
}

async fn room_after_the_deadline_is_not_waited_for() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (_service, tries) = full(&bus).await?;
    let refused = cli(&bus, &["embed", "--deadline-ms", "100", "never"]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("the queue is full"), "{}", refused.stderr);
    assert_eq!(*tries.lock().unwrap_or_else(PoisonError::into_inner), ["never"]);
    // A later one gives up no sooner than none.
    let long = ["embed", "--csv", "--deadline-ms", "7000", "later"];
    assert_eq!(cli(&bus, &long).await?.success()?, "5\n");
    Ok(())
}

async fn later_calls_wait_until_there_is_room() -> Outcome {
    let bus = PrivateBus::start().await?;
    let (_service, tries) = full(&bus).await?;
    let lines = "first\n2\n33\n4\n55555\n666666\n";
    let out = cli_with_input(&bus, &["embed", "--csv"], lines).await?.success()?;
    assert_eq!(out, "5\n1\n2\n1\n5\n6\n");
    // Once one was refused they come back one after the other, so that none takes the room that another waits for.
    let (mut known, mut again) = (HashSet::new(), Vec::new());
    for text in tries.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        if !known.insert(text.clone()) {
            again.push(text);
        }
    }
    let mut refused = again.clone();
    refused.dedup();
    assert_eq!(again.len(), refused.len() * REFUSALS, "{again:?}");
    // How many lines are a call's goes by how fast they come; the first line's call alone was not refused.
    assert!((2..=5).contains(&refused.len()), "{refused:?}");
    Ok(())
}

/// Answers no question.
struct Hanging;

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Hanging {
    #[zbus(property)]
    async fn state(&self) -> String {
        std::future::pending().await
    }
}

async fn a_service_that_hangs_is_given_up_by_the_deadline() -> Outcome {
    let bus = PrivateBus::start().await?;
    let _service = serve(&bus, Hanging).await?;
    let refused = cli(&bus, &["embed", "--deadline-ms", "1", "x"]).await?;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("has not answered for 5 s"), "{}", refused.stderr);
    Ok(())
}

async fn a_call_that_is_too_large_is_made_smaller() -> Outcome {
    // A call of 256 lines counts as more than that.
    let setup = Setup::sim()?.setting("quota_tokens", "1500").setting("queue_tokens_max", "3000");
    let (bus, setup, daemon) = setup.alone().await?;
    let mut lines: Vec<String> = (0..600).map(|n| format!("line {n}")).collect();
    lines[500] = "x".repeat(1000);
    let path = setup.path("lines");
    fs::write(&path, lines.join("\n"))?;
    let file = path.display().to_string();
    let embed = ["embed", "--npy", "--file", &file];
    // By a descriptor, of which the service makes batches that fit.
    let expected = cli(&bus, &embed).await?.success()?;
    // With a deadline all calls are small enough for replies.
    let small = [&embed[..], &["--deadline-ms", "60000"]].concat();
    let made = cli(&bus, &small).await?;
    let cut = format!("and cut ({file}:501)");
    assert!(made.stderr.contains(&cut), "{}", made.stderr);
    assert_eq!(made.success()?, expected);

    let ranked = cli(&bus, &["rank", "--json", "--top", "600", "line 321", "-f", &file]).await?;
    assert!(ranked.stderr.contains(&cut), "{}", ranked.stderr);
    let ranked = json_lines(&ranked.success()?)?;
    let mut indices: Vec<_> = ranked.iter().filter_map(|line| line["index"].as_u64()).collect();
    assert_eq!(indices[0], 321);
    indices.sort_unstable();
    assert_eq!(indices, (0..600).collect::<Vec<_>>());

    // What no call has room for is named.
    lines[500] = "x".repeat(2000);
    fs::write(&path, lines.join("\n"))?;
    for (truncate, said) in [
        ("error", format!("op-dbus: {file}:501 has 2002 tokens")),
        ("mean", format!("in the call that begins with {file}:501: the call's share of")),
    ] {
        let refused = cli(&bus, &[&small[..], &["--truncate", truncate]].concat()).await?;
        assert_eq!(refused.code, Some(1), "{truncate}: {}", refused.stderr);
        assert!(refused.stderr.contains(&said), "{truncate}: {}", refused.stderr);
    }
    daemon.stop().await
}
