//! `op-dbus similarity`: how near two texts are.

use std::io::Write;
use std::process::ExitCode;

use super::caller::Caller;
use super::cut::Cut;
use super::packed::Options;
use super::places::Places;
use super::{BusArgs, Done, Failure, standard, tell};

/// Tell how near two texts are
#[derive(clap::Args)]
#[command(after_help = "\
The number is the cosine of the two vectors: 1 is the same direction, 0 unrelated.

Examples:
  op-dbus similarity 'the disk is full' 'no space left on device'")]
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

pub async fn run(args: Args) -> Done {
    let caller = Caller::connect(&args.bus.bus, Options::default()).await?;
    let texts = vec![args.first, args.second];
    // Unlike `Similarity`, this says which texts were cut.
    let reply = caller.call_packed(0, texts, |number| Some(format!("text {number}"))).await?;
    let cosine = reply.cosines_with_last().first().copied().unwrap_or_default();
    let line = match args.json {
        true => serde_json::json!({ "similarity": cosine }).to_string(),
        false => format!("{cosine:.6}"),
    };
    writeln!(standard::output(), "{line}").map_err(|error| Failure::output(&error))?;
    let mut cut = Cut::default();
    reply.truncated.iter().for_each(|index| cut.add(u64::from(*index)));
    if let Some(warning) = cut.warning(&Places::default()) {
        tell(warning);
    }
    Ok(ExitCode::SUCCESS)
}
