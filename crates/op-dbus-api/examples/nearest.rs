//! Prints the two of the given texts that are nearest to each other, and their cosine.
//!
//!     nearest "disk full" "no space left on device" "user logged in"

use std::process::ExitCode;

use op_dbus_api::{EmbedderProxy, Error, option};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Arguments are not all UTF-8.
    let texts = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned());
    let texts: Vec<String> = texts.collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    match nearest(&texts).await {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            match Error::from_reply(&error) {
                Some(refusal) => eprintln!("{}: {refusal}", refusal.name().as_str()),
                None => eprintln!("{error}"),
            }
            ExitCode::FAILURE
        }
    }
}

async fn nearest(texts: &[&str]) -> zbus::Result<String> {
    let bus = zbus::Connection::system().await?;
    let embedder = EmbedderProxy::new(&bus).await?;
    let options = [(option::NORMALIZE, true.into())].into();
    let (bytes, _rows, dimensions, info) = embedder.embed_packed(texts, options).await?;
    let numbers = bytes.chunks_exact(4).map(|n| f32::from_le_bytes([n[0], n[1], n[2], n[3]]));
    let numbers: Vec<f32> = numbers.collect();
    let vectors: Vec<&[f32]> = numbers.chunks_exact(dimensions as usize).collect();

    let cosine =
        |i: usize, j: usize| -> f32 { vectors[i].iter().zip(vectors[j]).map(|(a, b)| a * b).sum() };
    let pairs = (0..vectors.len()).flat_map(|i| (0..i).map(move |j| (j, i)));
    let best = pairs.max_by(|a, b| cosine(a.0, a.1).total_cmp(&cosine(b.0, b.1)));
    let Some((i, j)) = best else { return Ok("two texts are the least".to_owned()) };
    Ok(format!("{:?} and {:?}, cosine {:.2} by {}", texts[i], texts[j], cosine(i, j), info.model))
}
