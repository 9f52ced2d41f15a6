//! Device nodes: whether they are there, and whether this user may open them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{AccessFlags, Gid, Group, User, access, getuid};

use super::check::Check;
use super::facts::{Facts, Node};
use super::machine::Root;

/// Whether this user may read and write a node.
pub fn may_open(path: &Path) -> bool {
    access(path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
}

/// The provider's nodes: one check for all that are in order, and one for each that is not.
pub fn checks(root: &Root, facts: &Facts, may_open: impl Fn(&Path) -> bool) -> Vec<Check> {
    let (mut fine, mut failed) = (Vec::new(), Vec::new());
    for node in facts.nodes {
        let found = matching(root, node.path);
        if found.is_empty() && node.needed {
            failed.push(Check::missing(
                "nodes",
                format!("there is no {}", node.path.replace('#', "*")),
                node.next,
            ));
        }
        for path in found {
            match may_open(&root.path(&path)) {
                true => fine.push(path),
                false => failed.push(closed(root, &path, node)),
            }
        }
    }
    if !fine.is_empty() {
        failed.insert(0, Check::ok("nodes", fine.join(", ")));
    }
    failed
}

/// The groups without which the provider's needed nodes stay closed.
pub fn groups(root: &Root, facts: &Facts) -> Vec<String> {
    // Nobody is to be let into root's: what it needs is another group.
    let gids = not_for_all(root, facts).map(|(_, meta)| meta.gid()).filter(|gid| *gid != 0);
    let named = gids.filter_map(|gid| Group::from_gid(Gid::from_raw(gid)).ok().flatten());
    let mut names: Vec<String> = named.map(|group| group.name).collect();
    names.sort();
    names.dedup();
    names
}

/// One of the provider's needed nodes that is root's, and open to no others.
pub fn of_root(root: &Root, facts: &Facts) -> Option<String> {
    let is_of_root = |(_, meta): &(String, fs::Metadata)| (meta.uid(), meta.gid()) == (0, 0);
    not_for_all(root, facts).find(is_of_root).map(|(path, _)| path)
}

/// What gives others than root a node that is root's.
pub fn shared(path: &str) -> String {
    // Those that distributions give device nodes to.
    format!("let a rule of udev give {path} to the group video or render")
}

/// The provider's needed nodes that are not open to everybody.
fn not_for_all(root: &Root, facts: &Facts) -> impl Iterator<Item = (String, fs::Metadata)> {
    let needed = facts.nodes.iter().filter(|node| node.needed);
    needed.flat_map(move |node| matching(root, node.path)).filter_map(move |path| {
        let meta = fs::metadata(root.path(&path)).ok()?;
        (meta.mode() & 0o006 != 0o006).then_some((path, meta))
    })
}

/// The nodes of a path in which `#` stands for a number.
fn matching(root: &Root, pattern: &str) -> Vec<String> {
    let Some(prefix) = pattern.strip_suffix('#') else {
        let is_there = root.path(pattern).exists();
        return if is_there { vec![pattern.to_owned()] } else { Vec::new() };
    };
    let (folder, prefix) = prefix.rsplit_once('/').unwrap_or(("", prefix));
    let numbered = |name: &String| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let names = root.names(folder).into_iter().filter(numbered);
    names.map(|name| format!("{folder}/{name}")).collect()
}

fn closed(root: &Root, path: &str, node: &Node) -> Check {
    let user = User::from_uid(getuid()).ok().flatten().map_or("you".to_owned(), |user| user.name);
    let found = format!("{path} is not open to {user}");
    if !node.needed {
        // It computes without, if on less.
        return Check::unchecked("nodes", found);
    }
    let group = fs::metadata(root.path(path)).ok().filter(|meta| meta.gid() != 0);
    let group = group.and_then(|meta| Group::from_gid(Gid::from_raw(meta.gid())).ok().flatten());
    let next = match group {
        Some(group) => format!("type `usermod -aG {} {user}` and log in again", group.name),
        None => shared(path),
    };
    Check::wrong("nodes", found, next)
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::Provider;

    use super::super::check::State;
    use super::super::facts::of;
    use super::super::machine;
    use super::super::unit::{self, Unit};
    use super::*;

    fn tree(nodes: &[&str]) -> (tempfile::TempDir, Root) {
        machine::tests::tree(&nodes.iter().map(|node| (*node, "")).collect::<Vec<_>>())
    }

    #[test]
    fn all_nodes_are_named_at_once() {
        let nodes = ["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"];
        let (_folder, root) = tree(&nodes);
        let checks = checks(&root, of(Provider::Cuda), |_| true);
        let expected = "/dev/nvidiactl, /dev/nvidia0, /dev/nvidia1, /dev/nvidia-uvm";
        assert_eq!(checks, [Check::ok("nodes", expected)]);
    }

    #[test]
    fn nodes_that_are_open_to_all_need_no_group() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let (_folder, root) = tree(&["dev/dri/renderD128", "dev/kfd"]);
        let facts = of(Provider::MiGraphX);
        let service = Unit::parse("LoadState=loaded\nUser=op-dbus\nDevicePolicy=auto");
        // Others than root can't give them to another group, and are not in root's.
        let is_root = getuid().is_root();
        for (mode, group, needed) in [(0o666, 1, 0), (0o660, 1, 1), (0o660, 0, 0)] {
            for node in ["/dev/dri/renderD128", "/dev/kfd"].map(|node| root.path(node)) {
                fs::set_permissions(&node, fs::Permissions::from_mode(mode)).unwrap();
                if is_root {
                    chown(&node, None, Some(group)).unwrap();
                }
            }
            if is_root || group != 0 {
                assert_eq!(groups(&root, facts).len(), needed, "mode {mode:o}, group {group}");
                // Whoever looks, even root.
                let closed = |unit: &Unit| Vec::from_iter(unit.may_not_open(of_root(&root, facts)));
                let told = unit::check(&service, facts, closed).unwrap();
                let is_open = (mode, group) != (0o660, 0);
                assert_eq!(told.state == State::Ok, is_open, "{}", told.found);
            }
        }
    }

    #[test]
    fn what_is_missing_and_what_is_closed_is_told_apart() {
        let (_folder, root) = tree(&["dev/dri/renderD128", "dev/dri/card0"]);
        let checks = checks(&root, of(Provider::MiGraphX), |_| false);
        assert_eq!(checks[0].found, "there is no /dev/kfd");
        assert!(checks[1].found.starts_with("/dev/dri/renderD128 is not open to "));
        assert_eq!(checks[1].state, State::Wrong);
    }

    #[test]
    fn nodes_that_are_not_needed_may_be_absent() {
        let (_folder, root) = tree(&[]);
        assert!(checks(&root, of(Provider::OpenVino), |_| true).is_empty());
        assert!(checks(&root, of(Provider::Cpu), |_| true).is_empty());
    }
}
