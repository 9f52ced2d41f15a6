//! Clients that embed without a pause while a test does something to the service.

use std::collections::HashSet;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Outcome;
use super::bus::PrivateBus;
use super::client::{Client, Options};

/// How many calls of a client were answered and by which devices, or the first error.
type Answered = Result<(usize, HashSet<String>), String>;

/// Four clients, until they are told to stop.
pub struct Load {
    stop: watch::Sender<bool>,
    clients: Vec<JoinHandle<Answered>>,
}

impl Load {
    /// Clients of `bus`, each of whose calls has these texts.
    pub async fn start(bus: &PrivateBus, texts: &[impl ToString]) -> Outcome<Self> {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        let (stop, stopped) = watch::channel(false);
        let mut clients = Vec::new();
        for _ in 0..4 {
            let (client, stopped, texts) = (Client::on(bus).await?, stopped.clone(), texts.clone());
            clients.push(tokio::spawn(async move {
                let (mut calls, mut devices) = (0, HashSet::new());
                while calls == 0 || !*stopped.borrow() {
                    let reply = client.packed(&texts, Options::new()).await;
                    let reply = reply.map_err(|error| error.to_string())?;
                    // An error of this kind stays on its thread.
                    let by = reply.info::<String>("device").map_err(|error| error.to_string())?;
                    devices.extend(by.split(',').map(str::to_owned));
                    calls += 1;
                }
                Ok((calls, devices))
            }));
        }
        Ok(Self { stop, clients })
    }

    /// Ends it. No call may have failed; returns the devices that computed.
    pub async fn stop(self) -> Outcome<HashSet<String>> {
        // Clients that have failed listen no more, and say why.
        self.stop.send_replace(true);
        let (mut calls, mut devices) = (0, HashSet::new());
        for client in self.clients {
            let (answered, by) = client.await??;
            calls += answered;
            devices.extend(by);
        }
        println!("{calls} calls, none failed, by {devices:?}");
        Ok(devices)
    }
}
