//! Which devices the unit leaves open to the service.

use std::ffi::CString;

use super::Unit;

impl Unit {
    /// Whether a group of devices is open, or each of these nodes, in which `#` stands for a number.
    pub fn opens(&self, group: &str, nodes: &[&str]) -> bool {
        let allowed = self.value("DeviceAllow");
        if allowed.is_empty() && self.value("DevicePolicy") == "auto" {
            return true;
        }
        let has_node = |node: &&str| allowed.split(' ').any(|word| is_node(word, node));
        allowed.split(' ').any(|word| is_group(word, group)) || nodes.iter().all(has_node)
    }
}

fn is_node(word: &str, node: &str) -> bool {
    match node.strip_suffix('#') {
        Some(node) => word.strip_prefix(node).is_some_and(|n| n.parse::<u32>().is_ok()),
        None => word == node,
    }
}

/// Whether a word is this group, or has wildcards that systemd would find it by. Of nodes it takes no wildcards.
fn is_group(word: &str, group: &str) -> bool {
    let (Ok(word), Ok(group)) = (CString::new(word), CString::new(group)) else { return false };
    // SAFETY: both are strings with a zero at their end, which are read meanwhile and not kept.
    unsafe { libc::fnmatch(word.as_ptr(), group.as_ptr(), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "char-nvidia-uvm";
    const NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia#"];

    fn opens(allowed: &[&str]) -> bool {
        let lines = allowed.iter().map(|one| format!("DeviceAllow={one} rw\n"));
        let lines: String = lines.collect();
        let shown = format!("LoadState=loaded\nDevicePolicy=closed\n{lines}");
        Unit::parse(&shown).ok().unwrap().opens(GROUP, &NODES)
    }

    #[test]
    fn a_group_is_open_by_its_name_and_by_wildcards() {
        for one in [GROUP, "char-nvidia*", "char-*", "char-nvidi?-uvm", "char-[mn]vidia-uvm"] {
            assert!(opens(&["char-drm", one]), "{one}");
        }
        for one in ["char-nvidia", "char-nvidia-", "char-nvidia-?", "block-*", "/dev/nvidia*"] {
            assert!(!opens(&["char-drm", one]), "{one}");
        }
    }

    #[test]
    fn nodes_may_be_opened_one_by_one() {
        assert!(opens(&["/dev/nvidiactl", "/dev/nvidia3"]));
        for others in [&["/dev/nvidiactl"][..], &["/dev/nvidiactl", "/dev/nvidia-uvm"]] {
            assert!(!opens(others), "{others:?}");
        }
    }
}
