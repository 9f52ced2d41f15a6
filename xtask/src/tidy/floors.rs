//! Floors: a crate imports from floors below its own, never sideways, never upwards.

use crate::shell;

/// Crates by floor, as ARCHITECTURE.md draws them.
const FLOORS: &[&[&str]] = &[
    &["op-dbus-api", "op-dbus-models", "op-dbus-graph"],
    &["op-dbus-engine"],
    // These stand on floor 1 as well, and are the leaves that may see the engine beside them.
    &["op-dbus-native", "op-dbus-ort", "op-dbus-remote"],
    // Beside each other: the service computes in processes of its own, the library in the caller's, and
    // the gateway asks the service.
    &["op-dbus-daemon", "op-dbus-embedder", "op-dbus-gateway"],
    &["op-dbus"],
    &["op-dbus-tests", "op-dbus-fuzz"],
];
/// Imports that would be downwards, and are still not allowed: (who, whom, why).
const WALLS: &[(&str, &str, &str)] = &[
    ("op-dbus-engine", "op-dbus-api", "only the daemon's bus folder knows both"),
    ("op-dbus-daemon", "op-dbus-ort", "inference runs in the worker process"),
    ("op-dbus-daemon", "op-dbus-native", "inference runs in the worker process"),
    ("op-dbus-daemon", "op-dbus-remote", "the daemon opens no network socket"),
    ("op-dbus-gateway", "op-dbus-engine", "the gateway is a client of the bus"),
    ("op-dbus-tests", "op-dbus-daemon", "the daemon is tested as a process"),
    ("op-dbus-tests", "op-dbus-gateway", "the gateway is tested as a process"),
    ("op-dbus-engine", "zbus", "the engine links no transport"),
    ("op-dbus-engine", "ort", "ONNX Runtime is named in op-dbus-ort alone"),
    ("op-dbus-engine", "figment", "settings are the daemon's"),
    ("op-dbus-daemon", "ort", "ONNX Runtime is named in op-dbus-ort alone"),
    ("op-dbus-graph", "ort", "the compiler links no runtime"),
];

/// Imports that break the rules.
pub fn check() -> Result<Vec<String>, String> {
    let metadata = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let metadata = shell::read_json(&mut shell::cargo(&metadata))?;
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let Some(name) = package["name"].as_str() else { continue };
        if name == "xtask" {
            continue;
        }
        let Some(floor) = floor_of(name) else {
            findings.push(format!("{name} has no floor: give it one in ARCHITECTURE.md and here"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(other) = dependency["name"].as_str() else { continue };
            // Tests of a leaf may look beside them; what ships may not.
            let ships = dependency["kind"].is_null();
            if ships && floor_of(other).is_some_and(|below| below >= floor) {
                findings.push(format!("{name} imports {other}, which is not below it"));
            }
            let wall = WALLS.iter().find(|(who, whom, _)| *who == name && *whom == other);
            if let Some((_, _, why)) = wall {
                findings.push(format!("{name} imports {other}: {why}"));
            }
        }
    }
    Ok(findings)
}

fn floor_of(name: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&name))
}
