//! A model that was trained for vectors of several lengths, asked for shorter ones in every way.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use half::f16;
use op_dbus_api::{ErrorName, direct};
use serde_json::{Value, json};
use zbus::Fd;

use super::{Stage, vectors};
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::cli;
use crate::harness::daemon::Setup;
use crate::harness::files::{content, copy_folder, numbers};
use crate::harness::golden::floats;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, within};

tests! {
    shorter_vectors_are_had_in_every_way: [Bus, Curl],
    a_cut_is_kept_apart_from_the_whole: [Bus],
}

const TEXTS: [&str; 3] = ["one two three", "four", "five six"];
/// The model's own length, and one that it says it was trained for.
const FULL: usize = 24;
const SHORT: usize = 8;

/// A daemon with the tiny model, as if it had been trained for shorter vectors.
async fn trained() -> Outcome<Setup> {
    let setup = Setup::with_store()?;
    let folder = setup.path("trained");
    copy_folder(&fixture("golden/tiny-bert"), &folder)?;
    let config = folder.join("config.json");
    let mut said: Value = serde_json::from_slice(&fs::read(&config)?)?;
    said["matryoshka_dimensions"] = json!([FULL, SHORT, 4]);
    fs::write(&config, said.to_string())?;
    setup.import(folder, &["--name", "tiny"]).await?.success()?;
    Ok(setup.setting("model", "tiny"))
}

/// Those of a call whose vectors are to be short.
fn options() -> Options<'static> {
    Options::from([("dimensions", (SHORT as u32).into())])
}

/// The start of a vector, of length one again.
fn cut(vector: &[f32]) -> Vec<f32> {
    let start = &vector[..SHORT];
    let norm = start.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    start.iter().map(|x| (f64::from(*x) / norm) as f32).collect()
}

fn near(found: &[f32], expected: &[f32], most: f32) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= most)
}

async fn shorter_vectors_are_had_in_every_way() -> Outcome {
    let stage = Stage::of(trained().await?).await?;
    let (client, short) = (stage.daemon.client(), SHORT as u32);
    let full = client.vectors(&TEXTS).await?;
    assert!(full.iter().all(|vector| vector.len() == FULL));
    let expected: Vec<Vec<f32>> = full.iter().map(|vector| cut(vector)).collect();

    let packed = client.packed(&TEXTS, options()).await?.vectors;
    for (found, expected) in packed.iter().zip(&expected) {
        assert!(near(found, expected, 1e-6), "{found:?} {expected:?}");
    }
    from_descriptors(&stage, &packed).await?;

    let tokens = client.embedder.tokenize(&TEXTS, Options::new()).await?;
    let ids: Vec<Vec<u32>> =
        tokens.iter().map(|text| text.iter().map(|token| token.0).collect()).collect();
    let lists: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    let (bytes, rows, dimensions, _) = client.embedder.embed_tokens(&lists, options()).await?;
    assert_eq!((rows, dimensions), (3, short));
    assert!(near(&numbers(&bytes), &packed.concat(), 1e-6), "{bytes:?} {packed:?}");

    let mut into = options();
    into.extend([("encoding", "f16".into()), ("format", "npy".into())]);
    let (fd, rows, dimensions, _) = client.embedder.embed_to_fd(&TEXTS, into).await?;
    assert_eq!((rows, dimensions), (3, short));
    let bytes = content(fd)?;
    let header = String::from_utf8_lossy(&bytes[..128]);
    assert!(header.contains("'<f2'") && header.contains("(3, 8)"), "{header}");
    let halves = bytes[128..].as_chunks().0.iter().map(|half| f16::from_le_bytes(*half).to_f32());
    let halves: Vec<f32> = halves.collect();
    assert!(near(&halves, &packed.concat(), 1e-3), "{halves:?} {packed:?}");

    let asked = json!({"input": TEXTS, "dimensions": SHORT});
    let body = stage.gateway.post("/v1/embeddings", &asked).await?.ok()?;
    assert_eq!(vectors(&body)?, packed);
    let asked = json!({"inputs": TEXTS, "dimensions": SHORT});
    let rows = stage.gateway.post("/embed", &asked).await?.ok()?;
    let rows: Vec<_> = rows.as_array().ok_or("no list")?.iter().filter_map(floats).collect();
    assert_eq!(rows, packed);

    // Four of eight bits stand in each byte.
    let command = ["embed", "--csv", "--encoding", "b1", "--dimensions", "4"];
    let bits = cli(&stage.bus, &[&command[..], &TEXTS].concat()).await?.success()?;
    let sign = |vector: &Vec<f32>| (0..4).map(|n| u8::from(vector[n] > 0.0) << (7 - n)).sum::<u8>();
    assert_eq!(bits, full.iter().map(|vector| format!("{}\n", sign(vector))).collect::<String>());

    let other = Options::from([("dimensions", 7_u32.into())]);
    let message =
        refused(client.embedder.embed_packed(&TEXTS, other).await, ErrorName::InvalidArgument)?;
    assert!(message.contains("trained for 4, 8, 24"), "{message}");
    stage.end().await.map(drop)
}

/// The same of texts in a file, from a call on the bus, from one past it, and from a job.
async fn from_descriptors(stage: &Stage, packed: &[Vec<f32>]) -> Outcome {
    let client = stage.daemon.client();
    let line = Client::new(direct(&client.embedder).await?).await?;
    let path = stage.setup.path("texts");
    fs::write(&path, TEXTS.join("\n"))?;
    let source = || -> Outcome<Fd<'static>> { Ok(Fd::from(OwnedFd::from(File::open(&path)?))) };
    let job = client.start_job(source()?, options()).await?;
    let replies = [
        client.embedder.embed_from_fd(source()?, options()).await?,
        line.embedder.embed_from_fd(source()?, options()).await?,
        within("the result", job.fetch()).await??,
    ];
    for (fd, rows, dimensions, _) in replies {
        assert_eq!((rows, dimensions), (3, SHORT as u32));
        let found = numbers(&content(fd)?);
        assert!(near(&found, &packed.concat(), 1e-6), "{found:?} {packed:?}");
    }

    let mut bytes = options();
    bytes.insert("encoding", "i8".into());
    let (fd, ..) = client.embedder.embed_from_fd(source()?, bytes).await?;
    let bytes = content(fd)?;
    assert_eq!(bytes.len(), 3 * SHORT);
    for (row, vector) in bytes.chunks(SHORT).zip(packed) {
        let largest = vector.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let scaled: Vec<f32> = vector.iter().map(|x| x * 127.0 / largest).collect();
        let row: Vec<f32> = row.iter().map(|byte| f32::from(byte.cast_signed())).collect();
        assert!(near(&row, &scaled, 0.51), "{row:?} {scaled:?}");
    }
    Ok(())
}

/// One is not answered from the other, and each from its own.
async fn a_cut_is_kept_apart_from_the_whole() -> Outcome {
    let setup = trained().await?.setting("cache_bytes", "1000000");
    let (_bus, _setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let cut = client.packed(&TEXTS, options()).await?.vectors;
    let whole = client.packed(&TEXTS, Options::new()).await?;
    assert_eq!(whole.info::<u32>("cached")?, 0);
    assert!(whole.vectors.iter().all(|vector| vector.len() == FULL));
    let again = client.packed(&TEXTS, options()).await?;
    assert_eq!((again.info::<u32>("cached")?, &again.vectors), (3, &cut));
    let (fd, _, _, info) = client.embedder.embed_to_fd(&TEXTS, options()).await?;
    assert_eq!((info.cached, numbers(&content(fd)?)), (3, cut.concat()));
    daemon.stop().await
}
