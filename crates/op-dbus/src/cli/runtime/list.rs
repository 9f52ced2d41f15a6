//! `op-dbus runtime list`: the providers that have a library, and the state of each.

use std::path::PathBuf;

use op_dbus_models::RuntimeStore;
use op_dbus_models::manifest::{self, Library, Provider};
use serde_json::{Value, json};

use super::super::models::megabytes;
use super::super::store::{looked, painted};
use super::super::terminal::{Colour, colour, harmless, paint};
use super::super::{Failure, print};

/// One line of `list`.
struct Row {
    library: &'static Library,
    provider: &'static Provider,
    path: Option<PathBuf>,
    state: &'static str,
    reason: Option<String>,
}

pub(super) fn run(store: &RuntimeStore, json: bool) -> Result<(), Failure> {
    let rows = rows(store);
    if json {
        let rows: Value = rows.iter().map(Row::json).collect();
        return print(format!("{rows:#}\n"));
    }
    let title = |row: &Row| format!("{} {}", row.library.package, row.library.version);
    let width = rows.iter().map(|row| title(row).len()).max().unwrap_or(0);
    let colour = colour();
    let heading = format!("{:<8}  {:<width$}  {:>8}  state", "provider", "library", "size");
    let mut out = paint(heading, Colour::Faint, colour) + "\n";
    for row in &rows {
        let size = row.bytes().map_or_else(|| "-".to_owned(), megabytes);
        let path = row.path.as_ref().map(|path| format!("  {}", harmless(path.display())));
        out.push_str(&format!(
            "{:<8}  {:<width$}  {size:>8}  {}{}\n",
            row.provider.name,
            title(row),
            painted(row.state, colour),
            path.unwrap_or_default()
        ));
    }
    let mut reasons: Vec<_> = rows.iter().filter_map(|row| row.reason.as_ref()).collect();
    // Providers that share a library share what is wrong with it.
    reasons.dedup();
    for reason in reasons {
        out.push_str(&format!("{}\n", harmless(reason)));
    }
    print(out)
}

/// The providers in the manifest's order.
fn rows(store: &RuntimeStore) -> Vec<Row> {
    let row = |(library, provider): (&'static Library, &'static Provider)| {
        let (path, state, reason) = looked(store.check(&provider.name));
        Row { library, provider, path, state, reason }
    };
    let each = |library: &'static Library| library.providers.iter().map(move |one| (library, one));
    manifest::libraries().iter().flat_map(each).map(row).collect()
}

impl Row {
    /// Size of the library for this machine.
    fn bytes(&self) -> Option<u64> {
        self.library.build().ok().map(manifest::Build::bytes)
    }

    fn json(&self) -> Value {
        json!({
            "provider": self.provider.name,
            "library": self.library.package,
            "version": self.library.version,
            "kind": if self.library.plugin.is_some() { "plugin" } else { "runtime" },
            "execution_provider": self.provider.execution_provider,
            "devices": self.provider.devices,
            "needs": self.provider.needs,
            "bytes": self.bytes(),
            "state": self.state,
            "path": self.path,
            "reason": self.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_shows_every_provider_of_an_empty_store() {
        let dir = std::env::temp_dir().join("op-dbus-there-is-no-such-folder");
        let rows = rows(&RuntimeStore::open(dir));
        let names: Vec<_> = rows.iter().map(|row| row.provider.name.as_str()).collect();
        assert_eq!(names, manifest::provider_names().collect::<Vec<_>>());
        assert!(rows.iter().all(|row| row.path.is_none() && row.reason.is_none()));
    }
}
