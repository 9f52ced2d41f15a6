//! `op-dbus manual`: the pages of `man op-dbus` and of each command, for whoever packages op-dbus.
//! They say what `--help` says, as both come from the same definitions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, ValueHint};

use super::{Cli, Done, Failure};

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Args {
    /// An existing folder
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub fn run(args: Args) -> Done {
    // The groups of the overview are laid out for a terminal; a page has its own layout.
    let command = Cli::command();
    match clap_mangen::generate_to(command, &args.folder) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let folder = args.folder.display();
            Err(Failure::refused(format!("can't write the pages into {folder}: {error}")))
        }
    }
}
