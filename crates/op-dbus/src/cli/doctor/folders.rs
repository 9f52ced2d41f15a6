//! The service's folders: whether its user gets to them, and which mode or owner is missing.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, Gid, Group, Uid, User, eaccess, geteuid, getgrouplist, getuid};
use op_dbus_daemon::settings::Settings;
use op_dbus_models::{cache, shell_word};
use rustix::fs::getxattr_query;

use super::check::Check;
use super::unit::Unit;

/// Whose rights are looked at.
pub struct Who {
    name: String,
    uid: u32,
    gids: Vec<u32>,
    /// Whether it is known to be the service's.
    is_service: bool,
}

impl Who {
    /// The user that the service runs as, else this one.
    pub fn of(service: Option<&str>) -> Self {
        let named = service.and_then(|name| User::from_name(name).ok().flatten());
        let is_service = named.is_some();
        let user = named.or_else(|| User::from_uid(getuid()).ok().flatten());
        let Some(user) = user else {
            let uid = getuid().as_raw();
            let gids = vec![nix::unistd::getgid().as_raw()];
            return Self { name: uid.to_string(), uid, gids, is_service };
        };
        let name = CString::new(user.name.as_str()).unwrap_or_default();
        let groups = getgrouplist(&name, user.gid).unwrap_or_else(|_| vec![user.gid]);
        let gids = groups.into_iter().map(Gid::as_raw).collect();
        Self { name: user.name, uid: user.uid.as_raw(), gids, is_service }
    }

    /// Whether this user has `bits` (of 7) of the mode; `None` where an access control list says so, which the
    /// kernel reads for those alone who try.
    fn may(&self, bits: u32, path: &Path, meta: &fs::Metadata) -> Option<bool> {
        if self.uid == geteuid().as_raw() {
            let wanted = AccessFlags::from_bits_truncate(bits.cast_signed());
            return Some(eaccess(path, wanted).is_ok());
        }
        let shift = match () {
            () if self.uid == 0 => return Some(true),
            () if meta.uid() == self.uid => 6,
            () if has_list(path) => return None,
            () if self.gids.contains(&meta.gid()) => 3,
            () => 0,
        };
        Some((meta.mode() >> shift) & bits == bits)
    }
}

/// Folders that the service makes in its cache, and those that its workers make in their model's.
const IN_CACHE: [&str; 2] = ["by-model", "costs"];
const OF_A_MODEL: [&str; 4] = ["weights", "tuning", "compiled", "drivers"];

/// What the service does in a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
}

/// The folders of the settings; `unit` makes some of them before the service starts, and `sandbox` keeps
/// others from it.
pub fn checks(
    settings: &Settings,
    who: &Who,
    unit: Option<&Unit>,
    sandbox: Option<&Unit>,
) -> Vec<Check> {
    let state = settings.state_file.parent().unwrap_or(Path::new("/"));
    let folders = [
        ("model_dir", settings.model_dir.as_path(), Use::Reads),
        ("cache_dir", &settings.cache_dir, Use::Writes),
        ("state_file", state, Use::Writes),
    ];
    let checked = folders.into_iter().map(|(name, path, purpose)| {
        let (there, missing) = deepest(path);
        if missing && unit.is_some_and(|unit| unit.makes(path)) {
            return Check::ok(name, format!("systemd makes {} at the start", path.display()));
        }
        let own = match name {
            "state_file" if is_no_file(&settings.state_file) => {
                no(name, "regular file", &settings.state_file)
            }
            _ => check(name, path, purpose, who),
        };
        let barred = || sandbox?.bars(name, path, (purpose == Use::Writes).then_some(&there));
        match barred() {
            Some(bar) if !(own.failed() && bar.failed()) => bar,
            _ => own,
        }
    });
    checked.collect()
}

fn check(name: &'static str, path: &Path, purpose: Use, who: &Who) -> Check {
    let Who { name: user, uid, is_service, .. } = who;
    let (there, missing) = deepest(path);
    for ancestor in there.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
        let Ok(meta) = fs::metadata(ancestor) else { continue };
        match who.may(1, ancestor, &meta) {
            Some(true) => {}
            Some(false) => {
                let found = format!("{user} does not get past {}", shown(ancestor));
                let next = format!("set `{name}` to a place outside of {}", ancestor.display());
                return Check::wrong(name, found, next);
            }
            None => return listed(name, user, ancestor),
        }
    }
    let Ok(meta) = fs::metadata(&there) else {
        return Check::unchecked(name, format!("{} can't be looked at", there.display()));
    };
    if !meta.is_dir() {
        return no(name, "folder", &there);
    }
    if missing && purpose == Use::Reads {
        // Whether a model is missed is another check's business.
        return Check::unchecked(name, format!("{} is not there", path.display()));
    }
    // What is not there will be made.
    let bits = if missing || purpose == Use::Writes { 7 } else { 5 };
    let shut = (bits == 7).then(|| shut(name, &there)).flatten();
    if let Some(wrong) =
        shut.or_else(|| (name == "cache_dir").then(|| foreign(path, who)).flatten())
    {
        return wrong;
    }
    match who.may(bits, &there, &meta) {
        Some(true) => return fit(name, path, missing, &meta),
        Some(false) => {}
        None => return listed(name, user, &there),
    }
    let place = shell_word(&there);
    let verb = if bits == 7 { "write" } else { "read" };
    let found = format!("the user {user} may not {verb} {}", shown(&there));
    if !is_service && meta.uid() != *uid {
        // Most likely the service's, and all is well.
        let found = format!("{found}; whether the service runs as that user is not known");
        return Check::unchecked(name, found);
    }
    let next = match () {
        () if missing => format!("type `install -d -o {user} -m 755 {}`", shell_word(path)),
        () if meta.uid() == *uid => format!("type `chmod u+rwx {place}`"),
        () if purpose == Use::Reads => format!("type `chmod a+rx {place}`"),
        // Nobody else's things are in a folder of that name.
        () if there.ends_with("op-dbus") => format!("type `chown {user}: {place}`"),
        () => {
            let own = there.join("op-dbus");
            let setting = match name {
                "state_file" => own.join("state.json"),
                _ => own.clone(),
            };
            format!(
                "type `install -d -o {user} -m 755 {}` and set `{name}` to {}",
                shell_word(&own),
                setting.display()
            )
        }
    };
    Check::wrong(name, found, next)
}

/// Whether a folder has an access control list.
fn has_list(path: &Path) -> bool {
    getxattr_query(path, "system.posix_acl_access").is_ok_and(|length| length > 0)
}

/// A folder whose list only `user` can try.
fn listed(name: &'static str, user: &str, folder: &Path) -> Check {
    let found = format!(
        "an access control list says who may use {}; type `sudo -u {user} op-dbus doctor` to see whether {user} may",
        shown(folder)
    );
    Check::unchecked(name, found)
}

/// A place where nobody can write.
fn shut(name: &'static str, there: &Path) -> Option<Check> {
    let system = statvfs(there).ok()?;
    let (is, first) = barrier(system.flags(), system.blocks(), system.blocks_available())?;
    let found = format!("the file system of {} is {is}", shown(there));
    Some(Check::wrong(name, found, format!("{first}, or set `{name}` to another place")))
}

/// What keeps everybody from writing on a file system, and what to do about it.
fn barrier(flags: FsFlags, blocks: u64, available: u64) -> Option<(&'static str, &'static str)> {
    match () {
        () if flags.contains(FsFlags::ST_RDONLY) => Some(("read-only", "have it mounted writable")),
        // One without blocks does not count them.
        () if blocks > 0 && available == 0 => Some(("full", "free some space there")),
        () => None,
    }
}

/// A folder in the service's cache that somebody else has made there, as root who ran the program.
fn foreign(cache: &Path, who: &Who) -> Option<Check> {
    let is_closed = |path: &PathBuf| {
        fs::symlink_metadata(path)
            .is_ok_and(|meta| meta.is_dir() && who.may(7, path, &meta) == Some(false))
    };
    let is_theirs = || fs::metadata(cache).is_ok_and(|meta| meta.uid() == who.uid);
    if !who.is_service && !is_theirs() {
        return None;
    }
    let of_models = cache::folders(cache).into_iter().flat_map(|folder| {
        let inside = OF_A_MODEL.map(|name| folder.join(name));
        [folder].into_iter().chain(inside)
    });
    let mut made = IN_CACHE.map(|name| cache.join(name)).into_iter().chain(of_models);
    let folder = made.find(is_closed)?;
    let next = format!("type `chown -R {}: {}`", who.name, shell_word(&folder));
    let found = format!("the user {} may not write {}", who.name, shown(&folder));
    Some(Check::wrong("cache_dir", found, next))
}

/// Whether something else has the name of a file.
fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file())
}

/// Something else than what is wanted there. It is another's, and stays what it is.
fn no(name: &'static str, wanted: &str, there: &Path) -> Check {
    let found = format!("{} is no {wanted}", shown(there));
    Check::wrong(name, found, format!("set `{name}` to another place"))
}

/// A folder that its user gets to; others may not write it, as what is in it is trusted.
fn fit(name: &'static str, path: &Path, missing: bool, meta: &fs::Metadata) -> Check {
    const STICKY: u32 = 0o1000;
    if missing {
        return Check::ok(name, format!("{} is made when it is needed", path.display()));
    }
    if meta.mode() & 0o002 != 0 && meta.mode() & STICKY == 0 {
        let next = format!("type `chmod o-w {}`", shell_word(path));
        return Check::wrong(name, format!("everybody may write {}", shown(path)), next);
    }
    Check::ok(name, shown(path))
}

/// The folder itself, or the deepest one above it that is there; and whether it is another.
fn deepest(path: &Path) -> (PathBuf, bool) {
    // What can't be looked at is there, as far as anybody can tell.
    let is_there = |one: &&Path| {
        !fs::metadata(one).is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
    };
    let there = path.ancestors().find(is_there).unwrap_or(Path::new("/"));
    (there.to_owned(), there != path)
}

/// Path, owner and mode.
fn shown(path: &Path) -> String {
    let Ok(meta) = fs::metadata(path) else { return path.display().to_string() };
    let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(meta.gid())).ok().flatten();
    let user = user.map_or_else(|| meta.uid().to_string(), |user| user.name);
    let group = group.map_or_else(|| meta.gid().to_string(), |group| group.name);
    format!("{} ({user}:{group}, mode {:04o})", path.display(), meta.mode() & 0o7777)
}

#[cfg(test)]
mod tests;
