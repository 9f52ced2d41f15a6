//! `op-dbus models` and `op-dbus runtime`: which store is meant, and how their errors end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use op_dbus_daemon::settings::{Settings, Sources};
use op_dbus_models::Error;

use super::models::{self, ModelsCommand};
use super::runtime::{self, RuntimeCommand};
use super::terminal::{Colour, paint};
use super::{Done, Failure};

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
#[command(about = "Show, fetch, import, check and remove models")]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(clap::Args)]
#[command(about = "Show, fetch, check and remove ONNX Runtime and its provider libraries")]
pub struct RuntimeArgs {
    #[command(subcommand)]
    command: RuntimeCommand,
    #[command(flatten)]
    store: StoreArgs,
}

pub fn run_models(args: ModelsArgs) -> Done {
    models::run(args.command, &args.store.model_dir()?, args.store.json)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run_runtime(args: RuntimeArgs) -> Done {
    runtime::run(args.command, &args.store.model_dir()?, args.store.json)?;
    Ok(ExitCode::SUCCESS)
}

impl StoreArgs {
    /// The folder that is named, else the one that the service would use.
    fn model_dir(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.model_dir {
            // `.` has neither a folder around it nor a meaning in a command that is told.
            let told = |error| Failure::usage(format!("--model-dir {}: {error}", folder.display()));
            return std::path::absolute(folder).map_err(told);
        }
        Ok(Settings::load(&Sources::of_process(BTreeMap::new()))?.settings.model_dir)
    }
}

/// How `list` calls what is there as it should be, what is not, and what is not as it should be.
const INSTALLED: &str = "installed";
pub(super) const MISSING: &str = "not installed";
pub(super) const DAMAGED: &str = "damaged";
/// This user may not read it, or somebody may write it who should not.
pub(super) const REFUSED: &str = "refused";

/// What a look found, how `list` calls that, and what is wrong. It is a look at sizes and permissions only;
/// `verify` reads the contents.
pub(super) fn looked<T>(found: Result<T, Error>) -> (Option<T>, &'static str, Option<String>) {
    match found {
        Ok(found) => (Some(found), INSTALLED, None),
        // That there is no store is told once, and not of each.
        Err(Error::NotInstalled { .. } | Error::NoFolder { .. }) => (None, MISSING, None),
        Err(Error::NoLibrary(_)) => (None, "not for this machine", None),
        Err(error @ Error::Permission { .. }) => (None, REFUSED, Some(error.to_string())),
        Err(error) => (None, DAMAGED, Some(error.to_string())),
    }
}

/// One of these words in its colour.
pub(super) fn painted(state: &str, colour: bool) -> String {
    let shade = match state {
        INSTALLED => Colour::Good,
        DAMAGED | REFUSED => Colour::Bad,
        _ => Colour::Faint,
    };
    paint(state, shade, colour)
}

/// What a store refuses. A name that nobody knows is a mistake of the command line.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Unknown { .. } | Error::UnknownProvider { .. } => Self::usage(error.to_string()),
            _ => Self::refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_one_is_in_is_a_store_of_its_own() {
        let args = |dir: &str| StoreArgs { model_dir: Some(dir.into()), json: false };
        assert_eq!(args(".").model_dir().unwrap(), std::env::current_dir().unwrap());
        assert!(args("").model_dir().is_err());
    }
}
