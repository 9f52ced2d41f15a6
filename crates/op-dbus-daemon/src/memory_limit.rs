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

/// The least limit of the control group that `told` names in the unified hierarchy at `root`, and of those
/// that it is in (Linux, `admin-guide/cgroup-v2`).
fn of_group(told: &Path, root: &Path) -> Option<u64> {
    let told = fs::read_to_string(told).ok()?;
    let own = told.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let groups = Path::new(own).ancestors();
    let files = groups.flat_map(|group| ["memory.max", "memory.high"].map(|file| group.join(file)));
    // One without a limit says `max`, and the outermost has no such file.
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
        assert_eq!(of("4:memory:/old\n"), None);
        assert!(for_us().unwrap() <= of_machine().unwrap());
    }
}
