//! placeholder
#[derive(clap::Args)]
#[command(about="x", after_help = super::EXIT_CODES)]
pub struct Args {}
pub fn run(_: Args) -> super::Done { Ok(std::process::ExitCode::SUCCESS) }
