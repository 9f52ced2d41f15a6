//! A fleet that others run, as execution provider: what it computes, what becomes of calls when it goes,
//! and what of it is refused.

use std::collections::HashMap;
use std::fs;
use std::net::Ipv4Addr;

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::fleet::{Ports, Server, compiled};
use crate::harness::gateway::Gateway;
use crate::harness::golden::{self, assert_near};
use crate::harness::load::Load;
use crate::harness::process::send;
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, eventually, within};
use crate::providers::{provider, refusal};

/// Beside and behind other providers.
mod chain;
/// The same protocol over gRPC.
mod grpc;
/// Servers that answer wrongly.
mod hostile;
/// Endpoints that are named.
mod names;
/// Servers that take texts.
mod texts;
/// Endpoints of unlike speed.
mod unlike;
/// Servers with another model, and servers that do otherwise with the right one.
mod wrong;

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    let ways = [tests(), grpc::tests(), names::tests(), texts::tests()];
    let rest = [chain::tests(), hostile::tests(), unlike::tests(), wrong::tests()];
    ways.into_iter().chain(rest).flatten().collect()
}

tests! {
    triton_computes_our_graph: [Bus, Low, Runtime, Triton],
    triton_is_killed_and_comes_back_without_a_lost_call: [Bus, Low, Runtime, Triton] =>
        killed_and_back(|triton| triton.url().to_owned()),
    llama_cpp_computes_our_model: [Bus, Medium, Fleet],
    a_gateway_computes_and_another_takes_over: [Bus, Low],
    the_cpu_goes_on_when_the_fleet_is_gone: [Bus, Low],
    a_token_lets_us_in: [Bus, Low],
    a_certificate_has_to_be_trusted: [Bus, Low, OpenSsl],
    credentials_of_the_service_stand_for_the_files: [Bus, Low, OpenSsl],
    a_silent_fleet_does_not_starve_the_watchdog: [Bus, Low],
    what_cannot_be_reached_is_told: [Bus, Low],
    a_fleet_that_is_away_is_told_once: [Bus, Low],
}

/// A daemon that has nothing but these endpoints.
pub fn fleet(level: &str, protocol: &str, endpoints: &[&str]) -> Outcome<Setup> {
    let setup = Setup::real(level)?;
    let setup = setup.setting("execution_provider", "remote").setting("fallback", "none");
    let setup = setup.setting("providers.remote.protocol", protocol);
    Ok(setup.setting("providers.remote.endpoints", &endpoints.join(",")))
}

/// With less patience than by default, for a fleet that is silent: what its proof may take on a busy machine, and
/// what one load that fails has to take to be the last where another provider can take over.
fn impatient(setup: Setup) -> Setup {
    let setup = setup.setting("providers.remote.batch_timeout_s", "10");
    setup.setting("providers.remote.request_timeout_s", "10")
}

/// A daemon on a bus of its own and a gateway in front of it.
struct Far {
    bus: PrivateBus,
    setup: Setup,
    daemon: Daemon,
}

impl Far {
    async fn start(level: &str) -> Outcome<Self> {
        Self::of(Setup::real(level)?).await
    }

    async fn of(setup: Setup) -> Outcome<Self> {
        let bus = PrivateBus::start().await?;
        let daemon = setup.ready(&bus).await?;
        Ok(Self { bus, setup, daemon })
    }

    async fn gateway(&self) -> Outcome<Gateway> {
        Gateway::start(&self.bus, &self.setup).await
    }
}

/// That the daemon gives the model's vectors, computed there.
async fn serves(daemon: &Daemon, level: &str) -> Outcome {
    assert_eq!(provider(daemon).await?, ("remote".to_owned(), String::new()));
    let texts = golden::plain_texts()?;
    let reply = daemon.client().packed(&texts, HashMap::new()).await?;
    assert_eq!(reply.info::<String>("provider")?, "remote");
    assert_eq!(reply.info::<String>("device")?, "remote:0");
    assert!(reply.info::<String>("space")?.ends_with("-f32"));
    assert_near(&reply.vectors, golden::vectors(level)?, 0.9999);
    Ok(())
}

async fn triton_computes_our_graph() -> Outcome {
    let graph = compiled("low").await?;
    let triton = Server::triton(&graph, "low", Ports::default()).await?;
    let setup = fleet("low", "oip", &[triton.url()])?;
    let setup = setup.setting("providers.remote.model", "low");
    let (_bus, _setup, daemon) = setup.alone().await?;
    serves(&daemon, "low").await?;
    let said = daemon.process.stderr();
    assert!(said.contains("token ids of texts leave this machine"), "{said}");
    // Who has a network has seccomp's leave for it, and still confines itself.
    let worker = daemon.workers().await?[0];
    let status = fs::read_to_string(format!("/proc/{worker}/status"))?;
    assert!(status.lines().any(|line| line == "Seccomp:\t2"), "{status}");
    daemon.stop().await
}

/// What a call has under load; two hundred times it is more than a fleet or the CPU does in a moment.
const TEXTS: [&str; 2] = ["one text of several words", "and another"];

/// Waits until some more calls have been answered.
async fn some_more(daemon: &Daemon) -> Outcome {
    let answered = daemon.client().counter("calls").await?;
    daemon.client().counted("calls", answered + 16).await
}

/// Kills Triton under load, which answers at `url`, and starts it again.
async fn killed_and_back(url: impl Fn(&Server) -> String) -> Outcome {
    let bus = PrivateBus::start().await?;
    let graph = compiled("low").await?;
    let mut triton = Server::triton(&graph, "low", Ports::default()).await?;
    let setup = fleet("low", "oip", &[&url(&triton)])?;
    let setup = setup.setting("providers.remote.model", "low");
    // As long as a start may take on a busy machine.
    let setup = setup.setting("providers.remote.batch_timeout_s", "50");
    let daemon = setup.ready(&bus).await?;
    let load = Load::start(&bus, &TEXTS).await?;
    for _ in 0..2 {
        some_more(&daemon).await?;
        let ports = triton.kill().await?;
        triton = Server::triton(&graph, "low", ports).await?;
    }
    some_more(&daemon).await?;
    load.stop().await?;
    assert_eq!(provider(&daemon).await?, ("remote".to_owned(), String::new()));
    let said = daemon.process.stderr();
    for word in ["an endpoint is not used for now", "an endpoint has proved itself"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    daemon.stop().await
}

async fn llama_cpp_computes_our_model() -> Outcome {
    let folder = tempfile::Builder::new().prefix("llama-").tempdir()?;
    let llama = Server::llama(folder.path(), "all-MiniLM-L6-v2").await?;
    let setup = fleet("medium", "openai", &[llama.url()])?;
    let (_bus, _setup, daemon) = setup.alone().await?;
    serves(&daemon, "medium").await?;
    daemon.stop().await
}

/// Waits until a batch is computed there.
async fn comes_to(device: &str, daemon: &Daemon) -> Outcome {
    eventually(device, async || {
        let reply = daemon.client().packed(&["where?"], HashMap::new()).await?;
        Ok(reply.info::<String>("device")? == device)
    })
    .await
}

async fn a_gateway_computes_and_another_takes_over() -> Outcome {
    let far = Far::start("low").await?;
    let (one, two) = (far.gateway().await?, far.gateway().await?);
    let (setup, manager) = fleet("low", "openai", &[&one.url(""), &two.url("")])?.managed()?;
    let (bus, _setup, daemon) = setup.alone().await?;
    // One that a busy machine has kept from answering in time at the start has its turn once it has rested.
    comes_to("remote:0", &daemon).await?;
    serves(&daemon, "low").await?;
    let load = Load::start(&bus, &TEXTS).await?;
    some_more(&daemon).await?;
    one.process.signal(Signal::SIGKILL)?;
    comes_to("remote:1", &daemon).await?;
    some_more(&daemon).await?;
    assert_eq!(load.stop().await?, ["remote:0", "remote:1"].map(str::to_owned).into());
    // What the service says of itself goes with the worker.
    let client = daemon.client();
    assert_eq!(client.status::<String>("device").await?, "remote:1");
    let status = client.status::<String>("status").await?;
    assert!(status.ends_with(" on remote:1"), "{status}");
    manager.told(&format!("STATUS={status}")).await?;
    let on = |device: &'static str| Options::from([("device", device.into())]);
    // Which endpoint a batch goes to is not the caller's to say.
    for endpoint in ["remote:0", "remote:1", "remote:1,remote:0"] {
        let reply = client.packed(&["there"], on(endpoint)).await?;
        assert_eq!(reply.info::<String>("device")?, "remote:1");
    }
    let refusal = client.packed(&["here"], on("remote:2")).await.map(drop);
    let message = refused(refusal, ErrorName::InvalidArgument)?;
    assert!(message.contains("the service computes on remote:1 "), "{message}");
    daemon.stop().await?;
    far.daemon.stop().await
}

async fn the_cpu_goes_on_when_the_fleet_is_gone() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    let setup = setup.setting("fallback", "cpu").setting("offload", "auto");
    // More than a whole batch takes on a busy machine: nothing is to be lost while the fleet is there.
    let setup = setup.setting("providers.remote.batch_timeout_s", "16");
    let setup = setup.setting("providers.remote.request_timeout_s", "15");
    let (bus, _setup, daemon) = setup.alone().await?;
    assert_eq!(provider(&daemon).await?.0, "remote");
    // More at once than either does in a moment, so that both compute.
    let load = Load::start(&bus, &TEXTS.repeat(200)).await?;
    some_more(&daemon).await?;
    gateway.process.signal(Signal::SIGKILL)?;
    assert_eq!(daemon.state(|state| state == "degraded").await?, "degraded");
    let (active, reason) = provider(&daemon).await?;
    assert_eq!(active, "cpu");
    assert!(reason.contains(&gateway.url("")), "{reason}");
    assert_eq!(load.stop().await?, ["remote:0", "cpu:0"].map(str::to_owned).into());
    daemon.stop().await?;
    far.daemon.stop().await
}

/// The daemon serves with the fleet, which wants a token, and its log does not have it.
async fn serves_and_tells_no_token(setup: Setup) -> Outcome {
    let (_bus, _setup, daemon) = setup.alone().await?;
    serves(&daemon, "low").await?;
    let said = daemon.process.stderr();
    assert!(!said.contains("sesame"), "{said}");
    daemon.stop().await
}

async fn a_token_lets_us_in() -> Outcome {
    let far = Far::start("low").await?;
    let credentials = tempfile::tempdir()?;
    fs::write(credentials.path().join("api-key"), "open sesame".replace(' ', "-"))?;
    let gateway = Gateway::with_key(&far.bus, &far.setup, credentials.path()).await?;
    let setup = fleet("low", "openai", &[&gateway.url("")])?;
    let message = refusal(&setup).await?;
    assert!(message.contains("it answers 401") && message.contains(&gateway.url("")), "{message}");
    let token = credentials.path().join("api-key").display().to_string();
    let setup = setup.setting("providers.remote.token_file", &token);
    serves_and_tells_no_token(setup).await?;
    far.daemon.stop().await
}

async fn a_certificate_has_to_be_trusted() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let folder = tempfile::tempdir()?;
    let tls = Server::tls(folder.path(), &gateway.url("")).await?;
    let setup = fleet("low", "openai", &[tls.url()])?;
    let message = refusal(&setup).await?;
    assert!(message.contains(tls.url()) && message.contains("set ca_file"), "{message}");
    let certificate = folder.path().join("certificate.pem").display().to_string();
    let setup = setup.setting("providers.remote.ca_file", &certificate);
    let (_bus, _setup, daemon) = setup.alone().await?;
    serves(&daemon, "low").await?;
    daemon.stop().await?;
    far.daemon.stop().await
}

/// As systemd gives them to the service, by a folder; no setting names the files.
async fn credentials_of_the_service_stand_for_the_files() -> Outcome {
    let far = Far::start("low").await?;
    let keys = tempfile::tempdir()?;
    fs::write(keys.path().join("api-key"), "open-sesame")?;
    let gateway = Gateway::with_key(&far.bus, &far.setup, keys.path()).await?;
    let folder = tempfile::tempdir()?;
    let tls = Server::tls(folder.path(), &gateway.url("")).await?;
    let credentials = tempfile::tempdir()?;
    let place = credentials.path().display().to_string();
    let setup = fleet("low", "openai", &[tls.url()])?.env("CREDENTIALS_DIRECTORY", &place);
    let message = refusal(&setup).await?;
    assert!(message.contains(tls.url()) && message.contains("certificate"), "{message}");
    fs::copy(folder.path().join("certificate.pem"), credentials.path().join("remote-ca"))?;
    let message = refusal(&setup).await?;
    assert!(message.contains("it answers 401"), "{message}");
    fs::write(credentials.path().join("remote-token"), "open-sesame\n")?;
    serves_and_tells_no_token(setup).await?;
    far.daemon.stop().await
}

/// Neither while a batch waits there nor while no worker can be had.
async fn a_silent_fleet_does_not_starve_the_watchdog() -> Outcome {
    let far = Far::start("low").await?;
    let gateway = far.gateway().await?;
    let bus = PrivateBus::start().await?;
    let setup = impatient(fleet("low", "openai", &[&gateway.url("")])?);
    let (setup, manager) = setup.env("WATCHDOG_USEC", "400000").managed()?;
    let daemon = setup.start(&bus).await?;
    manager.told("READY=1").await?;
    send(Signal::SIGSTOP, gateway.process.pid()).await?;
    let client = Client::on(&bus).await?;
    let call = tokio::spawn(async move { client.embedder.embed("is anybody there?").await });
    manager.told_by_now().await?;
    let mut fed = 0;
    while !call.is_finished() {
        manager.told("WATCHDOG=1").await?;
        fed += 1;
    }
    assert!(fed > 1, "{fed}");
    refused(call.await?, ErrorName::WorkerFailed)?;
    for _ in 0..5 {
        manager.told("WATCHDOG=1").await?;
    }
    gateway.process.signal(Signal::SIGCONT)?;
    daemon.stop().await?;
    far.daemon.stop().await
}

/// An address at which nobody answers, as long as the socket is there: it has the port, and does not listen.
fn nowhere() -> Outcome<(TcpSocket, String)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let url = format!("http://{}", socket.local_addr()?);
    Ok((socket, url))
}

/// However often it is looked for.
async fn a_fleet_that_is_away_is_told_once() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let setup = fleet("low", "openai", &[&format!("http://{}", listener.local_addr()?)])?;
    let setup = setup.setting("provider_retry_s", "1");
    let bus = PrivateBus::start().await?;
    let daemon = setup.start(&bus).await?;
    let looks = async {
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().await?;
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await?;
            stream.write_all(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n").await?;
            // Until the other end hangs up.
            while stream.read(&mut request).await? > 0 {}
        }
        Outcome::Ok(())
    };
    within("the looks for it", looks).await??;
    let said = daemon.process.stderr();
    let told = ["an endpoint is not used", "leave this machine", "no model could be loaded"];
    assert_eq!(told.map(|words| said.matches(words).count()), [0, 0, 1], "{said}");
    daemon.stop().await
}

async fn what_cannot_be_reached_is_told() -> Outcome {
    let (_reserved, url) = nowhere()?;
    let setup = fleet("low", "oip", &[&url])?;
    let message = refusal(&setup).await?;
    assert!(message.starts_with(&format!("remote: {url} can't be used: ")), "{message}");
    let setup = setup.setting("gpu_device", "1");
    let message = refusal(&setup).await?;
    assert!(message.contains("gpu_device names number 1"), "{message}");
    let none = Setup::real("low")?.setting("execution_provider", "remote");
    let message = refusal(&none.setting("fallback", "none")).await?;
    assert!(message.contains("set endpoints in a table [providers.remote]"), "{message}");
    Ok(())
}
