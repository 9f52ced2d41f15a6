//! `op-dbus.service(8)`: the unit as a manual page, read from the files that are installed.

use op_dbus_daemon::settings::{ROWS, Scope};

use super::super::SERVICE_EXIT_CODES;
use super::page::Page;

const UNIT: &str = include_str!("../../../../../systemd/op-dbus.service");

macro_rules! profiles {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../../systemd/profiles/", $name, ".conf")))),*]
    };
}

/// Name and content of each profile.
const PROFILES: &[(&str, &str)] = profiles! {
    "standard" "high-value" "high-throughput" "edge" "development" "gpu" "onnx-runtime" "remote"
};

/// The one that the page shows how to install: it needs nothing that may not be there.
const SHOWN: &str = "standard";

/// Directives that name a folder of the service, with what is above it and what is in it.
const FOLDERS: [(&str, &str, &str); 4] = [
    ("ConfigurationDirectory", "/etc", "Settings: see op-dbus.toml(5)."),
    (
        "StateDirectory",
        "/var/lib",
        "Models, and the state file with what was changed over the bus.",
    ),
    ("CacheDirectory", "/var/cache", "Packed weights and compiled graphs. It may be emptied."),
    ("RuntimeDirectory", "/run", "Empty, unless settings place the state file or a bus there."),
];

pub fn page() -> String {
    let mut page = Page::new("op-dbus.service", "8", "text embeddings as a system service");
    page.section("SYNOPSIS").lines(&format!(
        "op-dbus.service\nop-dbus-models@LEVEL.service\n{}",
        directive("ExecStart")
    ));
    page.section("DESCRIPTION").paragraph(&format!(
        "One daemon holds a model and answers every program on the machine over the system bus, as \
         `{}`. A call to that name starts it. It is ready when it has embedded a text, or can say \
         why it does not. What computes runs in processes of its own, `op-dbus worker`, which it \
         starts again when they are lost.",
        directive("BusName")
    ));
    page.paragraph(
        "The service has no network. `op-dbus-models@LEVEL.service` has one, fetches the model of a \
         level, and ends.",
    );
    page.section("SIGNALS");
    page.term(
        "SIGTERM, SIGINT",
        "New calls are refused, those in flight end, then the service does.",
    );
    page.under_term(&format!("It is killed after {}.", seconds("TimeoutStopSec")));
    page.term(
        "SIGHUP",
        "The settings are read again, as by `systemctl reload op-dbus`, which checks them first and \
         fails where they have a mistake, or nothing could be embedded with them. What can be \
         changed while the service runs is; the journal names what needs a restart.",
    );
    life(&mut page);
    page.section("FILES");
    for (key, above, content) in FOLDERS {
        page.term(&format!("{above}/{}", directive(key)), content);
    }
    environment(&mut page);
    profiles(&mut page);
    page.see_also(&[
        "op-dbus(1)",
        "op-dbus-daemon(1)",
        "op-dbus-doctor(1)",
        "op-dbus.toml(5)",
        "org.opdbus.Embedding1(5)",
        "systemd.service(5)",
    ])
}

/// How the service ends, and what the service manager makes of it.
fn life(page: &mut Page) {
    page.section("EXIT STATUS");
    for (code, meaning) in exit_codes() {
        page.term(code, &format!("{meaning}."));
    }
    page.paragraph(&format!(
        "After any other failure than {} the service is started again.",
        directive("RestartPreventExitStatus").replace(' ', " and ")
    ));
    page.section("WATCHDOG").paragraph(&format!(
        "The service manager is told that all is well only after a short text was embedded, which \
         takes the way of all others from time to time; or while there is nothing to embed with: the \
         level is none, or its model is not there, not loaded yet or unloaded; or while a batch that it \
         waits for takes no longer than `batch_timeout_s` allows, as a worker that hangs is replaced \
         then. After {} of silence the \
         service is ended and started again. A start or a reload may take {}; the service asks for more by \
         itself, as much as `load_timeout_s` and `batch_timeout_s` allow each provider that is tried.",
        seconds("WatchdogSec"),
        seconds("TimeoutStartSec")
    ));
}

fn environment(page: &mut Page) {
    page.section("ENVIRONMENT").paragraph(
        "Every setting has a variable, which ranks above the files and the state file; \
         op-dbus.toml(5) lists them. These can't stand in a file:",
    );
    for row in ROWS.iter().filter(|row| row.scope == Scope::Outside) {
        page.term(&row.variable(), row.doc);
    }
    page.term("NOTIFY_SOCKET, WATCHDOG_USEC", "Set by the service manager: see sd_notify(3).");
}

fn profiles(page: &mut Page) {
    page.section("PROFILES").paragraph(
        "The unit says what every machine needs. What a certain machine needs is laid over it, from \
         /usr/share/op-dbus/profiles:",
    );
    for (name, content) in PROFILES {
        page.term(name, &purpose(content));
    }
    page.lines(&format!(
        "install -D -m 644 /usr/share/op-dbus/profiles/{SHOWN}.conf \\\n    \
         /etc/systemd/system/op-dbus.service.d/50-profile.conf\n\
         systemctl daemon-reload\nsystemctl restart op-dbus"
    ));
}

/// The value of a directive of the unit; empty without it.
fn directive(key: &str) -> &'static str {
    let value = |line: &'static str| line.strip_prefix(key)?.strip_prefix('=');
    UNIT.lines().find_map(value).unwrap_or_default()
}

fn seconds(key: &str) -> String {
    format!("{} s", directive(key))
}

/// Code and meaning of each, from the sentence in the command's help.
fn exit_codes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let list = SERVICE_EXIT_CODES.split_once(": ").map_or("", |(_, list)| list);
    list.split(", ").filter_map(|one| one.split_once(' '))
}

/// The comment at the top of a profile, up to where it says how to install it.
fn purpose(profile: &str) -> String {
    let comment = profile.lines().map_while(|line| line.strip_prefix("# "));
    comment.take_while(|line| !line.starts_with("Install as")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_told_with_its_purpose() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/profiles");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
        assert_eq!(files.len(), PROFILES.len());
        while let Some(Ok(file)) = files.pop() {
            let name = file.file_name().into_string().unwrap();
            let name = name.trim_end_matches(".conf");
            assert!(PROFILES.iter().any(|(known, _)| *known == name), "{name} is missing");
        }
        assert!(PROFILES.iter().all(|(_, content)| purpose(content).starts_with("For ")));
    }

    #[test]
    fn the_profile_that_the_page_installs_has_no_settings() {
        let (_, content) = PROFILES.iter().find(|(name, _)| *name == SHOWN).unwrap();
        assert!(!content.contains("OP_DBUS_"), "a level or a provider would have to be fetched");
        assert!(page().contains(&format!("/profiles/{SHOWN}.conf")));
    }

    #[test]
    fn the_unit_has_what_the_page_asks_for() {
        let keys = ["ExecStart", "BusName", "TimeoutStopSec", "TimeoutStartSec", "WatchdogSec"];
        let folders = FOLDERS.iter().map(|(key, ..)| key);
        for key in keys.iter().chain(folders).chain(&["RestartPreventExitStatus"]) {
            assert!(!directive(key).is_empty(), "{key}");
        }
        assert_eq!(exit_codes().count(), 4);
    }
}
