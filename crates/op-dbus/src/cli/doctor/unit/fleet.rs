//! What of the unit matters to a fleet that others run: whom the service reaches, and its credentials.

use std::fs::File;
use std::net::IpAddr;
use std::process::Command;

use op_dbus_daemon::service::CREDENTIALS;
use op_dbus_daemon::settings::Settings;
use op_dbus_daemon::settings::options::fleet::{self, Endpoint};

use super::{NAME, Obstacle, Unit, add};

/// Names a file, which others than systemd may be able to read.
const LOADED: &str = "LoadCredential";
/// By what else a unit has a credential, which systemd alone makes out.
const SEALED: [&str; 3] = ["LoadCredentialEncrypted", "SetCredential", "SetCredentialEncrypted"];

/// The lines of the unit's files that name credentials: `systemctl show` can't print them.
pub fn credentials_of(unit: &str) -> String {
    let output = Command::new("systemctl").args(["cat", unit]).output();
    let files = output.map(|output| output.stdout).unwrap_or_default();
    credential_lines(&String::from_utf8_lossy(&files))
}

/// Of a unit's files the lines that name credentials, without the blanks that systemd passes over.
fn credential_lines(files: &str) -> String {
    let pairs = files.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(key, value)| (key.trim(), value.trim()));
    let named = pairs.filter(|(key, _)| is_credential(key));
    named.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("\n")
}

fn is_credential(key: &str) -> bool {
    key == LOADED || SEALED.contains(&key)
}

/// Of the two lists that systemd keeps, encrypted or not, the one that a line goes to.
fn list_of(key: &str) -> &str {
    key.strip_suffix("Encrypted").unwrap_or(key)
}

impl Unit {
    /// The allow list that keeps workers from the endpoints.
    pub fn bars_endpoints(&self, endpoints: &[Endpoint]) -> Option<Obstacle> {
        let is_here = |address: &str| address.parse::<IpAddr>().is_ok_and(|one| one.is_loopback());
        let (allowed, denied) = (self.value("IPAddressAllow"), self.value("IPAddressDeny"));
        let mut networks = allowed.split_whitespace().filter_map(|one| one.split('/').next());
        if !denied.contains("/0") || !networks.all(is_here) {
            return None;
        }
        let elsewhere = |one: &&Endpoint| one.host != "localhost" && !is_here(&one.host);
        let host = &endpoints.iter().find(elsewhere)?.host;
        let found = format!("IPAddressAllow names no other machine, and {host} is one");
        let more = match host.parse::<IpAddr>() {
            Ok(address) => add(&format!("IPAddressAllow={address}")),
            Err(_) => {
                add("IPAddressAllow=") + ", with the addresses of the endpoints and name servers"
            }
        };
        Some((found, more))
    }

    /// The lines that name credentials and hold, each with its key: an empty one takes back what its list had before.
    /// What is set comes first, as systemd takes it only for what it has not loaded.
    fn credentials(&self) -> Vec<(&str, &str)> {
        let mut held: Vec<(&str, &str)> = Vec::new();
        for (key, value) in self.0.iter().filter(|(key, _)| is_credential(key)) {
            match value.is_empty() {
                true => held.retain(|(other, _)| list_of(other) != list_of(key)),
                false => held.push((key.as_str(), value.as_str())),
            }
        }
        held.sort_by_key(|(key, _)| list_of(key) == LOADED);
        held
    }

    /// Has the settings of a fleet name the files that systemd hands to the service as credentials, as far as
    /// they name none themselves; and says which of these this user can't read.
    pub fn lend_credentials(&self, settings: &mut Settings) -> Option<String> {
        let options = &mut settings.providers.get_mut(fleet::REMOTE)?.checked;
        let (held, mut closed) = (self.credentials(), None);
        for (option, name) in CREDENTIALS {
            // A name alone is that of a file in one of systemd's own folders.
            let mut parts = held.iter().map(|&(key, value)| {
                let (id, path) = value.split_once(':').unwrap_or((value, ""));
                (key, id, path)
            });
            let last = parts.rfind(|(_, id, _)| *id == name);
            let Some((key, _, path)) = last.filter(|_| !options.contains_key(option)) else {
                continue;
            };
            if key != LOADED || path.is_empty() {
                let why =
                    format!("{NAME} has the credential {name} by {key}, which only systemd reads");
                closed.get_or_insert(why);
                continue;
            }
            if let Err(error) = File::open(path) {
                let why = format!(
                    "{NAME} has the credential {name} from {path}, which you can't read ({error})"
                );
                closed.get_or_insert(why);
            }
            options.insert(option.to_owned(), path.to_owned());
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::Sources;

    use super::*;

    /// The settings of a fleet at these URLs.
    fn settings(urls: &str) -> Settings {
        let mut settings = Settings::load(&Sources::under("/nowhere")).unwrap().settings;
        let remote = settings.providers.entry(fleet::REMOTE.to_owned()).or_default();
        remote.checked.insert("endpoints".to_owned(), urls.to_owned());
        settings
    }

    #[test]
    fn an_allow_list_without_the_endpoints_is_told() {
        let deny = "LoadState=loaded\nIPAddressDeny=::/0 0.0.0.0/0\n";
        let profile = format!("{deny}IPAddressAllow=127.0.0.0/8 ::1/128");
        let barred = |shown: &str, urls: &str| {
            let unit = Unit::parse(shown).ok().unwrap();
            unit.bars_endpoints(&fleet::endpoints(&settings(urls)))
        };
        let far = "http://localhost:1,https://10.20.1.2:8000";
        let (found, next) = barred(&profile, far).unwrap();
        assert!(found.contains("10.20.1.2"), "{found}");
        assert!(next.contains("`IPAddressAllow=10.20.1.2`"), "{next}");
        assert!(barred(&profile, "https://embed.example").is_some());
        assert!(barred(deny, far).is_some());
        let open = format!("{profile} 10.20.0.0/16");
        assert!(barred(&open, far).is_none());
        assert!(barred("LoadState=loaded", far).is_none());
        assert!(barred(&profile, "http://localhost:1,http://[::1]:2").is_none());
    }

    #[test]
    fn credentials_stand_for_options_that_are_not_set() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let token = file.path().display().to_string();
        let shown = format!(
            "LoadState=loaded\nLoadCredential=remote-token:/old\nLoadCredential=remote-token:{token}\n\
             LoadCredential=remote-ca:/nowhere/ca.pem"
        );
        let unit = Unit::parse(&shown).ok().unwrap();
        let mut lent = settings("https://embed.example");
        let closed = unit.lend_credentials(&mut lent).unwrap();
        assert!(closed.contains("/nowhere/ca.pem"), "{closed}");
        let checked = &lent.providers[fleet::REMOTE].checked;
        assert_eq!((&*checked["token_file"], &*checked["ca_file"]), (&*token, "/nowhere/ca.pem"));
        for by in [
            "LoadCredential=remote-token",
            "LoadCredentialEncrypted=remote-token:/etc/op-dbus/token",
            "LoadCredential=\nSetCredentialEncrypted=remote-token: \\",
        ] {
            let unit = Unit::parse(&format!("{shown}\n{by}")).ok().unwrap();
            let mut unread = settings("https://embed.example");
            let closed = unit.lend_credentials(&mut unread).unwrap();
            let (key, _) = by.lines().last().unwrap().split_once('=').unwrap();
            let expected = format!("remote-token by {key}, which only systemd reads");
            assert!(closed.ends_with(&expected), "{by}: {closed}");
            assert!(!unread.providers[fleet::REMOTE].checked.contains_key("token_file"), "{by}");
        }
        let mut own = settings("https://embed.example");
        for option in ["token_file", "ca_file"] {
            let remote = own.providers.get_mut(fleet::REMOTE).unwrap();
            remote.checked.insert(option.to_owned(), "/own".to_owned());
        }
        assert_eq!(unit.lend_credentials(&mut own), None);
        assert_eq!(own.providers[fleet::REMOTE].checked["token_file"], "/own");
    }

    #[test]
    fn lines_with_blanks_name_credentials_as_well() {
        let files = "[Service]\n LoadCredential = remote-token:/one \n#LoadCredential=remote-ca:/no\n\
                     LoadCredentialEncrypted=\nUser=op-dbus\nSetCredential\t= remote-ca: words";
        let expected = "LoadCredential=remote-token:/one\nLoadCredentialEncrypted=\n\
                        SetCredential=remote-ca: words";
        assert_eq!(credential_lines(files), expected);
    }

    #[test]
    fn an_empty_line_takes_back_those_of_its_list() {
        let held = |lines: &[&str]| {
            let shown = format!("LoadState=loaded\n{}", lines.join("\n"));
            let unit = Unit::parse(&shown).ok().unwrap();
            let held = unit.credentials().into_iter();
            held.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        let (loaded, set) = ("LoadCredential=remote-token:/one", "SetCredential=remote-token: one");
        assert_eq!(held(&[loaded, set]), [set, loaded], "the file goes before it");
        for (empty, left) in [
            ("LoadCredential=", set),
            ("LoadCredentialEncrypted=", set),
            ("SetCredential=", loaded),
            ("SetCredentialEncrypted=", loaded),
        ] {
            assert_eq!(held(&[loaded, set, empty]), [left], "{empty}");
            assert_eq!(held(&[empty, loaded, set]), [set, loaded], "{empty}");
        }
    }
}
