//! Finds out which execution providers compute here, embeds the same texts on each, and compares the
//! vectors with the CPU's and the time with each other. A process has one ONNX Runtime: a provider that needs
//! another one than those before it is compared where it is the only PROVIDER.
//!
//!     gpu_demo [MODEL-DIR [LEVEL [PROVIDER]]]

use std::time::Instant;

use op_dbus_embedder::{Builder, Embedder, Error, Precision, provider_names};

const TEXTS: [&str; 6] = [
    "The disk is full and the database refuses to write.",
    "No space left on device while writing the log.",
    "User alice logged in from 10.0.3.7.",
    "The network cable was unplugged, and nobody noticed until the backup failed.",
    "Core temperature above threshold, the clock is throttled.",
    "A certificate expires in three days.",
];
/// So that the time is more than that of the first batch.
const REPETITIONS: usize = 20;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut builder = Embedder::builder().batch_tokens(512);
    if let Some(model_dir) = arguments.next() {
        builder = builder.model_dir(model_dir);
    }
    if let Some(level) = arguments.next() {
        builder = builder.level(level.to_string_lossy().parse()?);
    }
    // The same arithmetic everywhere.
    builder = builder.precision(Precision::F32);
    let cpu = builder.clone().cpu().build()?;
    let reference = cpu.embed_batch_blocking(&TEXTS)?.vectors;
    println!("{} on {}: the reference", cpu.model(), cpu.device());
    let only = arguments.next();
    let is_asked_for = |name: &&str| only.as_deref().is_none_or(|only| only == *name);
    for provider in provider_names().filter(is_asked_for) {
        match compared(&builder, provider, &reference) {
            Ok(line) => println!("{provider}: {line}"),
            Err(Error::Provider(reason)) => println!("{provider}: not compared: {reason}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What computes, how fast, and how near its vectors are to the reference.
fn compared(builder: &Builder, provider: &str, reference: &[f32]) -> Result<String, Error> {
    let embedder = builder.clone().provider(provider).build()?;
    let reply = embedder.embed_batch_blocking(&TEXTS)?;
    let rows = reply.vectors.chunks(reply.dimensions).zip(reference.chunks(reply.dimensions));
    let least = rows.map(|(a, b)| cosine(a, b)).fold(1.0, f32::min);
    let start = Instant::now();
    for _ in 0..REPETITIONS {
        embedder.embed_batch_blocking(&TEXTS)?;
    }
    let texts = (REPETITIONS * TEXTS.len()) as f64 / start.elapsed().as_secs_f64();
    // The next one may need its memory.
    embedder.close();
    Ok(format!("{} in {}, {texts:.0} texts/s, cosine {least:.5}", reply.device, reply.precision))
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
