//! The package and the models: installed, fetched, upgraded, removed.

use super::super::container::{Container, MODELS as STORE, PACKAGE};
use super::{EMBED, MODELS, embeds, main_pid, property, says};
use crate::shell::Outcome;

const IS_ACTIVE: &[&str] = &["systemctl", "is-active", "op-dbus"];

pub fn install(container: &mut Container) -> Outcome {
    container.run(&["dpkg", "--install", PACKAGE])?;
    container.run(IS_ACTIVE)?;
    let restarts = container.run(&["systemctl", "show", "-P", "NRestarts", "op-dbus"])?;
    says(&restarts, "0")?;
    says(&container.run_as("nobody", &property("State"))?, "failed")?;
    says(&container.refused("nobody", EMBED)?, "op-dbus models pull")
}

pub fn fetch(container: &mut Container) -> Outcome {
    for (_, model) in MODELS {
        let from = format!("{STORE}/{model}");
        let words = ["op-dbus", "models", "pull", model, "--source", "folder", "--from", &from];
        container.run_as("op-dbus", &words)?;
    }
    // It finds the model there already: the container has no network.
    container.run(&["systemctl", "start", "op-dbus-models@low"])?;
    container.run(&["systemctl", "reload", "op-dbus"])?;
    embeds(container)
}

pub fn upgrade(container: &mut Container) -> Outcome {
    let before = main_pid(container)?;
    container.run(&["dpkg", "--install", PACKAGE])?;
    if main_pid(container)? == before {
        return Err("the old service runs on".to_owned());
    }
    embeds(container)?;
    container.run_as("nobody", &property("VectorLevel")).and_then(|is| says(&is, "low"))
}

pub fn purge(container: &mut Container) -> Outcome {
    container.run(&["dpkg", "--remove", "op-dbus"])?;
    says(&container.run(&["ls", "/var/lib/op-dbus", "/etc/op-dbus"])?, "state.json")?;
    container.refused("nobody", &property("State"))?;
    container.run(&["dpkg", "--purge", "op-dbus"])?;
    let left = container.script(
        "find / -xdev '(' -path /proc -o -path /sys -o -path /mnt ')' -prune -o \
         '(' -name '*op-dbus*' -o -name '*opdbus*' ')' -print; \
         getent passwd op-dbus op-dbus-gateway || true; getent group op-dbus op-dbus-gateway || true; \
         systemctl list-unit-files --no-legend 'op-dbus*' || true",
    )?;
    if left.trim().is_empty() { Ok(()) } else { Err(format!("this is left: {left}")) }
}
