//! The image, run as a cluster would: by nobody in particular, without a right, with a root that
//! can't be written, without network, and with models that somebody else has put there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::{Value, json};

use super::{USER, bundle};
use crate::boot;
use crate::shell::{self, Outcome, program};

/// What the service says when calls are answered.
const READY: &str = "calls are answered";
/// What it says at the very end.
const STOPPED: &str = "INFO stopped";

/// A running container. It ends when this is dropped.
pub struct Container {
    runc: Child,
    said: BufReader<ChildStderr>,
    name: String,
}

impl Container {
    /// Unpacks `image` and runs it until calls are answered.
    pub fn start(image: &str) -> Result<Self, String> {
        shell::run(program("umoci", &["unpack", "--image", image]).arg(bundle()))?;
        restrict()?;
        let name = format!("op-dbus-{}", std::process::id());
        let mut runc = program("runc", &["run", "--bundle"]);
        runc.arg(bundle()).arg(&name).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut runc = runc.spawn().map_err(|e| format!("can't start runc: {e}"))?;
        let said = runc.stderr.take().map(BufReader::new).ok_or("runc has no standard error")?;
        let mut container = Self { runc, said, name };
        container.until_said(READY)?;
        Ok(container)
    }

    /// Runs a program in the container and returns what it printed.
    pub fn read(&self, words: &[&str]) -> Result<String, String> {
        shell::read(program("runc", &["exec", &self.name]).args(words))
    }

    /// Ends it as a cluster would; it must end by itself, and well.
    pub fn stop(mut self) -> Outcome {
        shell::run(&mut program("runc", &["kill", &self.name, "TERM"]))?;
        self.until_said(STOPPED)?;
        let status = self.runc.wait().map_err(|e| format!("can't wait for runc: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("the container ended with {status}")) }
    }

    /// Shows what is said until a line has `wanted`.
    fn until_said(&mut self, wanted: &str) -> Outcome {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            let read = self.said.read_line(&mut line).map_err(|e| format!("the container: {e}"))?;
            if read == 0 {
                return Err(format!("the container ended and never said: {wanted}"));
            }
            print!("{line}");
        }
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Ok(None) = self.runc.try_wait() {
            // Fails only if it has ended meanwhile.
            let _ = shell::run(&mut program("runc", &["delete", "--force", &self.name]));
            let _ = self.runc.wait();
        }
    }
}

/// Takes from the container what a cluster's "restricted" pods have not either.
fn restrict() -> Outcome {
    let path = bundle().join("config.json");
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = fs::read_to_string(&path).map_err(|e| failed(&e))?;
    let mut config: Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
    let process = &mut config["process"];
    process["terminal"] = json!(false);
    process["capabilities"] = json!({});
    if let Some(environment) = process["env"].as_array_mut() {
        environment.push(json!("OP_DBUS_VECTOR_LEVEL=low"));
        environment.push(json!("OP_DBUS_STATE_FILE=/run/op-dbus/state.json"));
    }
    config["root"]["readonly"] = json!(true);
    let models = boot::models()?;
    let Some(mounts) = config["mounts"].as_array_mut() else { return Err(failed(&"no mounts")) };
    // The volume, in whose place there are the models, and what not every machine has the same way.
    let replaced = [json!("/var/lib/op-dbus"), json!("/sys/fs/cgroup")];
    mounts.retain(|mount| !replaced.contains(&mount["destination"]));
    let owner = [format!("uid={USER}"), format!("gid={USER}")];
    for folder in ["/run/op-dbus", "/var/cache/op-dbus"] {
        let options = json!(["nosuid", "nodev", "noexec", "mode=0700", owner[0], owner[1]]);
        mounts.push(json!({
            "destination": folder, "type": "tmpfs", "source": "tmpfs", "options": options
        }));
    }
    mounts.push(json!({
        "destination": "/var/lib/op-dbus/models",
        "type": "bind",
        "source": models,
        "options": ["rbind", "ro"]
    }));
    fs::write(&path, config.to_string()).map_err(|e| failed(&e))
}
