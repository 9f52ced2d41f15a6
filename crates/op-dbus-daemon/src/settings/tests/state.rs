//! A state file that can't be used any more when the settings are read again.

use std::fs;
use std::os::unix::fs::symlink;

use op_dbus_models::Level;

use super::{STATE, Tree};
use crate::settings::{ChangeError, Loaded};

/// The settings are read again; what is told of that.
fn reload(loaded: &Loaded) -> (Loaded, Vec<String>) {
    let again = loaded.reload().unwrap();
    let told = again.warnings.iter().map(ToString::to_string).collect();
    (again, told)
}

#[test]
fn what_was_changed_stays_in_force_without_its_file() {
    let mut tree = Tree::new(&[(STATE, r#"{"version":1,"settings":{"vector_level":"low"}}"#)]);
    tree.sources.repair_state = true;
    let (loaded, state) = (tree.loaded(), tree.path().join(STATE));

    tree.write(STATE, b"damaged");
    let (again, told) = reload(&loaded);
    assert_eq!(again.settings.vector_level, Level::Low);
    let end = "; what was changed over the bus stays in force, and is written anew";
    assert!(told.len() == 1 && told[0].contains("it was moved to"), "{told:?}");
    assert!(told[0].ends_with(end), "{told:?}");
    assert_eq!(reload(&again).0.settings.vector_level, Level::Low, "the next reload");
    assert_eq!(tree.loaded().settings.vector_level, Level::Low, "a restart");

    // Nobody can read this, the superuser included.
    fs::remove_file(&state).unwrap();
    symlink("state.json", &state).unwrap();
    let (again, told) = reload(&again);
    assert_eq!(again.settings.vector_level, Level::Low);
    assert!(told.len() == 1 && told[0].contains("can't be written anew: "), "{told:?}");
    let refused = again.with("vector_level", "high").unwrap().save();
    assert!(matches!(refused, Err(ChangeError::State(_))), "what it has may be another's");

    fs::remove_file(&state).unwrap();
    assert_eq!(reload(&again).0.settings.vector_level, Level::Medium, "taken back");
}
