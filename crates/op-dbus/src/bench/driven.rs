//! `bench --driven`: measures what is asked for on standard input, one JSON object a line, so that
//! `cargo xtask bench-peers` can ask other libraries in turn with us. Its peers speak the same.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};

use super::args::Args;
use super::client::Client;
use super::corpus::Corpus;
use super::generated::Kind;
use super::peak;
use super::stage::Stage;
use super::variant::Place;
use crate::cli::{Done, Failure};

const PRECISIONS: [&str; 3] = ["f32", "bf16", "int8"];

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Request {
    /// Batches of another size; streams and threads are ours to choose. 0 is as configured.
    Set { batch_tokens: usize },
    /// Embeds the lines of a file again and again, once at least.
    Time { texts: PathBuf, seconds: f64 },
    /// Writes the vectors of the lines, little-endian.
    Vectors { texts: PathBuf, to: PathBuf },
    /// Tokens of each line, as the model reads them.
    Tokens { texts: PathBuf },
    /// Operations per second that the CPU can do, by precision.
    Peak,
    /// Writes generated texts.
    Generate { seed: u64, to: PathBuf },
}

/// Answers requests until standard input ends.
///
/// # Errors
/// What stands in the way of the stage, and the first request that fails.
pub async fn run(mut args: Args) -> Done {
    if args.at.len() != 1 {
        args.at = vec![Place::Engine];
    }
    let mut stage = Stage::set(&args).await?;
    if stage.targets.len() != 1 {
        return Err(Failure::usage("--driven measures one variant at one place"));
    }
    answer(&json!({ "library": format!("op-dbus {}", env!("CARGO_PKG_VERSION")), "own": true }))?;
    while let Some(line) = next_line().await {
        let request = serde_json::from_str(&line);
        let request = request.map_err(|error| Failure::usage(error.to_string()))?;
        let target = &stage.targets[0];
        let client = &target.clients[0];
        answer(&match request {
            Request::Set { batch_tokens } => {
                let wanted: Vec<usize> =
                    Some(batch_tokens).filter(|tokens| *tokens > 0).into_iter().collect();
                if args.compared.batch_tokens != wanted {
                    stage.strike().await;
                    args.compared.batch_tokens = wanted;
                    stage = Stage::set(&args).await?;
                }
                json!({})
            }
            Request::Time { texts, seconds } => time(client, &lines(&texts)?, seconds).await?,
            Request::Vectors { texts, to } => vectors(client, &lines(&texts)?, &to).await?,
            Request::Tokens { texts } => {
                let (tokens, _) = target.count_tokens(&lines(&texts)?).await?;
                let operations = target.work.map(|work| work.operations(tokens.iter().copied()));
                json!({ "tokens": tokens, "operations": operations })
            }
            Request::Peak => {
                let peak = |precision: &&'static str| Some((*precision, peak::measure(precision)?));
                json!(PRECISIONS.iter().filter_map(peak).collect::<BTreeMap<_, _>>())
            }
            Request::Generate { seed, to } => {
                let corpus = Corpus::generated(Kind::Mixed, seed);
                write(&to, (corpus.texts.join("\n") + "\n").as_bytes())?;
                json!({})
            }
        })?;
    }
    stage.strike().await;
    Ok(ExitCode::SUCCESS)
}

async fn time(client: &Client, texts: &[String], seconds: f64) -> Result<Value, Failure> {
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (mut passes, start) = (0, Instant::now());
    while passes == 0 || start.elapsed().as_secs_f64() < seconds {
        client.embed(&all).await?;
        passes += 1;
    }
    let took = start.elapsed().as_secs_f64();
    Ok(json!({ "texts": passes * texts.len(), "seconds": took }))
}

async fn vectors(client: &Client, texts: &[String], to: &Path) -> Result<Value, Failure> {
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = client.embed(&all).await?.vectors.into_numbers();
    let bytes: Vec<u8> = vectors.iter().flat_map(|value| value.to_le_bytes()).collect();
    write(to, &bytes)?;
    Ok(json!({ "dimensions": vectors.len() / all.len().max(1) }))
}

/// The next line of standard input, unless that has ended. It is read on a thread of its own: a signal is heard
/// meanwhile.
async fn next_line() -> Option<String> {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
    read.await.ok().flatten()?.ok()
}

fn answer(value: &Value) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{value}").and_then(|()| out.flush());
    written.map_err(|error| Failure::output(&error))
}

/// The lines of a file as they are, empty ones too: every peer has to have the same.
fn lines(path: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("can't read {}: {error}", path.display())))?;
    Ok(text.split('\n').map(str::to_owned).take(text.matches('\n').count()).collect())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes)
        .map_err(|error| Failure::refused(format!("can't write {}: {error}", path.display())))
}
