//! Logs: to the journal when it listens on standard error, else to standard error as text.
//! The content of a caller's text is never logged.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{DefaultFields, FormatEvent, FormatFields, Writer};
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::settings::did_you_mean;

/// The name our entries have in the journal (`journalctl -t op-dbus`).
pub const SYSLOG_IDENTIFIER: &str = "op-dbus";

/// What an entry's field `DOCUMENTATION` points to: packages install it there.
const DOCUMENTATION: &str = "file:///usr/share/doc/op-dbus/operate.md";

/// The levels that a filter may name.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whatever logs here. What a filter names beside levels is one of these, or a module in one.
const TARGETS: [&str; 15] = [
    "op_dbus",
    "op_dbus_daemon",
    "op_dbus_embedder",
    "op_dbus_engine",
    "op_dbus_gateway",
    "op_dbus_graph",
    "op_dbus_native",
    "op_dbus_ort",
    "op_dbus_remote",
    "h2",
    "hyper_util",
    "ort",
    "tonic",
    "tower",
    "zbus",
];

/// What is shown of what others wrote unless a filter names it: the rest tells an administrator nothing, and
/// zbus's spans cost each call more than its message.
const QUIET: [(&str, LevelFilter); 6] = [
    ("h2", LevelFilter::WARN),
    ("hyper_util", LevelFilter::WARN),
    ("ort", LevelFilter::ERROR),
    ("tonic", LevelFilter::WARN),
    ("tower", LevelFilter::WARN),
    ("zbus", LevelFilter::WARN),
];

/// Ids of the entries that scripts and the journal's catalog may rely on. They go into the field
/// `MESSAGE_ID`: `info!(MESSAGE_ID = message_id::READY, "…")`.
pub mod message_id {
    /// The daemon starts.
    pub const START: &str = "bfbbe99c67164378a0428c4f441457d9";
    /// Calls are answered.
    pub const READY: &str = "7034ecc910c14df4964cf9b5e05b56d3";
    /// A model was loaded.
    pub const MODEL_LOADED: &str = "f1ccae7ffb9143cb87eb0af0ec1f3a9d";
    /// A model's workers were ended, or have let their device go, until they are needed again.
    pub const MODEL_UNLOADED: &str = "cc99bc5ad07f4ff69cdabc73c8e84681";
    /// Memory was given back to the system.
    pub const MEMORY_TRIMMED: &str = "932b08256ddc4b7aaecf85ddeb716a27";
    /// Another provider than the one asked for is used.
    pub const PROVIDER_FALLBACK: &str = "c25cb32f822f4f14b390d529f53517d6";
    /// A worker process died or hung.
    pub use op_dbus_engine::WORKER_LOST_MESSAGE_ID as WORKER_LOST;
    /// A worker process that was lost has been replaced.
    pub use op_dbus_engine::WORKER_REPLACED_MESSAGE_ID as WORKER_REPLACED;
    /// The state file could not be used.
    pub const STATE_CORRUPT: &str = "524cd06e258f48389b25929daac1fc06";
    /// The settings were read again.
    pub const CONFIG_RELOADED: &str = "c77b391f437545ebb4085a6c1df17130";
    /// A user was refused for having too much in flight.
    pub const QUOTA: &str = "5686f5b1a20b4d4c87eabc2e083335cb";

    /// Every id, with a name for people.
    pub const ALL: &[(&str, &str)] = &[
        ("start", START),
        ("ready", READY),
        ("model loaded", MODEL_LOADED),
        ("model unloaded", MODEL_UNLOADED),
        ("memory trimmed", MEMORY_TRIMMED),
        ("provider fallback", PROVIDER_FALLBACK),
        ("worker lost", WORKER_LOST),
        ("worker replaced", WORKER_REPLACED),
        ("state corrupt", STATE_CORRUPT),
        ("config reloaded", CONFIG_RELOADED),
        ("quota", QUOTA),
    ];
}

const MINUTE: Duration = Duration::from_secs(60);

/// Users of whom something is told in a minute.
const USERS_MAX: usize = 64;

/// What is told in the log of each user once in a minute, whatever is told of others. Clones share the minutes.
#[derive(Clone, Default)]
pub struct OncePerUserAndMinute(Arc<Mutex<HashMap<u32, Instant>>>);

impl OncePerUserAndMinute {
    /// Whether it is to be told of `uid` now; then it is not for a minute. Nor is it where it was of as many
    /// users as there is room for, so that neither this nor the log grows with them.
    pub fn is_due(&self, uid: u32) -> bool {
        let mut told = self.0.lock();
        told.retain(|_, told| told.elapsed() < MINUTE);
        if told.len() >= USERS_MAX || told.contains_key(&uid) {
            return false;
        }
        told.insert(uid, Instant::now());
        true
    }
}

/// The filter in force; empty before logging was started.
static FILTER: Mutex<String> = Mutex::new(String::new());

/// What is logged now, if logging was started: workers are told when they are.
pub fn filter() -> Option<String> {
    Some(FILTER.lock().clone()).filter(|filter| !filter.is_empty())
}

fn keep(filter: &str) {
    filter.clone_into(&mut FILTER.lock());
}

/// Changes the filter while the program runs.
#[derive(Clone, Debug)]
pub struct Telemetry {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Telemetry {
    /// Uses another filter from now on.
    ///
    /// # Errors
    /// One sentence, when `filter` is not one; the old filter stays.
    pub fn set_filter(&self, filter: &str) -> Result<(), String> {
        self.filter.reload(parse_filter(filter)?).map_err(|error| error.to_string())?;
        keep(filter);
        Ok(())
    }
}

/// Starts logging for the whole process, with a filter such as `info` or
/// `info,op_dbus_engine=debug`. The journal shows messages without their fields unless it is asked for
/// them: what somebody has to know is in the message.
///
/// # Errors
/// One sentence, when `filter` is not one, or when logging was started before.
pub fn start(filter: &str) -> Result<Telemetry, String> {
    let journal = journal_listens(io::stderr()).then(tracing_journald::layer);
    match journal {
        Some(Ok(layer)) => {
            // Fields keep their names, so that MESSAGE_ID is the journal's own.
            let layer = layer
                .with_field_prefix(None)
                .with_custom_fields([("DOCUMENTATION", DOCUMENTATION)])
                .with_syslog_identifier(SYSLOG_IDENTIFIER.to_owned())
                .with_priority_mappings(priorities());
            start_with(filter, layer.boxed())
        }
        Some(Err(_)) | None => start_with(filter, text()),
    }
}

/// The same for a process that may reach nobody but who reads its standard error: where that is the
/// journal, it is told priorities and keeps the time by itself.
///
/// # Errors
/// As of [`start`].
pub fn start_confined(filter: &str) -> Result<Telemetry, String> {
    let output = match journal_listens(io::stderr()) {
        true => lines().with_writer(io::stderr).boxed(),
        false => text(),
    };
    start_with(filter, output)
}

/// What logs are written by.
type Output = Box<dyn Layer<Filtered> + Send + Sync>;
type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;

fn text() -> Output {
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    layer.with_target(false).boxed()
}

/// Lines for the journal, each with its priority in front.
fn lines() -> fmt::Layer<Filtered, DefaultFields, WithPriority> {
    fmt::layer().with_ansi(false).event_format(WithPriority)
}

struct WithPriority;

impl<S, N> FormatEvent<S, N> for WithPriority
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

fn start_with(filter: &str, output: Output) -> Result<Telemetry, String> {
    let (layer, handle) = reload::Layer::new(parse_filter(filter)?);
    let registry = tracing_subscriber::registry().with(layer).with(output);
    registry.try_init().map_err(|error| error.to_string())?;
    keep(filter);
    std::panic::set_hook(Box::new(|panic| {
        // The place alone: the message of a panic may quote the text that it fell over.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!("a panic was caught at {place}, please report it");
    }));
    Ok(Telemetry { filter: handle })
}

/// Checks a log filter.
///
/// # Errors
/// One clause that says what is wrong with it.
pub fn parse_filter(filter: &str) -> Result<EnvFilter, String> {
    let parse = |text: &str| {
        let parsed = EnvFilter::builder().parse(text);
        parsed.map_err(|error| format!("`{filter}` is not a log filter ({error})"))
    };
    parse(filter)?;
    // The parser takes any word for the name of something that logs, and a filter that names nothing
    // else lets nothing through.
    let mut parts = filter.split(',').filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() {
        return Err("it names no level".to_owned());
    }
    let mut quiet = String::new();
    for part in parts {
        let target = part.split(['=', '[']).next().unwrap_or_default();
        let program = target.split("::").next().unwrap_or_default();
        let is_alone = target == part;
        if let Some(level) = target.parse::<LevelFilter>().ok().filter(|_| is_alone) {
            let quiet_at =
                |(target, most): &(_, LevelFilter)| format!("{target}={},", level.min(*most));
            quiet = QUIET.iter().map(quiet_at).collect();
            continue;
        }
        if target.is_empty() || TARGETS.contains(&program) {
            continue;
        }
        let levels = LEVELS.into_iter().filter(|_| is_alone);
        let hint = did_you_mean(program, levels.chain(TARGETS));
        let hint = hint.map(|best| format!(" (did you mean `{best}`?)")).unwrap_or_default();
        return Err(match is_alone {
            true => format!("`{target}` is not a level{hint}"),
            false => format!("nothing logs as `{target}`{hint}"),
        });
    }
    // What comes later of one name is what counts.
    parse(&format!("{quiet}{filter}"))
}

/// What `info!` says is information to systemd as well, not a notice.
fn priorities() -> tracing_journald::PriorityMappings {
    use tracing_journald::{Priority, PriorityMappings};
    PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    }
}

/// Whether `stderr` is the very stream that systemd says it connected to the journal. A program
/// started from a service's shell inherits the variable, but not always the stream.
fn journal_listens(stderr: impl AsFd) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    same_stream(stderr, &stream)
}

fn same_stream(fd: impl AsFd, stream: &str) -> bool {
    let Ok(stat) = nix::sys::stat::fstat(fd) else { return false };
    stream.split_once(':').is_some_and(|(device, inode)| {
        device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino)
    })
}

#[cfg(test)]
mod tests;
