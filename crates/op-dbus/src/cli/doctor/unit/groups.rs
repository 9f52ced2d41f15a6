//! The groups of the service, which device nodes belong to.

use std::ffi::CString;

use nix::unistd::{Group, User, geteuid, getgrouplist};

use super::super::check::Check;
use super::super::nodes;
use super::{Obstacle, Unit, add};

impl Unit {
    /// Those of the device nodes' `groups` that the service is not in.
    pub fn lacks(&self, groups: &[String]) -> Option<Obstacle> {
        if self.is_root() {
            return None;
        }
        let joined = self.groups();
        let lacking = groups.iter().filter(|group| !joined.contains(group));
        let lacking = lacking.map(String::as_str).collect::<Vec<_>>().join(" ");
        let found = format!("SupplementaryGroups without {lacking} keeps its device nodes closed");
        let more = add(&format!("SupplementaryGroups={lacking}"));
        (!lacking.is_empty()).then_some((found, more))
    }

    /// A device node that is root's, where the service is another.
    pub fn may_not_open(&self, of_root: Option<String>) -> Option<Obstacle> {
        let path = of_root?;
        let may = self.is_root() || self.groups().iter().any(|group| group == "root");
        (!may).then(|| (format!("{path} is open to root alone"), nodes::shared(&path)))
    }

    /// Whether the service needs no group.
    fn is_root(&self) -> bool {
        self.user().is_none_or(|user| user == "root")
    }

    /// The groups of the service, its own first. systemd adds those of the unit to those that the user is in.
    fn groups(&self) -> Vec<String> {
        let user = self.user().and_then(|name| User::from_name(&name).ok().flatten());
        let own = Group::from_name(&self.value("Group")).ok().flatten().map(|group| group.gid);
        let own = own.or(user.as_ref().map(|user| user.gid));
        let gids = user.zip(own).and_then(|(user, own)| {
            let name = CString::new(user.name).ok()?;
            getgrouplist(&name, own).ok()
        });
        let of_user = gids.into_iter().flatten();
        let named = of_user.filter_map(|gid| Group::from_gid(gid).ok().flatten());
        let mut groups: Vec<String> = named.map(|group| group.name).collect();
        for group in self.value("SupplementaryGroups").split_whitespace() {
            if !groups.iter().any(|one| one == group) {
                groups.push(group.to_owned());
            }
        }
        groups
    }
}

/// Tells that the service runs as another user than the one who asks, as far as that is so.
pub fn other_user(unit: &Result<Unit, String>) -> Option<Check> {
    let unit = unit.as_ref().ok()?;
    let service = unit.user()?;
    let me = User::from_uid(geteuid()).ok().flatten()?.name;
    let groups = unit.groups();
    let doctor = match groups.first() {
        // `sudo` gives the groups that the user is in, and none of the unit's.
        Some(own) if !unit.value("SupplementaryGroups").is_empty() => format!(
            "sudo setpriv --reuid {service} --regid {own} --groups {} op-dbus doctor",
            groups.join(",")
        ),
        _ => format!("sudo -u {service} op-dbus doctor"),
    };
    let found = format!(
        "the service runs as {service}, and this is {me}: `{doctor}` shows what that user may"
    );
    (me != service).then(|| Check::unchecked("user", found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(more: &str) -> Result<Unit, String> {
        Unit::parse(&format!("LoadState=loaded\nUser=nobody\n{more}"))
    }

    /// The group that the user of the unit is in by itself.
    fn own() -> String {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        Group::from_gid(nobody.gid).unwrap().unwrap().name
    }

    fn lacking(more: &str, nodes: &[&str]) -> Option<Obstacle> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        unit(more).ok().unwrap().lacks(&nodes)
    }

    #[test]
    fn groups_that_the_service_is_not_in_are_to_be_added() {
        let profile = "SupplementaryGroups=video render";
        let (found, next) = lacking(profile, &["cards", "npu", "render"]).unwrap();
        assert!(found.contains("without cards npu keeps"), "{found}");
        assert!(next.contains("`SupplementaryGroups=cards npu`"), "{next}");
        assert_eq!(lacking(profile, &["render", "video"]), None);
        // As by usermod.
        let own = own();
        assert_eq!(lacking("", &[own.as_str()]), None);
        assert!(lacking("Group=root", &[own.as_str()]).is_some());
        assert_eq!(lacking("Group=root", &["root"]), None);
        let root = Unit::parse("LoadState=loaded\nUser=root").ok().unwrap();
        assert_eq!(root.lacks(&["render".to_owned()]), None);
    }

    #[test]
    fn a_node_that_is_roots_is_closed_to_all_but_root() {
        let told = |unit: &Unit| unit.may_not_open(Some("/dev/kfd".to_owned()));
        let (found, next) = told(&unit("").ok().unwrap()).unwrap();
        assert_eq!(found, "/dev/kfd is open to root alone");
        assert_eq!(next, "let a rule of udev give /dev/kfd to the group video or render");
        for user in ["LoadState=loaded", "LoadState=loaded\nUser=root"] {
            assert_eq!(told(&Unit::parse(user).ok().unwrap()), None, "{user}");
        }
        assert_eq!(told(&unit("Group=root").ok().unwrap()), None);
    }

    #[test]
    fn who_looks_as_the_service_has_the_groups_of_the_unit() {
        let told = |more: &str| other_user(&unit(more)).unwrap().found;
        assert!(told("").contains("`sudo -u nobody op-dbus doctor`"), "{}", told(""));
        let profile = told("Group=root\nSupplementaryGroups=video render");
        let command = "`sudo setpriv --reuid nobody --regid root --groups root,";
        assert!(profile.contains(command), "{profile}");
        assert!(profile.contains("video,render op-dbus doctor`"), "{profile}");
    }
}
