//! What is made from the table: the configuration file, the documentation, and the table itself.

use std::path::Path;

use super::{MAIN, Tree};
use crate::settings::{ROWS, config_file, markdown};

fn committed(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_shipped_configuration_file_is_up_to_date() {
    let same = committed("config/op-dbus.toml") == config_file();
    assert!(same, "run: op-dbus config show --defaults > config/op-dbus.toml");
}

#[test]
fn the_documentation_is_up_to_date() {
    let same = committed("docs/config.md") == markdown();
    assert!(same, "run: op-dbus config show --defaults --markdown > docs/config.md");
}

#[test]
fn the_shipped_file_changes_nothing_and_shows_the_built_in_values() {
    let built_in = Tree::new(&[]);
    let text = config_file();
    assert_eq!(Tree::new(&[(MAIN, &text)]).loaded().origins, built_in.loaded().origins);
    // With the # taken away from each value, every setting that a file may have is there.
    let is_value = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    let in_use: String = text
        .lines()
        .filter(is_value)
        .map(|line| &line[1..])
        .map(|line| format!("{line}\n"))
        .collect();
    let loaded = Tree::new(&[(MAIN, &in_use)]).loaded();
    for row in ROWS.iter().filter(|row| row.key != "config") {
        assert_eq!(loaded.value(row.key), Some(row.default), "{}", row.key);
        assert_ne!(loaded.origins[row.key].to_string(), "default", "{}", row.key);
    }
}

#[test]
fn no_line_of_the_generated_texts_is_too_long() {
    for line in config_file().lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn the_table_is_consistent() {
    for (index, row) in ROWS.iter().enumerate() {
        assert!(ROWS[..index].iter().all(|other| other.key != row.key), "{} is twice", row.key);
        assert!(row.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.key);
        assert!(row.doc.ends_with('.') && !row.doc.contains("  "), "{}", row.doc);
    }
}
