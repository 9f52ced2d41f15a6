//! The `op-dbus` program: one binary for the service, its workers and its users.

mod bench;
mod cli;
mod devices;
mod dumps;
mod inherited;
mod open_files;
mod worker;

fn main() -> std::process::ExitCode {
    cli::main()
}
