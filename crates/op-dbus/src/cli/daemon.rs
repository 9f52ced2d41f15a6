//! `op-dbus daemon`: the service. Its flags are made from the table of settings.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};
use op_dbus_daemon::daemon::{self, WorkerProgram};
use op_dbus_daemon::settings::{Group, Kind, Mistakes, ROWS, Row, Scope, Settings, Sources};

use super::{Done, EXIT_CODES, Failure};

const ABOUT: &str = "Run the service";

const EXAMPLES: &str = "\
Examples:
  op-dbus daemon --state-file /var/lib/op-dbus/state.json
  op-dbus daemon --bus session --cpu-engine sim --vector-level low";

/// Values given on the command line, by the setting's key.
pub struct Args {
    flags: BTreeMap<String, String>,
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let command = command
            .about(ABOUT)
            .long_about(
                "Run the service: embeddings on D-Bus.\n\nEvery setting can also be set in \
                 /etc/op-dbus/config.toml and by OP_DBUS_<SETTING>; a flag wins over both. \
                 `op-dbus config show` tells what is in force.",
            )
            .after_help(format!("{EXAMPLES}\n\n{EXIT_CODES}"));
        rows().fold(command, |command, row| command.arg(flag(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |row: &Row| {
            let value = matches.get_one::<String>(row.key)?;
            Some((row.key.to_owned(), value.clone()))
        };
        Ok(Self { flags: rows().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The settings of the service itself.
fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| row.group != Group::Gateway)
}

/// The flag of a setting. Values are checked with those of all other sources, not here, so that
/// all mistakes are told at once.
pub fn flag(row: &'static Row) -> Arg {
    let summary = row.doc.split_inclusive(". ").next().unwrap_or(row.doc).trim_end_matches(". ");
    let default = match row.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let summary = summary.trim_end_matches('.').replace('`', "");
    let values = row.kind.accepted().replace('`', "");
    Arg::new(row.key)
        // Clap keeps the name for as long as the program runs.
        .long(&*row.long().leak())
        .value_name(value_name(&row.kind))
        .help(format!("{summary}{default}"))
        .long_help(format!("{}\n\nValues: {values}{default}", row.doc.replace('`', "")))
        .help_heading(row.group.title())
        .hide(row.scope == Scope::Later)
}

fn value_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Choice(_) | Kind::Model => "NAME",
        Kind::Choices(_) => "NAMES",
        Kind::Devices => "NUMBERS",
        Kind::Bool => "BOOL",
        Kind::Count { .. } => "NUMBER",
        Kind::Bytes { .. } => "SIZE",
        Kind::Path { .. } => "PATH",
        Kind::Bus => "BUS",
        Kind::Listen => "ADDRESS",
        Kind::Filter => "FILTER",
        Kind::Text { .. } => "TEXT",
    }
}

/// A start that the settings do not allow.
pub fn refuse(mistakes: &Mistakes) -> Failure {
    match mistakes.exit_code() {
        2 => Failure::usage(mistakes.to_string()),
        _ => Failure::not_configured(mistakes.to_string()),
    }
}

pub fn run(args: Args) -> Done {
    let sources = Sources { repair_state: true, ..Sources::of_process(args.flags) };
    let loaded = Settings::load(&sources).map_err(|mistakes| refuse(&mistakes))?;
    // Computing is done elsewhere, and every further thread is woken in vain now and then.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Failure::refused(format!("can't start threads: {error}")))?;
    Ok(runtime.block_on(daemon::run(loaded, WorkerProgram::this())))
}
