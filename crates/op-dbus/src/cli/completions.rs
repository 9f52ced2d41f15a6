//! `op-dbus completions`: scripts that let a shell complete our command line.

use clap_complete::Shell;

use super::{Done, printed};

/// Print the completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  op-dbus completions bash > ~/.local/share/bash-completion/completions/op-dbus
  op-dbus completions fish > ~/.config/fish/completions/op-dbus.fish")]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub fn run(args: Args) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "op-dbus", &mut script);
    if args.shell == Shell::Bash {
        // It makes the hyphen of our name the sign between commands, in one half of the script.
        script = String::from_utf8_lossy(&script).replace("op__subcmd__dbus", "op__dbus").into();
    }
    printed(script)
}

/// The command line without what is for our own processes.
fn visible() -> clap::Command {
    let all = super::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("op-dbus")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(all.get_arguments())
        .subcommands(commands)
}
