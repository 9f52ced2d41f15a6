//! `op-dbus runtime`: the pinned ONNX Runtime library in its store beside the model store.

use std::io::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use op_dbus_models::runtime::beside;
use op_dbus_models::{Progress, RuntimeStore, manifest};
use serde_json::json;

use super::EXIT_CODES;
use super::models::{Outcome, SourceArgs};

/// Fetch and check the ONNX Runtime library
#[derive(Subcommand)]
pub enum RuntimeCommand {
    Pull(PullArgs),
    /// Compare the library with its digest
    #[command(after_help = EXIT_CODES)]
    Verify,
}

/// Fetch the pinned library, verified by digest
///
/// It comes out of the Python package `onnxruntime`, fetched with your own pip or found in the
/// folder of --from.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  op-dbus runtime pull
  op-dbus runtime pull --from /media/stick --source folder

{EXIT_CODES}"))]
pub struct PullArgs {
    #[command(flatten)]
    sources: SourceArgs,
}

/// Does what the command says with the runtime store beside `model_dir`; results on standard
/// output (as JSON when `json`), progress on standard error.
pub fn run(command: RuntimeCommand, model_dir: &Path, json: bool) -> Outcome {
    let store = RuntimeStore::open(beside(model_dir));
    let (path, done) = match command {
        RuntimeCommand::Pull(args) => {
            (store.pull(&args.sources.sources()?, &Progress::stderr())?, "installed")
        }
        RuntimeCommand::Verify => (store.verify()?, "undamaged"),
    };
    let version = &manifest::runtime().version;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", json!({ "version": version, "done": done, "path": path }))?;
    } else {
        writeln!(out, "ONNX Runtime {version}: {done} ({})", path.display())?;
    }
    Ok(())
}
