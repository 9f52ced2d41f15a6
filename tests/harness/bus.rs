//! A message bus of a test's own, of the system type, under the project's policy file.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use nix::unistd::{Uid, User, seteuid};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use zbus::connection::Builder;
use zbus::{Connection, Message};

use super::process::Process;
use super::{Outcome, PATIENCE, fixture, repository, within};

/// A dbus-daemon with a socket in a temporary folder.
pub struct PrivateBus {
    // Before the folder: fields are dropped in order, and the log lies in the folder.
    process: Process,
    address: String,
    _folder: TempDir,
}

impl PrivateBus {
    /// Starts the bus; it takes connections when this returns.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(&[], |command| command).await
    }

    /// The same with more policy files than the project's, which `wrap` starts.
    pub async fn start_with(
        policies: &[&Path],
        wrap: impl FnOnce(Command) -> Command,
    ) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("bus-").tempdir()?;
        // Callers without privileges have to reach the socket.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let config = folder.path().join("bus.conf");
        fs::write(&config, configuration(folder.path().join("socket").display(), policies)?)?;
        let mut command = Command::new("dbus-daemon");
        command.arg("--config-file").arg(&config);
        command.args(["--nofork", "--nopidfile", "--print-address"]);
        let mut command = wrap(command);
        command.stdout(Stdio::piped());
        let mut process = Process::start("dbus-daemon", command, &folder.path().join("log"))?;
        let stdout = process.child().stdout.take().ok_or("dbus-daemon has no output")?;
        let mut address = String::new();
        within("the address of the bus", BufReader::new(stdout).read_line(&mut address)).await??;
        let address = address.trim().to_owned();
        assert!(!address.is_empty(), "dbus-daemon did not start: {}", process.stderr());
        Ok(Self { process, address, _folder: folder })
    }

    /// The D-Bus address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A new connection, as a client of its own. A call on it whose reply is lost ends with an error.
    pub async fn connect(&self) -> Outcome<Connection> {
        Ok(Builder::address(self.address()).method_timeout(PATIENCE).build().await?)
    }

    /// A connection as a user, which takes a process of root. The bus asks the kernel who connects, so that
    /// the whole process is that user for this moment.
    pub async fn connect_as(&self, uid: u32) -> Outcome<Connection> {
        let own = Uid::effective();
        if own.as_raw() == uid {
            return self.connect().await;
        }
        seteuid(Uid::from_raw(uid))?;
        let stream = UnixStream::connect(self.socket()?);
        seteuid(own)?;
        let builder = Builder::unix_stream(stream?).user_id(uid);
        Ok(builder.method_timeout(PATIENCE).build().await?)
    }

    /// A connection that speaks no more of D-Bus than it takes to send a call, and reads nothing by itself.
    pub fn connect_bare(&self) -> Outcome<UnixStream> {
        let mut stream = UnixStream::connect(self.socket()?)?;
        let uid = Uid::effective().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
        let mut said = String::new();
        io::BufReader::new(&stream).read_line(&mut said)?;
        if !said.starts_with("OK ") {
            return Err(format!("the bus said {said:?}").into());
        }
        stream.write_all(b"BEGIN\r\n")?;
        let name = "org.freedesktop.DBus";
        let hello = Message::method_call("/org/freedesktop/DBus", "Hello");
        let hello = hello.destination(name).interface(name).build(&())?;
        stream.write_all(hello.data())?;
        // Its answer is there before anything that is asked for later.
        stream.read_exact(&mut [0; 16])?;
        Ok(stream)
    }

    /// The path of its socket.
    pub fn socket(&self) -> Outcome<&str> {
        let path = self.address.split_once("path=").ok_or("the bus has no socket")?.1;
        Ok(path.split(',').next().unwrap_or(path))
    }

    /// Ends the bus as a crash would.
    pub async fn kill(&mut self) -> Outcome {
        self.process.signal(nix::sys::signal::Signal::SIGKILL)?;
        self.process.ended().await?;
        Ok(())
    }
}

/// `bus.conf` at a socket, under the project's policies and these.
fn configuration(socket: impl std::fmt::Display, more: &[&Path]) -> Outcome<String> {
    let more = more.iter().map(|file| format!("  <include>{}</include>\n", file.display()));
    let more: String = more.collect();
    let policies = repository().join("dbus-policy").canonicalize()?;
    let user = User::from_uid(Uid::current())?.ok_or("this process's user has no name")?.name;
    // The project's file names root and op-dbus as owners; tests may run as anybody.
    Ok(format!(
        r#"<busconfig>
  <include>{}</include>
  <listen>unix:path={socket}</listen>
  <includedir>{}</includedir>
{more}  <policy user="{user}">
    <allow own="{}"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Debug.Stats"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Monitoring"/>
  </policy>
</busconfig>
"#,
        fixture("harness/bus.conf").display(),
        policies.display(),
        op_dbus_api::BUS_NAME,
    ))
}
