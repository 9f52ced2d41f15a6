//! `op-dbus models` and `op-dbus runtime`: which store is meant, and how their errors end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use op_dbus_daemon::settings::{Settings, Sources};

use super::models::{self, ModelsCommand, Outcome};
use super::runtime::{self, RuntimeCommand};
use super::{Done, EXIT_CODES, Failure};

/// Options of both commands.
#[derive(clap::Args)]
struct StoreArgs {
    /// Model store; without it the configured one. The runtime's store is beside it
    #[arg(long, value_name = "PATH", global = true, help_heading = "Store", display_order = 100)]
    model_dir: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
}

#[derive(clap::Args)]
#[command(about = "Show, fetch, import, check and remove models", after_help = EXIT_CODES)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(clap::Args)]
#[command(about = "Show, fetch, check and remove ONNX Runtime and its provider libraries", after_help = EXIT_CODES)]
pub struct RuntimeArgs {
    #[command(subcommand)]
    command: RuntimeCommand,
    #[command(flatten)]
    store: StoreArgs,
}

pub fn run_models(args: ModelsArgs) -> Done {
    let (dir, advice) = (args.store.model_dir()?, args.store.advice());
    ended(models::run(args.command, &dir, &advice, args.store.json), &advice)
}

pub fn run_runtime(args: RuntimeArgs) -> Done {
    let (dir, advice) = (args.store.model_dir()?, args.store.advice());
    ended(runtime::run(args.command, &dir, &advice, args.store.json), &advice)
}

impl StoreArgs {
    /// The folder that is named, else the one that the service would use.
    fn model_dir(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.model_dir {
            return Ok(folder.clone());
        }
        Ok(Settings::load(&Sources::of_process(BTreeMap::new()))?.settings.model_dir)
    }

    fn advice(&self) -> Advice {
        Advice(self.model_dir.clone())
    }
}

/// What to type, in the sentences of the stores, which know nothing of `--model-dir`.
pub struct Advice(Option<PathBuf>);

impl Advice {
    /// The sentence with its commands for the store that was named, if one was.
    pub fn of(&self, sentence: impl ToString) -> String {
        let sentence = sentence.to_string();
        let Some(dir) = &self.0 else { return sentence };
        ["models", "runtime"].iter().fold(sentence, |sentence, command| {
            let here = format!("`op-dbus {command} --model-dir {} ", dir.display());
            sentence.replace(&format!("`op-dbus {command} "), &here)
        })
    }
}

fn ended(outcome: Outcome, advice: &Advice) -> Done {
    match outcome {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(match error.downcast_ref::<io::Error>() {
            Some(error) => Failure::output(error),
            None => Failure::refused(advice.of(error)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_for_the_store_that_was_named() {
        let sentence = "x is damaged; type `op-dbus models pull x`, or `op-dbus runtime list`";
        assert_eq!(Advice(None).of(sentence), sentence);
        let expected = "x is damaged; type `op-dbus models --model-dir /s pull x`, or \
                        `op-dbus runtime --model-dir /s list`";
        assert_eq!(Advice(Some("/s".into())).of(sentence), expected);
    }
}
