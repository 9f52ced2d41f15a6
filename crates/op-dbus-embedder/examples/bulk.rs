//! Embeds each line of standard input, and writes the vectors as 32-bit little-endian floats to a file:
//! a bounded part of the input is in memory at any time, and several calls are under way. What of a line is no UTF-8
//! is taken for U+FFFD.
//!
//!     bulk OUTPUT [MODEL-DIR [LEVEL|MODEL]] < TEXTS

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write, stdin};

use futures_util::{StreamExt, TryStreamExt, stream};
use op_dbus_embedder::{Embedder, Reply};

/// Lines in one call.
const CALL_TEXTS: usize = 256;
/// Calls under way, so that the workers never wait for the next one.
const CALLS: usize = 4;

type Failure = Box<dyn std::error::Error>;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args_os().skip(1);
    let output = arguments.next().ok_or("usage: bulk OUTPUT [MODEL-DIR [LEVEL|MODEL]] < TEXTS")?;
    let mut builder = Embedder::builder().batch_tokens(512);
    if let Some(model_dir) = arguments.next() {
        builder = builder.model_dir(model_dir);
    }
    if let Some(name) = arguments.next() {
        let name = name.to_string_lossy();
        builder = match name.parse() {
            Ok(level) => builder.level(level),
            Err(_) => builder.model(name),
        };
    }
    let embedder = &builder.build()?;

    let mut file = BufWriter::new(File::create(output)?);
    let (mut rows, mut cut) = (0, 0);
    let mut lines = BufReader::new(stdin()).split(b'\n').map(|line| line.map(text));
    let calls = std::iter::from_fn(|| {
        let texts: Result<Vec<String>, _> = lines.by_ref().take(CALL_TEXTS).collect();
        texts.map(|texts| (!texts.is_empty()).then_some(texts)).transpose()
    });
    let replies = stream::iter(calls)
        .map(|texts| async move { Ok::<Reply, Failure>(embedder.embed_batch(&texts?).await?) })
        .buffered(CALLS);
    let written = replies.try_for_each(|reply| {
        rows += reply.rows;
        cut += reply.truncated.len();
        let bytes: Vec<u8> = reply.vectors.iter().flat_map(|number| number.to_le_bytes()).collect();
        let written = file.write_all(&bytes);
        async move { Ok(written?) }
    });
    futures_executor::block_on(written)?;
    file.flush()?;
    let counted = embedder.statistics();
    println!("{rows} vectors of {} numbers on {}", embedder.dimensions(), embedder.device());
    println!(
        "{cut} texts were longer than the model reads, {} tokens were embedded",
        counted.tokens
    );
    Ok(())
}

/// A line without its end.
fn text(mut line: Vec<u8>) -> String {
    line.pop_if(|last| *last == b'\r');
    String::from_utf8_lossy(&line).into_owned()
}
