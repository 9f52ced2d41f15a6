//! Which folders the unit's sandbox hides from the service, or keeps it from writing.

use std::path::{Path, PathBuf};

use super::super::check::Check;
use super::{NAME, Unit, words};

impl Unit {
    /// The directive that keeps the service from the folder of a setting, which it reads, or writes and
    /// makes in `writes`; or a note of what becomes of it there.
    pub fn bars(&self, name: &'static str, path: &Path, writes: Option<&Path>) -> Option<Check> {
        let listed = |property: &str| {
            words(&self.value(property)).iter().any(|word| {
                // `-SOURCE:DESTINATION:OPTIONS`
                let word = word.trim_start_matches(['-', '+']);
                lies_in(path, Path::new(word.split(':').nth(1).unwrap_or(word)))
            })
        };
        let within = |folders: &[&'static str]| {
            folders.iter().copied().find(|folder| lies_in(path, Path::new(folder)))
        };
        if listed("BindPaths") || writes.is_none() && listed("BindReadOnlyPaths") {
            return None;
        }
        // Behind a link as well as by name.
        let below = |folders: &[&'static str]| {
            folders
                .iter()
                .copied()
                .find(|folder| path.starts_with(folder))
                .or_else(|| within(folders))
        };
        let (home, system) = (self.value("ProtectHome"), self.value("ProtectSystem"));
        let private = self.value("PrivateTmp");
        let hidden = [
            (
                "ProtectHome",
                matches!(&*home, "yes" | "tmpfs"),
                below(&["/home", "/root", "/run/user"]),
            ),
            (
                "PrivateTmp",
                matches!(&*private, "yes" | "disconnected"),
                below(&["/tmp", "/var/tmp"]),
            ),
        ];
        for (property, _, folder) in hidden.iter().filter(|(_, is_set, _)| *is_set) {
            let Some(folder) = folder else { continue };
            let (value, shown) = (self.value(property), path.display());
            if *property == "PrivateTmp" && writes.is_some() {
                let found = format!(
                    "{shown}: {property}={value} gives the service a {folder} of its own, which is \
                     emptied when it stops"
                );
                return Some(Check::ok(name, found));
            }
            let found = format!("{shown}: {property}={value} hides {folder} from the service");
            let next = format!("set `{name}` to a place outside of {folder}");
            return Some(Check::wrong(name, found, next));
        }
        let there = writes?;
        let read_only = match &*system {
            "strict" => within(&["/dev", "/proc", "/sys"]).is_none(),
            "full" => within(&["/usr", "/boot", "/efi", "/etc"]).is_some(),
            "yes" => within(&["/usr", "/boot", "/efi"]).is_some(),
            _ => false,
        };
        if !read_only || listed("ReadWritePaths") || self.makes(path) {
            return None;
        }
        let found =
            format!("{}: ProtectSystem={system} lets the service write none of it", path.display());
        let next = format!(
            "type `systemctl edit {NAME}`, write `[Service]` and `ReadWritePaths={}` there, and type \
             `systemctl restart {NAME}`",
            there.display()
        );
        Some(Check::wrong(name, found, next))
    }
}

/// Whether a path leads below a folder, each with its links followed, as systemd does.
pub(super) fn lies_in(path: &Path, folder: &Path) -> bool {
    resolved(path).starts_with(resolved(folder))
}

/// Where a path leads as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let followed = path.ancestors().find_map(|there| {
        let rest = path.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(rest))
    });
    followed.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::check::State;
    use super::*;

    #[test]
    fn folders_that_the_sandbox_keeps_from_the_service_are_told() {
        let shown = "LoadState=loaded\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\n\
                     StateDirectory=op-dbus";
        let bars = |shown: &str, path: &str, writes: bool| {
            let path = Path::new(path);
            let unit = Unit::parse(shown).ok().unwrap();
            unit.bars("cache_dir", path, writes.then_some(path))
        };
        let hidden = bars(shown, "/run/user/7/models", false).unwrap();
        assert!(hidden.found.contains("ProtectHome=yes hides /run/user"), "{}", hidden.found);
        assert_eq!(hidden.next.unwrap(), "set `cache_dir` to a place outside of /run/user");
        assert!(bars(shown, "/tmp/models", false).is_some());
        let closed = bars(shown, "/srv/cache", true).unwrap();
        assert!(closed.found.contains("ProtectSystem=strict"), "{}", closed.found);
        assert!(closed.next.unwrap().contains("`ReadWritePaths=/srv/cache`"));
        // What is only read, what the unit makes, and what is opened.
        assert!(bars(shown, "/srv/models", false).is_none());
        assert!(bars(shown, "/var/lib/op-dbus", true).is_none());
        let opened = format!("{shown}\nReadWritePaths=-/srv /x\nBindPaths=/a:/run/user/7:rbind");
        assert!(bars(&opened, "/srv/cache", true).is_none());
        assert!(bars(&opened, "/run/user/7/cache", true).is_none());
        assert!(bars("LoadState=loaded\nProtectSystem=full", "/srv/cache", true).is_none());
    }

    #[test]
    fn folders_behind_links_are_where_the_links_lead() {
        let root = tempfile::tempdir().unwrap();
        let (link, real) = (root.path().join("link"), root.path().join("real"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let bars = |opened: &Path, path: &Path| {
            let opened = opened.display();
            let shown = format!("LoadState=loaded\nProtectSystem=strict\nReadWritePaths=-{opened}");
            let unit = Unit::parse(&shown).ok().unwrap();
            unit.bars("cache_dir", path, Some(path)).is_some()
        };
        for (opened, path) in [(&link, &real), (&real, &link), (&link, &link)] {
            assert!(!bars(opened, path), "{} {}", opened.display(), path.display());
            assert!(!bars(opened, &path.join("is/made")), "{}", path.display());
            assert!(lies_in(path, opened), "{}", path.display());
        }
        // A link that leads out of what is opened.
        std::os::unix::fs::symlink("/usr", real.join("out")).unwrap();
        assert!(bars(&link, &real.join("out")));
    }

    #[test]
    fn what_is_written_to_a_tmp_of_its_own_is_in_nobodys_way() {
        let shown = "LoadState=loaded\nProtectSystem=strict\nPrivateTmp=yes";
        let unit = Unit::parse(shown).ok().unwrap();
        let path = Path::new("/var/tmp/op-dbus");
        let note = unit.bars("cache_dir", path, Some(path)).unwrap();
        assert_eq!((note.state, note.next), (State::Ok, None), "{}", note.found);
        assert!(note.found.contains("emptied when it stops"), "{}", note.found);
        assert!(unit.bars("model_dir", path, None).unwrap().failed());
    }
}
