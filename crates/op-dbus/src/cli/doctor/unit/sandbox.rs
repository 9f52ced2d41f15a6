//! Which folders the unit's sandbox hides from the service, or keeps it from writing.

use std::path::{Path, PathBuf};

use super::super::check::Check;
use super::{Obstacle, Unit, add, words};

impl Unit {
    /// The directive that keeps the service from the folder of a setting, which it reads, or writes and
    /// makes in `writes`; or a note of what becomes of it there.
    pub fn bars(&self, name: &'static str, path: &Path, writes: Option<&Path>) -> Option<Check> {
        let shown = path.display();
        if let Some((directive, folder)) = self.hides(path, writes.is_some()) {
            let folder = folder.display();
            if directive.starts_with("PrivateTmp") && writes.is_some() {
                let found = format!(
                    "{shown}: {directive} gives the service a {folder} of its own, which is emptied when \
                     it stops"
                );
                return Some(Check::ok(name, found));
            }
            let found = format!("{shown}: {directive} hides {folder} from the service");
            return Some(Check::wrong(
                name,
                found,
                format!("set `{name}` to a place outside of {folder}"),
            ));
        }
        let there = writes?;
        let within = |folders: &[&str]| folders.iter().any(|one| lies_in(path, Path::new(one)));
        let system = self.value("ProtectSystem");
        let read_only = match &*system {
            "strict" => !within(&["/dev", "/proc", "/sys"]),
            "full" => within(&["/usr", "/boot", "/efi", "/etc"]),
            "yes" => within(&["/usr", "/boot", "/efi"]),
            _ => false,
        };
        let opened = ["BindPaths", "ReadWritePaths"].map(|property| self.depth(property, path));
        if !read_only || opened.iter().any(Option::is_some) || self.makes(path) {
            return None;
        }
        let found = format!("{shown}: ProtectSystem={system} lets the service write none of it");
        let next = add(&format!("ReadWritePaths={}", there.display()));
        Some(Check::wrong(name, found, next))
    }

    /// The directive that keeps the service from mapping a library.
    pub fn bars_library(&self, file: &Path) -> Option<Obstacle> {
        let shown = file.display();
        if let Some((directive, folder)) = self.hides(file, false) {
            let next = format!("install what has {shown} outside of {}", folder.display());
            return Some((format!("{directive} hides {shown}"), next));
        }
        // The nearest one counts.
        let closed = self.depth("NoExecPaths", file)?;
        if self.depth("ExecPaths", file).is_some_and(|opened| opened >= closed) {
            return None;
        }
        let folder = file.parent().unwrap_or(file).display();
        let found = format!("NoExecPaths without {folder} in ExecPaths forbids to run {shown}");
        Some((found, add(&format!("ExecPaths={folder}"))))
    }

    /// The directive by which the service does not see what is at a path, and the folder that it names.
    fn hides(&self, path: &Path, writes: bool) -> Option<(String, PathBuf)> {
        // Behind a link as well as by name.
        let below = |folders: Vec<PathBuf>| {
            let by_name = folders.iter().find(|folder| path.starts_with(folder));
            by_name.or_else(|| folders.iter().find(|folder| lies_in(path, folder))).cloned()
        };
        let list = |property: &str| {
            below(self.folders(property)).map(|folder| (property.to_owned(), folder))
        };
        // Nothing can be opened below these.
        if let Some(hidden) = list("InaccessiblePaths") {
            return Some(hidden);
        }
        let bound = |property| self.depth(property, path).is_some();
        if bound("BindPaths") || !writes && bound("BindReadOnlyPaths") {
            return None;
        }
        let set = |property: &str, values: [&str; 2], folders: &[&str]| {
            let value = self.value(property);
            let folder = below(folders.iter().map(PathBuf::from).collect());
            let folder = folder.filter(|_| values.contains(&&*value))?;
            Some((format!("{property}={value}"), folder))
        };
        set("ProtectHome", ["yes", "tmpfs"], &["/home", "/root", "/run/user"])
            .or_else(|| set("PrivateTmp", ["yes", "disconnected"], &["/tmp", "/var/tmp"]))
            .or_else(|| list("TemporaryFileSystem").filter(|_| !self.makes(path)))
    }

    /// How deep the deepest folder of a list lies of those that a path leads below.
    fn depth(&self, property: &str, path: &Path) -> Option<usize> {
        let folders = self.folders(property).into_iter().filter(|folder| lies_in(path, folder));
        folders.map(|folder| resolved(&folder).components().count()).max()
    }

    /// The folders of a list, as the service sees them.
    fn folders(&self, property: &str) -> Vec<PathBuf> {
        let folder = |word: &String| {
            // `-SOURCE:DESTINATION:OPTIONS` of what is bound, `-FOLDER:OPTIONS` of the others.
            let word = word.trim_start_matches(['-', '+']);
            let mut parts = word.split(':');
            let first = parts.next().unwrap_or_default();
            let second = parts.next().filter(|_| property.starts_with("Bind"));
            PathBuf::from(second.unwrap_or(first))
        };
        words(&self.value(property)).iter().map(folder).collect()
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

    /// The unit's own, and the profile `high-value` over it.
    const CLOSED: &str = concat!(
        "LoadState=loaded\nProtectSystem=strict\nStateDirectory=op-dbus\n",
        include_str!("../../../../../../systemd/profiles/high-value.conf")
    );

    #[test]
    fn what_is_hidden_can_be_opened_by_no_drop_in() {
        let shown = format!("{CLOSED}\nReadWritePaths=/srv/op-dbus\nBindPaths=/a:/srv/op-dbus");
        let unit = Unit::parse(&shown).ok().unwrap();
        let models = Path::new("/srv/op-dbus/models");
        for writes in [None, Some(models)] {
            let hidden = unit.bars("model_dir", models, writes).unwrap();
            assert!(hidden.found.contains("InaccessiblePaths hides /srv"), "{}", hidden.found);
            assert_eq!(hidden.next.unwrap(), "set `model_dir` to a place outside of /srv");
        }
        let hidden = unit.bars("model_dir", Path::new("/usr/local/models"), None).unwrap();
        assert!(hidden.found.contains("TemporaryFileSystem hides /usr/local"), "{}", hidden.found);
        assert!(unit.bars("model_dir", Path::new("/data/models"), None).is_none());
    }

    #[test]
    fn a_library_that_can_not_be_run_is_told() {
        let unit = Unit::parse(CLOSED).ok().unwrap();
        let barred = |file: &str| unit.bars_library(Path::new(file));
        assert_eq!(barred("/usr/lib/op-dbus/libonnxruntime.so"), None);
        assert_eq!(barred("/var/lib/op-dbus/runtime/cpu/libonnxruntime.so"), None);
        let (found, next) = barred("/data/runtime/libonnxruntime.so").unwrap();
        assert!(found.contains("NoExecPaths without /data/runtime"), "{found}");
        assert!(next.contains("`ExecPaths=/data/runtime`"), "{next}");
        let (found, next) = barred("/usr/local/cuda/lib64/libcudart.so.13").unwrap();
        assert!(found.contains("TemporaryFileSystem hides /usr/local/cuda"), "{found}");
        assert!(next.contains("outside of /usr/local"), "{next}");
        assert!(barred("/opt/rocm/lib/libamdhip64.so").is_some());
        let open = Unit::parse("LoadState=loaded").ok().unwrap();
        assert_eq!(open.bars_library(Path::new("/opt/rocm/lib/libamdhip64.so")), None);
    }
}
