//! What is laid over the unit: each profile really holds, and what it is for works in its sandbox.

use super::super::container::{Container, RUNTIME};
use super::{MANAGER, NAME, OBJECT, embeds, says};
use crate::shell::{self, Outcome};

/// A property of the unit that each profile changes, and what it is then.
const PROFILES: &[(&str, &str, &str)] = &[
    ("development", "WatchdogUSec", "0"),
    ("edge", "TasksMax", "64"),
    ("gpu", "PrivateDevices", "no"),
    ("high-throughput", "CPUWeight", "1000"),
    ("high-value", "StartLimitBurst", "3"),
    ("onnx-runtime", "ProcSubset", "all"),
    ("remote", "PrivateNetwork", "no"),
    ("standard", "CPUWeight", "50"),
];

/// Profiles that are there for what computes: the settings for that, and what the status then says.
const ENGINES: &[(&str, &str, &str)] = &[
    ("onnx-runtime", "cpu_engine = \"ort\"", "\"engine\" s \"ort\""),
    ("gpu", "execution_provider = \"ggml\"\nfallback = \"none\"", "\"provider\" s \"ggml\""),
];

const DROP_IN: &str = "/etc/systemd/system/op-dbus.service.d/50-profile.conf";
const SETTINGS: &str = "/etc/op-dbus/conf.d/50-engine.toml";
const RESTART: &str =
    "systemctl daemon-reload; systemctl reset-failed op-dbus; systemctl restart op-dbus";

pub fn all(container: &mut Container) -> Outcome {
    // Not a machine for it, but the device nodes are optional.
    container.script("getent group render || groupadd --system render")?;
    let list = container.run(&["ls", "/usr/share/op-dbus/profiles"])?;
    for profile in list.lines().map(|file| file.trim_end_matches(".conf")) {
        let known = PROFILES.iter().find(|(name, ..)| *name == profile);
        let (_, property, wanted) = known.ok_or(format!("what does {profile} change?"))?;
        let is = |container: &Container| -> Result<bool, String> {
            let show = ["systemctl", "show", "-P", property, "op-dbus"];
            Ok(container.run(&show)?.trim() == *wanted)
        };
        if is(container)? {
            return Err(format!("{property} is {wanted} without the profile {profile}"));
        }
        lay_over(container, profile)?;
        if !is(container)? {
            return Err(format!("{property} is not {wanted} with the profile {profile}"));
        }
        embeds(container)?;
        take_off(container)?;
    }
    embeds(container)
}

/// Libraries of others compute where the unit keeps memory from being code, system calls from the
/// kernel and most of /proc from view.
pub fn engines(container: &mut Container) -> Outcome {
    if !container.has(RUNTIME) {
        shell::skip("engines under each profile", "there is no ONNX Runtime");
        return Ok(());
    }
    let store = "/var/lib/op-dbus/runtime";
    container.script(&format!("cp -r {RUNTIME} {store}; chown -R op-dbus: {store}"))?;
    for (profile, settings, told) in ENGINES {
        container.script(&format!(
            "install -D -m 644 /dev/null {SETTINGS}; printf '{settings}\\n' > {SETTINGS}"
        ))?;
        lay_over(container, profile)?;
        embeds(container)?;
        let status = ["busctl", "call", NAME, OBJECT, MANAGER, "GetStatus"];
        says(&container.run_as("nobody", &status)?, told)?;
        container.run(&["rm", SETTINGS])?;
        take_off(container)?;
    }
    embeds(container)
}

fn lay_over(container: &Container, profile: &str) -> Outcome {
    let from = format!("/usr/share/op-dbus/profiles/{profile}.conf");
    container.script(&format!("install -D -m 644 {from} {DROP_IN}; {RESTART}"))?;
    says(&container.run(&["systemctl", "show", "-P", "DropInPaths", "op-dbus"])?, DROP_IN)
}

fn take_off(container: &Container) -> Outcome {
    container.script(&format!("rm {DROP_IN}; {RESTART}")).map(drop)
}
