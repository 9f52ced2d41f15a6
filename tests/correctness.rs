//! Vectors through the daemon and the bus: against the references, in batches, from many clients.

use futures_util::future::try_join_all;

use crate::harness::Outcome;
use crate::harness::client::{Client, Options};
use crate::harness::daemon::Setup;
use crate::harness::golden::{self, cosine, distance};
use crate::harness::random::Random;
use crate::harness::registry::tests;

tests! {
    low_matches_the_references: [Bus, Low] => matches_the_references("low", &F32),
    medium_matches_the_references: [Bus, Medium] => matches_the_references("medium", &F32),
    high_matches_the_references: [Bus, High] => matches_the_references("high", &F32),
    low_is_near_the_references_in_bf16: [Bus, Low] => matches_the_references("low", &BF16),
    medium_is_near_the_references_in_bf16: [Bus, Medium] => matches_the_references("medium", &BF16),
    high_is_near_the_references_in_bf16: [Bus, High] => matches_the_references("high", &BF16),
    low_is_near_the_references_in_int8: [Bus, Low] => matches_the_references("low", &INT8),
    medium_is_near_the_references_in_int8: [Bus, Medium] => matches_the_references("medium", &INT8),
    high_is_near_the_references_in_int8: [Bus, High] => matches_the_references("high", &INT8),
    low_matches_the_references_through_onnx_runtime: [Bus, Low, Runtime] =>
        matches_the_references("low", &ORT),
    medium_matches_the_references_through_onnx_runtime: [Bus, Medium, Runtime] =>
        matches_the_references("medium", &ORT),
    high_matches_the_references_through_onnx_runtime: [Bus, High, Runtime] =>
        matches_the_references("high", &ORT),
    low_is_near_the_references_in_f16: [Bus, Low, Runtime] => matches_the_references("low", &F16),
    medium_is_near_the_references_in_f16: [Bus, Medium, Runtime] =>
        matches_the_references("medium", &F16),
    high_is_near_the_references_in_f16: [Bus, High, Runtime] =>
        matches_the_references("high", &F16),
    a_vector_does_not_depend_on_its_batch: [Bus, Medium] =>
        does_not_depend_on_its_batch("medium", &F32, 0.0),
    a_vector_does_not_depend_on_its_batch_in_bf16: [Bus, Low] =>
        does_not_depend_on_its_batch("low", &BF16, 0.0),
    a_vector_does_not_depend_on_its_batch_in_int8: [Bus, Low] =>
        does_not_depend_on_its_batch("low", &INT8, 0.0),
    a_vector_does_not_depend_on_its_batch_through_onnx_runtime: [Bus, Low, Runtime] =>
        does_not_depend_on_its_batch("low", &ORT, BATCH_DISTANCE_MAX),
    a_vector_does_not_depend_on_the_number_of_threads: [Bus, Low],
    each_of_64_clients_gets_its_own: [Bus, Low],
    truncation_cuts_what_it_says: [Bus, Low],
    vectors_are_normalised_on_demand: [Bus, Low],
    texts_of_the_largest_size: [Bus, Low],
}

/// What computes, and how far its vectors may be from the references.
struct Computed {
    engine: &'static str,
    precision: &'static str,
    /// Cosine with the reference, of each text and on average.
    cosine_min: f64,
    cosine_mean_min: f64,
    /// Difference in any component, where one is promised.
    distance_max: f32,
}

const F32: Computed = Computed {
    engine: "native",
    precision: "f32",
    cosine_min: 0.99999,
    cosine_mean_min: 0.99999,
    distance_max: 1e-4,
};
const BF16: Computed = Computed {
    engine: "native",
    precision: "bf16",
    cosine_min: 0.9998,
    cosine_mean_min: 0.9999,
    distance_max: f32::INFINITY,
};
const INT8: Computed = Computed {
    engine: "native",
    precision: "int8",
    cosine_min: 0.995,
    cosine_mean_min: 0.9995,
    distance_max: f32::INFINITY,
};
const ORT: Computed = Computed { engine: "ort", ..F32 };
const F16: Computed = Computed {
    engine: "ort",
    precision: "f16",
    cosine_min: 0.9999,
    cosine_mean_min: 0.9999,
    distance_max: f32::INFINITY,
};

impl Computed {
    fn setup(&self, level: &str) -> Outcome<Setup> {
        let setup = Setup::real(level)?.setting("cpu_engine", self.engine);
        // These tests are about vectors. How long a first load in int8 takes depends on who else
        // uses the machine: 13 s of CPU time for level high, which is minutes where others wait.
        let setup = setup.setting("load_timeout_s", "3600");
        Ok(setup.setting("precision", self.precision))
    }
}

async fn matches_the_references(level: &str, computed: &Computed) -> Outcome {
    let (_bus, _setup, daemon) = computed.setup(level)?.alone().await?;
    let embedder = &daemon.client().embedder;
    assert_eq!(embedder.precision().await?, computed.precision);
    assert!(embedder.vector_space().await?.ends_with(&format!("-{}", computed.precision)));
    let texts = golden::texts()?;
    let references = golden::vectors(level)?;
    let found = daemon.client().vectors(&golden::plain_texts()?).await?;
    let mut cosines = Vec::new();
    for ((text, found), reference) in texts.iter().zip(&found).zip(&references) {
        let (cosine, distance) = (cosine(found, reference), distance(found, reference));
        println!("{level} {}: cosine {cosine:.9}, distance {distance:.1e}", text.name);
        assert!(cosine >= computed.cosine_min, "{level}, {}: cosine {cosine}", text.name);
        assert!(distance <= computed.distance_max, "{level}, {}: {distance}", text.name);
        cosines.push(cosine);
    }
    let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
    println!("{level}: mean cosine {mean:.9}");
    assert!(mean >= computed.cosine_mean_min, "{level}: mean cosine {mean}");
    // The readable method computes the same as the packed one.
    let doubles = embedder.embed(&texts[3].text).await?;
    let floats: Vec<f32> = doubles.iter().map(|x| *x as f32).collect();
    assert!(distance(&floats, &found[3]) <= BATCH_DISTANCE_MAX);
    daemon.stop().await
}

/// What a vector of ONNX Runtime may differ from itself in another batch. One of the native engine
/// may not differ in a bit.
const BATCH_DISTANCE_MAX: f32 = 1e-5;

/// Texts of many lengths: the golden ones and some more.
fn various() -> Outcome<Vec<String>> {
    let mut texts = golden::plain_texts()?;
    texts.extend((0..20).map(|n| format!("report {n}: {}", "the pump is noisy; ".repeat(n))));
    Ok(texts)
}

async fn one_by_one(client: &Client, texts: &[String]) -> Outcome<Vec<Vec<f32>>> {
    let mut vectors = Vec::new();
    for text in texts {
        vectors.push(client.vectors(&[text]).await?.remove(0));
    }
    Ok(vectors)
}

async fn does_not_depend_on_its_batch(
    level: &str,
    computed: &Computed,
    distance_max: f32,
) -> Outcome {
    let (_bus, _setup, daemon) = computed.setup(level)?.alone().await?;
    let texts = various()?;
    let alone = one_by_one(daemon.client(), &texts).await?;
    let mut random = Random::new(50);
    for _ in 0..50 {
        let picks: Vec<usize> =
            (0..random.below(24) + 2).map(|_| random.below(texts.len())).collect();
        let batch: Vec<&String> = picks.iter().map(|pick| &texts[*pick]).collect();
        let vectors = daemon.client().vectors(&batch).await?;
        for (pick, vector) in picks.iter().zip(&vectors) {
            let distance = distance(vector, &alone[*pick]);
            assert!(distance <= distance_max, "text {pick} in {picks:?}: {distance}");
        }
    }
    daemon.stop().await
}

async fn a_vector_does_not_depend_on_the_number_of_threads() -> Outcome {
    let texts = various()?;
    for computed in [&F32, &BF16, &INT8] {
        let mut first: Option<Vec<Vec<f32>>> = None;
        for threads in ["1", "2", "3"] {
            let setup = computed.setup("low")?.setting("threads", threads);
            let (_bus, _setup, daemon) = setup.alone().await?;
            let alone = one_by_one(daemon.client(), &texts).await?;
            assert_eq!(daemon.client().vectors(&texts).await?, alone, "{threads} threads");
            match &first {
                Some(first) => assert_eq!(alone, *first, "{threads} threads"),
                None => first = Some(alone),
            }
            daemon.stop().await?;
        }
    }
    Ok(())
}

async fn each_of_64_clients_gets_its_own() -> Outcome {
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
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
            assert!(*vector == alone, "client {n}, {text:?}: {}", distance(vector, &alone));
        }
    }
    daemon.stop().await
}

async fn truncation_cuts_what_it_says() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
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
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
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
    let (_bus, _setup, daemon) = Setup::real("low")?.alone().await?;
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
