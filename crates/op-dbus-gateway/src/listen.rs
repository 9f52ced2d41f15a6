//! The socket that requests come by: of the settings, or handed over by systemd.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcp};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnix, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use tokio::net::{TcpListener, UnixListener};

use crate::Fatal;
use crate::stream::Stream;

/// Where the gateway answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At an address of an interface.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// As the setting has it.
    fn as_set(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(_) => self.to_string(),
        }
    }
}

/// A socket that connections come by.
pub struct Listener {
    socket: Socket,
    address: Address,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The socket that systemd hands over, or else one at `address`, which the setting has `from` there.
    ///
    /// # Errors
    /// `NotConfigured` when there is neither, and when other machines would reach it without a key.
    pub fn open(address: Option<Address>, from: &str, has_key: bool) -> Result<Self, Fatal> {
        let handed = handed_over().map_err(|error| {
            Fatal::NotConfigured(format!(
                "the socket that systemd hands over can't be used ({error}); it must be a stream \
                 socket that listens, and the only one"
            ))
        })?;
        if handed.as_ref().is_some_and(|handed| !handed.listens()) {
            return Err(Fatal::NotConfigured(
                "systemd hands over a connection, or a socket that does not listen; write \
                 Accept=no and ListenStream= into the socket's unit"
                    .to_owned(),
            ));
        }
        let setting = format!("{from}: http_listen");
        let whose = if handed.is_some() { "systemd's socket" } else { setting.as_str() };
        let listener = match (handed, address) {
            (Some(handed), address) => {
                if let Some(address) = address {
                    let (address, used) = (address.as_set(), &handed.address);
                    tracing::info!("{setting} is {address}; systemd's socket {used} is used");
                }
                handed
            }
            (None, Some(address)) => Self::bind(address, &setting)?,
            (None, None) => {
                return Err(Fatal::NotConfigured(format!(
                    "{setting} is none and systemd hands over no socket: start \
                     op-dbus-gateway.socket, or set http_listen, for example to 127.0.0.1:8080"
                )));
            }
        };
        if let (Address::Tcp(address), false) = (&listener.address, has_key)
            && !address.ip().to_canonical().is_loopback()
        {
            return Err(Fatal::NotConfigured(format!(
                "{whose} is {address}, which other machines reach, and there is no API key: \
                 add LoadCredential=api-key:FILE to the unit, or listen on 127.0.0.1"
            )));
        }
        Ok(listener)
    }

    fn bind(address: Address, setting: &str) -> Result<Self, Fatal> {
        let failed = |error: io::Error| {
            Fatal::Failed(format!(
                "{setting} is {}, which can't be listened on ({error}); set another, or make this one \
                 free",
                address.as_set()
            ))
        };
        let bound = match &address {
            Address::Tcp(at) => StdTcp::bind(at).and_then(|socket| Self::tcp(crowded(socket)?)),
            Address::Unix(path) => bind_unix(path).and_then(|socket| Self::unix(crowded(socket)?)),
        };
        bound.map_err(failed)
    }

    fn tcp(socket: StdTcp) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = Address::Tcp(socket.local_addr()?);
        Ok(Self { socket: Socket::Tcp(TcpListener::from_std(socket)?), address })
    }

    fn unix(socket: StdUnix) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let path = socket.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
        let socket = Socket::Unix(UnixListener::from_std(socket)?);
        Ok(Self { socket, address: Address::Unix(path) })
    }

    /// Where it is; the port is the one that the kernel chose if none was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it is no Unix socket.
    pub fn is_tcp(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Whether connections come by it: systemd also hands over such as are one themselves. What can't be told is tried.
    fn listens(&self) -> bool {
        let listens = match &self.socket {
            Socket::Tcp(socket) => socket_acceptconn(socket),
            Socket::Unix(socket) => socket_acceptconn(socket),
        };
        listens.unwrap_or(true)
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Socket::Unix(socket) => socket.accept().await?.0.into(),
        })
    }
}

/// systemd's socket, if this process was started with one.
fn handed_over() -> io::Result<Option<Listener>> {
    let mut sockets = ListenFd::from_env();
    match sockets.len() {
        0 => return Ok(None),
        1 => {}
        more => return Err(io::Error::other(format!("there are {more} of them"))),
    }
    // Of the wrong family it is left where it is.
    if let Ok(Some(socket)) = sockets.take_tcp_listener(0) {
        return Listener::tcp(socket).map(Some);
    }
    sockets.take_unix_listener(0)?.map(Listener::unix).transpose()
}

/// As many connections wait to be accepted as the kernel lets: the standard library's 128 are filled by a crowd in a
/// moment, and who finds them full tries again a second later.
fn crowded<S: AsFd>(socket: S) -> io::Result<S> {
    rustix::net::listen(&socket, i32::MAX)?;
    Ok(socket)
}

/// A socket that every user may connect to, as every user may call the service on the bus. One that
/// nobody listens on any more is replaced.
fn bind_unix(path: &Path) -> io::Result<StdUnix> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && StdUnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    let socket = StdUnix::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_is_told_as_it_was_set() {
        let taken = StdTcp::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let refused = Listener::bind(Address::Tcp(at), "flag --http-listen: http_listen");
        let Err(Fatal::Failed(message)) = refused else { panic!("it was bound twice") };
        let told = format!("flag --http-listen: http_listen is {at}, which can't be listened on");
        assert!(message.starts_with(&told), "{message}");
    }
}
