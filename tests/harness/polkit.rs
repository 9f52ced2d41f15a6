//! A real polkitd on a private bus, with the project's actions and rules of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::bus::PrivateBus;
use super::command::clean;
use super::daemon::owner_of;
use super::process::Process;
use super::users::Users;
use super::{Outcome, repository, within};

/// The name under which the service asks.
pub const NAME: &str = "org.freedesktop.PolicyKit1";
/// Who may own that name and ask it; it comes with polkit.
pub const BUS_POLICY: &str = "/usr/share/dbus-1/system.d/org.freedesktop.PolicyKit1.conf";

/// polkitd as a process.
pub struct Polkit {
    _process: Process,
    _folder: TempDir,
}

impl Polkit {
    /// Starts polkitd; it can be asked when this returns. Its folders can't be chosen, so that ours
    /// are laid over them, for polkitd alone.
    pub async fn start(bus: &PrivateBus, users: &Users, rules: &str) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("polkit-").tempdir()?;
        let path = |name: &str| folder.path().join(name);
        for name in ["", "actions", "rules"] {
            fs::create_dir_all(path(name))?;
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755))?;
        }
        let actions = "org.opdbus.embedding1.policy";
        let committed = repository().join("dbus-policy").join(actions);
        fs::copy(committed, path("actions").join(actions))?;
        fs::write(path("rules").join("50-test.rules"), rules)?;
        let mounts = format!(
            "mount --bind {} /usr/share/polkit-1/actions; mount --bind {} /etc/polkit-1/rules.d;",
            path("actions").display(),
            path("rules").display(),
        );
        let mut command = clean(program().ok_or("polkitd is not installed")?);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
        let log = path("log");
        let process = Process::start("polkitd", users.known_to(&command, &mounts), &log)?;
        let connection = bus.connect().await?;
        within("polkit's name on the bus", owner_of(NAME, &connection, true)).await??;
        Ok(Self { _process: process, _folder: folder })
    }
}

/// Where distributions put polkitd, which is not on the `PATH`.
pub fn program() -> Option<PathBuf> {
    let places = ["/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd"];
    places.map(Path::new).into_iter().find(|path| path.is_file()).map(Path::to_owned)
}
