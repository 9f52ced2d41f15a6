//! What a machine's administrator and its users go through with the package, each step ending with
//! what must be so then.

mod package;
mod profiles;

use super::container::{Bus, Container, GATEWAY};
use crate::shell::Outcome;

/// Levels that are served, and the models of them.
pub const MODELS: &[(&str, &str); 2] =
    &[("low", "paraphrase-MiniLM-L3-v2"), ("medium", "all-MiniLM-L6-v2")];

/// A step: what it shows, how, and with which buses it is gone through.
type Step = (&'static str, fn(&mut Container) -> Outcome, &'static [Bus]);

const DAEMON: &[Bus] = &[Bus::Daemon];
const BROKER: &[Bus] = &[Bus::Broker];
/// Of what depends on the bus.
const BOTH: &[Bus] = &[Bus::Daemon, Bus::Broker];

/// Every step, in an order in which each finds what it needs.
pub const ALL: &[Step] = &[
    ("the bus is dbus-broker", broker, BROKER),
    ("where nothing may be started, nothing is", package::held_back, DAEMON),
    ("the package is installed, and the service started", package::install, BOTH),
    ("models are put into the store, and taken up by a reload", package::fetch, BOTH),
    ("a reload with a mistake fails, and nothing changes", mistake, DAEMON),
    ("changes are refused, and allowed by a rule", change, BOTH),
    ("a call starts the service", activate, BOTH),
    ("the service runs in its sandbox", sandbox, BOTH),
    ("each profile works", profiles::all, DAEMON),
    ("ONNX Runtime and a provider compute in the sandbox", profiles::engines, DAEMON),
    ("the gateway's socket starts it, and it answers", gateway, DAEMON),
    ("a service that hangs is ended by the watchdog and comes back", watchdog, DAEMON),
    ("the journal explains what happened, without a text", journal, DAEMON),
    ("an upgrade answers calls meanwhile, and keeps what was set", package::upgrade, BOTH),
    (
        "removal keeps models and settings, and a purge leaves the users alone",
        package::purge,
        DAEMON,
    ),
];

/// A text that must be found nowhere.
const TEXT: &str = "xyzzy-planted-secret";
const EMBED: &[&str] = &["busctl", "call", NAME, OBJECT, EMBEDDER, "Embed", "s", TEXT];
const NAME: &str = "org.opdbus.Embedding1";
const OBJECT: &str = "/org/opdbus/Embedding1";
const EMBEDDER: &str = "org.opdbus.Embedding1.Embedder";
const MANAGER: &str = "org.opdbus.Embedding1.Manager";
/// Administrators, and the group that makes them so: Debian's, and that of other distributions.
const ADMINISTRATORS: [(&str, &str); 2] = [("anna", "sudo"), ("otto", "wheel")];

fn property(name: &str) -> [&str; 6] {
    ["busctl", "get-property", NAME, OBJECT, EMBEDDER, name]
}

fn level(level: &str) -> [&str; 8] {
    ["busctl", "call", NAME, OBJECT, MANAGER, "SetVectorLevel", "s", level]
}

/// `output` must contain `wanted`.
fn says(output: &str, wanted: &str) -> Outcome {
    if output.contains(wanted) { Ok(()) } else { Err(format!("{wanted:?} is not in: {output}")) }
}

fn embeds(container: &mut Container) -> Outcome {
    container.until_says(&property("State"), "\"ready\"")?;
    says(&container.run_as("nobody", EMBED)?, "ad 384 ")
}

fn main_pid(container: &Container) -> Result<String, String> {
    let pid = container.run(&["systemctl", "show", "-P", "MainPID", "op-dbus"])?;
    Ok(pid.trim().to_owned())
}

fn broker(container: &mut Container) -> Outcome {
    says(&container.run(&["systemctl", "status", "dbus"])?, "dbus-broker-launch")
}

fn mistake(container: &mut Container) -> Outcome {
    let (file, pid) = ("/etc/op-dbus/conf.d/90-mistake.toml", main_pid(container)?);
    container
        .script(&format!("install -D -m 644 /dev/null {file}; echo 'threads = 0' > {file}"))?;
    container.refused("root", &["systemctl", "reload", "op-dbus"])?;
    let said = container.script("journalctl --sync; journalctl -u op-dbus -o cat")?;
    says(&said, "90-mistake.toml")?;
    container.run(&["rm", file])?;
    container.run(&["systemctl", "reload", "op-dbus"])?;
    says(&main_pid(container)?, &pid)?;
    embeds(container)
}

fn change(container: &mut Container) -> Outcome {
    container.script("groupadd --force --system wheel")?;
    for (administrator, group) in ADMINISTRATORS {
        container.run(&["useradd", "--groups", group, administrator])?;
    }
    let administrators = ADMINISTRATORS.map(|(name, _)| name);
    for user in ["nobody"].into_iter().chain(administrators) {
        says(&container.refused(user, &level("low"))?, "denied")?;
    }
    container.run_as("nobody", &property("VectorLevel")).and_then(|is| says(&is, "medium"))?;
    let rule = "/usr/share/doc/op-dbus/examples/60-op-dbus.rules";
    container.run(&["cp", rule, "/etc/polkit-1/rules.d/"])?;
    // polkit reads its rules again some time after the file is there.
    container.run(&["systemctl", "restart", "polkit"])?;
    says(&container.refused("nobody", &level("low"))?, "denied")?;
    for administrator in administrators {
        container.run_as(administrator, &level("low"))?;
    }
    container.run(&["rm", "/etc/polkit-1/rules.d/60-op-dbus.rules"])?;
    container.run_as("nobody", &property("VectorLevel")).and_then(|is| says(&is, "low"))
}

fn activate(container: &mut Container) -> Outcome {
    container.run(&["systemctl", "stop", "op-dbus"])?;
    says(&container.refused("root", &["systemctl", "is-active", "op-dbus"])?, "inactive")?;
    container.run_as("nobody", &property("State"))?;
    embeds(container)
}

fn sandbox(container: &mut Container) -> Outcome {
    let pid = main_pid(container)?;
    let status =
        container.script(&format!("grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/{pid}/status"))?;
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"] {
        says(&status, line)?;
    }
    // Root itself can't write where the service sees these.
    for file in ["/file", "/usr/file", "/etc/file", "/var/file"] {
        let words = ["nsenter", "--target", &pid, "--mount", "touch", file];
        says(&container.refused("root", &words)?, "Read-only")?;
    }
    // The daemon and its worker have an interface to talk to themselves, and no other.
    let interfaces = container.script(&format!("tail -n +3 /proc/{pid}/net/dev | cut -d: -f1"))?;
    if interfaces.trim() != "lo" { Err(format!("it sees {interfaces}")) } else { Ok(()) }
}

/// The tree has no client for HTTP, but its shell has sockets.
fn gateway(container: &mut Container) -> Outcome {
    container.run(&["dpkg", "--install", GATEWAY])?;
    let socket = ["systemctl", "is-active", "op-dbus-gateway.socket"];
    if container.run(&socket).is_ok() {
        return Err("the gateway listens before anybody has enabled it".to_owned());
    }
    container.script("systemctl enable --now op-dbus-gateway.socket")?;
    let asked = |request: &str| {
        let body = format!("{{\"inputs\":\"{TEXT}\"}}");
        let head = format!(
            "{request} HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/json\\r\\n\
             Content-Length: {}\\r\\n\\r\\n",
            body.len()
        );
        let talk = format!("exec 3<>/dev/tcp/127.0.0.1/8080; printf '{head}{body}' >&3; cat <&3");
        container.run_as("nobody", &["bash", "-ec", &talk])
    };
    says(&asked("GET /health")?, "alive")?;
    says(&asked("GET /ready")?, "200 OK")?;
    says(&asked("POST /embed")?, "[[")?;
    only_for_a_group(container, &|| asked("GET /ready"))?;
    let unit = container.script("systemctl show --property NRestarts op-dbus-gateway.service")?;
    says(&unit, "NRestarts=0")?;
    // Removed as it runs, and purged.
    container.run(&["dpkg", "--remove", "op-dbus-gateway"])?;
    if container.run(&socket).is_ok() {
        return Err("the gateway listens after its package was removed".to_owned());
    }
    container.run(&["dpkg", "--purge", "op-dbus-gateway"])?;
    embeds(container)
}

/// Where only a group may embed, the gateway serves once its user is in there.
fn only_for_a_group(container: &Container, ready: &dyn Fn() -> Result<String, String>) -> Outcome {
    let policy = "org.opdbus.Embedding1-group.conf";
    let example = format!("/usr/share/doc/op-dbus/examples/{policy}");
    container.script(&format!("cp {example} /etc/dbus-1/system.d/; systemctl reload dbus"))?;
    says(&container.refused("nobody", EMBED)?, "denied")?;
    says(&ready()?, "503")?;
    container.script("usermod -aG op-dbus op-dbus-gateway; systemctl restart op-dbus-gateway")?;
    says(&ready()?, "200 OK")?;
    container.script(&format!("rm /etc/dbus-1/system.d/{policy}; systemctl reload dbus"))?;
    container.run_as("nobody", EMBED).map(drop)
}

fn watchdog(container: &mut Container) -> Outcome {
    container.script(
        "mkdir -p /run/systemd/system/op-dbus.service.d; \
         printf '[Service]\\nWatchdogSec=20\\n' > /run/systemd/system/op-dbus.service.d/soon.conf; \
         systemctl daemon-reload; systemctl reset-failed op-dbus; systemctl restart op-dbus",
    )?;
    let pid = main_pid(container)?;
    container.run(&["kill", "-STOP", &pid])?;
    // On a machine that stands still for long it may be ended more than once.
    let restarted = "test $(systemctl show -P NRestarts op-dbus) -ge 1 && echo restarted";
    container.until_says(&["sh", "-c", restarted], "restarted")?;
    container.script("rm -r /run/systemd/system/op-dbus.service.d; systemctl daemon-reload")?;
    embeds(container)?;
    let said = container.script("journalctl --sync; journalctl -u op-dbus -o cat")?;
    says(&said, "Watchdog timeout")
}

fn journal(container: &mut Container) -> Outcome {
    let explained = container.script("journalctl -u op-dbus -x --no-pager | tail -n 40")?;
    says(&explained, "Calls are answered from now on")?;
    let everything =
        container.script(&format!("journalctl --no-pager | grep -c {TEXT} || true"))?;
    if everything.trim() != "0" { Err(format!("{TEXT} is in the journal")) } else { Ok(()) }
}
