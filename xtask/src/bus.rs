//! A D-Bus of our own, with the project's policy, for as long as a value lives.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::shell;

/// A private dbus-daemon; it ends when this is dropped.
pub struct PrivateBus {
    daemon: Child,
    /// Address for clients.
    pub address: String,
}

impl PrivateBus {
    /// Starts a bus of type `system` in `folder`, under the project's own policy file.
    pub fn start(folder: &Path) -> Result<Self, String> {
        let config = folder.join("bus.conf");
        fs::write(&config, configuration(folder)).map_err(|e| format!("can't write {e}"))?;
        let mut daemon = shell::program("dbus-daemon", &["--nofork", "--nopidfile"])
            .arg("--config-file")
            .arg(&config)
            .arg("--print-address=1")
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("can't start dbus-daemon: {e}"))?;
        let mut address = String::new();
        if let Some(stdout) = daemon.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut address)
                .map_err(|e| format!("dbus-daemon printed no address: {e}"))?;
        }
        let bus = Self { daemon, address: address.trim().to_owned() };
        if bus.address.is_empty() { Err("dbus-daemon did not start".to_owned()) } else { Ok(bus) }
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The bus of the tests with our policy and, for a user who is not root, the right to own the name on
/// this bus of theirs.
fn configuration(folder: &Path) -> String {
    let root = shell::root();
    let uid = nix::unistd::geteuid();
    format!(
        r#"<busconfig>
  <include>{root}/tests/harness/bus.conf</include>
  <listen>unix:path={folder}/bus</listen>
  <includedir>{root}/dbus-policy</includedir>
  <policy user="{uid}"><allow own="org.opdbus.Embedding1"/></policy>
</busconfig>
"#,
        root = root.display(),
        folder = folder.display(),
    )
}
