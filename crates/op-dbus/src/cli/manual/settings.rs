//! `op-dbus.toml(5)`: the table of settings as a manual page.

use op_dbus_daemon::settings::{
    Group, Kind, OPTIONS_ABOUT, ROWS, Row, SOURCES, TABLES, option_providers, options, remark,
    values,
};

use super::page::Page;

pub fn page() -> String {
    let mut page = Page::new("op-dbus.toml", "5", "settings of op-dbus");
    page.section("SYNOPSIS").lines(
        "/usr/lib/op-dbus/config.toml\n/etc/op-dbus/config.toml\n/etc/op-dbus/conf.d/*.toml",
    );
    page.section("DESCRIPTION").paragraph(
        "Each setting has one name in three forms: a key in a file, the variable `OP_DBUS_` and \
         the key in capitals, and a flag of `op-dbus daemon`; `op-dbus gateway` has that of \
         `http_listen`, which the daemon has not, and those of `bus`, `config`, `log` and \
         `core_dumps`. The sources are read in this order, \
         and the last one that has a value wins:",
    );
    for (position, source) in SOURCES.iter().enumerate() {
        page.term(&format!("{}.", position + 1), source);
    }
    page.paragraph(
        "A wrong value in a file, the environment or a flag stops the start with exit code 6 (2 when \
         only flags are wrong) and one message that lists all mistakes. What is wrong in the state \
         file is ignored, and the log says so. `op-dbus config check` finds them without starting \
         anything, `op-dbus config show` tells each value and where it comes from.",
    );
    page.section("SETTINGS");
    for group in Group::ALL {
        page.subsection(group.title());
        for row in ROWS.iter().filter(|row| row.group == group) {
            setting(&mut page, row);
        }
    }
    page.section("TABLES");
    for table in TABLES {
        page.subsection(table.title).paragraph(table.about).lines(table.example);
    }
    page.section("OPTIONS OF PROVIDERS").paragraph(OPTIONS_ABOUT);
    for provider in option_providers() {
        page.subsection(&format!("[providers.{provider}]"));
        for option in options::of(provider) {
            page.term(option.key, option.doc);
            let (kind, values) = (kind(&option.kind), option.kind.accepted());
            let default = option.shown_default();
            page.under_term(&format!("Type: {kind}. Values: {values}. Default: {default}."));
        }
    }
    page.see_also(&["op-dbus(1)", "op-dbus-config(1)", "op-dbus.service(8)"])
}

fn setting(page: &mut Page, row: &Row) {
    let default = if row.default.is_empty() { "not set" } else { row.default };
    page.term(row.key, row.doc);
    let (kind, values) = (kind(&row.kind), values(row));
    page.under_term(&format!("Type: {kind}. {values} Default: `{default}`."));
    let also = format!("Also `{}` and `{}`.", row.variable(), row.flag());
    page.under_term(&match remark(row.scope) {
        Some(remark) => format!("{also} {remark}"),
        None => also,
    });
}

/// How a value is written in a file.
fn kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Choice(_)
        | Kind::Model
        | Kind::Path { .. }
        | Kind::Bus
        | Kind::Listen
        | Kind::Filter
        | Kind::Text { .. } => "string",
        Kind::Choices(_) | Kind::List { .. } => "list of strings",
        Kind::Devices => "number, list of numbers, or string",
        Kind::Bool => "boolean",
        Kind::Count { word: None, .. } => "whole number",
        Kind::Count { .. } => "whole number, or string",
        Kind::Bytes { .. } => "whole number, or string with a unit",
    }
}
