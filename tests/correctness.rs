//! Vectors through the daemon and the bus: against the references, in batches, from many clients.

use futures_util::future::try_join_all;

use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options};
use crate::harness::daemon::Setup;
use crate::harness::golden::{self, cosine, distance};
use crate::harness::random::Random;
use crate::harness::registry::tests;

tests! {
    low_matches_the_references: [Bus, Low],
    medium_matches_the_references: [Bus, Medium],
    high_matches_the_references: [Bus, High],
    a_vector_does_not_depend_on_its_batch: [Bus, Medium],
    each_of_64_clients_gets_its_own: [Bus, Low],
    truncation_cuts_what_it_says: [Bus, Low],
    vectors_are_normalised_on_demand: [Bus, Low],
    texts_of_the_largest_size: [Bus, Low],
}

/// What a vector may differ from the reference, by direction and in any component.
const COSINE_MIN: f64 = 0.99999;
const REFERENCE_DISTANCE_MAX: f32 = 1e-4;
/// What a vector may differ from itself in another batch.
const BATCH_DISTANCE_MAX: f32 = 1e-5;

async fn low_matches_the_references() -> Outcome {
    matches_the_references("low").await
}

async fn medium_matches_the_references() -> Outcome {
    matches_the_references("medium").await
}

async fn high_matches_the_references() -> Outcome {
    matches_the_references("high").await
}

async fn matches_the_references(level: &str) -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real(level)?;
    let daemon = setup.ready(&bus).await?;
    let texts = golden::texts()?;
    let references = golden::vectors(level)?;
    let found = daemon.client().vectors(&golden::plain_texts()?).await?;
    for ((text, found), reference) in texts.iter().zip(&found).zip(&references) {
        let (cosine, distance) = (cosine(found, reference), distance(found, reference));
        println!("{level} {}: cosine {cosine:.9}, distance {distance:.1e}", text.name);
        assert!(cosine >= COSINE_MIN, "{level}, {}: cosine {cosine}", text.name);
        assert!(distance <= REFERENCE_DISTANCE_MAX, "{level}, {}: {distance}", text.name);
    }
    // The readable method computes the same as the packed one.
    let doubles = daemon.client().embedder.embed(&texts[3].text).await?;
    let floats: Vec<f32> = doubles.iter().map(|x| *x as f32).collect();
    assert!(distance(&floats, &references[3]) <= REFERENCE_DISTANCE_MAX);
    daemon.stop().await
}

async fn a_vector_does_not_depend_on_its_batch() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("medium")?;
    let daemon = setup.ready(&bus).await?;
    let mut texts = golden::plain_texts()?;
    texts.extend((0..20).map(|n| format!("report {n}: {}", "the pump is noisy; ".repeat(n))));
    let mut alone = Vec::new();
    for text in &texts {
        alone.push(daemon.client().vectors(&[text]).await?.remove(0));
    }
    let mut random = Random::new(50);
    for _ in 0..50 {
        let picks: Vec<usize> =
            (0..random.below(24) + 2).map(|_| random.below(texts.len())).collect();
        let batch: Vec<&String> = picks.iter().map(|pick| &texts[*pick]).collect();
        let vectors = daemon.client().vectors(&batch).await?;
        for (pick, vector) in picks.iter().zip(&vectors) {
            let distance = distance(vector, &alone[*pick]);
            assert!(distance <= BATCH_DISTANCE_MAX, "text {pick} in {picks:?}: {distance}");
        }
    }
    daemon.stop().await
}

async fn each_of_64_clients_gets_its_own() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let marked = |client: usize| -> Vec<String> {
        (0..6).map(|n| format!("client {client} asks {n} {}", "and waits ".repeat(n))).collect()
    };
    let clients = try_join_all((0..64).map(|_| Client::on(&bus))).await?;
    let calls = clients
        .iter()
        .enumerate()
        .map(|(n, client)| async move { client.vectors(&marked(n)).await });
    let together = try_join_all(calls).await?;
    for (n, vectors) in together.iter().enumerate() {
        for (text, vector) in marked(n).iter().zip(vectors) {
            let alone = daemon.client().vectors(&[text]).await?.remove(0);
            let distance = distance(vector, &alone);
            assert!(distance <= BATCH_DISTANCE_MAX, "client {n}, {text:?}: {distance}");
        }
    }
    daemon.stop().await
}

async fn truncation_cuts_what_it_says() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let client = daemon.client();
    // Words of one token each, and as many of them as fit with the two special tokens.
    let fit = client.embedder.max_input_tokens().await? as usize - 2;
    let words = |sun: usize, sea: usize| ["sun ".repeat(sun), "sea ".repeat(sea)].concat();
    let long = words(fit / 2, fit);
    assert_eq!(client.embedder.count_tokens(&[long.as_str()]).await?, [(fit / 2 + fit + 2) as u32]);
    for (policy, text, rest) in [
        ("end", &long, words(fit / 2, fit - fit / 2)),
        ("start", &long, words(0, fit)),
        // Two equal chunks have the mean that each has.
        ("mean", &words(0, 2 * fit), words(0, fit)),
    ] {
        let options = Options::from([("truncate", policy.into())]);
        let cut = client.packed(&[text, &rest], options).await?;
        assert_eq!(cut.info::<Vec<u32>>("truncated")?, [0], "{policy}");
        let distance = distance(&cut.vectors[0], &cut.vectors[1]);
        assert!(distance <= BATCH_DISTANCE_MAX, "{policy}: {distance}");
    }
    daemon.stop().await
}

async fn vectors_are_normalised_on_demand() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let length = |vector: &[f32]| vector.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let raw = daemon.client().vectors(&["a text"]).await?;
    let options = Options::from([("normalize", true.into())]);
    let unit = daemon.client().packed(&["a text"], options).await?.vectors;
    assert!((length(&raw[0]) - 1.0).abs() > 0.1, "level low has no normalisation of its own");
    assert!((length(&unit[0]) - 1.0).abs() < 1e-5);
    assert!(cosine(&raw[0], &unit[0]) > 0.999_999);
    // Cosines don't care.
    let same = daemon.client().embedder.similarity("a text", "a text").await?;
    assert!((same - 1.0).abs() < 1e-6, "{same}");
    daemon.stop().await
}

async fn texts_of_the_largest_size() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let bytes = daemon.client().embedder.text_bytes_max().await? as usize;
    let fill = |part: &str| part.repeat(bytes / part.len());
    let texts =
        [fill("x"), fill("\u{6F22}"), fill(" "), fill("e\u{301}"), fill("\u{1F469}\u{200D}")];
    for text in &texts {
        let vector = daemon.client().vectors(&[text]).await?.remove(0);
        assert!(vector.iter().all(|x| x.is_finite()));
    }
    daemon.stop().await
}
