//! Flags that are made from the table of settings.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use op_dbus_daemon::settings::{Kind, Row};

/// A subcommand whose flags are settings.
pub trait Program {
    /// The settings that it takes.
    fn rows() -> impl Iterator<Item = &'static Row>;

    /// Tells of it in its help.
    fn about(command: Command) -> Command;
}

/// What was given of its flags.
pub struct Given<P> {
    /// By the setting's key.
    pub values: BTreeMap<String, String>,
    program: PhantomData<P>,
}

impl<P: Program> clap::Args for Given<P> {
    fn augment_args(command: Command) -> Command {
        P::rows().fold(P::about(command), |command, row| command.arg(flag(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Program> FromArgMatches for Given<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |row: &Row| {
            let value = matches.get_one::<String>(row.key)?;
            Some((row.key.to_owned(), value.clone()))
        };
        Ok(Self { values: P::rows().filter_map(given).collect(), program: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting. Values are checked with those of all other sources, not here, so that
/// all mistakes are told at once.
fn flag(row: &'static Row) -> Arg {
    let summary = row.doc.split_inclusive(". ").next().unwrap_or(row.doc).trim_end_matches(". ");
    let default = match row.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let summary = summary.trim_end_matches('.').replace('`', "");
    let values = row.kind.accepted().replace('`', "");
    Arg::new(row.key)
        .long(row.long())
        .value_name(value_name(&row.kind))
        .help(format!("{summary}{default}"))
        .long_help(format!("{}\n\nValues: {values}{default}", row.doc.replace('`', "")))
        .help_heading(row.group.title())
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
        Kind::List { .. } => "LIST",
        Kind::Text { .. } => "TEXT",
    }
}
