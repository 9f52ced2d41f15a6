//! The systemd units and the profiles laid over them: nothing that systemd does not understand, and
//! how much is left open.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::harness::command::{Finished, clean, finish};
use crate::harness::registry::tests;
use crate::harness::{Outcome, needs, repository};

tests! {
    systemd_understands_every_unit: [SystemdAnalyze],
    little_is_left_open: [SystemdAnalyze],
    every_profile_is_read: [SystemdAnalyze],
    every_profile_is_checked: [],
    what_makes_devices_is_loaded_before_the_service: [],
    a_stop_is_told_to_the_daemon_alone: [],
    a_worker_that_memory_runs_out_for_ends_no_service: [],
    nothing_is_set_that_the_slice_takes_back: [],
}

const SERVICE: &str = "op-dbus.service";
/// Where a profile lies in a root folder.
const DROP_IN: &str = "etc/systemd/system/op-dbus.service.d/50-profile.conf";
const PULL: &str = "op-dbus-models@medium.service";
const GATEWAY: &str = "op-dbus-gateway.service";
const GATEWAY_SOCKET: &str = "op-dbus-gateway.socket";

/// What is laid over the service, and the most that `systemd-analyze security` may say of the result:
/// 0 is nothing left open, 10 everything.
const PROFILES: [(&str, f64); 9] = [
    ("", 0.5),
    ("standard", 0.5),
    ("high-value", 0.5),
    ("high-throughput", 0.5),
    ("edge", 0.5),
    ("development", 1.0),
    ("gpu", 1.0),
    ("onnx-runtime", 0.5),
    ("remote", 1.5),
];
/// The unit that fetches models has a network, which alone is worth 1.
const PULL_MAX: f64 = 1.5;
/// Its socket is handed over, so it has no network either.
const GATEWAY_MAX: f64 = 0.5;

/// A root folder with our units, one profile over the service, and what they refer to.
fn root(profile: &str) -> Outcome<TempDir> {
    let root = tempfile::Builder::new().prefix("units-").tempdir()?;
    let units = root.path().join("usr/lib/systemd/system");
    let over = root.path().join(DROP_IN);
    let folder = over.parent().ok_or("no folder")?;
    for folder in [&units, folder, &root.path().join("usr/bin")] {
        fs::create_dir_all(folder)?;
    }
    symlink("usr/bin", root.path().join("bin"))?;
    // Only looked for, never run.
    for program in ["op-dbus", "kill", "systemctl"] {
        fs::copy("/bin/true", root.path().join("usr/bin").join(program))?;
    }
    let systemd = needs::systemd_units().ok_or("the units of systemd are not installed")?;
    let referred = |name: &str| {
        name.ends_with(".target") || name.ends_with(".slice") || name.starts_with("dbus.")
    };
    copy_units(&systemd, &units, referred)?;
    copy_units(&repository().join("systemd"), &units, |name| {
        name.ends_with(".service") || name.ends_with(".socket")
    })?;
    if !profile.is_empty() {
        let file = repository().join(format!("systemd/profiles/{profile}.conf"));
        fs::copy(file, over)?;
    }
    Ok(root)
}

fn copy_units(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Outcome {
    for entry in from.read_dir()? {
        let entry = entry?;
        if wanted(&entry.file_name().to_string_lossy()) && entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

async fn verified(root: &TempDir, unit: &str) -> Outcome<Finished> {
    let mut command = clean("systemd-analyze");
    command.args(["verify", "--man=no"]).arg("--root").arg(root.path()).arg(unit);
    finish(command, "").await
}

async fn systemd_understands_every_unit() -> Outcome {
    for (profile, _) in PROFILES {
        let root = root(profile)?;
        for unit in [SERVICE, PULL, GATEWAY, GATEWAY_SOCKET] {
            let verified = verified(&root, unit).await?;
            // A key that it doesn't know is told there and is no failure.
            assert_eq!(verified.stderr.trim(), "", "{unit} with profile {profile:?}");
            assert_eq!(verified.code, Some(0), "{unit} with profile {profile:?}");
        }
    }
    Ok(())
}

async fn little_is_left_open() -> Outcome {
    let (_, most) = PROFILES[0];
    let alone = rated(&root("")?, SERVICE, "", most).await?;
    for (profile, most_with_it) in PROFILES {
        let rating = rated(&root(profile)?, SERVICE, profile, most_with_it).await?;
        // One that is allowed more opens something.
        assert!(most_with_it <= most || rating > alone, "{profile}: {rating}, and {alone} without");
    }
    rated(&root("")?, PULL, "", PULL_MAX).await?;
    rated(&root("")?, GATEWAY, "", GATEWAY_MAX).await?;
    Ok(())
}

async fn rated(root: &TempDir, unit: &str, profile: &str, most: f64) -> Outcome<f64> {
    let mut command = clean("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]);
    command.arg("--root").arg(root.path()).arg(unit);
    let table = finish(command, "").await?.success()?;
    let line = table.lines().find(|line| line.contains("Overall exposure")).ok_or("no rating")?;
    let words = line.split_whitespace();
    let rating: f64 = words.filter_map(|word| word.parse().ok()).next_back().ok_or("no number")?;
    println!("{unit} {profile:16} {rating:.1}, {most:.1} at most");
    assert!(rating <= most, "{unit} with profile {profile:?} is rated {rating}:\n{table}");
    Ok(rating)
}

/// A mistake at the end of a profile is told: what is checked above is the profile, up to there.
async fn every_profile_is_read() -> Outcome {
    for (profile, _) in PROFILES.iter().filter(|(profile, _)| !profile.is_empty()) {
        let root = root(profile)?;
        let file = root.path().join(DROP_IN);
        fs::write(&file, fs::read_to_string(&file)? + "\n[Service]\nNoSuchKey=1\n")?;
        let said = verified(&root, SERVICE).await?.stderr;
        assert!(
            said.contains("50-profile.conf") && said.contains("NoSuchKey"),
            "{profile}: {said}"
        );
    }
    Ok(())
}

async fn every_profile_is_checked() -> Outcome {
    for entry in repository().join("systemd/profiles").read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let known = PROFILES.iter().any(|(profile, _)| name == format!("{profile}.conf"));
        assert!(known, "{name} is not in the list above");
    }
    Ok(())
}

/// systemd looks the groups of devices up when it starts the service, and never again: they would stay closed after a
/// boot that was quicker than the driver.
async fn what_makes_devices_is_loaded_before_the_service() -> Outcome {
    let profile = fs::read_to_string(repository().join("systemd/profiles/gpu.conf"))?;
    let values = |key: &str| -> Vec<&str> {
        let lines = profile.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.flat_map(str::split_whitespace).collect()
    };
    for (group, module) in
        [("char-nvidia-uvm", "nvidia_uvm"), ("char-drm", "drm"), ("char-accel", "drm")]
    {
        assert!(values("DeviceAllow").contains(&group), "{group}");
        let loads = format!("modprobe@{module}.service");
        for key in ["Wants", "After"] {
            assert!(values(key).contains(&loads.as_str()), "{key} has no {loads}, for {group}");
        }
    }
    // It makes the nodes.
    assert!(values("After").contains(&"nvidia-persistenced.service"));
    Ok(())
}

/// By itself systemd would end its workers, too, and with them what they compute for calls in flight.
async fn a_stop_is_told_to_the_daemon_alone() -> Outcome {
    let unit = fs::read_to_string(repository().join("systemd").join(SERVICE))?;
    assert!(unit.lines().any(|line| line == "KillMode=mixed"));
    Ok(())
}

/// By itself systemd would stop the service as soon as the kernel has ended one of its processes.
async fn a_worker_that_memory_runs_out_for_ends_no_service() -> Outcome {
    let policies = |file: &str| -> Outcome<Vec<String>> {
        let unit = fs::read_to_string(repository().join("systemd").join(file))?;
        let lines = unit.lines().filter(|line| line.starts_with("OOMPolicy"));
        Ok(lines.map(str::to_owned).collect())
    };
    assert_eq!(policies(SERVICE)?, ["OOMPolicy=continue"]);
    for (profile, _) in PROFILES.iter().filter(|(profile, _)| !profile.is_empty()) {
        let others = policies(&format!("profiles/{profile}.conf"))?;
        assert!(others.iter().all(|line| line == "OOMPolicy=continue"), "{profile}: {others:?}");
    }
    Ok(())
}

/// Memory is kept for a service only as far as it is for `system.slice`, which by itself keeps none.
async fn nothing_is_set_that_the_slice_takes_back() -> Outcome {
    let unit = fs::read_to_string(repository().join("systemd").join(SERVICE))?;
    let mut files = vec![("", unit)];
    for (profile, _) in PROFILES.iter().filter(|(profile, _)| !profile.is_empty()) {
        let path = repository().join(format!("systemd/profiles/{profile}.conf"));
        files.push((*profile, fs::read_to_string(path)?));
    }
    for (profile, file) in files {
        let kept = |line: &str| line.starts_with("MemoryLow=") || line.starts_with("MemoryMin=");
        assert!(!file.lines().any(kept), "profile {profile:?}");
    }
    Ok(())
}
