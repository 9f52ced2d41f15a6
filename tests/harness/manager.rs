//! The service manager's end of `NOTIFY_SOCKET`.

use std::path::{Path, PathBuf};

use tokio::net::UnixDatagram;

use super::{Outcome, within};

/// A message of our own, before which stands all that was told by then.
const NOW: &[u8] = b"X_NOW=1";

/// A socket on which the daemon tells how it is.
pub struct ServiceManager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl ServiceManager {
    /// Listens at `path`; the daemon gets it as `NOTIFY_SOCKET`.
    pub fn listen(path: &Path) -> Outcome<Self> {
        Ok(Self { socket: UnixDatagram::bind(path)?, path: path.to_owned() })
    }

    /// What was told up to now and not read yet.
    pub async fn told_by_now(&self) -> Outcome<Vec<String>> {
        UnixDatagram::unbound()?.send_to(NOW, &self.path).await?;
        let (mut told, mut buffer) = (Vec::new(), vec![0; 4096]);
        loop {
            let bytes = self.socket.recv(&mut buffer).await?;
            if &buffer[..bytes] == NOW {
                return Ok(told);
            }
            told.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
    }

    /// Forgets what was told until now.
    pub fn forget(&self) {
        while self.socket.try_recv(&mut [0; 4096]).is_ok() {}
    }

    /// Waits for a message with a line that starts with `start`, and returns the whole message.
    pub async fn told(&self, start: &str) -> Outcome<String> {
        within(&format!("{start} for the service manager"), async {
            let mut buffer = vec![0; 4096];
            loop {
                let bytes = self.socket.recv(&mut buffer).await?;
                let message = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
                if message.lines().any(|line| line.starts_with(start)) {
                    return Ok(message);
                }
            }
        })
        .await?
    }
}
