//! `op-dbus top`: what the service does, as it does it.

mod interval;
mod lines;
mod live;
mod reading;
mod screen;

use std::time::{Duration, SystemTime};

use serde_json::json;

use self::interval::Interval;
use self::lines::{View, plain};
use self::reading::Source;
use super::{BusArgs, Done, printed, terminal};

/// Watch the service live: rates, batches, times of calls, failures, workers
#[derive(clap::Args)]
#[command(after_help = "\
Keys: q, Esc and Ctrl-C end it.

Every number is of the last interval, but for those since the service started. Texts are counted as
their batches are computed, a text that is embedded in windows once for each. The service is not
started by being watched; it may go away and come back.

Examples:
  op-dbus top
  op-dbus top --interval 0.5
  op-dbus top --once
  op-dbus top --json --interval 10 | jq .interval.rows_per_s")]
pub struct Args {
    /// Time between two readings
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = period)]
    interval: Duration,
    /// Print one interval as text and end, as without a terminal that can draw
    #[arg(long, help_heading = "Output")]
    once: bool,
    /// One JSON object of one interval: status, statistics, devices, interval
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

/// Reads `--interval`. A shorter one would measure little but the readings themselves.
fn period(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it must be a number of seconds from 0.1 to 3600".to_owned()),
    }
}

pub async fn run(args: Args) -> Done {
    let source = Source::connect(&args.bus.bus).await?;
    match args.once || args.json || !terminal::can_draw() {
        true => once(source, &args).await,
        false => live::run(source, args.interval).await,
    }
}

/// One interval, measured and printed.
async fn once(mut source: Source, args: &Args) -> Done {
    let earlier = source.read().await?;
    tokio::time::sleep(args.interval).await;
    let reading = source.read().await?;
    let interval = Interval::between(&earlier, &reading);
    let out = match args.json {
        true => {
            let mut all = reading.json;
            all["interval"] = json!(interval);
            format!("{all:#}\n")
        }
        false => {
            let (reading, interval) = (Some(&reading), interval.as_ref());
            let coloured = terminal::colour();
            let now = SystemTime::now();
            plain(&View { reading, interval, absent: None, coloured, now })
        }
    };
    printed(out)
}

#[cfg(test)]
mod tests;
