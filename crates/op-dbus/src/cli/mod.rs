//! The command line: what each command takes and does, and what several of them share.

mod bulk;
mod caller;
mod client;
mod completions;
mod config;
mod cut;
mod daemon;
mod doctor;
mod embed;
mod ending;
mod failure;
mod flags;
mod gateway;
mod manual;
mod models;
mod numbers;
mod output;
mod own_cache;
mod packed;
mod places;
mod providers;
mod rank;
mod runtime;
mod similarity;
mod standard;
mod status;
mod store;
mod terminal;
mod texts;
mod top;
mod unnamed;

use std::ffi::OsString;
use std::process::ExitCode;
use std::{env, panic, process};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use op_dbus_daemon::settings::Bus;
use tokio::runtime::{Builder, Runtime};

use crate::{bench, devices, worker};

pub use bulk::mapped;
pub use client::{Properties, Service, connect, wait};
pub use ending::block_on_and_clear;
pub use failure::{
    EXIT_CODES, Failure, GATEWAY_EXIT_CODES, SERVICE_EXIT_CODES, pretty_json, print, printed, tell,
};
pub use numbers::floats;
pub use own_cache::instead_of as cache_instead_of;
pub use packed::{CALL_BYTES_MAX, name_of};
pub use texts::{check as check_text, decoded, unmarked};

/// How a command ends.
pub type Done = Result<ExitCode, Failure>;

/// Text embeddings as a Linux system service.
#[derive(Parser)]
#[command(name = "op-dbus", version, max_term_width = 100)]
#[command(after_help = OVERVIEW_END)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Embed(embed::Args),
    Rank(rank::Args),
    Similarity(similarity::Args),
    Status(status::Args),
    Top(top::Args),
    Providers(providers::Args),
    Doctor(doctor::Args),
    Daemon(flags::Given<daemon::Flags>),
    Gateway(flags::Given<gateway::Flags>),
    Bench(bench::Args),
    Models(store::ModelsArgs),
    Runtime(store::RuntimeArgs),
    Config(config::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Manual(manual::Args),
    #[command(hide = true)]
    Worker(worker::Args),
    /// Tells what the machine's accelerators do (internal)
    #[command(hide = true)]
    Devices,
}

/// Under which heading the overview lists each command.
const GROUPS: &[(&str, &[&str])] = &[
    ("Texts", &["embed", "rank", "similarity"]),
    ("Service", &["status", "top", "providers", "doctor", "daemon", "gateway", "bench"]),
    ("Setup", &["models", "runtime", "config", "completions"]),
];

const OVERVIEW_END: &str = "\
Examples:
  op-dbus status
  op-dbus embed 'the disk is full' --json
  journalctl -b -o cat | op-dbus rank 'why did the network go down'

`op-dbus COMMAND --help` tells more. On a terminal there are colours, unless NO_COLOR is set.";

/// Options of every command that speaks to the service.
#[derive(Args, Clone)]
pub struct BusArgs {
    /// Bus that the service is on: `system`, `session` or a D-Bus address
    #[arg(long, env = "OP_DBUS_BUS", default_value = "system", hide_env_values = true)]
    #[arg(value_name = "BUS", help_heading = "Service", display_order = 100)]
    #[arg(value_parser = bus)]
    pub bus: Bus,
}

/// Reads `--bus`. An empty variable counts as not set, as with every setting.
fn bus(text: &str) -> Result<Bus, String> {
    let is_unset = || env::var_os("OP_DBUS_BUS").is_some_and(|value| value.is_empty());
    if text.is_empty() && is_unset() { Ok(Bus::System) } else { text.parse() }
}

/// The complaint about a bus, which names a flag that was not given where the variable was wrong.
fn with_source(message: &str, args: impl IntoIterator<Item = OsString>) -> String {
    const NOT_UTF8: &str = "invalid UTF-8 was detected";
    let args: Vec<OsString> = args.into_iter().collect();
    let given = args.iter().any(|arg| arg.as_encoded_bytes().starts_with(b"--bus"));
    // Which value of several is not, its sentence does not say.
    if message.contains(NOT_UTF8) && args.iter().all(|arg| arg.to_str().is_some()) {
        return "the value of the environment variable OP_DBUS_BUS is not UTF-8 text".to_owned();
    }
    match given {
        true => message.to_owned(),
        false => message.replace("for '--bus <BUS>'", "of the environment variable OP_DBUS_BUS"),
    }
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    // A file larger than it may be (`LimitFSIZE=`, which holds for memory that is shared as well) is an error
    // of who writes it; by itself the kernel ends the whole process.
    if let Err(error) = SigSet::from(Signal::SIGXFSZ).thread_block() {
        tell(format!("a limit of file sizes would end this process: {error}"));
    }
    let matches = command().try_get_matches();
    match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failure.report()),
        Err(error) if error.use_stderr() => {
            let message = error.render().to_string();
            let message = with_source(&message, env::args_os());
            Failure::usage(message.trim_start_matches("error: ").trim_end()).report()
        }
        Err(help) => shown(&help).unwrap_or_else(|failure| failure.report()),
    }
}

/// Shows what was asked for instead of a command: help, or the version.
fn shown(help: &clap::Error) -> Done {
    let help = help.render();
    printed(if terminal::colour() { help.ansi().to_string() } else { help.to_string() })
}

fn run(command: Command) -> Done {
    match command {
        Command::Embed(args) => block_on(embed::run(args)),
        Command::Rank(args) => block_on(rank::run(args)),
        Command::Similarity(args) => block_on(similarity::run(args)),
        Command::Status(args) => block_on(status::run(args)),
        Command::Top(args) => block_on(top::run(args)),
        Command::Providers(args) => block_on(providers::run(args)),
        Command::Doctor(args) => doctor::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Models(args) => store::run_models(args),
        Command::Runtime(args) => store::run_runtime(args),
        Command::Config(args) => config::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Manual(args) => manual::run(args),
        Command::Worker(args) => Ok(worker::run(args)),
        Command::Devices => Ok(devices::run()),
    }
}

/// The whole command line, without the layout of its overview.
fn commands() -> clap::Command {
    with_exit_codes(Cli::command())
}

/// Has the help of a command, and of those below it, end with the exit codes, unless it has its own.
fn with_exit_codes(command: clap::Command) -> clap::Command {
    let help = match command.get_after_help().map(ToString::to_string) {
        Some(own) if own.contains("Exit codes: ") => own,
        Some(own) => format!("{own}\n\n{EXIT_CODES}"),
        None => EXIT_CODES.to_owned(),
    };
    if command.is_hide_set() { command } else { command.after_help(help) }
        .mut_subcommands(with_exit_codes)
}

/// The whole command line. The overview lists the commands in groups, which clap can't do by
/// itself; names and summaries still come from the commands.
fn command() -> clap::Command {
    let plain = commands();
    let styles = clap::builder::Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut listing = String::new();
    for (heading, names) in GROUPS {
        listing.push_str(&format!("\n{header}{heading}:{header:#}\n"));
        for command in names.iter().filter_map(|name| plain.find_subcommand(name)) {
            let name = command.get_name();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            listing.push_str(&format!("  {literal}{name:<12}{literal:#} {about}\n"));
        }
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{listing}\n\
         {header}Options:{header:#}\n{{options}}{{after-help}}\n"
    );
    plain.help_template(template)
}

/// The runtime of a service, with so many threads.
fn threaded(threads: usize) -> Result<Runtime, Failure> {
    let why = "can't start threads; raise the limit of tasks";
    runtime(Builder::new_multi_thread().worker_threads(threads), why)
}

/// Builds a runtime. It panics where it can't have all threads or its pair of sockets, and on its way out
/// waits for ever for the threads that it has; `why` is said instead.
fn runtime(builder: &mut Builder, why: &'static str) -> Result<Runtime, Failure> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |_| {
        tell(why);
        process::exit(1);
    }));
    let runtime = builder.enable_all().build();
    panic::set_hook(hook);
    runtime.map_err(|error| Failure::refused(format!("can't start: {error}")))
}

/// The runtime of a client command: one thread is enough to talk to a bus.
fn single_threaded() -> Result<Runtime, Failure> {
    let why = "can't start: too few files may be open; raise the limit (ulimit -n)";
    runtime(&mut Builder::new_current_thread(), why)
}

/// Runs a client command.
pub fn block_on<F: Future<Output = Done>>(command: F) -> Done {
    single_threaded()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn help_is_a_command_as_well() {
        for words in [&["op-dbus", "help"][..], &["op-dbus", "help", "embed"]] {
            let help = command().try_get_matches_from(words).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}: {help}");
        }
    }

    #[test]
    fn a_wrong_bus_is_told_with_its_source() {
        let message = "invalid value 'x' for '--bus <BUS>': …";
        let told = |args: &[&str]| with_source(message, args.iter().map(OsString::from));
        assert_eq!(told(&["op-dbus", "status", "--bus=x"]), message);
        let of_variable = "invalid value 'x' of the environment variable OP_DBUS_BUS: …";
        assert_eq!(told(&["op-dbus", "status"]), of_variable);
        let not_utf8 = clap::Error::new(clap::error::ErrorKind::InvalidUtf8).to_string();
        let told = |args: &[&[u8]]| {
            let args = args.iter().map(|arg| OsStr::from_bytes(arg).to_owned());
            with_source(&not_utf8, args)
        };
        assert!(told(&[b"op-dbus", b"status"]).contains("variable OP_DBUS_BUS is not UTF-8"));
        assert_eq!(told(&[b"op-dbus", b"embed", b"\xff"]), not_utf8);
        // The complaint is worded by another crate. An empty flag is no address either.
        for wrong in ["x", ""] {
            let wrong = command().try_get_matches_from(["op-dbus", "status", "--bus", wrong]);
            assert!(wrong.unwrap_err().to_string().contains("for '--bus <BUS>'"));
        }
    }

    #[test]
    fn every_visible_command_is_in_the_overview_with_a_summary() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            assert!(grouped.contains(&command.get_name()), "{} is in no group", command.get_name());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && about.len() <= 80, "{}: {about:?}", command.get_name());
        }
    }

    #[test]
    fn every_command_lists_the_exit_codes() {
        let mut below: Vec<clap::Command> = commands().get_subcommands().cloned().collect();
        let mut seen = 0;
        while let Some(mut command) = below.pop() {
            let help = command.render_long_help().to_string();
            let expected = usize::from(!command.is_hide_set());
            assert_eq!(help.matches("Exit codes: ").count(), expected, "{command}:\n{help}");
            // `help` is clap's own.
            below.extend(command.get_subcommands().filter(|c| c.get_name() != "help").cloned());
            seen += 1;
        }
        assert!(seen > GROUPS.iter().map(|(_, names)| names.len()).sum::<usize>(), "those below");
    }
}
