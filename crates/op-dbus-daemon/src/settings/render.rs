//! The table as a configuration file and as a page of documentation.

use super::kind::Kind;
use super::options;
use super::row::{Group, Row, Scope};
use super::table::ROWS;

/// Columns of the configuration file's comments.
const WIDTH: usize = 96;

/// The shipped configuration file: every setting with its built-in value, commented out.
pub fn config_file() -> String {
    let mut out = String::from(
        "# Settings of op-dbus. Every line with a value shows what is built in; take the # away\n\
         # to change it. Later sources win: /usr/lib/op-dbus/config.toml, this file, the files\n\
         # /etc/op-dbus/conf.d/*.toml by name, what was changed over the bus, environment\n\
         # variables OP_DBUS_<KEY>, flags. `op-dbus config check` finds every mistake at once,\n\
         # `op-dbus config show` tells where each value comes from.\n",
    );
    for group in Group::ALL {
        out.push_str(&heading(group.title()));
        for row in rows(group).filter(|row| row.scope != Scope::Outside) {
            out.push('\n');
            for text in [row.doc, &values(row)] {
                for line in wrap(&text.replace('`', ""), WIDTH - 2) {
                    out.push_str(&format!("# {line}\n"));
                }
            }
            out.push_str(&format!("#{} = {}\n", row.key, toml_value(row)));
        }
    }
    for Table { title, about, example } in TABLES {
        out.push_str(&heading(title));
        out.push('\n');
        for line in wrap(&about.replace('`', ""), WIDTH - 2) {
            out.push_str(&format!("# {line}\n"));
        }
        for line in example.lines() {
            out.push_str(&format!("#{line}\n"));
        }
    }
    out
}

fn heading(title: &str) -> String {
    format!("\n# ---- {title} {}\n", "-".repeat(WIDTH - title.len() - 8))
}

/// `docs/config.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Settings\n\n\
         <!-- Made by `op-dbus config show --defaults --markdown`; change the table. -->\n\n\
         Every setting has one name in three forms: `vector_level` in a file,\n\
         `OP_DBUS_VECTOR_LEVEL` in the environment and `--vector-level` after `op-dbus daemon`.\n\
         `op-dbus gateway` has `--http-listen`, which the daemon has not, and `--bus`, `--config`,\n\
         `--log` and `--core-dumps`.\n\
         The sources are read in this order, and the last one that has a value wins:\n\n",
    );
    for (position, source) in SOURCES.iter().enumerate() {
        let end = if position + 1 < SOURCES.len() { ',' } else { '.' };
        out.push_str(&format!("{}. {source}{end}\n", position + 1));
    }
    out.push_str(
        "\nA wrong value in a file, the environment or a flag stops the start with exit code 6 (2 when\n\
         only flags are wrong) and one message that lists all mistakes, also in values that a later\n\
         source overrides. What is wrong in the state file is ignored, and the log says so. What the\n\
         environment or a flag sets cannot be changed over the bus.\n\n\
         A file of another name in `conf.d` is not read, and a warning says so, unless it is hidden,\n\
         called `README`, or put aside as by an editor or a package manager (`10.toml~`, `10.toml.bak`,\n\
         `10.toml.rpmsave`).\n\n\
         `op-dbus config show` tells each value and where it comes from; `op-dbus config check`\n\
         finds the mistakes without starting anything.\n",
    );
    for group in Group::ALL {
        out.push_str(&format!("\n## {}\n", group.title()));
        for row in rows(group) {
            let default = if row.default.is_empty() {
                "not set".to_owned()
            } else {
                format!("`{}`", row.default)
            };
            let doc = wrap(row.doc, WIDTH).join("\n");
            let (variable, flag) = (row.variable(), row.flag());
            out.push_str(&format!(
                "\n### `{}`\n\n{doc}\n\n- {}\n- Default: {default}\n\
                 - Also: `{variable}`, `{flag}`\n",
                row.key,
                values(row)
            ));
            if let Some(note) = remark(row.scope) {
                out.push_str(&format!("- {note}\n"));
            }
        }
    }
    for Table { title, about, example } in TABLES {
        let about = wrap(about, WIDTH).join("\n");
        out.push_str(&format!("\n## {title}\n\n{about}\n\n```toml\n{example}```\n"));
    }
    out.push_str(&format!("\n{}\n", wrap(OPTIONS_ABOUT, WIDTH).join("\n")));
    for provider in option_providers() {
        out.push_str(&format!("\n### `[providers.{provider}]`\n\n"));
        out.push_str("| option | values | default | what it does |\n|---|---|---|---|\n");
        for option in options::of(provider) {
            let (key, values, doc) = (option.key, option.kind.accepted(), option.doc);
            let default = option.shown_default();
            out.push_str(&format!("| `{key}` | {values} | {default} | {doc} |\n"));
        }
    }
    out
}

/// What the lists of options have in common.
pub const OPTIONS_ABOUT: &str = "The options of a provider have the names that ONNX Runtime has for them, \
    and its defaults, but for the two caches of `tensorrt`. A provider is told only those that are set, that a \
    setting for all providers or `precision` calls for, or that keep what it compiles in `cache_dir`. Those of \
    `remote` are our own.";

/// The providers that have options, in the order in which they are shown.
pub fn option_providers() -> Vec<&'static str> {
    let mut providers: Vec<&str> = options::all().map(|option| option.provider).collect();
    providers.dedup();
    providers
}

/// Where values come from, in the order in which they are read.
pub const SOURCES: [&str; 7] = [
    "built-in values",
    "`/usr/lib/op-dbus/config.toml` (the distribution's)",
    "`/etc/op-dbus/config.toml` (yours)",
    "`/etc/op-dbus/conf.d/*.toml`, by name",
    "the state file: what was changed over the bus",
    "environment variables (an empty one counts as not set)",
    "flags",
];

/// A table that a file may have beside the settings.
pub struct Table {
    /// Its heading.
    pub title: &'static str,
    /// What it is for, as a sentence that ends in a colon.
    pub about: &'static str,
    /// Lines of a file.
    pub example: &'static str,
}

/// The tables that a file may have.
pub const TABLES: [Table; 2] = [
    Table {
        title: "Single models",
        about: "A table `[models.NAME]` in a file says how one model is used, by its name in the store:",
        example: "\
[models.my-model]
default_prompt = \"query\"   # used when a call names none; \"\" is none at all
prompts = { query = \"query: \", passage = \"passage: \" }   # added to the model's own
",
    },
    Table {
        title: "Single providers",
        about: "A table `[providers.NAME]` in a file says how one execution provider beside `cpu` is used; `faults` \
                in it has its workers fail on purpose (operate.md):",
        example: "\
[providers.webgpu]
library = \"/opt/libonnxruntime_providers_webgpu.so\"   # a plugin that ONNX Runtime loads
powerPreference = \"high-performance\"   # an option: op-dbus.toml(5) lists them
options = { enableInt64 = \"1\" }   # what there is no setting for, in the provider's own words
",
    },
];

fn rows(group: Group) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| row.group == group)
}

/// What is accepted, as a sentence.
pub fn values(row: &Row) -> String {
    let unit = match row.unit {
        "" => String::new(),
        unit => format!(" {unit}"),
    };
    format!("Values: {}{unit}.", row.kind.accepted())
}

/// What is special about where a setting may be set, as a sentence.
pub fn remark(scope: Scope) -> Option<&'static str> {
    match scope {
        Scope::Runtime => Some("May be changed over the bus while the service runs."),
        Scope::Outside => Some("Not in files."),
        Scope::Any => None,
    }
}

/// The default as TOML.
fn toml_value(row: &Row) -> String {
    let bare = match row.kind {
        Kind::Bool => true,
        Kind::Count { .. } | Kind::Bytes { .. } => {
            row.default.bytes().all(|byte| byte.is_ascii_digit())
        }
        _ => false,
    };
    match row.kind {
        _ if bare => row.default.to_owned(),
        Kind::Choices(_) => format!("[\"{}\"]", row.default.replace(',', "\", \"")),
        _ => format!("\"{}\"", row.default),
    }
}

/// Breaks a text into lines of at most `width` characters; a longer word gets its own line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}
