//! How much memory there is for us: the machine's, and what our control group leaves of it.

use std::fs;
use std::path::Path;

/// Bytes of memory that the machine has, as the kernel says without `/proc/meminfo`, which the unit hides.
///
/// # Errors
/// The kernel does not say.
pub fn of_machine() -> nix::Result<u64> {
    nix::sys::sysinfo::sysinfo().map(|about| about.ram_total())
}

/// The most bytes that this process and its children may have: what the machine has, or less where
/// `MemoryMax=`, `MemoryHigh=` or a container's limit says so. `None` where nobody says.
pub fn for_us() -> Option<u64> {
    let group = of_group(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    of_machine().ok().into_iter().chain(group).min()
}

/// The least limit of the control groups that `told` names in the hierarchies at `root`, and of those that they are
/// in (Linux, `admin-guide/cgroup-v2` and `cgroup-v1/memory`).
fn of_group(told: &Path, root: &Path) -> Option<u64> {
    let told = fs::read_to_string(told).ok()?;
    told.lines().filter_map(|line| in_hierarchy(line, root)).min()
}

/// The same of one line, of the unified hierarchy or that which older systems have for memory.
fn in_hierarchy(line: &str, root: &Path) -> Option<u64> {
    let (_, line) = line.split_once(':')?;
    let (controllers, own) = line.split_once(":/")?;
    let (root, files): (_, &[&str]) = match controllers {
        "" => (root.to_owned(), &["memory.max", "memory.high"]),
        "memory" => (root.join("memory"), &["memory.limit_in_bytes"]),
        _ => return None,
    };
    let groups = Path::new(own).ancestors();
    let files = groups.flat_map(|group| files.iter().map(move |file| group.join(file)));
    // One without a limit says `max`, or more than any machine has; the outermost has no such file.
    let limit = |file| fs::read_to_string(root.join(file)).ok()?.trim().parse().ok();
    files.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_around_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let (told, root) = (folder.path().join("cgroup"), folder.path().join("groups"));
        let of = |line: &str| {
            fs::write(&told, line).unwrap();
            of_group(&told, &root)
        };
        let unit = root.join("system.slice/op-dbus.service");
        fs::create_dir_all(&unit).unwrap();
        fs::write(unit.join("memory.max"), "max\n").unwrap();
        assert_eq!(of("0::/system.slice/op-dbus.service\n"), None);
        fs::write(unit.join("memory.max"), "536870912\n").unwrap();
        fs::write(unit.join("memory.high"), "400000000\n").unwrap();
        fs::write(root.join("system.slice/memory.max"), "9000000000\n").unwrap();
        assert_eq!(of("1:name=x:/y\n0::/system.slice/op-dbus.service\n"), Some(400_000_000));
        assert_eq!(of("0::/system.slice\n"), Some(9_000_000_000));
        // As a container sees its own.
        fs::write(root.join("memory.max"), "1000\n").unwrap();
        assert_eq!(of("0::/\n"), Some(1000));
        // An older system's.
        let old = root.join("memory/old");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("memory.limit_in_bytes"), "500\n").unwrap();
        assert_eq!(of("4:memory:/old\n0::/\n"), Some(500));
        assert_eq!(of("4:memory:/new\n5:cpu:/old\n"), None);
        assert!(for_us().unwrap() <= of_machine().unwrap());
    }
}
