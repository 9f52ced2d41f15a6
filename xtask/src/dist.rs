//! `cargo xtask dist DESTDIR`: every file that an installed op-dbus consists of, where it belongs.
//! All packages are made of this tree; `packaging/tree.txt` is what it must look like.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::shell::{self, Outcome, cargo};

/// Files of the repository, and where they go.
const FILES: &[(&str, &str)] = &[
    ("config/op-dbus.toml", "etc/op-dbus/config.toml"),
    ("systemd/op-dbus.service", "usr/lib/systemd/system/op-dbus.service"),
    ("systemd/op-dbus-gateway.service", "usr/lib/systemd/system/op-dbus-gateway.service"),
    ("systemd/op-dbus-gateway.socket", "usr/lib/systemd/system/op-dbus-gateway.socket"),
    ("systemd/op-dbus-models@.service", "usr/lib/systemd/system/op-dbus-models@.service"),
    ("systemd/op-dbus.catalog", "usr/lib/systemd/catalog/op-dbus.catalog"),
    ("systemd/op-dbus.sysusers", "usr/lib/sysusers.d/op-dbus.conf"),
    ("systemd/op-dbus.tmpfiles", "usr/lib/tmpfiles.d/op-dbus.conf"),
    (
        "dbus-policy/org.opdbus.Embedding1.conf",
        "usr/share/dbus-1/system.d/org.opdbus.Embedding1.conf",
    ),
    (
        "dbus-policy/org.opdbus.Embedding1.service",
        "usr/share/dbus-1/system-services/org.opdbus.Embedding1.service",
    ),
    (
        "dbus-policy/org.opdbus.embedding1.policy",
        "usr/share/polkit-1/actions/org.opdbus.embedding1.policy",
    ),
    ("README.md", "usr/share/doc/op-dbus/README.md"),
];

/// Folders of which every file with the ending goes to one place.
const FOLDERS: &[(&str, &str, &str)] = &[
    ("dbus-policy/interfaces", ".xml", "usr/share/dbus-1/interfaces"),
    ("dbus-policy/examples", "", "usr/share/doc/op-dbus/examples"),
    ("systemd/profiles", ".conf", "usr/share/op-dbus/profiles"),
    ("docs", ".md", "usr/share/doc/op-dbus"),
];

/// Shells, and where each looks for what completes our command line.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/op-dbus"),
    ("zsh", "usr/share/zsh/vendor-completions/_op-dbus"),
    ("fish", "usr/share/fish/vendor_completions.d/op-dbus.fish"),
];

/// Builds op-dbus and lays the tree out in the folder that `words` names.
pub fn run(words: &[String]) -> Outcome {
    let usage = "cargo xtask dist DESTDIR [--profile PROFILE]";
    let (destination, profile) = match words {
        [destination] => (destination, "dist"),
        [destination, flag, profile] if flag == "--profile" => (destination, profile.as_str()),
        _ => return Err(format!("name the folder to lay the tree out in: {usage}")),
    };
    let program = build(profile)?;
    // Relative to where the caller is, not to the repository.
    let destination =
        std::path::absolute(destination).map_err(|e| format!("{destination}: {e}"))?;
    lay_out(&program, &destination)?;
    println!("{}", destination.display());
    Ok(())
}

/// Builds op-dbus in a profile and returns the program.
pub fn build(profile: &str) -> Result<PathBuf, String> {
    shell::run(&mut cargo(&["build", "--profile", profile, "--package", "op-dbus"]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(shell::root().join("target").join(folder).join("op-dbus"))
}

/// Lays the tree out in `destination`, which must be empty or not be there.
pub fn lay_out(program: &Path, destination: &Path) -> Outcome {
    let occupied = destination.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if occupied {
        return Err(format!("{} is not empty; name a new folder", destination.display()));
    }
    let root = shell::root();
    put(destination, "usr/bin/op-dbus", &read(program)?, 0o755)?;
    for (from, to) in FILES {
        put(destination, to, &read(&root.join(from))?, 0o644)?;
    }
    for (folder, ending, to) in FOLDERS {
        let folder = root.join(folder);
        let entries = folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // The index of the documents refers to the repository; theirs is the README.
            if name.ends_with(ending) && name != "README.md" {
                put(destination, &format!("{to}/{name}"), &read(&path)?, 0o644)?;
            }
        }
    }
    for (shell, to) in COMPLETIONS {
        let script = shell::read(&mut shell::program(program, &["completions", shell]))?;
        put(destination, to, script.as_bytes(), 0o644)?;
    }
    let pages = destination.join("usr/share/man");
    fs::create_dir_all(&pages).map_err(|e| format!("can't make {}: {e}", pages.display()))?;
    shell::run(shell::program(program, &["manual"]).arg(&pages))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("can't read {}: {e}", path.display()))
}

fn put(destination: &Path, to: &str, content: &[u8], mode: u32) -> Outcome {
    let path = destination.join(to);
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&path, content))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
    written.map_err(|e| format!("can't write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mode and path of every file below `folder`.
    fn listed(root: &Path, folder: &Path, lines: &mut Vec<String>) {
        for entry in folder.read_dir().expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                listed(root, &path, lines);
                continue;
            }
            let mode = entry.metadata().expect("a file").permissions().mode() & 0o7777;
            let path = path.strip_prefix(root).expect("a path below the root");
            lines.push(format!("{mode:04o} {}", path.display()));
        }
    }

    #[test]
    fn the_tree_is_as_it_is_written_down() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Stands for the program, which takes minutes to build.
        let program = folder.path().join("op-dbus");
        let script = "#!/bin/sh\n[ $1 = completions ] && echo a script && exit\n\
             cd $2 && mkdir man1 man5 man8 && echo a page | tee man1/op-dbus.1 man5/op-dbus.toml.5 \
             man5/org.opdbus.Embedding1.5 man8/op-dbus.service.8\n";
        fs::write(&program, script).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a script");
        let tree = folder.path().join("tree");
        lay_out(&program, &tree).expect("a tree");
        let mut lines = Vec::new();
        listed(&tree, &tree, &mut lines);
        lines.sort_by(|a, b| a[5..].cmp(&b[5..]));
        let expected = fs::read_to_string(shell::root().join("packaging/tree.txt"));
        let expected = expected.expect("packaging/tree.txt");
        assert_eq!(lines.join("\n"), expected.trim(), "write it down in packaging/tree.txt");

        let again = lay_out(&program, &tree).expect_err("a refusal");
        assert!(again.contains("not empty"), "{again}");
    }
}
