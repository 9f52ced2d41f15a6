//! Flags that are made from the table of settings.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};
use op_dbus_daemon::settings::{Kind, Row};

/// Gives a command the flags of these settings.
pub fn add(command: Command, rows: impl Iterator<Item = &'static Row>) -> Command {
    rows.fold(command, |command, row| command.arg(flag(row)))
}

/// What was given of them, by the setting's key.
pub fn given(
    matches: &ArgMatches,
    rows: impl Iterator<Item = &'static Row>,
) -> BTreeMap<String, String> {
    let given = |row: &Row| {
        let value = matches.get_one::<String>(row.key)?;
        Some((row.key.to_owned(), value.clone()))
    };
    rows.filter_map(given).collect()
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
        // Clap keeps the name for as long as the program runs.
        .long(&*row.long().leak())
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
