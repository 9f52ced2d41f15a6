//! Users that the machine does not know: the service's own, and callers of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use super::Outcome;
use super::bus::PrivateBus;
use super::command::{clean, in_own_mounts, started_by};
use super::daemon::{Daemon, Setup};

/// A user that [`Users`] makes known, with a group of the same number.
#[derive(Clone, Copy)]
pub struct User {
    pub name: &'static str,
    pub id: u32,
}

/// The service's user and its group.
pub const SERVICE: User = User { name: "op-dbus", id: 64_901 };
/// A member of the service's group.
pub const MEMBER: User = User { name: "op-dbus-member", id: 64_902 };
/// Somebody else.
pub const OTHER: User = User { name: "op-dbus-other", id: 64_903 };
/// Somebody whom a rule may refuse by name.
pub const REFUSED: User = User { name: "op-dbus-refused", id: 64_904 };

/// `/etc/passwd` and `/etc/group` with these users in them, seen by whom they are shown to.
pub struct Users {
    folder: TempDir,
}

impl Users {
    /// Copies the machine's files and adds the users.
    fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("users-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let (mut passwd, mut group) = (without_ours("passwd")?, without_ours("group")?);
        for User { name, id } in [SERVICE, MEMBER, OTHER, REFUSED] {
            passwd += &format!("{name}:x:{id}:{id}::/nonexistent:/usr/sbin/nologin\n");
            let members = if id == SERVICE.id { MEMBER.name } else { "" };
            group += &format!("{name}:x:{id}:{members}\n");
        }
        fs::write(folder.path().join("passwd"), passwd)?;
        fs::write(folder.path().join("group"), group)?;
        Ok(Self { folder })
    }

    /// A bus that knows the users, under more policy files than the project's.
    pub async fn on_a_bus(policies: &[&Path]) -> Outcome<(Self, PrivateBus)> {
        let users = Self::new()?;
        let bus = PrivateBus::start_with(policies, |dbus| users.known_to(&dbus, "")).await?;
        Ok((users, bus))
    }

    /// Starts the daemon of `setup` as the service's user; `mounts` are as for [`known_to`](Self::known_to).
    pub async fn serve(&self, setup: &Setup, bus: &PrivateBus, mounts: &str) -> Outcome<Daemon> {
        let command = self.known_to(&SERVICE.runs(&setup.command(bus)?), mounts);
        setup.start_command(command, bus).await
    }

    /// The command where these users are known; `mounts` are commands of a shell that run first.
    pub fn known_to(&self, command: &Command, mounts: &str) -> Command {
        let folder = self.folder.path().display();
        let script = format!(
            "for file in passwd group; do mount --bind {folder}/$file /etc/$file; done; \
             {mounts} exec \"$@\""
        );
        in_own_mounts(&script, command)
    }
}

/// A file of the machine, which may have the package installed, without the users of ours.
fn without_ours(file: &str) -> Outcome<String> {
    let text = fs::read_to_string(format!("/etc/{file}"))?;
    let lines = text.lines().filter(|line| !line.starts_with(SERVICE.name));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

impl User {
    /// The command as this user runs it, who needs no account for that.
    pub fn runs(self, command: &Command) -> Command {
        let mut wrapped = clean("setpriv");
        wrapped.args([format!("--reuid={}", self.id), format!("--regid={}", self.id)]);
        wrapped.arg(match self.id {
            id if id == MEMBER.id => format!("--groups={}", SERVICE.id),
            _ => "--clear-groups".to_owned(),
        });
        started_by(wrapped, command)
    }
}
