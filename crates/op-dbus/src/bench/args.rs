//! The command line of `op-dbus bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use op_dbus_models::Level;
use serde::Serialize;

use super::corpus::Named;
use super::generated::Kind;
use super::open;
use super::variant::Place;
use crate::cli::Failure;

const ABOUT: &str = "\
What is measured, on each text collection in turn:
  latency   one text at a time, by one client: a text of 15 tokens, then the collection's own
  calls     as many texts as go through, 1,000 a call, by one client (--callers)
  clients   the same, by 64 clients (--clients) with one text a call each, and how long each
            call takes; past the bus (`direct`, `direct-memfd`) they share 8 connections
  lanes     with --only lanes: 1,024 texts a call by one client, and one text a call by 8 clients,
            in the engine, over the bus and past it, with vectors in the reply and in a memfd: what
            is over the engine's own time, and what of each call's time was not the engine's
  --rate    one text a call, arriving at random at this rate whether or not the last is answered;
            the time counts from when a text was due, so a queue shows; a percentage is one of what
            calls do at the first place, the engine unless --at leaves it out, and has them measured
  --peak    what the CPU can do at most, by loops that never leave its registers; what another
            provider can, by products of large matrices in the engine here. No share of it is told
            where a provider and the CPU compute together (--offload)
  --quality how far each precision's vectors are from those of f32

Everything that is compared is measured in turn, round after round, so that a machine that slows
down slows all of them down. A figure is the median of the rounds with the least and the most behind
it; ratios are taken within each round. `engine` is the engine in this process, `daemon` the service
over the bus: a private one is started unless --bus names one. What is packed or compiled stays only
in a cache of the user who runs it.";

const EXAMPLES: &str = "\
Examples:
  op-dbus bench
  op-dbus bench --level low --precision f32,bf16,int8 --peak --quality
  op-dbus bench --corpus logs=/var/log/syslog --only calls --isa avx2,portable
  op-dbus bench --at engine --provider cpu,ggml --offload
  op-dbus bench --at daemon --only latency --rate 50%,80%,95% --json
  op-dbus bench --only lanes
  op-dbus bench --bus system";

/// Measure texts per second, latency and quality, in the engine and over the bus
#[derive(clap::Args)]
#[command(after_help = format!("{ABOUT}\n\n{EXAMPLES}"))]
pub struct Args {
    #[command(flatten)]
    pub compared: Compared,
    /// Where to measure: `engine`, `daemon` (both by default), `memfd`, `direct`, `direct-memfd`
    #[arg(long, value_name = "PLACE,…", value_delimiter = ',', help_heading = "Compare")]
    pub at: Vec<Place>,

    /// Texts to measure with, one a line, the first 20,000 of a file, in place of generated ones; may be repeated
    #[arg(long, value_name = "[NAME=]FILE", help_heading = "Texts")]
    pub corpus: Vec<Named>,
    /// What the generated texts look like; `mixed` by default
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', conflicts_with = "corpus")]
    #[arg(help_heading = "Texts")]
    pub generate: Vec<Kind>,
    /// Seed of the generated texts and of the arrivals
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Texts")]
    pub seed: u64,

    /// Measure these alone
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', help_heading = "Measure")]
    pub only: Vec<What>,
    /// Clients with one text a call, 64 at most
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [64])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Measure")]
    pub clients: Vec<u16>,
    /// Clients with 1,000 texts a call, 64 at most
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Measure")]
    pub callers: Vec<u16>,
    /// Texts per second that arrive, or percent (`80%`) of what calls do, in the engine if that is measured; with
    /// --seconds, 1 to 10,000,000 arrivals
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', help_heading = "Measure")]
    pub rate: Vec<Rate>,
    /// Measure the peak of what computes beside `calls` and `clients`, which are told as shares of it
    #[arg(long, help_heading = "Measure")]
    pub peak: bool,
    /// Compare vectors with f32; with a file (text, text, score; tabs between) also the order of
    /// the pairs by similarity with that of their scores
    #[arg(long, value_name = "PAIRS", num_args = 0..=1, help_heading = "Measure")]
    pub quality: Option<Option<PathBuf>>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds that one measurement should take, about
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    #[arg(help_heading = "Measure")]
    pub seconds: f64,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Measure the service on this bus: `system`, `session` or a D-Bus address
    #[arg(long, env = "OP_DBUS_BUS", hide_env_values = true, help_heading = "Service")]
    pub bus: Option<String>,
    /// Start a private bus and service, even if OP_DBUS_BUS names a bus
    #[arg(long, help_heading = "Service")]
    pub spawn: bool,

    /// Measure what is asked for on standard input, a JSON object a line (for `cargo xtask`)
    #[arg(long, hide = true)]
    pub driven: bool,
}

impl Args {
    /// Whether `--only` leaves `what` in; lanes have to be named.
    pub fn wants(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }

    /// Whether calls are measured: a percentage is one of what they do.
    pub fn wants_calls(&self) -> bool {
        self.wants(What::Calls) || self.rate.iter().any(|rate| matches!(rate, Rate::Percent(_)))
    }

    /// Refuses what would measure nothing, or never end.
    ///
    /// # Errors
    /// A peak beside nothing; texts that would not arrive, or too many.
    pub fn check(&self) -> Result<(), Failure> {
        if self.peak && !self.wants_calls() && !self.wants(What::Clients) {
            return Err(Failure::usage(
                "--peak is measured beside calls or clients, and --only names neither: add one of them",
            ));
        }
        for rate in &self.rate {
            if let Rate::Texts(rate) = rate {
                open::arrivals(*rate, self.seconds)?;
            }
        }
        Ok(())
    }
}

/// Lists whose combinations are compared; an empty one leaves the setting as it is.
#[derive(clap::Args, Default)]
pub struct Compared {
    /// Levels: `low`, `medium`, `high`
    #[arg(long, value_name = "LEVEL,…", value_delimiter = ',', help_heading = "Compare")]
    #[arg(value_parser = PossibleValuesParser::new(levels()))]
    #[arg(hide_possible_values = true)]
    pub level: Vec<String>,
    /// CPU engines: `native`, `ort`, `sim`
    #[arg(long, value_name = "ENGINE,…", value_delimiter = ',', help_heading = "Compare")]
    pub engine: Vec<String>,
    /// Execution providers, for example `cpu,cuda`; one that does not work ends the run
    #[arg(long, value_name = "PROVIDER,…", value_delimiter = ',', help_heading = "Compare")]
    pub provider: Vec<String>,
    /// Measure each provider with the CPU beside it as well, and tell from which batch on it is faster
    #[arg(long, help_heading = "Compare")]
    pub offload: bool,
    /// Precisions: `f32`, `f16`, `bf16`, `int8`
    #[arg(long, value_name = "PRECISION,…", value_delimiter = ',', help_heading = "Compare")]
    pub precision: Vec<String>,
    /// Instruction sets, for example `avx2,portable`
    #[arg(long, value_name = "ISA,…", value_delimiter = ',', help_heading = "Compare")]
    pub isa: Vec<String>,
    /// Tokens of one batch at most
    #[arg(long, value_name = "N,…", value_delimiter = ',', help_heading = "Compare")]
    pub batch_tokens: Vec<usize>,
}

impl Compared {
    /// Whether anything is asked for that a service which is already there can't be given.
    pub fn is_empty(&self) -> bool {
        self.level.len() < 2
            && self.engine.is_empty()
            && self.provider.is_empty()
            && !self.offload
            && self.precision.is_empty()
            && self.isa.is_empty()
            && self.batch_tokens.is_empty()
    }
}

/// The measurements that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// One text at a time
    Latency,
    /// 1,000 texts a call
    Calls,
    /// Many clients with one text a call
    Clients,
    /// What each way to the engine costs beside it
    Lanes,
    /// Nothing but what other flags ask for
    None,
}

/// A rate of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Texts per second.
    Texts(f64),
    /// Percent of what calls do with these texts at the first place that is measured.
    Percent(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        match number.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate.is_finite() && percent => Ok(Self::Percent(rate)),
            Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(Self::Texts(rate)),
            _ => Err("not a number of texts per second, nor a percentage such as 80%".to_owned()),
        }
    }
}

/// The levels that embed.
fn levels() -> impl Iterator<Item = &'static str> {
    Level::ALL.into_iter().filter(|level| *level != Level::None).map(Level::as_str)
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.01 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        assert_eq!("50".parse(), Ok(Rate::Texts(50.0)));
        assert_eq!("80%".parse(), Ok(Rate::Percent(80.0)));
        for wrong in ["", "%", "-1", "0", "inf", "8 %", "x"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong:?}");
        }
    }
}
