//! The service manager's end of `NOTIFY_SOCKET`.

use std::path::{Path, PathBuf};

use tokio::net::UnixDatagram;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Outcome, within};

/// A message of our own, before which stands all that was told by then.
const NOW: &str = "X_NOW=1";

/// systemd drops longer ones.
const MESSAGE_BYTES_MAX: usize = 4096;

/// A socket on which the daemon tells how it is.
pub struct ServiceManager {
    told: Mutex<UnboundedReceiver<String>>,
    path: PathBuf,
}

impl ServiceManager {
    /// Listens at `path`; the daemon gets it as `NOTIFY_SOCKET`.
    pub fn listen(path: &Path) -> Outcome<Self> {
        let socket = UnixDatagram::bind(path)?;
        let (sender, told) = unbounded_channel();
        // At once: a socket holds few messages that nobody has read, and then the daemon waits.
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(bytes) = socket.recv(&mut buffer).await {
                assert!(bytes <= MESSAGE_BYTES_MAX, "systemd drops a message of {bytes} bytes");
                // Nobody listens at the end of a test.
                let _ = sender.send(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
            }
        });
        Ok(Self { told: Mutex::new(told), path: path.to_owned() })
    }

    /// What was told up to now and not read yet.
    pub async fn told_by_now(&self) -> Outcome<Vec<String>> {
        UnixDatagram::unbound()?.send_to(NOW.as_bytes(), &self.path).await?;
        let mut told = Vec::new();
        loop {
            let message = self.next().await?;
            if message == NOW {
                return Ok(told);
            }
            told.push(message);
        }
    }

    /// Waits for a message with a line that starts with `start`, and returns the whole message.
    pub async fn told(&self, start: &str) -> Outcome<String> {
        within(&format!("{start} for the service manager"), async {
            loop {
                let message = self.next().await?;
                if message.lines().any(|line| line.starts_with(start)) {
                    return Ok(message);
                }
            }
        })
        .await?
    }

    async fn next(&self) -> Outcome<String> {
        Ok(self.told.lock().await.recv().await.ok_or("the socket is gone")?)
    }
}
