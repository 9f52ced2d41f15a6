//! `op-dbus gateway`: HTTP in front of the service. Its flags are made from the table of settings.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Command;
use op_dbus_daemon::settings::{Group, Listen, ROWS, Row, Settings, Sources};
use op_dbus_daemon::telemetry;
use op_dbus_gateway::{Address, Config, Fatal};

use super::flags::{self, Given};
use super::{Done, Failure, GATEWAY_EXIT_CODES};
use crate::dumps;

const EXAMPLES: &str = "\
Examples:
  op-dbus gateway --http-listen 127.0.0.1:8080
  op-dbus gateway --http-listen unix:/run/user/1000/op-dbus.sock --bus session
  curl http://127.0.0.1:8080/v1/embeddings -H 'Content-Type: application/json' \\
    -d '{\"input\": \"disk full\", \"model\": \"default\"}'";

/// The flags of the gateway: the settings that it reads.
pub enum Flags {}

impl flags::Program for Flags {
    fn rows() -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| {
            row.group == Group::Gateway || ["bus", "config", "log", "core_dumps"].contains(&row.key)
        })
    }

    fn about(command: Command) -> Command {
        command
            .about("Answer HTTP for the service: OpenAI's routes and others")
            .long_about(
                "Answer HTTP for the service: embeddings as OpenAI's and \
                 text-embeddings-inference's clients ask for them, metrics, and a status page.\n\n\
                 It is a program of its own and an ordinary client of the service's bus. A socket \
                 that systemd hands over is used in place of --http-listen. The API key, if there \
                 is to be one, is the credential `api-key` of the unit.",
            )
            .after_help(format!("{EXAMPLES}\n\n{GATEWAY_EXIT_CODES}"))
    }
}

pub fn run(args: Given<Flags>) -> Done {
    let loaded = Settings::load(&Sources::of_process(args.values))?;
    // The other warnings are about models and the state file, of which the gateway reads nothing.
    let misspelt = loaded.misspelt();
    let from = loaded.origin("http_listen").to_string();
    let settings = loaded.settings;
    telemetry::start(&settings.log).map_err(Failure::refused)?;
    for variable in misspelt {
        tracing::warn!("{variable}");
    }
    if !settings.core_dumps {
        dumps::refuse();
    }
    let address = match settings.http_listen {
        Listen::None => None,
        Listen::Tcp(address) => Some(Address::Tcp(address)),
        Listen::Unix(path) => Some(Address::Unix(path)),
    };
    let bus = settings.bus;
    let config = Config {
        address,
        address_from: from,
        credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(Into::into),
        connect: Arc::new(move || bus.builder()),
        trim: op_dbus_engine::memory::trim,
    };
    // It hands bytes on, and leaves the CPUs to whoever computes.
    match super::threaded(2)?.block_on(op_dbus_gateway::run(config)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Fatal::NotConfigured(message)) => Err(Failure::not_configured(message)),
        Err(Fatal::Failed(message)) => Err(Failure::refused(message)),
    }
}
