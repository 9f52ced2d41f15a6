//! What computes where a provider does not: ONNX Runtime on the CPU, in the library that the provider came with.
//! Tells which it is, and why it is not the provider.
//!
//!     fallback [MODEL-DIR [LEVEL [PROVIDER [KEY=VALUE…]]]]

use op_dbus_embedder::{CpuEngine, Embedder};

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
    let provider = arguments.next().unwrap_or_else(|| "cuda".into());
    builder = builder.provider(provider.to_string_lossy());
    for option in arguments {
        let option = option.to_string_lossy();
        let (key, value) = option.split_once('=').ok_or("an option is KEY=VALUE")?;
        builder = builder.provider_option(key, value);
    }
    let embedder = builder.fallback(["cpu"]).cpu_engine(CpuEngine::Ort).build()?;
    let vector = embedder.embed_blocking("disk full")?;
    println!("{} numbers on {}", vector.len(), embedder.device());
    if !embedder.fallback_reason().is_empty() {
        println!("{}", embedder.fallback_reason());
    }
    Ok(())
}
