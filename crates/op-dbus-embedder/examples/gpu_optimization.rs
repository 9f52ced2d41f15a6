//! What the size of batches and the number of workers do to a device: the same texts under each, with
//! what the pool of workers counted.
//!
//!     gpu_optimization [MODEL-DIR [LEVEL [PROVIDER]]]

use std::time::Instant;

use op_dbus_embedder::{Builder, Embedder, Error};

/// Texts of several lengths, as they come from a log.
fn texts() -> Vec<String> {
    (0..400).map(|n| format!("unit {n} failed: {}", "out of memory, ".repeat(n % 12))).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut builder = Embedder::builder();
    if let Some(model_dir) = arguments.next() {
        builder = builder.model_dir(model_dir);
    }
    if let Some(level) = arguments.next() {
        builder = builder.level(level.parse()?);
    }
    if let Some(provider) = arguments.next() {
        builder = builder.provider(provider);
    }
    let texts = texts();
    println!("workers  batch tokens  batches  rows/batch  padding  busy  texts/s");
    for workers in [1, 2] {
        for batch_tokens in [128, 512, 2048] {
            println!("{}", measured(&builder, workers, batch_tokens, &texts)?);
        }
    }
    Ok(())
}

fn measured(
    builder: &Builder,
    workers: usize,
    batch_tokens: usize,
    texts: &[String],
) -> Result<String, Error> {
    let embedder = builder.clone().workers(workers).batch_tokens(batch_tokens).build()?;
    let start = Instant::now();
    embedder.embed_batch_blocking(texts)?;
    let elapsed = start.elapsed();
    let counted = embedder.statistics();
    let busy_us: u64 = embedder.workers().iter().map(|worker| worker.busy_us).sum();
    let percent = |part: f64, whole: f64| 100.0 * part / whole.max(1.0);
    let padding = (counted.padded_tokens - counted.tokens) as f64;
    Ok(format!(
        "{workers:7}  {batch_tokens:12}  {:7}  {:10.1}  {:6.1}%  {:3.0}%  {:7.0}",
        counted.batches,
        counted.rows as f64 / counted.batches.max(1) as f64,
        percent(padding, counted.padded_tokens as f64),
        percent(busy_us as f64, elapsed.as_micros() as f64 * workers as f64),
        texts.len() as f64 / elapsed.as_secs_f64(),
    ))
}
