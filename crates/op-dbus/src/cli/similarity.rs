//! `op-dbus similarity`: how near two texts are.

use std::io::Write;
use std::process::ExitCode;

use super::{BusArgs, Done, EXIT_CODES, Failure, connect};

/// Tell how near two texts are
#[derive(clap::Args)]
#[command(after_help = format!("\
The number is the cosine of the two vectors: 1 is the same direction, 0 unrelated.

Examples:
  op-dbus similarity 'the disk is full' 'no space left on device'

{EXIT_CODES}"))]
pub struct Args {
    /// One text
    first: String,
    /// The other text
    second: String,
    /// A JSON object with the key `similarity`
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub fn run(args: Args) -> Done {
    super::block_on(similarity(args))
}

async fn similarity(args: Args) -> Done {
    let service = connect(&args.bus.bus).await?;
    let cosine = service.embedder().await?.similarity(&args.first, &args.second).await;
    let cosine = cosine.map_err(|error| service.failure(&error))?;
    let line = match args.json {
        true => serde_json::json!({ "similarity": cosine }).to_string(),
        false => format!("{cosine:.6}"),
    };
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::output(&error))?;
    Ok(ExitCode::SUCCESS)
}
