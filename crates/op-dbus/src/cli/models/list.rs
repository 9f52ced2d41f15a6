//! `op-dbus models list`: the built-in models and the imported ones, and the state of each.

use op_dbus_models::{Level, Store, manifest};
use serde::Serialize;
use serde_json::json;

use super::super::store::{looked, painted};
use super::super::terminal::{Colour, colour, harmless, paint};
use super::super::{Failure, print, tell};
use super::{megabytes, readable};

/// One line of `list`.
#[derive(Serialize)]
struct Row {
    name: String,
    level: Option<Level>,
    dimensions: Option<usize>,
    max_input_tokens: Option<usize>,
    bytes: Option<u64>,
    state: &'static str,
    reason: Option<String>,
}

pub(super) fn run(store: &Store, json: bool) -> Result<(), Failure> {
    match readable(store) {
        // Before the first model is installed there is no folder, unless its name is mistyped.
        Err(failure) if !store.dir().exists() => tell(failure.message()),
        looked => looked?,
    }
    let rows = rows(store);
    if json {
        // By way of values, whose keys have an order of their own.
        return print(format!("{:#}\n", json!(rows)));
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    let colour = colour();
    let heading = format!(
        "{:<width$}  {:<6}  {:>10}  {:>10}  {:>8}  state",
        "name", "level", "dimensions", "max tokens", "size"
    );
    let mut out = paint(heading, Colour::Faint, colour) + "\n";
    for row in &rows {
        let level = row.level.map_or("-", Level::as_str);
        let number = |n: Option<usize>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let size = row.bytes.map_or_else(|| "-".to_owned(), megabytes);
        out.push_str(&format!(
            "{:<width$}  {level:<6}  {:>10}  {:>10}  {size:>8}  {}\n",
            row.name,
            number(row.dimensions),
            number(row.max_input_tokens),
            painted(row.state, colour)
        ));
    }
    for reason in rows.iter().filter_map(|row| row.reason.as_ref()) {
        out.push_str(&format!("{}\n", harmless(reason)));
    }
    print(out)
}

/// The built-in models, lowest level first, then the imported ones.
fn rows(store: &Store) -> Vec<Row> {
    let built_in = manifest::models().iter().map(|model| {
        let known = (model.dimensions, model.max_input_tokens, model.bytes());
        (model.name.clone(), Some(model.level), Some(known))
    });
    let others = store.names().into_iter().filter(|name| manifest::find(name).is_none());
    let imported = others.map(|name| {
        let model = store.get(&name).ok();
        let known = model.map(|model| (model.dimensions, model.max_input_tokens, model.bytes()));
        (name, None, known)
    });
    let row = |(name, level, known): (String, Option<Level>, Option<(usize, usize, u64)>)| {
        let (state, reason) = state(store, &name);
        Row {
            name,
            level,
            dimensions: known.map(|(dimensions, _, _)| dimensions),
            max_input_tokens: known.map(|(_, tokens, _)| tokens),
            bytes: known.map(|(_, _, bytes)| bytes),
            state,
            reason,
        }
    };
    built_in.chain(imported).map(row).collect()
}

fn state(store: &Store, name: &str) -> (&'static str, Option<String>) {
    let (_, state, reason) = looked(store.get(name).and_then(|model| model.check_files()));
    (state, reason)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::super::super::store::{DAMAGED, MISSING, REFUSED};
    use super::*;

    #[test]
    fn list_shows_the_built_in_models_of_an_empty_store() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let none = std::env::temp_dir().join("op-dbus-there-is-no-such-folder");
        for dir in [none, file.path().join("models")] {
            let rows = rows(&Store::open(dir));
            assert_eq!(rows.len(), 3);
            assert!(rows.iter().all(|row| row.state == MISSING && row.reason.is_none()));
        }
    }

    #[test]
    fn what_others_may_write_is_refused_and_not_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("own/op-dbus.json");
        std::fs::create_dir(dir.path().join("own")).unwrap();
        std::fs::write(&record, "{}").unwrap();
        let found = || state(&Store::open(dir.path()), "own").0;
        std::fs::set_permissions(&record, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(found(), DAMAGED);
        std::fs::set_permissions(&record, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(found(), REFUSED);
    }
}
