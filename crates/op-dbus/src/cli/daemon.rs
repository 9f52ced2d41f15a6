//! `op-dbus daemon`: the service. Its flags are made from the table of settings.

use clap::Command;
use op_dbus_daemon::daemon::{self, WorkerProgram};
use op_dbus_daemon::settings::{Group, ROWS, Row, Settings, Sources};

use super::flags::{self, Given};
use super::{Done, SERVICE_EXIT_CODES};
use crate::{dumps, open_files};

const ABOUT: &str = "Run the service";

const EXAMPLES: &str = "\
Examples:
  op-dbus daemon --state-file /var/lib/op-dbus/state.json
  op-dbus daemon --bus session --cpu-engine sim --vector-level low";

/// The flags of the service: its own settings.
pub enum Flags {}

impl flags::Program for Flags {
    fn rows() -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| row.group != Group::Gateway)
    }

    fn about(command: Command) -> Command {
        command
            .about(ABOUT)
            .long_about(
                "Run the service: embeddings on D-Bus.\n\nEvery setting but --config can \
                 also be set in /etc/op-dbus/config.toml, and all by OP_DBUS_<SETTING>; a flag wins over \
                 both. \
                 The bus method GetSettings tells what is in force, and whence.",
            )
            .after_help(format!("{EXAMPLES}\n\n{SERVICE_EXIT_CODES}"))
    }
}

pub fn run(args: Given<Flags>) -> Done {
    let sources = Sources { repair_state: true, ..Sources::of_process(args.values) };
    let loaded = Settings::load(&sources)?;
    if !loaded.settings.core_dumps {
        dumps::refuse();
    }
    // Without free descriptors calls by descriptor are refused.
    open_files::allow_most();
    // Computing is done elsewhere, and every further thread is woken in vain now and then. But one alone
    // reads nobody's call while it tokenizes another's.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.div_ceil(2).max(cores.min(2));
    Ok(super::threaded(threads)?.block_on(daemon::run(loaded, WorkerProgram::this())))
}
