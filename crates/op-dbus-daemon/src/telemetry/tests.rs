//! The journal's stream, its catalog, and filters.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;

#[test]
fn what_is_told_of_one_user_is_told_of_others() {
    let told = OncePerUserAndMinute::default();
    let of = |uid| told.clone().is_due(uid);
    assert!(of(1) && !of(1) && of(2) && !of(2));
    // Some of them, of however many there are.
    assert_eq!((3..10_000).filter(|uid| of(*uid)).count(), USERS_MAX - 2);
}

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

/// What was written, for the test that reads it.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let written = Written::default();
    let to = written.clone();
    let (filter, _handle) = reload::Layer::new(parse_filter("trace").unwrap());
    let output = lines().with_writer(move || to.clone());
    let subscriber = tracing_subscriber::registry().with(filter).with(output);
    tracing::subscriber::with_default(subscriber, || {
        tracing::error!("lost");
        tracing::warn!(cpu = 3, "slow");
        tracing::info!("ready");
        tracing::debug!("seen");
    });
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text, "<3>lost\n<4>slow cpu=3\n<6>ready\n<7>seen\n");
}

/// Of an entry with fields alone, an administrator would see nothing of why.
#[test]
fn what_goes_wrong_is_in_the_message() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<_> = ["daemon", "engine", "gateway"]
        .map(|name| crates.join(format!("op-dbus-{name}/src")))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            for start in ["warn!(", "error!("] {
                for call in source.split(start).skip(1) {
                    let fields = call.trim_start();
                    let hidden = fields.starts_with(['%', '?']) || fields.starts_with("error =");
                    assert!(!hidden, "{}: {start}{:.60}", path.display(), fields);
                }
            }
        }
    }
}

#[test]
fn a_filter_that_is_none_is_refused_in_a_sentence() {
    let text = parse_filter("info=loud").unwrap_err();
    assert!(text.starts_with("`info=loud` is not a log filter ("), "{text}");
    for wrong in ["", " ", "[", "a=b=c", "info, debug"] {
        assert!(parse_filter(wrong).is_err(), "{wrong}");
    }
    for right in ["warn,op_dbus_engine=trace", "off", "INFO", "op_dbus", "debug,[span]=trace"] {
        assert!(parse_filter(right).is_ok(), "{right}");
    }
    assert!(parse_filter("info,zbus=warn,op_dbus_daemon::service[x{y=1}]=debug").is_ok());
}

#[test]
fn a_word_that_names_nothing_is_no_filter() {
    for (filter, expected) in [
        ("inof", "`inof` is not a level (did you mean `info`?)"),
        ("info,debg", "`debg` is not a level (did you mean `debug`?)"),
        ("verbose", "`verbose` is not a level"),
        ("info,op_dbus_engin", "`op_dbus_engin` is not a level (did you mean `op_dbus_engine`?)"),
        (
            "info,op_dbus_engin::x=warn",
            "nothing logs as `op_dbus_engin::x` (did you mean `op_dbus_engine`?)",
        ),
        ("info=debug", "nothing logs as `info`"),
        (",", "it names no level"),
    ] {
        assert_eq!(parse_filter(filter).unwrap_err(), expected, "{filter}");
    }
}

#[test]
fn of_libraries_no_more_than_warnings_unless_they_are_named() {
    for (filter, expected) in [
        ("info", "zbus=warn"),
        ("debug,op_dbus_engine=info", "zbus=warn"),
        ("error", "zbus=error"),
        ("off", "zbus=off"),
        ("trace,zbus=trace", "zbus=trace"),
        ("zbus=info,info", "zbus=info"),
    ] {
        let parsed = parse_filter(filter).unwrap().to_string();
        let of_zbus: Vec<_> = parsed.split(',').filter(|part| part.starts_with("zbus")).collect();
        assert_eq!(of_zbus, [expected], "{filter}: {parsed}");
    }
    assert_eq!(parse_filter("op_dbus=debug").unwrap().to_string(), "op_dbus=debug");
}

#[test]
fn every_crate_that_logs_can_be_named() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in std::fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap();
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
        let name = folder.file_name().into_string().unwrap().replace('-', "_");
        let logs = manifest.lines().any(|line| line.starts_with("tracing."));
        assert!(!logs || TARGETS.contains(&name.as_str()), "{name}");
    }
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
    assert!(!tracing::enabled!(Level::INFO));
    telemetry.set_filter("info").unwrap();
    assert!(tracing::enabled!(Level::INFO));
    assert!(!tracing::enabled!(target: "zbus::object_server", Level::INFO), "a span for each call");
    assert!(telemetry.set_filter("info=loud").is_err());
    assert!(tracing::enabled!(Level::INFO));
    assert!(start("info").is_err(), "logging starts once");
}
