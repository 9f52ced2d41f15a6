//! The journal's stream, its catalog, and filters.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::*;

#[test]
fn a_stream_is_known_by_device_and_inode() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("log")).unwrap();
    let stat = nix::sys::stat::fstat(&file).unwrap();
    let (device, inode) = (stat.st_dev, stat.st_ino);
    assert!(same_stream(&file, &format!("{device}:{inode}")), "{}", file.as_raw_fd());
    for other in [format!("{device}:{}", inode + 1), format!("{inode}"), String::new(), ":".into()]
    {
        assert!(!same_stream(&file, &other), "{other}");
    }
}

#[test]
fn a_filter_that_is_none_is_refused_in_a_sentence() {
    let text = parse_filter("info=loud").unwrap_err();
    assert!(text.starts_with("`info=loud` is not a log filter ("), "{text}");
    assert!(parse_filter("warn,op_dbus_engine=trace").is_ok());
}

#[test]
fn every_message_id_is_in_the_catalog_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/op-dbus.catalog");
    let catalog = std::fs::read_to_string(path).unwrap();
    let listed: Vec<&str> = catalog.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
    let ids: Vec<&str> = message_id::ALL.iter().map(|(_, id)| *id).collect();
    assert_eq!(listed, ids);
    for (index, (name, id)) in message_id::ALL.iter().enumerate() {
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        assert!(id.len() == 32 && id.bytes().all(lower_hex), "{name}");
        assert!(!ids[..index].contains(id), "{name}");
    }
    for entry in catalog.split("\n-- ").skip(1) {
        let text = entry.split_once("\n\n").map(|(_, text)| text.trim()).unwrap_or_default();
        assert!(entry.contains("\nSubject: ") && !text.is_empty(), "{entry}");
        assert!(entry.contains("\nDefined-By: op-dbus\n"), "{entry}");
    }
}

#[test]
fn the_filter_can_be_changed_while_running() {
    let telemetry = start("warn").unwrap();
    assert!(!tracing::enabled!(tracing::Level::INFO));
    telemetry.set_filter("info").unwrap();
    assert!(tracing::enabled!(tracing::Level::INFO));
    assert!(telemetry.set_filter("info=loud").is_err());
    assert!(tracing::enabled!(tracing::Level::INFO));
    assert!(start("info").is_err(), "logging starts once");
}
