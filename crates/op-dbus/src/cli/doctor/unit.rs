//! The installed unit: who the service runs as, and which of its directives block a provider.

mod devices;
mod fleet;
mod groups;
mod sandbox;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::check::{Check, UNIT};
use super::facts::{Blocks, Directive, Facts};
use sandbox::lies_in;

pub use groups::other_user;

const NAME: &str = "op-dbus.service";
const MASKED: &str = "op-dbus.service is masked";
/// Of one whose files say what is no service, or can't be read.
const UNLOADED: &str = "systemd can't load op-dbus.service";
const PROPERTIES: &str = "LoadState,User,Group,PrivateDevices,DevicePolicy,DeviceAllow,\
                          MemoryDenyWriteExecute,ProcSubset,PrivateNetwork,RestrictAddressFamilies,SystemCallFilter,SupplementaryGroups,\
                          StateDirectory,CacheDirectory,RuntimeDirectory,ProtectSystem,ProtectHome,PrivateTmp,\
                          ReadWritePaths,BindPaths,BindReadOnlyPaths,InaccessiblePaths,TemporaryFileSystem,\
                          NoExecPaths,ExecPaths,IPAddressAllow,IPAddressDeny,Environment,EnvironmentFiles,\
                          ExecStart";

/// What is in the way, and what to do about it.
pub type Obstacle = (String, String);

/// What systemd has made of the unit and of what lies over it.
pub struct Unit(Vec<(String, String)>);

impl Unit {
    /// Asks systemd.
    ///
    /// # Errors
    /// Why there is nothing to say of the unit.
    pub fn read() -> Result<Self, String> {
        let output = Command::new("systemctl").args(["show", NAME, "-p", PROPERTIES]).output();
        let output = output.map_err(|error| format!("systemctl can't be run ({error})"))?;
        if !output.status.success() {
            return Err("systemd does not run here".to_owned());
        }
        let shown = String::from_utf8_lossy(&output.stdout);
        Self::parse(&format!("{shown}\n{}", fleet::credentials_of(NAME)))
    }

    pub(super) fn parse(shown: &str) -> Result<Self, String> {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        let unit = Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        match unit.value("LoadState").as_str() {
            "loaded" => Ok(unit),
            "masked" => Err(MASKED.to_owned()),
            "bad-setting" | "error" => Err(UNLOADED.to_owned()),
            _ => Err(format!("{NAME} is not installed")),
        }
    }

    /// A property; the lines of one that is told in several, with a space between.
    fn value(&self, property: &str) -> String {
        let values = self.0.iter().filter(|(key, _)| key == property);
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// The user that the service runs as, if the unit names one.
    pub fn user(&self) -> Option<String> {
        Some(self.value("User")).filter(|user| !user.is_empty())
    }

    /// Whether systemd makes this folder, with the right owner, when it starts the service.
    pub fn makes(&self, path: &Path) -> bool {
        let places = [
            ("StateDirectory", "/var/lib"),
            ("CacheDirectory", "/var/cache"),
            ("RuntimeDirectory", "/run"),
        ];
        places.iter().any(|(property, place)| {
            let names = self.value(property);
            names.split_whitespace().any(|name| lies_in(path, &Path::new(place).join(name)))
        })
    }

    /// The settings of the service that the unit's environment says, and what is to be told of those.
    pub fn settings(&self) -> (BTreeMap<OsString, OsString>, Vec<Check>) {
        let (environment, unread) = (self.environment(), self.unread());
        let mut checks = Vec::new();
        if !environment.is_empty() {
            let names: Vec<_> = environment.keys().map(|name| name.to_string_lossy()).collect();
            let found = format!("{NAME} sets {}", names.join(", "));
            checks.push(Check::ok("environment", found));
        }
        if !unread.is_empty() {
            let found = format!(
                "{NAME} has {}, of which nothing is read here: the service may have other settings than \
                 these; `op-dbus status` tells what it runs",
                unread.join(" and ")
            );
            checks.push(Check::unchecked("environment", found));
        }
        (environment, checks)
    }

    fn environment(&self) -> BTreeMap<OsString, OsString> {
        let ours = words(&self.value("Environment")).into_iter();
        let ours = ours.filter(|word| word.starts_with("OP_DBUS_"));
        ours.filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.into(), value.into()))
        })
        .collect()
    }

    /// What else says what the settings of the service are, and is not read here: files of variables, and
    /// flags.
    fn unread(&self) -> Vec<String> {
        let files = self.0.iter().filter(|(key, _)| key == "EnvironmentFiles");
        let files = files.map(|(_, value)| value.split(" (").next().unwrap_or_default());
        let files = files.filter(|file| !file.is_empty());
        let mut unread: Vec<String> = files.map(|file| format!("EnvironmentFile={file}")).collect();
        let start = self.value("ExecStart");
        let command = start.split_once("argv[]=").map(|(_, rest)| rest.split(" ; ").next());
        let flags = command.flatten().and_then(|command| command.split_once(" daemon "));
        unread.extend(flags.map(|(_, flags)| format!("the flags {flags}")));
        unread
    }

    fn blocks(&self, directive: &Directive) -> bool {
        let value = self.value(directive.property);
        match directive.blocks {
            Blocks::When(blocking) => value == blocking,
            Blocks::Closed(group, nodes) => !self.opens(group, nodes),
            // An empty list leaves all open.
            Blocks::Unless(_) if value.is_empty() => false,
            // A list of what is forbidden.
            Blocks::Unless(word) if value.starts_with('~') => {
                value[1..].split_whitespace().any(|one| one == word)
            }
            Blocks::Unless(word) => !value.split_whitespace().any(|one| one == word),
        }
    }
}

/// The words of a list as `systemctl show` prints it: with quotes and backslashes where it needs them.
fn words(list: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.extend(letters.next()),
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Tells of a unit that can't be started.
pub fn unstartable(unit: &Result<Unit, String>) -> Option<Check> {
    let why = unit.as_ref().err()?.as_str();
    let next = match why {
        MASKED => format!("type `systemctl unmask {NAME}`"),
        UNLOADED => format!(
            "type `systemd-analyze verify {NAME}`, mend what it names, and type `systemctl \
             daemon-reload`"
        ),
        _ => return None,
    };
    Some(Check::wrong(UNIT, why, next))
}

/// The directives that block the provider, and what `more` of the unit is in its way, in one check.
pub fn check(
    unit: &Result<Unit, String>,
    facts: &Facts,
    more: impl FnOnce(&Unit) -> Vec<Obstacle>,
) -> Option<Check> {
    if facts.directives.is_empty() {
        return None;
    }
    let unit = match unit {
        Ok(unit) => unit,
        Err(why) => return Some(Check::unchecked(UNIT, why)),
    };
    let blocking = facts.directives.iter().filter(|directive| unit.blocks(directive));
    let mut blocking: Vec<String> = blocking
        .map(|directive| match directive.blocks {
            Blocks::When(value) => format!("{}={value} {}", directive.property, directive.why),
            Blocks::Unless(word) | Blocks::Closed(word, _) => {
                format!("{} without {word} {}", directive.property, directive.why)
            }
        })
        .collect();
    let mut next = (!blocking.is_empty()).then(|| profile(facts.profile));
    for (found, mend) in more(unit) {
        blocking.push(found);
        next.get_or_insert(mend);
    }
    Some(match next {
        None => Check::ok(UNIT, format!("{NAME} lets it compute")),
        Some(next) => Check::wrong(UNIT, blocking.join("; "), next),
    })
}

/// How a line is added to the unit.
fn add(line: &str) -> String {
    format!(
        "type `systemctl edit {NAME}`, write `[Service]` and `{line}` there, and type `systemctl \
         restart {NAME}`"
    )
}

/// How a profile is laid over the unit.
fn profile(name: &str) -> String {
    format!(
        "type `install -D -m 644 /usr/share/op-dbus/profiles/{name}.conf \
         /etc/systemd/system/{NAME}.d/40-{name}.conf && systemctl daemon-reload && systemctl \
         restart op-dbus`"
    )
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::Provider;

    use super::super::check::State;
    use super::super::facts::of;
    use super::*;

    const STRICT: &str = "LoadState=loaded\nUser=op-dbus\nPrivateDevices=yes\nDevicePolicy=closed\n\
                          MemoryDenyWriteExecute=yes\nProcSubset=pid\nSystemCallFilter=read write";
    const OPEN: &str = "LoadState=loaded\nUser=op-dbus\nPrivateDevices=no\nDevicePolicy=closed\n\
                        DeviceAllow=char-nvidia rw\nDeviceAllow=char-nvidia-uvm rw\n\
                        DeviceAllow=char-drm rw\n\
                        MemoryDenyWriteExecute=no\nProcSubset=all\nSystemCallFilter=mbind read";

    fn checked(shown: &str, provider: Provider) -> Check {
        check(&Unit::parse(shown), of(provider), |_| Vec::new()).unwrap()
    }

    #[test]
    fn each_blocking_directive_is_named_with_the_profile_that_opens_it() {
        let check = checked(STRICT, Provider::Cuda);
        for part in ["PrivateDevices=yes", "DeviceAllow", "char-nvidia", "ProcSubset=pid", "mbind"]
        {
            assert!(check.found.contains(part), "{part}: {}", check.found);
        }
        assert!(check.next.unwrap().contains("profiles/gpu.conf"));
        let check = checked(STRICT, Provider::Ggml);
        assert!(check.found.starts_with("ProcSubset=pid"), "{}", check.found);
        assert!(check.next.unwrap().contains("profiles/onnx-runtime.conf"));
    }

    #[test]
    fn a_unit_with_the_profile_lets_it_compute() {
        assert_eq!(checked(OPEN, Provider::Cuda).state, State::Ok);
        assert_eq!(checked(OPEN, Provider::WebGpu).state, State::Ok);
        let check = checked(OPEN, Provider::MiGraphX);
        assert!(check.found.contains("char-kfd"), "{}", check.found);
    }

    #[test]
    fn what_keeps_devices_closed_is_named_however_they_are_listed() {
        let found = |listed: &[&str]| {
            let listed = listed.iter().map(|one| format!("\nDeviceAllow={one} rw"));
            let listed: String = listed.collect();
            let nvidia = "\nDeviceAllow=char-nvidia rw\nDeviceAllow=char-nvidia-uvm rw";
            checked(&OPEN.replace(nvidia, &listed), Provider::Cuda).found
        };
        assert_eq!(found(&["char-nvidia*"]), "op-dbus.service lets it compute");
        let closed = "DeviceAllow without char-nvidia-uvm keeps the device nodes closed";
        assert_eq!(found(&["char-nvidia"]), closed);
        assert_eq!(found(&["/dev/nvidia0", "/dev/nvidiactl"]), closed);
    }

    #[test]
    fn what_else_is_in_the_way_has_its_own_advice() {
        let more = |_: &Unit| vec![("a library".to_owned(), "move it".to_owned())];
        let cuda = of(Provider::Cuda);
        let found = |shown| check(&Unit::parse(shown), cuda, more).unwrap();
        assert_eq!(found(OPEN).next.unwrap(), "move it");
        let both = found(STRICT);
        assert!(both.found.ends_with("; a library"), "{}", both.found);
        assert!(both.next.unwrap().contains("profiles/gpu.conf"));
    }

    #[test]
    fn the_folders_that_systemd_makes_are_known() {
        let shown = "LoadState=loaded\nStateDirectory=op-dbus\nCacheDirectory=op-dbus";
        let unit = Unit::parse(shown).ok().unwrap();
        assert!(unit.makes(Path::new("/var/lib/op-dbus")));
        assert!(unit.makes(Path::new("/var/cache/op-dbus")));
        assert!(!unit.makes(Path::new("/srv/op-dbus")));
    }

    #[test]
    fn a_group_that_the_nodes_belong_to_is_needed() {
        let groups = ["render".to_owned()];
        let lacks = |unit: &Unit| Vec::from_iter(unit.lacks(&groups));
        let cuda = of(Provider::Cuda);
        let checked = |shown: &str| check(&Unit::parse(shown), cuda, lacks).unwrap();
        let lacking = checked(OPEN);
        assert!(lacking.found.contains("without render"), "{}", lacking.found);
        // The profile, which would not help where it is laid over the unit already, is for the directives.
        assert!(lacking.next.unwrap().contains("`SupplementaryGroups=render`"));
        let closed = checked(STRICT);
        assert!(closed.found.ends_with("render keeps its device nodes closed"), "{}", closed.found);
        assert!(closed.next.unwrap().contains("profiles/gpu.conf"));
        assert_eq!(checked(&format!("{OPEN}\nSupplementaryGroups=video render")).state, State::Ok);
    }

    #[test]
    fn a_unit_without_restrictions_lets_it_compute() {
        let shown = "LoadState=loaded\nPrivateDevices=no\nDevicePolicy=auto\n\
                     MemoryDenyWriteExecute=no\nProcSubset=all\nSystemCallFilter=";
        assert_eq!(checked(shown, Provider::Cuda).state, State::Ok);
        let forbidden = format!("{shown}~mbind reboot");
        assert_eq!(checked(&forbidden, Provider::Cuda).state, State::Wrong);
    }

    #[test]
    fn the_environment_of_the_unit_is_read_with_its_quotes() {
        let shown = "LoadState=loaded\nEnvironment=OP_DBUS_VECTOR_LEVEL=low HOME=/x \
                     \"OP_DBUS_MODEL_DIR=/a b/\\\"c\"";
        let (read, told) = Unit::parse(shown).ok().unwrap().settings();
        let pair = |name: &str, value: &str| (name.into(), value.into());
        let expected = [pair("OP_DBUS_VECTOR_LEVEL", "low"), pair("OP_DBUS_MODEL_DIR", "/a b/\"c")];
        assert_eq!(read, expected.into());
        let found = "op-dbus.service sets OP_DBUS_MODEL_DIR, OP_DBUS_VECTOR_LEVEL";
        assert_eq!(told, [Check::ok("environment", found)]);
    }

    #[test]
    fn what_of_the_unit_is_not_read_is_told() {
        let unit = |shown: &str| Unit::parse(shown).ok().unwrap();
        let shown = "LoadState=loaded\nEnvironmentFiles=/etc/default/op-dbus (ignore_errors=yes)\n\
                     EnvironmentFiles=/run/my file (ignore_errors=no)\n\
                     ExecStart={ path=/usr/bin/op-dbus ; argv[]=/usr/bin/op-dbus daemon --log debug ; \
                     ignore_errors=no ; pid=0 }";
        let expected = [
            "EnvironmentFile=/etc/default/op-dbus",
            "EnvironmentFile=/run/my file",
            "the flags --log debug",
        ];
        assert_eq!(unit(shown).unread(), expected);
        let (_, told) = unit(shown).settings();
        assert!(told[0].found.contains("--log debug, of which nothing"), "{}", told[0].found);
        let plain = "LoadState=loaded\nEnvironmentFiles=\n\
                     ExecStart={ path=/usr/bin/op-dbus ; argv[]=/usr/bin/op-dbus daemon ; pid=0 }";
        assert_eq!(unit(plain).settings(), (BTreeMap::new(), Vec::new()));
    }

    #[test]
    fn a_unit_that_cant_be_started_stands_in_the_way() {
        for (state, command) in [
            ("masked", "type `systemctl unmask op-dbus.service`"),
            ("bad-setting", "type `systemd-analyze verify op-dbus.service`, "),
            ("error", "type `systemd-analyze verify op-dbus.service`, "),
        ] {
            let check = unstartable(&Unit::parse(&format!("LoadState={state}"))).unwrap();
            assert_eq!(check.state, State::Wrong, "{state}");
            assert!(check.next.unwrap().starts_with(command), "{state}");
        }
        for other in ["LoadState=loaded", "LoadState=not-found"] {
            assert!(unstartable(&Unit::parse(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn what_is_not_installed_is_not_judged() {
        let check = checked("LoadState=not-found\nUser=", Provider::Cuda);
        assert_eq!(check.state, State::Unchecked);
        let strict = Unit::parse(STRICT);
        assert!(super::check(&strict, of(Provider::Cpu), |_| Vec::new()).is_none());
        assert_eq!(strict.ok().and_then(|unit| unit.user()), Some("op-dbus".to_owned()));
    }
}
