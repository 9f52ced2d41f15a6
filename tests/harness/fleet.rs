//! Servers that compute for a daemon, as processes on loopback: programs of others, which the test set-up
//! installs as Python packages.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, Command};

use super::bus::PrivateBus;
use super::command::{clean, finish};
use super::daemon::Setup;
use super::process::Process;
use super::registry::tests;
use super::{Outcome, fixture, needs, within};

tests! {
    ports_are_left_whatever_the_kernel_hands_out: [],
}

/// A compiled graph in its folder.
const GRAPH: &str = "model.onnx";

/// A server, with the processes that it starts itself: Triton's do not end with it when it is killed.
pub struct Server {
    pub process: Process,
    ports: Ports,
    url: String,
    // It ends when this is closed.
    _stdin: Option<ChildStdin>,
    // After the process, whose log lies in it.
    _folder: TempDir,
}

/// Where a server answers HTTP, and gRPC if it does; 0 is a port that is free.
pub type Ports = [u16; 2];

impl Server {
    /// Triton with a graph under the name `model`. Where it is started again it has the same ports.
    pub async fn triton(graph: &TempDir, model: &str, ports: Ports) -> Outcome<Self> {
        Self::triton_with(graph, (model, ports), &[]).await
    }

    /// Triton with a model that takes texts and reads `tokens_max` tokens of them: the graph of `model` in
    /// the store and its tokenizer, under its name.
    pub async fn triton_of_texts(graph: &TempDir, model: &str, tokens_max: usize) -> Outcome<Self> {
        let tokenizer = needs::store().join("models").join(model).join("tokenizer.json");
        let tokenizer = format!("tokenizer={}", tokenizer.display());
        let more = [tokenizer, format!("tokens_max={tokens_max}")];
        Self::triton_with(graph, (model, Ports::default()), &more).await
    }

    /// Triton with what its model is to heed beside the graph, `key=value`.
    pub async fn triton_with(
        graph: &TempDir,
        (model, ports): (&str, Ports),
        more: &[String],
    ) -> Outcome<Self> {
        let ports = [free(ports[0])?, free(ports[1])?];
        let mut command = python("triton.py");
        command.arg(graph.path().join("triton")).arg(graph.path().join(GRAPH)).arg(model);
        command.args(ports.map(|port| port.to_string()));
        command.args(more);
        let mut server = Self::start("triton", command, ports, "Started HTTPService at").await?;
        // It says so a moment before it listens.
        let listens = async {
            while TcpStream::connect(("127.0.0.1", ports[0])).await.is_err() {
                if let Some(status) = server.process.child().try_wait()? {
                    return Err(format!("triton ended at once: {status}").into());
                }
                tokio::task::yield_now().await;
            }
            Outcome::Ok(())
        };
        within("Triton's port", listens).await??;
        Ok(server)
    }

    /// llama.cpp's server with a model of the store. What it makes of the model is in `folder`.
    pub async fn llama(folder: &Path, model: &str) -> Outcome<Self> {
        let port = free(0)?;
        let mut command = python("llama.py");
        command.arg(needs::store().join("models").join(model));
        command.arg(folder.join("model.gguf")).arg(port.to_string());
        Self::start("llama.cpp", command, [port, 0], "answered at").await
    }

    /// A server that has a certificate for 127.0.0.1 and hands on what it is sent to `to`. The certificate
    /// is `folder/certificate.pem`.
    pub async fn tls(folder: &Path, to: &str) -> Outcome<Self> {
        let (key, certificate) = (folder.join("key.pem"), folder.join("certificate.pem"));
        let mut openssl = clean("openssl");
        openssl.args(["req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=test"]);
        openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        // Without more it would be an authority, which may not serve by its own certificate.
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]).arg(&key);
        openssl.arg("-out").arg(&certificate);
        finish(openssl, "").await?.success()?;
        let mut command = python("tls.py");
        command.arg(certificate).arg(key).arg(to.rsplit(':').next().unwrap_or_default());
        Self::start("tls", command, Ports::default(), "answered at").await
    }

    async fn start(name: &str, mut command: Command, ports: Ports, ready: &str) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let folder = tempfile::Builder::new().prefix("server-").tempdir()?;
        let mut process = Process::start(name, command, &folder.path().join("log"))?;
        let stdin = process.child().stdin.take();
        let line = process.started(ready).await?;
        let told = line.trim_end().rsplit_once("answered at ").map(|(_, url)| url.to_owned());
        let url = told.unwrap_or_else(|| format!("http://127.0.0.1:{}", ports[0]));
        Ok(Self { process, ports, url, _stdin: stdin, _folder: folder })
    }

    /// Where it answers.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it answers gRPC.
    pub fn grpc_url(&self) -> String {
        format!("grpc://127.0.0.1:{}", self.ports[1])
    }

    /// Ends it without warning, and returns its ports.
    pub async fn kill(mut self) -> Outcome<Ports> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.ended().await?;
        Ok(self.ports)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody is left of it, or all that are end now.
        let _ = killpg(self.process.pid(), Signal::SIGKILL);
        // Triton's have no time to remove their shared memory.
        let prefix = format!("op-dbus-test-{}-", self.ports[0]);
        for left in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if left.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_file(left.path());
            }
        }
    }
}

/// A script of the tests, with the packages of the fleet.
fn python(script: &str) -> Command {
    let mut command = clean("python3");
    command.arg(fixture("python").join(script)).env("PYTHONPATH", needs::fleet_path());
    command
}

/// `port`, or one that is free, for a program that can't ask the kernel for one itself. The kernel hands out
/// none of these to others: one of those may be taken again before the program listens there. Nor does any test get
/// it twice, or another one meanwhile: a server takes seconds until it listens.
fn free(port: u16) -> Outcome<u16> {
    if port != 0 {
        return Ok(port);
    }
    let ports = ports(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?);
    loop {
        let random = RandomState::new().hash_one(&ports) % ports.len() as u64;
        let port = ports.start + u16::try_from(random)?;
        let claim = SocketAddr::from_abstract_name(format!("op-dbus-test-port-{port}"))?;
        let claim = match UnixDatagram::bind_addr(&claim) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
            claim => claim?,
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            // It ends with this process, which runs one test.
            std::mem::forget(claim);
            return Ok(port);
        }
    }
}

/// Ports of which the kernel, which hands out this range, gives nobody one: those before it, or behind it. Where it
/// leaves too few, any, so that one may be taken all the same.
fn ports(handed_out: &str) -> Range<u16> {
    const FIRST: u16 = 10_000;
    const ENOUGH: usize = 1000;
    let mut ends = handed_out.split_whitespace().map_while(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next().unwrap_or(FIRST), ends.next().unwrap_or(u16::MAX));
    let left = [FIRST..first, last.saturating_add(1)..u16::MAX];
    left.into_iter().find(|ports| ports.len() >= ENOUGH).unwrap_or(FIRST..u16::MAX)
}

async fn ports_are_left_whatever_the_kernel_hands_out() -> Outcome {
    assert_eq!(ports("32768\t60999\n"), 10_000..32_768);
    for low in ["1024 60999", "10000 60999", "10001 60999"] {
        assert_eq!(ports(low), 61_000..u16::MAX, "{low}");
    }
    for all in ["1024 65535", "1024 65000", ""] {
        assert_eq!(ports(all), 10_000..u16::MAX, "{all}");
    }
    Ok(())
}

/// The graph that the service compiles of a level's model for ONNX Runtime, in a folder of its own.
pub async fn compiled(level: &str) -> Outcome<TempDir> {
    /// What the cache has behind a graph.
    const SEAL_BYTES: usize = 32;
    let setup = Setup::real(level)?;
    let setup = setup.setting("cpu_engine", "ort").setting("workers_per_device", "1");
    setup.ready(&PrivateBus::start().await?).await?.stop().await?;
    let mut entries = fs::read_dir(setup.cached()?)?.flatten().map(|entry| entry.path());
    let is_graph = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "graph");
    let mut graph = fs::read(entries.find(is_graph).ok_or("no graph in the cache")?)?;
    graph.truncate(graph.len() - SEAL_BYTES);
    let folder = tempfile::Builder::new().prefix("graph-").tempdir()?;
    fs::write(folder.path().join(GRAPH), graph)?;
    Ok(folder)
}
