//! A model that was trained for vectors of several lengths, asked for shorter ones in every way.

use std::fs;

use half::f16;
use op_dbus_api::ErrorName;
use serde_json::{Value, json};

use super::{Stage, vectors};
use crate::harness::client::{Options, refused};
use crate::harness::command::cli;
use crate::harness::daemon::Setup;
use crate::harness::files::{content, copy_folder};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture};

tests! {
    shorter_vectors_are_had_in_every_way: [Bus, Curl],
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

    let options = || Options::from([("dimensions", short.into())]);
    let packed = client.packed(&TEXTS, options()).await?.vectors;
    for (found, expected) in packed.iter().zip(&expected) {
        assert!(near(found, expected, 1e-6), "{found:?} {expected:?}");
    }

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
