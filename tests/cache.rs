//! Vectors that are kept for texts that come again.

use std::fs::File;
use std::os::fd::OwnedFd;

use op_dbus_api::{BUS_NAME, EMBEDDER_INTERFACE, ROOT_PATH};
use serde_json::Value;
use zbus::{Fd, Variant};

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options};
use crate::harness::command::{clean, cli, finish};
use crate::harness::daemon::Setup;
use crate::harness::files::content;
use crate::harness::golden;
use crate::harness::registry::tests;
use crate::harness::users::{OTHER, User, Users};
use crate::harness::{Outcome, eventually};

tests! {
    what_comes_again_is_not_computed_again: [Bus, Low],
    another_user_finds_nothing: [Bus, Root, Busctl],
    kept_vectors_go_with_their_model: [Bus],
    the_room_holds_and_follows_a_reload: [Bus],
}

/// A vector of the simulator in the cache: 384 numbers, and what belongs to them.
const VECTOR_BYTES: u64 = 384 * 4 + 256;

/// The same bits by every way in, and not one token computed for them.
async fn what_comes_again_is_not_computed_again() -> Outcome {
    let setup = Setup::real("low")?.setting("cache_bytes", "10000000");
    let (bus, setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let mut texts = golden::plain_texts()?;
    // One that is cut, which has to be told each time.
    texts.push("word ".repeat(1000));
    let first = client.packed(&texts, Options::new()).await?;
    assert_eq!(first.info::<u32>("cached")?, 0);
    let computed = client.counter("tokens").await?;
    assert!(computed >= first.info::<u64>("tokens")?);
    texts.reverse();
    // Another connection of the same user.
    let again = Client::on(&bus).await?.packed(&texts, Options::new()).await?;
    assert_eq!(again.info::<u32>("cached")? as usize, texts.len());
    assert_eq!(again.info::<u64>("tokens")?, first.info::<u64>("tokens")?);
    assert_eq!(again.info::<u64>("compute_us")?, 0);
    let last = u32::try_from(texts.len())? - 1;
    let cut = first.info::<Vec<u32>>("truncated")?.into_iter().rev().map(|index| last - index);
    assert_eq!(again.info::<Vec<u32>>("truncated")?, cut.collect::<Vec<_>>());
    assert!(again.info::<Vec<u32>>("truncated")?.contains(&0));
    for key in ["space", "provider", "device", "precision"] {
        assert_eq!(again.info::<String>(key)?, first.info::<String>(key)?, "{key}");
    }
    assert!(again.vectors.iter().eq(first.vectors.iter().rev()));
    let bytes: Vec<u8> =
        again.vectors.concat().iter().flat_map(|number| number.to_le_bytes()).collect();
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (fd, ..) = client.embedder.embed_to_fd(&all, Options::new()).await?;
    assert_eq!(content(fd)?, bytes);
    let file = setup.path("texts");
    std::fs::write(&file, texts.iter().map(|text| format!("{text}\0")).collect::<String>())?;
    let nul = Options::from([("framing", Variant::from("nul"))]);
    let fd = Fd::from(OwnedFd::from(File::open(&file)?));
    let (fd, _, _, info) = client.embedder.embed_from_fd(fd, nul).await?;
    assert_eq!(content(fd)?, bytes);
    assert_eq!(info.cached as usize, texts.len());
    let doubles: Vec<f64> = again.vectors[1].iter().map(|x| f64::from(*x)).collect();
    assert_eq!(client.embedder.embed(all[1]).await?, doubles);
    client.embedder.rank(all[1], &all[1..], 1).await?;
    assert_eq!(client.counter("tokens").await?, computed, "a text was computed twice");
    let told = cli(&bus, &["status"]).await?.success()?;
    assert!(told.contains("Cache  ") && told.contains("answered from it"), "{told}");
    println!("figure: {} texts again, 0 tokens computed", client.counter("cached").await?);
    daemon.stop().await
}

/// `EmbedPacked` of one text, as somebody: how many were answered from the cache, and tokens.
async fn embed_as(bus: &PrivateBus, user: User, text: &str) -> Outcome<(u64, u64)> {
    let mut command = clean("busctl");
    command.arg(format!("--address={}", bus.address())).args(["--json=short", "call"]);
    command.args([BUS_NAME, ROOT_PATH, EMBEDDER_INTERFACE, "EmbedPacked", "asa{sv}"]);
    command.args(["1", text, "0"]);
    let said = finish(user.runs(&command), "").await?.success()?;
    let reply: Value = serde_json::from_str(&said)?;
    let info = |key: &str| reply["data"][3][key]["data"].as_u64().ok_or(format!("no {key}"));
    Ok((info("cached")?, info("tokens")?))
}

async fn another_user_finds_nothing() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.setting("cache_bytes", "1000000");
    let daemon = setup.ready(&bus).await?;
    let client = daemon.client();
    client.embedder.embed("whose is it?").await?;
    let computed = client.counter("tokens").await?;
    let root = User { name: "root", id: 0 };
    let (cached, tokens) = embed_as(&bus, root, "whose is it?").await?;
    assert!(cached == 1 && tokens > 0);
    assert_eq!(client.counter("tokens").await?, computed);
    assert_eq!(
        embed_as(&bus, OTHER, "whose is it?").await?,
        (0, tokens),
        "somebody else's was found"
    );
    assert_eq!(client.counter("tokens").await?, computed + tokens);
    assert_eq!(embed_as(&bus, OTHER, "whose is it?").await?, (1, tokens));
    daemon.stop().await
}

async fn kept_vectors_go_with_their_model() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.setting("cache_bytes", "100000000").alone().await?;
    let (client, manager) = (daemon.client(), &daemon.client().manager);
    let texts: Vec<String> = (0..5000).map(|n| format!("text number {n}")).collect();
    let fill = async || {
        let reply = client.packed(&texts, Options::new()).await?;
        assert_eq!(reply.info::<u32>("cached")?, 0);
        assert_eq!(daemon.client().status::<u64>("cache_vectors").await?, 5000);
        Outcome::Ok(())
    };
    let none_is_left = async || {
        eventually("an empty cache", async || {
            Ok(daemon.client().status::<u64>("cache_vectors").await? == 0)
        })
        .await
    };
    fill().await?;
    assert_eq!(daemon.client().status::<u64>("cache_bytes").await?, 5000 * VECTOR_BYTES);
    manager.set_vector_level("high").await?;
    none_is_left().await?;
    fill().await?;
    manager.unload().await?;
    none_is_left().await?;
    fill().await?;
    let bytes = manager.trim_memory().await?;
    assert_eq!(daemon.client().status::<u64>("cache_bytes").await?, 0);
    assert!(bytes > 5000 * VECTOR_BYTES / 2, "{bytes} bytes were given back");
    let log = daemon.process.stderr();
    assert!(
        log.contains("vectors_forgotten=5000") && log.contains("5000 vectors that were kept"),
        "{log}"
    );
    daemon.stop().await
}

async fn the_room_holds_and_follows_a_reload() -> Outcome {
    let room = 100 * VECTOR_BYTES;
    let setup = Setup::sim()?.setting("cache_bytes", &room.to_string());
    let (_bus, setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let texts: Vec<String> = (0..1000).map(|n| format!("text number {n}")).collect();
    for _ in 0..3 {
        client.vectors(&texts).await?;
        assert_eq!(daemon.client().status::<u64>("cache_bytes").await?, room);
    }
    let workers = daemon.workers().await?;
    let setup = setup.setting("cache_bytes", "0");
    setup.write_config()?;
    client.manager.reload().await?;
    assert_eq!(daemon.client().status::<u64>("cache_vectors").await?, 0);
    let reply = client.packed(&texts[..1], Options::new()).await?;
    assert_eq!(reply.info::<u32>("cached")?, 0);
    assert_eq!(daemon.client().status::<u64>("cache_vectors").await?, 0);
    assert_eq!(daemon.workers().await?, workers, "workers were replaced for it");
    daemon.stop().await
}
