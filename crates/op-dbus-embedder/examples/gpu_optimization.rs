//! What the size of batches, the number of workers and I/O binding do to a device: the same texts under
//! each, with what the pool of workers counted. I/O binding is ONNX Runtime's, which computes on the CPU
//! for it where no provider is named.
//!
//!     gpu_optimization [MODEL-DIR [LEVEL [PROVIDER]]]

use std::time::Instant;

use op_dbus_embedder::{BufferUse, Builder, CpuEngine, Embedder, Error, TransferUse};

/// Texts of several lengths, as they come from a log.
fn texts() -> Vec<String> {
    (0..400).map(|n| format!("unit {n} failed: {}", "out of memory, ".repeat(n % 12))).collect()
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut builder = Embedder::builder();
    if let Some(model_dir) = arguments.next() {
        builder = builder.model_dir(model_dir);
    }
    if let Some(level) = arguments.next() {
        builder = builder.level(level.to_string_lossy().parse()?);
    }
    let mut by_onnx_runtime = builder.clone().cpu_engine(CpuEngine::Ort);
    if let Some(provider) = arguments.next() {
        builder = builder.provider(provider.to_string_lossy());
        by_onnx_runtime = builder.clone();
    }
    let texts = texts();
    println!("workers  batch tokens  batches  rows/batch  padding  busy  texts/s");
    for workers in [1, 2] {
        for batch_tokens in [128, 512, 2048] {
            println!("{}", measured(&builder, workers, batch_tokens, &texts)?);
        }
    }
    println!("I/O binding  buffers reused  zero copy  arena bytes  texts/s");
    for io_binding in [false, true] {
        match bound(&by_onnx_runtime, io_binding, &texts) {
            Ok(line) => println!("{line}"),
            Err(error @ Error::Provider(_)) => println!("not here: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// One text after the other, as they come: of a few lengths, so that buffers find more of their shape.
fn bound(builder: &Builder, io_binding: bool, texts: &[String]) -> Result<String, Error> {
    let embedder = builder.clone().batch_tokens(512).io_binding(io_binding).build()?;
    let start = Instant::now();
    for text in texts {
        embedder.embed_blocking(text)?;
    }
    let elapsed = start.elapsed();
    let memory = embedder.statistics().memory;
    embedder.close();
    let percent = |ratio: Option<f64>| ratio.map_or("–".into(), |r| format!("{:.1}%", 100.0 * r));
    Ok(format!(
        "{:11}  {:>14}  {:>9}  {:>11}  {:7.0}",
        if io_binding { "on" } else { "off" },
        percent(memory.buffers.and_then(BufferUse::reuse_ratio)),
        percent(memory.transfers.and_then(TransferUse::zero_copy_ratio)),
        memory.arena.map_or("–".to_owned(), |arena| arena.bytes.to_string()),
        texts.len() as f64 / elapsed.as_secs_f64(),
    ))
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
    // The next one is measured alone, and may need its memory.
    embedder.close();
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
