//! `cargo xtask oci`: a container image, made of packages of the distribution and of the tree that
//! `dist` lays out. No other image is under it.

mod container;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::dist::{self, Program};
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, program};

use container::Container;

const NEEDS: &[Need] = &[
    Need { program: "mmdebstrap", package: "mmdebstrap" },
    Need { program: "umoci", package: "umoci" },
    Need { program: "runc", package: "runc" },
];
/// Beside the C library: a bus, the shell that starts it, and what names the release, which from Debian 13 on brings
/// the links `/bin` and `/lib` as well.
const INCLUDED: &str = "--include=base-files,dash,dbus-daemon,libgcc-s1";
/// The user `op-dbus` of the image, and his group: a number, so that whoever runs it can tell that
/// it is not root.
const USER: u32 = 10001;
/// Folders that the service writes into, or a volume is laid over.
const FOLDERS: [&str; 4] =
    ["run/op-dbus", "var/cache/op-dbus", "var/lib/op-dbus", "var/lib/op-dbus/models"];
/// What the container starts with.
const ENTRYPOINT: &str = "usr/libexec/op-dbus/container";

/// Builds the image, runs it as a cluster would, and embeds a text in it.
pub fn run(op_dbus: &Program) -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Err("an image can be built and run by root alone; use sudo".to_owned());
    }
    let release = packages::release()?;
    packages::ensure(&[NEEDS, packages::PIP])?;
    let image = build(&op_dbus.path()?, &release)?;
    let container = Container::start(&image)?;
    let vector = container.read(&["/usr/bin/op-dbus", "embed", "hello"])?;
    let dimensions = vector.split_whitespace().count();
    if dimensions != 384 {
        return Err(format!("the container made a vector of {dimensions} numbers"));
    }
    container.read(&["/usr/bin/op-dbus", "status"]).map(|status| print!("{status}"))?;
    container.stop()?;
    println!("{image}");
    Ok(())
}

/// Builds the image of this program, on a release, and returns its name: a folder in the OCI layout and a tag.
fn build(op_dbus: &Path, release: &str) -> Result<String, String> {
    let tree = dist::tree_for_package(op_dbus)?;
    let folder = dist::emptied("target/oci")?;
    let (system, layout) = (folder.join("system"), folder.join("image"));
    // Unpacked and not configured: nothing of it asks for more than its files.
    let mut bootstrap = program("mmdebstrap", &["--quiet", "--variant=extract", INCLUDED, release]);
    shell::run(bootstrap.arg(&system))?;
    complete(&tree)?;
    shell::run(program("umoci", &["init", "--layout"]).arg(&layout))?;
    let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    shell::run(&mut program("umoci", &["new", "--image", &image]))?;
    for layer in [system, tree] {
        shell::run(program("umoci", &["insert", "--image", &image]).arg(layer).arg("/"))?;
    }
    configure(&image)?;
    Ok(image)
}

/// Adds what the tree needs beside it where there is no system.
fn complete(tree: &Path) -> Outcome {
    let put = |from: &str, to: &str, mode: u32| {
        let content = fs::read(shell::root().join("packaging/oci").join(from));
        let content = content.map_err(|e| format!("packaging/oci/{from}: {e}"))?;
        dist::put(tree, to, &content, mode)
    };
    put("bus.conf", "usr/share/op-dbus/container-bus.conf", 0o644)?;
    put("entrypoint", ENTRYPOINT, 0o755)?;
    dist::put(tree, "etc/passwd", users().as_bytes(), 0o644)?;
    dist::put(tree, "etc/group", format!("root:x:0:\nop-dbus:x:{USER}:\n").as_bytes(), 0o644)?;
    for folder in FOLDERS.map(|folder| tree.join(folder)) {
        let made = fs::create_dir_all(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)))
            .and_then(|()| chown(&folder, Some(USER), Some(USER)));
        made.map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    Ok(())
}

/// The image's `/etc/passwd`. Its bus disconnects whoever is not there.
fn users() -> String {
    let nobody_logs_in = "/usr/sbin/nologin";
    format!(
        "root:x:0:0::/:{nobody_logs_in}\nop-dbus:x:{USER}:{USER}::/var/lib/op-dbus:{nobody_logs_in}\n"
    )
}

/// Who runs what in it.
fn configure(image: &str) -> Outcome {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let label = |name: &str, value: &str| format!("org.opencontainers.image.{name}={value}");
    let mut config = program("umoci", &["config", "--image", image, "--os", "linux"]);
    config.args(["--architecture", architecture, "--config.user", &format!("{USER}:{USER}")]);
    config.args(["--config.entrypoint", &format!("/{ENTRYPOINT}"), "--config.workingdir", "/"]);
    config.args(["--config.env", "OP_DBUS_BUS=unix:path=/run/op-dbus/bus"]);
    config.args(["--config.volume", "/var/lib/op-dbus", "--config.stopsignal", "SIGTERM"]);
    for (name, value) in [
        ("title", "op-dbus"),
        ("description", "Text embeddings as a service"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("licenses", "Apache-2.0 OR MIT"),
        ("source", env!("CARGO_PKG_REPOSITORY")),
    ] {
        config.args(["--config.label", &label(name, value)]);
    }
    shell::run(&mut config)
}

/// Where the container's files are unpacked.
fn bundle() -> PathBuf {
    shell::root().join("target/oci/bundle")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_the_users_of_the_image_and_its_callers() {
        let path = shell::root().join("packaging/kubernetes/daemonset.yaml");
        let manifest = fs::read_to_string(path).expect("a manifest");
        for line in users().lines() {
            assert!(manifest.contains(&format!("\n    {line}\n")), "daemonset.yaml lacks {line:?}");
        }
        assert!(manifest.contains("mountPath: /etc/passwd\n"));
    }
}
