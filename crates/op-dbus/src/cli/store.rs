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
    ended(models::run(args.command, &args.store.model_dir()?, args.store.json))
}

pub fn run_runtime(args: RuntimeArgs) -> Done {
    ended(runtime::run(args.command, &args.store.model_dir()?, args.store.json))
}

impl StoreArgs {
    /// The folder that is named, else the one that the service would use.
    fn model_dir(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.model_dir {
            return Ok(folder.clone());
        }
        Ok(Settings::load(&Sources::of_process(BTreeMap::new()))?.settings.model_dir)
    }
}

fn ended(outcome: Outcome) -> Done {
    match outcome {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(match error.downcast_ref::<io::Error>() {
            Some(error) => Failure::output(error),
            None => Failure::refused(error.to_string()),
        }),
    }
}
