//! Programs that a test runs to their end: `op-dbus` itself and other clients.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::bus::PrivateBus;
use super::needs::op_dbus;
use super::{Outcome, journal, within};

/// How a program ended and what it said.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// The output of a program that must have succeeded.
    pub fn success(self) -> Outcome<String> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => Err(format!("exit code {code:?}: {}{}", self.stdout, self.stderr).into()),
        }
    }
}

/// Runs a command to its end with `input` as its standard input.
pub async fn finish(mut command: Command, input: impl AsRef<[u8]>) -> Outcome<Finished> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let name = format!("{:?}", command.as_std());
    let mut child = command.spawn().map_err(|e| format!("can't start {name}: {e}"))?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let input = input.as_ref().to_owned();
    // A program may end without reading; that isn't an error.
    let feeder = tokio::spawn(async move { stdin.write_all(&input).await });
    let output = within(&name, child.wait_with_output()).await??;
    let _ = feeder.await?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    journal::keep(&name, &stderr);
    Ok(Finished { code: output.status.code(), stdout, stderr })
}

/// A command without this process's settings: only `PATH` and `HOME` are handed on.
pub fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in ["PATH", "HOME", "LANG"] {
        command.envs(env::var_os(name).map(|value| (name, value)));
    }
    command
}

/// `command` where the program under test comes first on the path, as for who has installed it.
pub fn with_program(mut command: Command) -> Outcome<Command> {
    let program = op_dbus().canonicalize()?;
    let own = program.parent().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(own.into_iter().chain(env::split_paths(&path)))?;
    command.env("PATH", path);
    Ok(command)
}

/// A `PATH` with a program of the test's own, kept in `folder`, in the place of the machine's.
pub fn path_with(folder: &Path, name: &str, script: &str) -> Outcome<String> {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs)?;
    let program = programs.join(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(format!("{}:{}", programs.display(), env::var("PATH")?))
}

/// The same command, started by `script`, in which `"$@"` stands for it, in a mount namespace of
/// its own.
pub fn in_own_mounts(script: &str, command: &Command) -> Command {
    let mut unshare = clean("unshare");
    unshare.args(["--mount", "sh", "-ec", script, "sh"]);
    started_by(unshare, command)
}

/// `starter` with `command` as what it is to start, and with its environment.
pub fn started_by(mut starter: Command, command: &Command) -> Command {
    let command = command.as_std();
    starter.arg(command.get_program()).args(command.get_args());
    starter.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    starter
}

/// Runs `op-dbus` as a client of `bus`.
pub async fn cli(bus: &PrivateBus, args: &[&str]) -> Outcome<Finished> {
    cli_with_input(bus, args, "").await
}

/// Runs `op-dbus` as a client of `bus`, with something on its standard input.
pub async fn cli_with_input(bus: &PrivateBus, args: &[&str], input: &str) -> Outcome<Finished> {
    let mut command = clean(op_dbus());
    command.args(args).arg("--bus").arg(bus.address());
    finish(command, input).await
}
