//! `cargo xtask dist DESTDIR`: every file that an installed op-dbus consists of, where it belongs.
//! All packages are made of this tree; `packaging/tree.txt` is what it must look like.

mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::notices;
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
    ("packaging/haproxy/op-dbus.cfg", "usr/share/doc/op-dbus/examples/haproxy.cfg"),
];

/// Folders of which every file with the ending goes to one place.
const FOLDERS: &[(&str, &str, &str)] = &[
    ("dbus-policy/interfaces", ".xml", "usr/share/dbus-1/interfaces"),
    ("dbus-policy/examples", "", "usr/share/doc/op-dbus/examples"),
    ("systemd/profiles", ".conf", "usr/share/op-dbus/profiles"),
    ("docs", ".md", "usr/share/doc/op-dbus"),
];

/// Where the source is said to have lain, in the program and in the bill of materials.
pub const SOURCE: &str = "/usr/src/op-dbus";

/// Who made which part of the program, and the texts of their licences.
const NOTICES: &str = "usr/share/doc/op-dbus/third-party.txt";

/// Shells, and where each looks for what completes our command line.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/op-dbus"),
    ("zsh", "usr/share/zsh/vendor-completions/_op-dbus"),
    ("fish", "usr/share/fish/vendor_completions.d/op-dbus.fish"),
];

/// Files that a kind of package puts elsewhere than Debian, whose places the tree has.
const ELSEWHERE: &[(&str, &str)] =
    &[("usr/share/zsh/site-functions/", "usr/share/zsh/vendor-completions/")];

/// Where a package's own papers lie, which are not part of the tree.
const PAPERS: &[&str] = &[
    "usr/share/doc/op-dbus/changelog.Debian",
    "usr/share/doc/op-dbus/copyright",
    "usr/share/doc/op-dbus-gateway/",
    "usr/share/licenses/op-dbus/",
    "usr/share/lintian/",
];

/// Lay out an installed op-dbus in a folder
#[derive(clap::Args)]
pub struct Args {
    /// Where the tree goes
    #[arg(value_name = "DESTDIR", value_parser = shell::path)]
    destination: PathBuf,
    #[command(flatten)]
    program: Program,
}

/// The program that goes into a tree.
#[derive(clap::Args)]
pub struct Program {
    /// Build it in this profile
    #[arg(long, default_value = "dist", conflicts_with = "program")]
    profile: String,
    /// Take this one, which is built already
    #[arg(long, value_name = "PATH", value_parser = shell::path)]
    program: Option<PathBuf>,
}

/// Lays the tree out.
pub fn run(args: &Args) -> Outcome {
    lay_out(&args.program.path()?, &args.destination)?;
    println!("{}", args.destination.display());
    Ok(())
}

impl Program {
    /// One that is there.
    pub fn at(path: PathBuf) -> Self {
        Self { profile: String::new(), program: Some(path) }
    }

    /// Where it is, built first if it has to be.
    pub fn path(&self) -> Result<PathBuf, String> {
        match &self.program {
            Some(path) => Ok(path.clone()),
            None => build(&self.profile),
        }
    }
}

/// Lays the tree out anew in `target/dist-tree`, with a program without symbols, for a package to be
/// made of it.
pub fn tree_for_package(program: &Path) -> Result<PathBuf, String> {
    let tree = emptied("target/dist-tree")?;
    lay_out(program, &tree)?;
    // One of the profile `dist` is stripped already.
    let mut strip = shell::program("strip", &["--strip-unneeded"]);
    shell::run(strip.arg(tree.join("usr/bin/op-dbus")))?;
    Ok(tree)
}

/// Moves the units of the gateway from one tree to another: they are a package of their own.
pub fn move_gateway(from: &Path, to: &Path) -> Outcome {
    for unit in FILES.iter().map(|(_, unit)| unit).filter(|unit| unit.contains("-gateway.")) {
        put(to, unit, &read(&from.join(unit))?, 0o644)?;
        fs::remove_file(from.join(unit)).map_err(|e| format!("can't remove {unit}: {e}"))?;
    }
    Ok(())
}

/// A folder of the checkout, made new.
pub fn emptied(folder: &str) -> Result<PathBuf, String> {
    let folder = shell::root().join(folder);
    let failed = |e| format!("can't make {} anew: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// Compares what a package has installed below `root` with `packaging/tree.txt`.
///
/// # Errors
/// Names each file that is missing, and each that should not be there.
pub fn compare(root: &Path) -> Outcome {
    let mut found = Vec::new();
    for top in ["etc", "usr"] {
        listed(root, &root.join(top), &mut found)
            .map_err(|e| format!("{}: {e}", root.display()))?;
    }
    let found: BTreeSet<String> = found.iter().filter_map(|line| as_in_tree(line)).collect();
    let expected = fs::read_to_string(shell::root().join("packaging/tree.txt"));
    let expected = expected.map_err(|e| format!("packaging/tree.txt: {e}"))?;
    let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    let missing = expected.difference(&found).map(|line| format!("- {line}"));
    let more = found.difference(&expected).map(|line| format!("+ {line}"));
    let lines: Vec<String> = missing.chain(more).collect();
    if lines.is_empty() {
        return Ok(());
    }
    Err(format!("{} is not as packaging/tree.txt says:\n{}", root.display(), lines.join("\n")))
}

/// A line about an installed file as it stands in the tree; nothing for what is not kept there.
fn as_in_tree(line: &str) -> Option<String> {
    let (mode, path) = line.split_once(' ')?;
    // Some kinds of packages compress pages.
    let path = path.strip_suffix(".gz").filter(|_| path.contains("/man/")).unwrap_or(path);
    // One for each command, which are not told one by one.
    let page = path.starts_with("usr/share/man/man1/op-dbus-");
    if page || PAPERS.iter().any(|papers| path.starts_with(papers)) {
        return None;
    }
    let moved = ELSEWHERE.iter().find_map(|(there, here)| {
        path.strip_prefix(there).map(|name| format!("{mode} {here}{name}"))
    });
    Some(moved.unwrap_or_else(|| format!("{mode} {path}")))
}

/// Mode and path of every file below `folder`, relative to `root`.
fn listed(root: &Path, folder: &Path, lines: &mut Vec<String>) -> std::io::Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            listed(root, &path, lines)?;
            continue;
        }
        let mode = path.symlink_metadata()?.permissions().mode() & 0o7777;
        lines.push(format!("{mode:04o} {}", path.strip_prefix(root).unwrap_or(&path).display()));
    }
    Ok(())
}

/// Copies the source as it is, what git does not know left out, to an empty folder.
pub fn export(destination: &Path) -> Outcome {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    for path in shell::read(&mut shell::program("git", &list))?.split_terminator('\0') {
        let from = shell::root().join(path);
        // What was deleted and not committed yet.
        if from.is_file() {
            let mode =
                fs::metadata(&from).map_err(|e| format!("{path}: {e}"))?.permissions().mode();
            put(destination, path, &read(&from)?, mode & 0o755)?;
        }
    }
    Ok(())
}

/// What the paths of the source, of what is built of it and of the registry are called in a program:
/// the same wherever and by whomever it was built.
fn paths_made_equal() -> Vec<String> {
    let registry = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let maps = [(Some(shell::root()), SOURCE), (registry, "/usr/share/cargo")];
    let flags = maps.into_iter().filter_map(|(from, to)| {
        let from = from?;
        Some(format!("--remap-path-prefix={}={to}", from.display()))
    });
    flags.collect()
}

/// What builds op-dbus in a profile. Paths are made equal in the one alone that packages ship, since nothing that was
/// built under other paths can be used again.
fn building(profile: &str) -> Command {
    let mut build = cargo(&["build", "--profile", profile, "--package", "op-dbus"]);
    if profile == "dist" {
        shell::compiler_flags(&mut build, &paths_made_equal());
    }
    build
}

/// Builds op-dbus in a profile and returns the program.
pub fn build(profile: &str) -> Result<PathBuf, String> {
    shell::run(&mut building(profile))?;
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
    let placed = placed()?;
    for (from, to) in &placed {
        let mut content = read(&root.join(from))?;
        if to.ends_with(".md") {
            let page = String::from_utf8(content).map_err(|e| format!("{from}: {e}"))?;
            content = links::led_anew(&page, from, to, &placed).into_bytes();
        }
        put(destination, to, &content, 0o644)?;
    }
    put(destination, NOTICES, notices::text(&notices::parts()?)?.as_bytes(), 0o644)?;
    for (shell, to) in COMPLETIONS {
        let script = shell::read(&mut shell::program(program, &["completions", shell]))?;
        put(destination, to, script.as_bytes(), 0o644)?;
    }
    let pages = destination.join("usr/share/man");
    fs::create_dir_all(&pages).map_err(|e| format!("can't make {}: {e}", pages.display()))?;
    shell::run(shell::program(program, &["manual"]).arg(&pages))
}

/// Files of the repository, each with its place in a tree.
fn placed() -> Result<BTreeMap<String, String>, String> {
    let mut placed: BTreeMap<String, String> =
        FILES.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    for (folder, ending, to) in FOLDERS {
        let path = shell::root().join(folder);
        let entries = path.read_dir().map_err(|e| format!("{}: {e}", path.display()))?;
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // The index of the documents refers to the repository; theirs is the README.
            if name.ends_with(ending) && name != "README.md" {
                placed.insert(format!("{folder}/{name}"), format!("{to}/{name}"));
            }
        }
    }
    Ok(placed)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("can't read {}: {e}", path.display()))
}

/// Writes one file of a tree.
pub fn put(destination: &Path, to: &str, content: &[u8], mode: u32) -> Outcome {
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
        assert_eq!(compare(&tree), Ok(()), "write it down in packaging/tree.txt");
        let pages = placed().expect("places").into_values().filter(|place| place.ends_with(".md"));
        for page in pages {
            let text = fs::read_to_string(tree.join(&page)).expect("a page");
            for link in links::relative(&text) {
                let file = link.split('#').next().unwrap_or_default();
                let there = tree.join(links::beside(&page, file)).is_file();
                assert!(there, "{page} leads to {link}, which is in no package");
            }
        }

        fs::write(tree.join("usr/bin/more"), "").expect("a file");
        fs::remove_file(tree.join("etc/op-dbus/config.toml")).expect("a file of the tree");
        let differences = compare(&tree).expect_err("differences");
        for line in ["- 0644 etc/op-dbus/config.toml", "usr/bin/more"] {
            assert!(differences.contains(line), "{line}: {differences}");
        }

        let again = lay_out(&program, &tree).expect_err("a refusal");
        assert!(again.contains("not empty"), "{again}");
    }

    #[test]
    fn what_packages_do_to_files_is_seen_through() {
        let kept = |line: &str| as_in_tree(line).unwrap_or_default();
        let page = "0644 usr/share/man/man5/op-dbus.toml.5";
        assert_eq!(kept(&format!("{page}.gz")), page);
        let zsh = "0644 usr/share/zsh/vendor-completions/_op-dbus";
        assert_eq!(kept("0644 usr/share/zsh/site-functions/_op-dbus"), zsh);
        assert_eq!(as_in_tree("0644 usr/share/licenses/op-dbus/LICENSE"), None);
        assert_eq!(as_in_tree("0644 usr/share/man/man1/op-dbus-bench.1.gz"), None);
    }

    /// By a variable that goes before all settings: with flags of a builder's own it would not be the same program.
    #[test]
    fn what_is_shipped_has_no_path_of_this_machine() {
        let flags = |profile: &str| {
            let build = building(profile);
            let mut set = build.get_envs().filter(|(name, _)| *name == shell::COMPILER_FLAGS);
            let (_, flags) = set.next()?;
            flags.map(|flags| flags.to_string_lossy().into_owned())
        };
        assert_eq!(flags("dev"), None);
        let flags = flags("dist").expect("flags");
        let source = format!("--remap-path-prefix={}={SOURCE}", shell::root().display());
        assert!(flags.split('\u{1f}').any(|flag| flag == source), "{flags:?}");
    }

    #[test]
    fn every_package_is_of_this_version() {
        let version = env!("CARGO_PKG_VERSION");
        for (file, line) in [
            ("packaging/deb/changelog", format!("op-dbus ({version}-1)")),
            ("packaging/rpm/op-dbus.spec", format!("Version:        {version}\n")),
            ("packaging/rpm/op-dbus.spec", format!("noreply.github.com> - {version}-1\n")),
            ("packaging/arch/PKGBUILD", format!("pkgver={version}\n")),
            ("packaging/kubernetes/deployment.yaml", format!("image: op-dbus:{version}\n")),
            (
                "packaging/python/src/op_dbus/__init__.py",
                format!("\n__version__ = \"{version}\"\n"),
            ),
            // Which service the gateway's package wants.
            ("crates/op-dbus/Cargo.toml", format!("depends = \"op-dbus (>= {version})\"")),
        ] {
            let text = fs::read_to_string(shell::root().join(file)).expect("a recipe");
            assert!(text.contains(&line), "{file} has no {line:?}");
        }
    }
}
